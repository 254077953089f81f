"""The door, over real HTTP: what is signed is recorded once, before it is answered."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from app.db import look
from app.db.connect import Database
from app.db.events import record
from app.shortcut.envelope import read
from app.shortcut.signature import sign
from tests import shapes
from tests.locks import until
from tests.service import SECRET, Service, receiver

BODY = shapes.labelled(1)


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    """A receiver with the usual settings."""
    async with receiver(database) as service:
        yield service


async def events(conn):
    """What is recorded."""
    return await conn.fetch("select * from events order by id")


def request(body: bytes, *, signature: str | None = None, **headers: str) -> bytes:
    """A delivery as it is on the wire."""
    head = {
        "Host": "draftgate",
        "Payload-Signature": signature or sign(SECRET.encode(), body),
        "Content-Length": str(len(body)),
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"POST /webhooks/shortcut HTTP/1.1\r\n{lines}\r\n".encode() + body


async def test_a_delivery_is_recorded_before_it_is_answered(service, conn):
    """The answer to a new delivery names its event, which is in the database by then."""
    answer = await service.post(BODY)

    assert answer.status_code == 200
    assert answer.json() == {"event_id": json.loads(BODY)["id"], "duplicate": False}
    (event,) = await events(conn)
    assert (event["body"], event["status"], event["kind"]) == (BODY, "pending", "v1")


async def test_a_duplicate_delivery_writes_nothing(service, conn):
    """The second copy is answered 200, says so, and leaves no row, no update and no number used."""
    await service.post(BODY)
    before = await events(conn)

    answer = await service.post(BODY)

    assert (answer.status_code, answer.json()["duplicate"]) == (200, True)
    assert await events(conn) == before
    await service.post(shapes.labelled(2))
    assert [event["id"] for event in await events(conn)] == [1, 2]


async def test_copies_that_arrive_together_are_one_event(service, conn):
    """Of fifty copies at the same moment, exactly one is new, and all are answered 200."""
    answers = await asyncio.gather(*(service.post(BODY) for _ in range(50)))

    assert {answer.status_code for answer in answers} == {200}
    assert sum(not answer.json()["duplicate"] for answer in answers) == 1
    assert len(await events(conn)) == 1


async def test_a_copy_that_is_being_recorded_elsewhere_is_a_duplicate(service, connect, conn):
    """A copy waits for another process's commit of the same event, and is then a duplicate."""
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(
        "insert into events (source, dedupe_key, kind, body) select 'shortcut', $1, 'v1', $2",
        _key(BODY),
        BODY,
    )
    answering = asyncio.ensure_future(service.post(BODY))
    await until(lambda: conn.fetchval(WAITS))

    await transaction.commit()

    assert (await answering).json()["duplicate"] is True
    assert len(await events(conn)) == 1


@pytest.mark.parametrize(
    "damage",
    [lambda b: b + b"\n", lambda b: b[:-1], lambda b: b.replace(b"Story", b"Stary")],
    ids=["longer", "shorter", "changed"],
)
async def test_a_body_changed_after_signing_is_refused(service, conn, damage):
    """One byte more, less or different: 401, and nothing is stored."""
    headers = {"Payload-Signature": sign(SECRET.encode(), BODY)}

    answer = await service.post(damage(BODY), headers=headers)

    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "signature-invalid"
    assert await events(conn) == []


@pytest.mark.parametrize("signature", ["", "é" * 32, "sha256=", "0" * 64, "z" * 64])
async def test_a_signature_that_is_none_is_refused(service, conn, signature):
    """Blank, foreign, prefixed or plainly wrong signatures: 401, never an error of ours."""
    headers = {"Payload-Signature": signature.encode("latin-1")}

    answer = await service.post(BODY, headers=headers)

    assert answer.status_code == 401
    assert await events(conn) == []


async def test_an_unsigned_delivery_is_refused_before_it_is_read(service):
    """Without a signature even a broken body is 401, not a complaint about the body."""
    answer = await service.client.post("/webhooks/shortcut", content=b"{")

    assert answer.status_code == 401


async def test_two_signatures_are_refused(service):
    """Two signature headers are ambiguous, whether or not one of them is right."""
    right = sign(SECRET.encode(), BODY)
    headers = [("Payload-Signature", right), ("Payload-Signature", right)]

    answer = await service.client.post("/webhooks/shortcut", content=BODY, headers=headers)

    assert answer.status_code == 401


