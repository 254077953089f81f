"""A drafter for trying things out: writes the story down as a Markdown file, as a patch.

Run it as `python -P -m app.drafters.sample`: without `-P`, Python would look for `app` in the
worktree first. It follows the contract as any other program would.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FAILURE = "failing on purpose, as --fail-first-percent says; the next attempt will do"


def main() -> None:
    """Reads the request, makes the change, writes the result."""
    options = _options()
    request = json.load(sys.stdin.buffer)
    time.sleep(options.seconds)
    if request["attempt"] == 1 and _percentile(request) < options.fail_first_percent:
        sys.exit(FAILURE)
    path, text = Path(f"drafts/sc-{request['story']['sc_id']}.md"), _note(request)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    result = {"summary": f"Writes the story down in `{path}`.", "cost_usd": 0}
    if not Path(".git").exists():
        result["patch"] = _patch(path, text)
    Path(os.environ["DRAFTGATE_RESULT_FILE"]).write_text(json.dumps(result), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -P -m app.drafters.sample", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--fail-first-percent",
        type=int,
        default=0,
        metavar="N",
        help="fail the first attempt at N of 100 stories, always the same ones",
    )
    parser.add_argument("--seconds", type=float, default=0, help="take this long")
    return parser.parse_args()


def _percentile(request: dict[str, Any]) -> int:
    name = f"{request['workspace']}/{request['story']['sc_id']}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()) % 100


def _note(request: dict[str, Any]) -> str:
    story = request["story"]
    # Lines of a description and of a patch end in the same way: by a line feed.
    described = [line.strip() for line in story["description"].split("\n")]
    lines = [
        f"# {' '.join(story['title'].split()) or 'Untitled'}",
        "",
        f"Story sc-{story['sc_id']}, draft {request['revision'] + 1}.",
        "",
        *(f"- [ ] {line.lstrip('-*[] ')}" for line in described if line.strip("-*[] ")),
        *(f"- [ ] {' '.join(task.split())}" for task in story["tasks"]),
    ]
    said = [" ".join(remark["text"].split()) for remark in request["conversation"]]
    if said:
        lines += ["", "## What was said", "", *(f"- {text}" for text in said)]
    return "\n".join(lines).rstrip() + "\n"


def _patch(path: Path, text: str) -> str:
    lines = text.removesuffix("\n").split("\n")
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
    )


if __name__ == "__main__":
    main()
