"""The console in a real browser: live, by hand, without JavaScript, and for screen readers."""

import shlex
from contextlib import asynccontextmanager

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import async_playwright, expect

from app.cli.trial import SAMPLE_DRAFTER
from app.simulator.records import PEOPLE
from tests.locks import until
from tests.stack import stack

PATIENCE_MS = 30_000
TITLE = "Export <img src=x onerror=alert(1)> invoices"


@asynccontextmanager
async def browser(program, **options):
    """A window of Chromium; whatever goes wrong in its pages is in the list beside it."""
    async with async_playwright() as playwright:
        # The sandbox of Chromium does not work for root, as whom tests run in containers.
        chromium = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = await chromium.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        page, faults = await context.new_page(), []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        yield page, faults
        await chromium.close()


@pytest.fixture
async def service(database, tmp_path):
    """Everything in one process, whose drafter fails until there is a certain file."""
    async with stack(database, tmp_path) as it:
        sample, allowed = shlex.join(SAMPLE_DRAFTER), shlex.quote(str(tmp_path / "allowed"))
        it.drafter = ("sh", "-c", f"test -e {allowed} && exec {sample}; echo no >&2; exit 1")
        it.settings |= {"DRAFTGATE_MAX_ATTEMPTS": "1", "DRAFTGATE_POLL_SECONDS": "0.2"}
        fd = it.trial.service.fileno()
        await it.start("serve", "--fd", str(fd), fd=fd)
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(f"{it.trial.service_url}/livez")).status_code == 200
        yield it


async def accessible(page, scheme="light"):
    """axe-core has nothing to say against the page."""
    await page.emulate_media(color_scheme=scheme)
    found = await Axe().run(page)
    assert found.response["violations"] == [], page.url


async def test_an_operator_s_morning(service, require_tool, tmp_path):
    """Signs in, sees a session fail, retries it, sees it drafted, asks why another did nothing."""
    workspace = service.simulation.workspace
    async with browser(require_tool("chromium")) as (page, faults):
        await page.goto(service.trial.sign_in_url)
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await accessible(page)
        await page.get_by_role("link", name="Sessions", exact=True).click()
        await expect(page.locator("#live")).to_have_text("Live.", timeout=PATIENCE_MS)
        story = workspace.create_story(PEOPLE[0], {"name": TITLE, "description": "As CSV."}).id
        workspace.update_stories(PEOPLE[0], [story], {}, labels_add=["patch"])
        failed = page.locator("tr", has_text=f"sc-{story}").locator(".status.failed")
        await expect(failed).to_be_visible(timeout=PATIENCE_MS)
        await expect(page.locator("tr", has_text=TITLE)).to_be_visible()
        await accessible(page)

        await page.get_by_role("link", name=f"sc-{story}").click()
        await page.get_by_role("link", name="Retry…").click()
        await expect(page.get_by_text("It will be drafted again")).to_be_visible()
        await accessible(page)
        (tmp_path / "allowed").touch()
        await page.get_by_role("button", name="Retry").click()
        await expect(page.locator("#head .status")).to_have_text("drafted", timeout=PATIENCE_MS)
        await expect(page.locator("tr.new").first).to_contain_text("# Export <img src=x")
        await expect(page.locator("#timeline-part")).to_contain_text("operator")
        await accessible(page)
        await accessible(page, "dark")
        await page.get_by_role("link", name="Side by side").click()
        await expect(page.locator(".split td.new").first).to_be_visible()
        await accessible(page)

        other = workspace.create_story(PEOPLE[0], {"name": "Another"}).id
        await until(lambda: _told_of(page, service, other))
        await page.get_by_role("link", name="Replay…").click()
        await page.get_by_role("button", name="Replay").click()
        await expect(page.get_by_role("heading", name="Replays")).to_be_visible()
        await expect(page.locator("#event .status").first).to_have_text(
            "ignored", timeout=PATIENCE_MS
        )
        await accessible(page)
    assert faults == []
    assert "Traceback" not in service.log()


async def _told_of(page, service, story):
    """Asks why nothing happened; once there is an event, goes to it."""
    await page.goto(f"{service.trial.service_url}/console/why")
    await page.get_by_label("Story").fill(f"https://app.shortcut.com/acme/story/{story}/x")
    await page.get_by_role("button", name="Ask").click()
    event = page.locator("tr", has_text="ignored").get_by_role("link")
    if await event.count() == 0:
        return False
    await expect(page.get_by_role("heading", level=2)).to_contain_text("opened a session")
    await accessible(page)
    await event.first.click()
    return True


async def test_reading_needs_no_javascript(service, require_tool, tmp_path):
    """Sign-in, lists, a session with its diff, on a phone's screen, by keyboard."""
    (tmp_path / "allowed").touch()
    workspace = service.simulation.workspace
    story = workspace.create_story(PEOPLE[0], {"name": TITLE * 8, "description": "w" * 500}).id
    workspace.update_stories(PEOPLE[0], [story], {}, labels_add=["patch"])
    phone = {"viewport": {"width": 360, "height": 640}, "java_script_enabled": False}
    async with browser(require_tool("chromium"), **phone) as (page, faults):
        await page.goto(f"{service.trial.service_url}/console/sessions?status=drafted")
        await page.get_by_label("Token").fill(service.trial.api_token)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        await until(lambda: _listed(page, story))
        await page.get_by_role("link", name=f"sc-{story}").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("tr.new").first).to_contain_text("# Export <img src=x")
        box = await page.locator("h1").bounding_box()
        assert box["x"] + box["width"] <= 360
        await page.get_by_role("link", name="Overview").click()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert faults == []


async def _listed(page, story):
    await page.reload()
    return await page.get_by_role("link", name=f"sc-{story}").count() == 1