async def test_a_validation_ping_is_answered(service):
    """A signed ping is answered 200."""
    assert (await service.post(b'{"type":"validation"}')).status_code == 200


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b"\xff", b'{"a":NaN}', b"[" * 20_000])
async def test_what_is_signed_but_unreadable_is_kept(service, conn, body):
    """The sender hears 400; the exact bytes are in quarantine, with the reason."""
    answer = await service.post(body)

    assert (answer.status_code, answer.json()["code"]) == (400, "not-json")
    (event,) = await events(conn)
    assert (event["status"], event["body"]) == ("quarantined", body)
    assert event["reason"]


@pytest.mark.parametrize("path", ["", "/", "/shortcut", "/shortcut/"])
async def test_the_path_has_no_redirects(service, path):
    """With and without a trailing slash, with and without the source's name: 200."""
    assert (await service.post(BODY, path=path)).status_code == 200


async def test_an_unknown_source_is_not_found(service):
    """A webhook that nobody has set up: 404."""
    assert (await service.post(BODY, path="/other")).status_code == 404


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
async def test_only_posts_are_deliveries(service, method):
    """Other methods: 405, with what is allowed."""
    answer = await service.client.request(method, "/webhooks/shortcut")

    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_an_encoded_body_is_refused(service):
    """A compressed body is not decompressed: 415."""
    answer = await service.post(BODY, headers={"Content-Encoding": "gzip"})

    assert answer.status_code == 415


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(database, conn, chunked):
    """Declared or not, one byte over the limit is 413; the limit itself is accepted."""
    padding = 4096 - len(BODY)
    fits, too_long = BODY + b" " * padding, BODY + b" " * (padding + 1)

    async def pieces(body):
        yield body[:100]
        yield body[100:]

    async with receiver(database, body_limit_bytes=4096) as service:
        statuses = []
        for body in (fits, too_long):
            headers = {"Payload-Signature": sign(SECRET.encode(), body)}
            content = pieces(body) if chunked else body
            url = "/webhooks/shortcut"
            answer = await service.client.post(url, content=content, headers=headers)
            statuses.append(answer.status_code)

    assert statuses == [200, 413]
    assert len(await events(conn)) == 1


async def test_a_body_that_never_ends_is_cut_off(database, conn):
    """A body that does not arrive in time is 408, and nothing is stored."""
    head = b"POST /webhooks/shortcut HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
    async with receiver(database, body_timeout_seconds=0.2) as service:
        answer = await service.raw(head)

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert await events(conn) == []


async def test_a_client_that_goes_away_leaves_nothing(service, conn, caplog):
    """A body that is cut off by the client is no event, and no error."""
    head = b"POST /webhooks/shortcut HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"

    await service.raw(head, half_close=True)

    assert (await service.post(BODY)).status_code == 200
    assert len(await events(conn)) == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("cut", [None, 30, 150, -1], ids=["whole", "head", "body", "last byte"])
async def test_pipelined_deliveries_are_answered_in_their_order(service, conn, cut):
    """Requests that do not wait for answers get them in order, however the bytes come in pieces."""
    bodies = [shapes.labelled(number) for number in (1, 2, 3)]
    last = {"Connection": "close"}
    text = request(bodies[0]) + request(bodies[1]) + request(bodies[2], **last)

    said = await service.raw(text[:cut], text[cut:] if cut else b"")

    ids = [json.loads(body)["id"] for body in bodies]
    assert said.count(b"HTTP/1.1 200 OK") == 3
    assert sorted(ids, key=lambda name: said.index(name.encode())) == ids
    assert {event["body"] for event in await events(conn)} == set(bodies)


async def test_a_refusal_keeps_the_connection_for_the_next_delivery(service):
    """What is refused in between costs the deliveries before and after it nothing."""
    body = shapes.labelled(2)
    last = {"Connection": "close"}

    said = await service.raw(request(BODY), request(body, signature="00"), request(body, **last))

    assert [said.count(b" 200 OK"), said.count(b" 401 Unauthorized")] == [2, 1]


async def test_without_the_database_the_sender_is_asked_to_come_back(conn):
    """Nothing is acknowledged that is not committed: 503, with a time to come back."""
    nowhere = Database(dsn="postgresql://127.0.0.1:1/none", listen_dsn="")
    async with receiver(nowhere) as service:
        answer = await service.post(BODY)

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["code"] == "unavailable"


