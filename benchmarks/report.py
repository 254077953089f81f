"""What a run found, for people: a table in Markdown, and bars as SVG."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

NAMES = {
    "receive": "Draftgate",
    "textbook": "FastAPI, one INSERT per request",
    "with_procrastinate": "FastAPI + procrastinate",
    "with_pgqueuer": "FastAPI + PgQueuer",
    "fastify": "Fastify + pg (Node)",
    "webhook": "webhook (Go, not durable)",
    "fastapi_noop": "FastAPI, empty route",
    "noop": "uvicorn, empty app",
    "pgbench": "pgbench, one INSERT each, 16 clients",
}
#: What one core can do; what is measured as processor time is turned round.
CAPACITY = (
    ("receiver_cpu", "a receiver: new deliveries", "µs"),
    ("database_cpu", "PostgreSQL: new deliveries recorded", "µs"),
    ("interpret_irrelevant", "a worker: events that concern nobody", "1/s"),
    ("interpret_opening", "a worker: events that open a session", "1/s"),
    ("claim_and_complete", "a worker: sessions claimed and completed", "1/s"),
)
END = "<!-- end of figures -->"
WIDTH, LABEL, BAR, STEP = 760, 270, 20, 30


def targets_table(results: Mapping[str, Any]) -> str:
    """Each target, what was measured, and whether it was met."""
    rows = ["| key | measured | target | |", "| --- | ---: | ---: | --- |"]
    for target in results["targets"]:
        sign = "≥" if target["at_least"] else "≤"
        unit = f" {target['unit']}" if target["unit"] else ""
        met = "met" if target["met"] else "**missed**"
        rows.append(
            f"| `{target['key']}` | {number(target['value'])}{unit} "
            f"| {sign} {number(target['limit'])} | {met} |"
        )
    return "\n".join(rows)


def entries_table(results: Mapping[str, Any]) -> str:
    """Every entry with its spread."""
    rows = [
        "| entry | unit | median | min | max | n | over | ratio |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for entry in results["entries"]:
        figures = " | ".join(number(entry[key]) for key in ("median", "min", "max"))
        ratio = "" if entry["ratio"] is None else f"{entry['ratio']:.2f}"
        rows.append(
            f"| {entry['name']} | {entry['unit']} | {figures} | {entry['n']} "
            f"| {entry['reference'] or ''} | {ratio} |"
        )
    return "\n".join(rows)


def short_table(results: Mapping[str, Any]) -> str:
    """What the README shows: deliveries a second, and how many times as many as elsewhere."""
    entries = {entry["name"]: entry for entry in results["entries"]}
    rows = ["| deliveries a second | median | Draftgate over it |", "| --- | ---: | ---: |"]
    for name, text in NAMES.items():
        if name in entries:
            ratio = entries.get(f"receive/{name}", {}).get("ratio")
            over = "" if ratio is None else f"{ratio:.2f} ×"
            rows.append(f"| {text} | {number(entries[name]['median'])} | {over} |")
    return "\n".join(rows)


def markdown(results: Mapping[str, Any]) -> str:
    """The whole of it, as results/latest.md."""
    machine = "\n".join(f"- {key}: {value}" for key, value in results["machine"].items())
    return (
        f"# Figures\n\nMade by `make bench`, scale `{results['scale']}`; do not edit.\n\n"
        f"{machine}\n\n"
        f"## Targets\n\n{targets_table(results)}\n\n## Entries\n\n{entries_table(results)}\n"
    )


def capacity_table(results: Mapping[str, Any]) -> str:
    """What one core does in a second, of each kind of work, as docs/scale.md shows it."""
    medians = {entry["name"]: entry["median"] for entry in results["entries"]}
    rows = ["| one core of | does in a second | measured as |", "| --- | ---: | --- |"]
    for name, text, unit in CAPACITY:
        if name in medians:
            value = 1e6 / medians[name] if unit == "µs" else medians[name]
            rows.append(f"| {text} | {number(value)} | `{name}`, {number(medians[name])} {unit} |")
    return "\n".join(rows)


TABLES = {
    "short": short_table,
    "targets": targets_table,
    "entries": entries_table,
    "capacity": capacity_table,
}


def replaced(document: str, results: Mapping[str, Any]) -> str:
    """The document with each table anew that stands between marks with its name."""
    for name, table in TABLES.items():
        before, begin, rest = document.partition(f"<!-- make bench: {name} -->")
        if begin:
            after = rest.partition(END)[2]
            document = f"{before}{begin}\n{table(results)}\n{END}{after}"
    return document


def bars(title: str, unit: str, values: Sequence[tuple[str, float]]) -> str:
    """A chart of horizontal bars that needs nothing but a browser."""
    most = max(value for _, value in values)
    height = 40 + STEP * len(values)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="sans-serif" font-size="13" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="10" y="22" font-weight="bold">{escape(title)}, {escape(unit)}</text>',
    ]
    for position, (name, value) in enumerate(values):
        y = 36 + position * STEP
        length = (WIDTH - LABEL - 90) * value / most
        fill = "#2563eb" if name.startswith("Draftgate") else "#94a3b8"
        lines += [
            f'<text x="{LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{fill}"/>',
            f'<text x="{LABEL + length + 6:.1f}" y="{y + 15}">{number(value)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def chart(results: Mapping[str, Any]) -> str:
    """Deliveries a second, everybody's."""
    medians = {entry["name"]: entry["median"] for entry in results["entries"]}
    values = [(text, medians[name]) for name, text in NAMES.items() if name in medians]
    return bars("Deliveries of 1 kB", "per second", values)


def number(value: float) -> str:
    """With thousands apart, and no more digits than there are."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
