"""The console in a real browser: live, by hand, without JavaScript, and for screen readers."""

import re
import shlex
from contextlib import asynccontextmanager

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import async_playwright, expect

from app.cli.trial import SAMPLE_DRAFTER
from app.simulator.records import PEOPLE
from tests.hostile import TOKEN, hostile_pages
from tests.locks import until
from tests.service import receiver
from tests.stack import stack

PATIENCE_MS = 30_000
PHONE = {"width": 360, "height": 640}
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


class Desk:
    """Everything in one process, which clarifies and drafts one story at a time, and when told."""

    def __init__(self, it, home):
        self.url = it.trial.service_url
        self.sign_in_url = it.trial.sign_in_url
        self.api_token = it.trial.api_token
        self.workspace = it.simulation.workspace
        self.log = it.log
        self._home = home

    def let(self, step):
        """Has whoever waits for it, or will, `clear` a story, `finish` its draft, or `fail`."""
        (self._home / step).touch()

    def story(self, name, description="As CSV."):
        """A story that asks for a patch."""
        number = self.workspace.create_story(
            PEOPLE[0], {"name": name, "description": description}
        ).id
        self.workspace.update_stories(PEOPLE[0], [number], {}, labels_add=["patch"])
        return number


@pytest.fixture
async def desk(database, tmp_path):
    """It, with a simulated Shortcut."""
    async with stack(database, tmp_path) as it:
        home, sample = shlex.quote(str(tmp_path)), shlex.join(SAMPLE_DRAFTER)
        fails = "! rm fail || exit 1"
        it.drafter = _waits(home, "finish", meanwhile=fails, then=sample)
        it.settings |= {
            "DRAFTGATE_CLARIFIER_COMMAND": shlex.join(_waits(home, "clear")),
            "DRAFTGATE_MAX_ATTEMPTS": "1",
            "DRAFTGATE_POLL_SECONDS": "0.2",
            "DRAFTGATE_WORKER_SLOTS": "1",
        }
        fd = it.trial.service.fileno()
        await it.start("serve", "--fd", str(fd), fd=fd)
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(f"{it.trial.service_url}/livez")).status_code == 200
        yield Desk(it, tmp_path)


def _waits(home, step, *, meanwhile="true", then="true"):
    """A command that goes on once, when it is let."""
    wait = f"until rm {step}; do {meanwhile}; sleep 0.1; done"
    return ("sh", "-c", f"(cd {home}; {wait} 2>/dev/null) && exec {then}")


#: Leaves one of what looks alike beside it: what contrast takes grows with the page.
THIN_OUT = """() => {
    const looks = (part) => [part, ...part.querySelectorAll("*")]
        .map((it) => `${it.tagName}.${it.getAttribute("class")}`).join();
    for (const parent of document.querySelectorAll("main *")) {
        const seen = new Set();
        for (const child of [...parent.children]) {
            if (seen.has(looks(child))) child.remove();
            seen.add(looks(child));
        }
    }
}"""
CONTRAST = "color-contrast"
#: Pages that are another one's with another filter, another action, or another draft.
SAME_PARTS = re.compile(r"^(sessions|outbox)\?|story=2|/late/|/drafts/1$|/(retry|adopt|close)\b")


async def accessible(page):
    """axe-core has nothing to say against the page: by all rules, and in light as in dark."""
    await page.evaluate(Axe().axe_script)
    found = await _violations(page, rules={CONTRAST: {"enabled": False}})
    await page.evaluate(THIN_OUT)
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        found += await _violations(page, runOnly=[CONTRAST])
    assert found == [], page.url


async def _violations(page, **options):
    run = "async (options) => (await axe.run(options)).violations"
    return await page.evaluate(run, {"resultTypes": ["violations"], **options})


async def test_an_operator_s_morning(desk, require_tool):
    """Watches one being drafted, retries another, stops a third, asks why a fourth did nothing."""
    async with browser(require_tool("chromium")) as (page, faults):
        await page.goto(desk.sign_in_url)
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await page.get_by_role("link", name="Sessions", exact=True).click()
        await expect(page.locator("#live")).to_have_text("Live.", timeout=PATIENCE_MS)

        await _watches(page, desk)
        await _retries(page, desk)
        await _stops(page, desk)
        other = desk.workspace.create_story(PEOPLE[0], {"name": "Another"}).id
        await until(lambda: _told_of(page, desk, other))
        await _replays(page)
    assert faults == []


async def _stands(page, story, status):
    """The list says it by itself: the page is not loaded again."""
    row = page.locator("tr", has_text=f"sc-{story}").locator(f".status.{status}")
    await expect(row).to_be_visible(timeout=PATIENCE_MS)


async def _is(page, status):
    """The page of a session says it by itself."""
    await expect(page.locator("#head .status")).to_have_text(status, timeout=PATIENCE_MS)


