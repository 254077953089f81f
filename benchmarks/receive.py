"""The door beside its peers: committed deliveries a second."""

from collections.abc import Callable
from contextlib import ExitStack

from benchmarks import servers
from benchmarks.bench import Bench
from benchmarks.database import database_cpu_seconds, pgbench, sql
from benchmarks.load import Run, wrk
from benchmarks.payloads import BODY_BYTES, Requests
from benchmarks.servers import Server

#: Peers in benchmarks/peers, with the table that their answers stand for, and what empties it.
PEERS = {
    "noop": (None, None),
    "fastapi_noop": (None, None),
    "textbook": ("textbook", "truncate textbook"),
    "with_procrastinate": (
        "procrastinate_jobs",
        "truncate procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers",
    ),
    "with_pgqueuer": ("pgqueuer", "truncate pgqueuer, pgqueuer_log"),
    "fastify": ("fastify", "truncate fastify"),
    "webhook": (None, None),
}
#: What Draftgate is to reach over each.
TARGETS = {
    "pgbench": 1.2,
    "textbook": 5.5,
    "fastapi_noop": 1.4,
    "with_procrastinate": 5,
    "with_pgqueuer": 5,
    "noop": 0.55,
}
EMPTY = "truncate events restart identity cascade"
REFERENCE = """
    insert into reference (id, body) values (gen_random_uuid(), :body) on conflict do nothing;
"""


def run(bench: Bench, *, peers: bool = True) -> None:
    """A B A B: Draftgate and each peer in turn, on one database."""
    requests = bench.requests()
    with bench.database("receive") as dsn, ExitStack() as running:
        ours = running.enter_context(servers.draftgate(dsn, bench.home))
        others: dict[str, Callable[[], float]] = {"pgbench": _pgbench(bench, dsn, requests)}
        if peers:
            for name in PEERS:
                if name == "fastify" and not (servers.FASTIFY / "node_modules").exists():
                    continue
                others[name] = _peer(bench, dsn, running, name, requests)
        _one(bench, dsn, ours, requests)  # Warms both up, and counts for nothing.
        everything: list[float] = []
        for name, other in others.items():
            pairs = [(_one(bench, dsn, ours, requests), other()) for _ in range(bench.scale.rounds)]
            mine, theirs = [a for a, _ in pairs], [b for _, b in pairs]
            everything += mine
            ratio = bench.figures.add(f"receive/{name}", "1/s", mine, reference=name, beside=theirs)
            bench.figures.add(name, "1/s", theirs)
            if name in TARGETS:
                key = f"receive_vs_{name.removeprefix('with_')}"
                bench.figures.reach(key, ratio, least=TARGETS[name], unit="×")
        bench.figures.add("receive", "1/s", everything)
        _costs(bench, dsn, ours, requests)


def counted(bench: Bench, dsn: str, server: Server, requests: Requests, table: str) -> Run:
    """One run, of which every answer stands in the table."""
    done = wrk(server.port, requests, seconds=bench.scale.seconds)
    stored = sql(dsn, f"select count(*) from {table}")  # noqa: S608
    if stored < done.requests:
        raise RuntimeError(f"{done.requests} answers, but only {stored} rows in {table}")
    return done


def _one(bench: Bench, dsn: str, ours: Server, requests: Requests) -> float:
    sql(dsn, EMPTY)
    return counted(bench, dsn, ours, requests, "events").per_second


def _costs(bench: Bench, dsn: str, ours: Server, requests: Requests) -> None:
    """Processor time of one delivery, in the receiver and in the database."""
    receivers, databases = [], []
    for _ in range(bench.scale.rounds):
        sql(dsn, EMPTY)
        receiver, database = ours.cpu_seconds, database_cpu_seconds(dsn)
        done = counted(bench, dsn, ours, requests, "events")
        each = 1e6 / done.requests
        receivers.append((ours.cpu_seconds - receiver) * each)
        databases.append((database_cpu_seconds(dsn) - database) * each)
    bench.figures.add("receiver_cpu", "µs", receivers)
    bench.figures.add("database_cpu", "µs", databases)


def _pgbench(bench: Bench, dsn: str, requests: Requests) -> Callable[[], float]:
    sql(dsn, "create table reference (id uuid primary key, body bytea not null)")
    script = bench.home / "reference.sql"
    script.write_text(REFERENCE)
    body = next(iter(requests))[-BODY_BYTES:].decode()

    def measure() -> float:
        sql(dsn, "truncate reference")
        return pgbench(dsn, script, seconds=bench.scale.seconds, variables=[f"body={body}"])

    return measure


def _peer(
    bench: Bench, dsn: str, running: ExitStack, name: str, requests: Requests
) -> Callable[[], float]:
    table, empty = PEERS[name]
    if name == "webhook":
        server = running.enter_context(servers.webhook(bench.home))
    else:
        servers.prepare(name, dsn)
        server = running.enter_context(servers.peer(name, dsn, bench.home))

    def measure() -> float:
        if table is None or empty is None:
            return wrk(server.port, requests, seconds=bench.scale.seconds).per_second
        sql(dsn, empty)
        return counted(bench, dsn, server, requests, table).per_second

    return measure
