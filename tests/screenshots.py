"""`make screenshots`: the console over a simulated workspace, as the documents show it.

Stories, patches and sizes are always the same; clocks and the names of workers are the run's.
"""

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

import httpx
from playwright.async_api import Page, async_playwright

from app.cli.simulate import FIRST_STORY
from app.db.connect import Database
from app.embedded import postgres
from app.migrate import migrate
from app.simulator.records import PEOPLE
from app.simulator.workspace import Workspace
from tests.drafters import commit, repository_in
from tests.locks import until
from tests.stack import Stack, stack

HERE = Path(__file__).parent.parent / "docs" / "screenshots"
DESK, PHONE = {"width": 1200, "height": 800}, {"width": 390, "height": 844}
EXPORT = '''"""Invoices as people get them."""

from invoices.model import Invoice


def total(invoices: list[Invoice]) -> int:
    """The sum in cents."""
    return sum(invoice.cents for invoice in invoices)


def export(invoices: list[Invoice]) -> str:
    """One line for each invoice."""
    lines = []
    for invoice in invoices:
        lines.append(f"{invoice.number};{invoice.cents / 100}")
    return "\\n".join(lines)
'''
#: Changes the file as a person might; is slow, or fails, where the title says so.
DRAFTER = """
import json, os, pathlib, sys, time
title = json.load(sys.stdin.buffer)["story"]["title"]
if "PDF" in title:
    sys.exit("no module named 'fpdf': the drafter's image lacks it")
if "currency" in title:
    time.sleep(600)
path = pathlib.Path("export.py")
text = path.read_text()
text = text.replace("from invoices", "import csv\\nimport io\\n\\nfrom invoices")
start = text.index("    lines = []")
text = text[:start] + '''    file = io.StringIO()
    writer = csv.writer(file, delimiter=";")
    for invoice in invoices:
        writer.writerow([invoice.number, f"{invoice.cents / 100:.2f}"])
    return file.getvalue()
'''
path.write_text(text)
summary = "Writes with `csv`, so that a semicolon in a number breaks no line; always two decimals."
pathlib.Path(os.environ["DRAFTGATE_RESULT_FILE"]).write_text(json.dumps({"summary": summary}))
"""
DONE = "select count(*) = 0 from patch_sessions where status in ('opened', 'asking', 'clarified')"


def main() -> None:
    """Draws all of them anew."""
    home = Path(tempfile.mkdtemp(prefix="draftgate-screenshots-"))
    home.chmod(0o755)
    try:
        with postgres(home) as dsn:
            asyncio.run(_run(dsn, home))
    finally:
        shutil.rmtree(home, ignore_errors=True)


async def _run(dsn: str, home: Path) -> None:
    await migrate(dsn)
    async with stack(Database(dsn=dsn, listen_dsn=dsn), home) as it:
        await _serve(it, home)
        await _tell(it.simulation.workspace, dsn)
        await _draw(it)


async def _serve(it: Stack, home: Path) -> None:
    (home / "drafter.py").write_text(DRAFTER)
    repository = repository_in(home)
    commit(repository, export__py=EXPORT)
    it.drafter = (sys.executable, "-P", str(home / "drafter.py"))
    it.settings |= {
        "DRAFTGATE_REPOSITORY": str(repository),
        "DRAFTGATE_MAX_ATTEMPTS": "1",
        "DRAFTGATE_SPOOL_DIR": str(home / "spool"),
    }
    fd = it.trial.service.fileno()
    await it.start("serve", "--fd", str(fd), fd=fd)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        await client.get(f"{it.trial.service_url}/livez")


async def _tell(workspace: Workspace, dsn: str) -> None:
    """Stories of every kind; the last one is the one that was drafted."""
    owner = PEOPLE[0]
    conn = await Database(dsn=dsn, listen_dsn=dsn).connect("screenshots")

    async def story(
        name: str, label: str = "patch", description: str = "As the customer asked."
    ) -> int:
        number = workspace.create_story(owner, {"name": name, "description": description}).id
        workspace.update_stories(owner, [number], {}, labels_add=[label])
        await until(lambda: conn.fetchval("select count(*) from facts where sc_id = $1", number))
        return number

    for name in ("Dark mode for the portal", "Let admins rename teams", "Faster search"):
        await story(name, label="design")
    await story("Send invoices as PDF")
    await story("Show the customer's currency")
    await story("Remember the last filter", description="")
    withdrawn = await story("Sort invoices by due date")
    await until(
        lambda: conn.fetchval("select revision from patch_sessions where sc_id = $1", withdrawn)
    )
    workspace.update_stories(owner, [withdrawn], {}, labels_remove=["patch"])
    await story("Two decimals in the overview")
    drafted = await story("Export invoices as CSV")
    await until(
        lambda: conn.fetchval("select revision from patch_sessions where sc_id = $1", drafted)
    )
    await until(lambda: conn.fetchval(DONE))
    await conn.close()


async def _draw(it: Stack) -> None:
    base = f"{it.trial.service_url}/console"
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--hide-scrollbars"]
        )
        context = await chromium.new_context(viewport=DESK, reduced_motion="reduce")
        page = await context.new_page()
        await page.goto(it.trial.sign_in_url)
        await page.get_by_role("heading", name="Overview").wait_for()
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            for name, path in PAGES.items():
                await page.goto(f"{base}/{path}")
                await _shoot(page, f"{name}-{scheme}")
        await page.set_viewport_size(PHONE)
        await page.goto(f"{base}/")
        await _shoot(page, "phone-dark")
        await chromium.close()


#: Sessions have their numbers in the order of the stories above.
PAGES = {
    "overview": "",
    "session": "sessions/6",
    "diff": "sessions/6/drafts/1?view=split",
    "why": f"why?story={FIRST_STORY}",
}


async def _shoot(page: Page, name: str) -> None:
    await page.screenshot(path=HERE / f"{name}.png", animations="disabled")


if __name__ == "__main__":
    main()
