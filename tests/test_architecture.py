"""The rules of the house, checked: one direction of imports, a pure core, SQL in one place."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

APP = Path(__file__).parent.parent / "app"
FILES = sorted(path for path in APP.rglob("*.py"))

#: A module imports only from layers before its own, and within a package from its neighbours.
LAYERS = (
    ("app.errors",),
    ("app.outage", "app.forwarded"),
    ("app.machine",),
    ("app.model",),
    ("app.clarify",),
    ("app.vault",),
    ("app.sources",),
    ("app.settings",),
    ("app.in_force",),
    ("app.shortcut.values",),
    ("app.shortcut.signature", "app.shortcut.envelope", "app.shortcut.event"),
    ("app.shortcut.changes",),
    ("app.shortcut.v1", "app.shortcut.v2"),
    ("app.words",),
    ("app.decide",),
    ("app.db",),
    ("app.embedded",),
    ("app.migrate",),
    ("app.wake",),
    ("app.budget",),
    ("app.shortcut.client",),
    ("app.shortcut.agent", "app.shortcut.oauth"),
    ("app.installs",),
    ("app.drafters",),
    ("app.operate", "app.why"),
    ("app.live",),
    ("app.api",),
    ("app.problems",),
    ("app.door",),
    ("app.worker",),
    ("app.console",),
    ("app.metrics",),
    ("app.callback", "app.health"),
    ("app.web",),
    ("app.logs",),
    ("app.processes",),
    ("app.main",),
    ("app.send",),
    ("app.simulator",),
    ("app.doctor",),
    ("app.cli",),
)
PURE = (
    "app.clarify",
    "app.errors",
    "app.forwarded",
    "app.machine",
    "app.model",
    "app.shortcut.values",
    "app.shortcut.signature",
    "app.shortcut.envelope",
    "app.shortcut.event",
    "app.shortcut.changes",
    "app.shortcut.v1",
    "app.shortcut.v2",
    "app.worker.interpret",
    "app.decide",
    "app.words",
    "app.drafters.contract",
    "app.console.diff",
    "app.console.drawing",
)
IMPURE = {"asyncio", "asyncpg", "httpx", "fastapi", "os", "socket", "subprocess", "time", "random"}
SQL = re.compile(r"^\s*(select|insert into|update|delete from|with \w+ as)\s", re.IGNORECASE)


def name_of(path: Path) -> str:
    """The module's dotted name."""
    parts = path.relative_to(APP.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def layer_of(module: str) -> int:
    """Where the module stands; fails for one that no layer names."""
    for number, names in enumerate(LAYERS):
        if any(module == name or module.startswith(name + ".") for name in names):
            return number
    raise AssertionError(f"{module} is in no layer")


def imports_of(path: Path) -> Iterator[str]:
    """The modules that this one imports, ours by their full name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = APP.parent.joinpath(*full.split(".")).with_suffix(".py").exists()
                is_package = APP.parent.joinpath(*full.split(".")).is_dir()
                yield full if is_module or is_package else node.module


CODE = [path for path in FILES if path.name != "__init__.py"]


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_imports_go_one_way(path):
    """A module imports nothing from its right."""
    module = name_of(path)
    backwards = [
        other
        for other in imports_of(path)
        if other.startswith("app.")
        and layer_of(other) >= layer_of(module)
        and other.rpartition(".")[0] != module.rpartition(".")[0]
    ]
    same_layer = [
        other
        for other in imports_of(path)
        if other.startswith("app.")
        and other.count(".") == 1
        and module.count(".") == 1
        and layer_of(other) >= layer_of(module)
    ]

    assert backwards + same_layer == []


@pytest.mark.parametrize("module", PURE)
def test_the_core_is_pure(module):
    """The core does no I/O, reads no clock and awaits nothing."""
    path = APP.parent.joinpath(*module.split(".")).with_suffix(".py")

    impure = {other.partition(".")[0] for other in imports_of(path)} & IMPURE
    tree = ast.parse(path.read_text())
    awaits = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    clocks = re.findall(r"\b(?:datetime\.now|utcnow|today)\(", path.read_text())

    assert (impure, awaits, clocks) == (set(), [], [])


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_sql_is_in_one_place(path):
    """SQL stands in app/db and in the migrations; elsewhere only what asks about the session."""
    module = name_of(path)
    if module.startswith("app.db."):
        return
    tree = ast.parse(path.read_text())
    texts = [
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) if isinstance(n.value, str)
    ]

    found = [text for text in texts if SQL.match(text)]

    allowed = {"app.wake": 2, "app.migrate": 3}
    assert len(found) <= allowed.get(module, 0), found


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_descriptor_is_closed_once(path):
    """uvloop's pipe transports close theirs twice; by then it may be another thread's."""
    assert not re.search(r"connect_(read|write)_pipe", path.read_text())


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_functions_are_short(path):
    """No function is longer than 30 lines, its docstring aside; SQL or one dict may have 60."""
    long = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1 if ast.get_docstring(node) else 0 :]
            lines = node.end_lineno - first[0].lineno + 1 if first else 0
            is_one_thing = len(first) <= 2 or name_of(path).startswith("app.db.")
            if lines > (60 if is_one_thing else 30):
                long.append((node.name, lines))

    assert long == []