async def test_a_database_that_hangs_is_a_503_in_time(database, conn):
    """While the table is locked the answer is 503 within the limit; the delivery is not lost."""
    async with receiver(database, commit_timeout_seconds=0.2) as service:
        async with conn.transaction():
            await conn.execute("lock table events")
            refused = await service.post(BODY)
        await until(lambda: service_recovers(service))

    assert refused.status_code == 503
    assert len(await events(conn)) == 1


async def service_recovers(service):
    """Whether the same delivery is accepted now."""
    return (await service.post(BODY)).status_code == 200


async def test_one_delivery_that_can_not_be_stored_costs_the_others_nothing(
    database, conn, connect
):
    """A row that the database refuses is 503 alone; those that waited with it are recorded."""
    await conn.execute("alter table events add constraint broken check (body <> 'broken')")
    bodies = [shapes.labelled(1), b"broken", shapes.labelled(2)]
    locker = await connect()
    async with receiver(database, allowed=["record.refused"]) as service:
        async with locker.transaction():
            await locker.execute("lock table events")
            first = asyncio.ensure_future(service.post(shapes.labelled(3)))
            await until(lambda: conn.fetchval(WAITS))
            others = [asyncio.ensure_future(service.post(body)) for body in bodies]
            await until(lambda: asyncio.sleep(0, service.recorder.waiting == 3))
        answers = await asyncio.gather(first, *others)

    assert [answer.status_code for answer in answers] == [200, 200, 503, 200]
    assert len(await events(conn)) == 3


WAITS = "select exists (select from pg_stat_activity where wait_event_type = 'Lock')"


async def test_a_full_queue_is_a_503(database, conn):
    """When too many wait for a commit already, the next is asked to come back at once."""
    async with receiver(database, queue_limit=1) as service:
        async with conn.transaction():
            await conn.execute("lock table events")
            bodies = [shapes.labelled(story) for story in range(1, 6)]
            answering = [asyncio.ensure_future(service.post(body)) for body in bodies]
            refused, _ = await asyncio.wait(answering, return_when=asyncio.FIRST_COMPLETED)
        answers = await asyncio.gather(*answering)

    assert {answer.result().status_code for answer in refused} == {503}
    accepted = [answer for answer in answers if answer.status_code == 200]
    assert len(accepted) == len(await events(conn)) > 0


async def test_live_and_ready(service):
    """Both are 200 for GET and HEAD while all is well."""
    for path in ("/livez", "/readyz"):
        for method in ("GET", "HEAD"):
            assert (await service.client.request(method, path)).status_code == 200


async def test_not_ready_without_the_database():
    """Alive, but not ready, and it says why."""
    nowhere = Database(dsn="postgresql://127.0.0.1:1/none", listen_dsn="")
    async with receiver(nowhere) as service:
        alive = await service.client.get("/livez")
        ready = await service.client.get("/readyz")

    assert (alive.status_code, ready.status_code) == (200, 503)
    assert ready.json()["fault"] == "the database is not available"


async def test_not_ready_with_an_old_schema(service, conn):
    """A schema that is not this version's keeps the process out of traffic."""
    await conn.execute("update alembic_version set version_num = '0000'")

    ready = await service.client.get("/readyz")

    assert ready.status_code == 503
    assert "draftgate migrate" in ready.json()["fault"]


async def test_an_unknown_page_is_a_problem(service):
    """Errors outside the webhook are problem JSON too."""
    answer = await service.client.get("/nothing")

    assert answer.status_code == 404
    assert answer.json()["code"] == "not-found"


async def test_the_counts_tell_what_there_is(service, conn):
    """What is recorded shows in the counts."""
    await service.post(BODY)

    counts = await look.counts(conn)

    assert (counts.events, counts.pending_events) == (1, 1)


def _key(body):
    return read("shortcut", body, []).dedupe_key.hex()


async def test_recording_reads_no_more_when_the_table_has_grown(database):
    """A statement that was planned while there were no events does not read all of them later."""
    rows_read = """
        select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'events'
    """
    conn = await database.connect("door")
    try:
        # PostgreSQL may keep the plan from the sixth time on.
        for number in range(10):
            await record(conn, [read("shortcut", shapes.labelled(number + 1), [])])
        await conn.execute(
            """
            insert into events (source, dedupe_key, kind, body, status, reason)
            select 'shortcut', gen_random_uuid(), 'v1', '', 'ignored', 'filler'
              from generate_series(1, 5000)
            """
        )

        async with conn.transaction():
            before = await conn.fetchval(rows_read)
            await record(conn, [read("shortcut", shapes.labelled(99), [])])
            after = await conn.fetchval(rows_read)
    finally:
        await conn.close()

    assert after - before <= 1
