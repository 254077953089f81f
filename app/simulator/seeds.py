"""The stories that a simulated workspace starts with."""

from app.simulator.records import PEOPLE, STATES
from app.simulator.workspace import Workspace

_BACKLOG = STATES[0].id

_CSV = """As a bookkeeper I want the invoice list as a file, to check it against the bank.

Acceptance criteria:
- one row per invoice, newest first
- amounts in cents, dates as YYYY-MM-DD
- UTF-8, with a header row
"""

_CART = """Opening the cart before anything is in it shows an error page.

Steps:
1. sign in with a fresh account
2. open /cart

Expected: an empty cart with a link to the catalogue.
"""

_SORT = """The order list forgets its sort order on every visit. Keep the last choice per person.

Acceptance criteria:
- the choice survives signing out
- without a choice the list is sorted by date, newest first
"""

_PDF = """The PDF library is two major versions behind. The changelog names one breaking change:
page sizes are given in points.
"""

_STORIES: tuple[dict[str, object], ...] = (
    {"name": "Export invoices as CSV", "description": _CSV, "labels": ["billing"]},
    {
        "name": "Crash when the cart is empty",
        "description": _CART,
        "story_type": "bug",
        "labels": ["checkout"],
    },
    # Nothing but a name: somebody will have to ask.
    {"name": "Make the search faster", "workflow_state_id": _BACKLOG},
    {"name": "Remember the chosen sort order", "description": _SORT, "labels": ["orders"]},
    {
        "name": "Upgrade the PDF library",
        "description": _PDF,
        "story_type": "chore",
        "labels": ["billing"],
    },
)


def plant(workspace: Workspace) -> None:
    """Creates the stories."""
    for fields in _STORIES:
        workspace.create_story(PEOPLE[0], fields)