async def _watches(page, desk):
    """Each status of a story, while another one is before it; nothing is loaded again by hand."""
    await _stands(page, desk.story("Comes first"), "asking")
    story = desk.story(TITLE)
    await _stands(page, story, "opened")
    await expect(page.locator("tr", has_text=TITLE)).to_be_visible()
    await page.get_by_role("link", name=f"sc-{story}").click()
    await _is(page, "opened")
    await page.evaluate("window.loadedOnce = true")
    for let, status in (
        *(("clear", "asking"), ("clear", "clarified")),
        *(("finish", "drafting"), ("finish", "drafted")),
    ):
        desk.let(let)
        await _is(page, status)
    await expect(page.locator("tr.new").first).to_contain_text("# Export <img src=x")
    assert await page.evaluate("window.loadedOnce")
    await page.get_by_role("link", name="Side by side").click()
    await expect(page.locator(".split td.new").first).to_be_visible()
    await page.get_by_role("link", name="Sessions", exact=True).click()


async def _retries(page, desk):
    desk.let("clear")
    desk.let("fail")
    story = desk.story("Fails at first")
    await _stands(page, story, "failed")
    await page.get_by_role("link", name=f"sc-{story}").click()
    await page.get_by_role("link", name="Retry…").click()
    await expect(page.get_by_text("It will be drafted again")).to_be_visible()
    await page.get_by_role("button", name="Retry").click()
    await _is(page, "drafting")
    desk.let("finish")
    await _is(page, "drafted")
    await expect(page.locator("#timeline-part")).to_contain_text("operator")


async def _stops(page, desk):
    desk.let("clear")
    story = desk.story("Takes too long")
    await page.get_by_role("link", name="Sessions", exact=True).click()
    await _stands(page, story, "drafting")
    await page.get_by_label("Story: number, link or words of its title").fill("takes too")
    await page.get_by_role("button", name="Find").click()
    await page.get_by_role("link", name=f"sc-{story}").click()
    await page.get_by_role("link", name="Close…").click()
    await expect(page.get_by_text("will be stopped")).to_be_visible()
    await page.get_by_role("button", name="Close").click()
    await _is(page, "closed")
    await expect(page.locator("#timeline-part")).to_contain_text("stopped", timeout=PATIENCE_MS)


async def _replays(page):
    await page.get_by_role("link", name="Replay…").click()
    await page.get_by_role("button", name="Replay").click()
    await expect(page.get_by_role("heading", name="Replays")).to_be_visible()
    outcome = page.locator("#event .status").first
    await expect(outcome).to_have_text("ignored", timeout=PATIENCE_MS)


async def _told_of(page, desk, story):
    """Asks why nothing happened; once there is an event, goes to it."""
    await page.goto(f"{desk.url}/console/why")
    await page.get_by_label("Story", exact=True).fill(
        f"https://app.shortcut.com/acme/story/{story}/x"
    )
    await page.get_by_role("button", name="Ask").click()
    event = page.locator("tr", has_text="ignored").get_by_role("link")
    if await event.count() == 0:
        return False
    await expect(page.get_by_role("heading", level=2)).to_contain_text("opened a session")
    await event.first.click()
    return True


async def test_reading_needs_no_javascript(desk, require_tool):
    """Sign-in, lists, a session with its diff, on a phone's screen, by keyboard."""
    desk.let("clear")
    desk.let("finish")
    story = desk.story(TITLE * 8, "w" * 500)
    phone = {"viewport": PHONE, "java_script_enabled": False}
    async with browser(require_tool("chromium"), **phone) as (page, faults):
        await page.goto(f"{desk.url}/console/sessions?status=drafted")
        await page.get_by_label("Token").fill(desk.api_token)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        await until(lambda: _listed(page, story))
        await page.get_by_role("link", name=f"sc-{story}").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("tr.new").first).to_contain_text("# Export <img src=x")
        await page.get_by_role("link", name="Overview").click()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert faults == []


async def _listed(page, story):
    await page.reload()
    return await page.get_by_role("link", name=f"sc-{story}").count() == 1


async def test_every_page_is_for_everybody(database, ladder, conn, require_tool):
    """However hostile its text: axe-core finds nothing, it fits a phone, and nothing runs.

    By keyboard the first stop leads past the navigation, and one can see where one is.
    """
    paths = await hostile_pages(ladder, conn)
    async with (
        receiver(database, api_token=TOKEN) as service,
        browser(require_tool("chromium"), viewport=PHONE) as (page, faults),
    ):
        base = f"http://127.0.0.1:{service.port}/console/"
        await page.goto(f"{base}login")
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_label("Your name").press("Enter")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        for path in [*paths, "nothing"]:
            answer = await page.goto(base + path)
            assert answer.status == (404 if path == "nothing" else 200), path
            assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], (
                path
            )
            if not SAME_PARTS.search(path):
                await accessible(page)
    assert [fault for fault in faults if "404" not in fault] == []
