"""The door, byte by byte: whatever is put on the wire, a delivery is taken whole or not at all.

Everything here runs with both parsers that uvicorn has; docs/decisions/0007 says which is used.
"""

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import product

import pytest

from app.shortcut.signature import sign
from tests import shapes
from tests.service import SECRET, Service, receiver

PATH = b"/webhooks/shortcut"
BODY = shapes.labelled(1)
OTHER = shapes.labelled(2)
LIMIT = 4096


@pytest.fixture(params=["httptools", "h11"])
async def service(database, request) -> AsyncIterator[Service]:
    """A receiver for small deliveries, with either parser; it answers no 5xx, logs no traceback."""
    async with receiver(database, parser=request.param, body_limit_bytes=LIMIT) as started:
        yield started


def head(*lines: bytes, method=b"POST", path=PATH, version=b"1.1", host=b"Host: x") -> bytes:
    """The lines before a body."""
    first = b"%s %s HTTP/%s" % (method, path, version)
    return b"\r\n".join([first, *([host] if host else []), *lines, b"", b""])


def signature(body: bytes, name: bytes = b"Payload-Signature") -> bytes:
    """The header that goes with a body."""
    return b"%s: %s" % (name, sign(SECRET.encode(), body).encode())


def length(body: bytes) -> bytes:
    """The header that says how long a body is."""
    return b"Content-Length: %d" % len(body)


def delivery(body: bytes, *lines: bytes, **more) -> bytes:
    """A whole delivery, after which the connection is closed."""
    return head(signature(body), length(body), b"Connection: close", *lines, **more) + body


def statuses(answer: bytes) -> list[int]:
    """The status of each answer in what came back."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]


async def recorded(conn) -> list[bytes]:
    """The bodies in the database."""
    return [row["body"] for row in await conn.fetch("select body from events order by id")]


# --- bodies ----------------------------------------------------------------------------------


async def test_a_body_in_chunks_is_one_body(service, conn):
    """The signature is over what the chunks hold, wherever they are cut."""
    body = json.dumps({"id": "1", "name": "caf\u00e9"}, ensure_ascii=False).encode()
    middle = body.index("\u00e9".encode()) + 1
    pieces = [body[:middle], body[middle:]]
    chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
    lines = [signature(body), b"Transfer-Encoding: chunked", b"Connection: close"]

    answer = await service.raw(head(*lines), *chunks, b"0\r\n\r\n")

    assert (statuses(answer), await recorded(conn)) == ([200], [body])


async def test_a_body_may_wait_to_be_asked_for(service, conn):
    """`Expect: 100-continue`: told to go on, the sender sends, and is answered."""
    lines = [signature(BODY), length(BODY), b"Expect: 100-continue", b"Connection: close"]
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(head(*lines))

    async with asyncio.timeout(10):
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(BODY)
        answer = await reader.read()
    writer.close()

    assert (statuses(asked), statuses(answer)) == ([100], [200])
    assert await recorded(conn) == [BODY]


async def test_http_1_0_is_enough(service, conn):
    """Proxies may still speak HTTP/1.0."""
    answer = await service.raw(delivery(BODY, version=b"1.0"))

    assert (statuses(answer), await recorded(conn)) == ([200], [BODY])


async def test_a_body_cut_off_by_the_sender_is_nothing(service, conn):
    """Fewer bytes than announced, then the end: no answer that says yes, and no row."""
    cut = delivery(BODY)[:-1]

    answer = await service.raw(cut, half_close=True)

    assert set(statuses(answer)) <= {400}
    assert await recorded(conn) == []
    assert (await service.post(OTHER)).status_code == 200


async def test_connections_reset_in_the_middle_leave_nothing(service, conn):
    """Fifty senders vanish half-way; the next delivery is taken as if nothing had been."""
    for _ in range(50):
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        gone = writer.get_extra_info("socket")
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.write(delivery(BODY)[:-40])
        await writer.drain()
        writer.close()

    assert (await service.post(OTHER)).status_code == 200
    assert await recorded(conn) == [OTHER]


async def test_bytes_after_the_body_are_no_part_of_it(service, conn):
    """A length that is too small: its signature fails, and the rest is no request."""
    lines = [signature(BODY), b"Content-Length: 5"]

    answer = await service.raw(head(*lines) + BODY + b"\r\n\r\n")

    assert set(statuses(answer)) <= {400, 401}
    assert await recorded(conn) == []


async def test_a_request_hidden_behind_a_body_has_to_sign_for_itself(service, conn):
    """Nothing of a signed delivery's trust is left for what comes after it."""
    hidden = head(length(OTHER), b"Connection: close") + OTHER
    lines = [signature(BODY), length(BODY)]

    answer = await service.raw(head(*lines) + BODY + hidden)

    assert statuses(answer) == [200, 401]
    assert await recorded(conn) == [BODY]


async def test_deliveries_in_one_segment_are_answered_in_order(service, conn):
    """One refused and two good ones, sent without waiting: three answers, two rows."""
    refused = head(length(BODY), signature(OTHER)) + BODY
    good = head(length(BODY), signature(BODY)) + BODY

    answer = await service.raw(refused + good + delivery(OTHER))

    assert statuses(answer) == [401, 200, 200]
    assert await recorded(conn) == [BODY, OTHER]


# --- sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [b"8193", b"1000000000", b"9" * 19])
async def test_a_body_announced_as_too_large_is_not_waited_for(service, size):
    """Twice the limit and more: 413 before a byte of it was sent, and the connection is closed."""
    answer = await service.raw(head(b"Content-Length: " + size))

    assert statuses(answer) == [413]


async def test_a_body_that_was_not_announced_is_cut_off_at_the_limit(service, conn):
    """64 MB in chunks: refused long before its end; what is beyond the limit is not read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(head(b"Transfer-Encoding: chunked", signature(BODY)))
    sent = 0
    # Where the end of the connection overtakes the answer, it is a reset.
    with suppress(ConnectionError):
        async with asyncio.timeout(20):
            while not reader.at_eof() and sent < 64:
                writer.write(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
                sent += 1
                await writer.drain()
    writer.transport.abort()

    assert sent < 64
    assert await recorded(conn) == []
    assert (await service.post(BODY)).status_code == 200


@pytest.mark.parametrize(
    "lines", [[b"X: " + b"x" * 200_000], [b"X-%d: x" % n for n in range(1000)]]
)
async def test_huge_headers_are_refused_or_ignored(service, lines):
    """A header of 200 kB, or a thousand of them: taken as it is or refused, and no more."""
    try:
        answer = await service.raw(delivery(BODY, *lines))
    except ConnectionError:
        answer = b""

    assert set(statuses(answer)) <= {200, 400, 431}
    assert (await service.post(BODY)).status_code == 200


# --- framing that is wrong -------------------------------------------------------------------

WRONG = {
    "a chunk that ends wrongly": head(b"Transfer-Encoding: chunked") + b'5\r\n{"id"XX5\r\n',
    "a chunk of no size": head(b"Transfer-Encoding: chunked") + b"x\r\n{}\r\n0\r\n\r\n",
    "a length and chunks": head(b"Transfer-Encoding: chunked", length(BODY), signature(BODY))
    + b"0\r\n\r\n",
    "an unknown transfer": head(b"Transfer-Encoding: xchunked", signature(BODY)) + BODY,
    "a length with a sign": head(b"Content-Length: +10", signature(b"0123456789")) + b"0123456789",
    "a negative length": head(b"Content-Length: -1"),
    "a length in scientific notation": head(b"Content-Length: 1e1") + b"0123456789",
    "a length with an underscore": head(b"Content-Length: 1_0") + b"0123456789",
    "two lengths": head(b"Content-Length: 10", b"Content-Length: 11") + b"0123456789",
    "a space before the colon": head(b"Content-Length : 2") + b"{}",
    "a header without a name": head(b": x", b"Content-Length: 0"),
    "a header with NUL": head(b"X: a\x00b", b"Content-Length: 0"),
    "a path outside ASCII": head(b"Content-Length: 0", path=PATH + b"/\xff"),
    "a path with a space": head(b"Content-Length: 0", path=PATH + b"/a b"),
    "no path": head(b"Content-Length: 0", path=b""),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9.9": head(b"Content-Length: 0", version=b"9.9"),
    "TLS": bytes.fromhex("16030100c8010000c40303") + b"\x00" * 40,
    "noise": b"\x00\xff\r\n\r\n" * 3,
    "a word": b"hello\r\n\r\n",
}


async def test_wrong_framing_is_refused(service, conn):
    """400 or the end of the connection, no row, and the next delivery is taken."""
    for case, sent in WRONG.items():
        answer = await service.raw(sent, half_close=True)

        assert set(statuses(answer)) <= {400, 401, 404, 405}, case
        assert await recorded(conn) == [], case

    assert (await service.post(OTHER)).status_code == 200


# --- targets, hosts, methods -----------------------------------------------------------------


PATHS = {
    PATH + b"?x=1": [200],
    PATH + b"//": [200],
    b"/webhooks/%73hortcut": [200],
    b"http://elsewhere" + PATH: [200, 404],
    PATH + b"#x": [200, 404],
    b"/" + PATH: [404],
    b"/x/.." + PATH: [404],
    b"/WEBHOOKS/shortcut": [404],
    PATH + b"/%ff": [404],
    PATH + b"/%00": [404],
    PATH + b"/%0d%0aX-Forged:%201": [404],
    PATH + b"x": [404],
}


async def test_a_path_leads_to_the_door_or_nowhere(service):
    """Another spelling is the same path or none: never a redirect, never an error of ours."""
    for path, answers in PATHS.items():
        answer = await service.raw(delivery(BODY, path=path))

        assert statuses(answer)[0] in answers, path
        assert b"Forged" not in answer


async def test_a_strange_host_is_refused_or_ignored(service):
    """The name in a request decides nothing, and nothing is made from it."""
    for host in (b"", b"Host: a\r\nHost: b", b"Host: a/b?x", b"Host: \xff"):
        answer = await service.raw(delivery(BODY, host=host))

        assert statuses(answer)[0] in (200, 400), host


async def test_a_host_can_not_move_a_request_to_another_path(service):
    """What looks like a path in a host is none."""
    answer = await service.raw(
        head(b"Connection: close", method=b"GET", path=b"/nothing", host=b"Host: x/livez?")
    )

    assert statuses(answer)[0] in (400, 404)


async def test_any_method_has_an_answer(service):
    """Methods that nothing here takes, on paths that are none: refused in so many words."""
    methods = (b"HEAD", b"GET", b"OPTIONS", b"TRACE", b"FOO", b"CONNECT")
    for method, path in product(methods, (PATH, b"/livez", b"*", b"x:443")):
        answer = await service.raw(head(b"Connection: close", method=method, path=path))

        (status,) = statuses(answer)
        healthy = path == b"/livez" and method in (b"HEAD", b"GET")
        assert status == 200 if healthy else 400 <= status < 500, (method, path)


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
async def test_a_delivery_that_offers_another_protocol_is_refused(service, conn, protocol):
    """httptools reads no body after such an offer: it is refused for that, and not as unsigned."""
    lines = [b"Upgrade: " + protocol, b"Connection: upgrade, HTTP2-Settings"]

    answer = await service.raw(head(signature(BODY), length(BODY), *lines) + BODY)

    assert statuses(answer) == [400]
    assert b"upgrade-unsupported" in answer
    assert await recorded(conn) == []


# --- headers ---------------------------------------------------------------------------------


async def test_a_header_s_name_has_no_case(service):
    """Proxies spell headers as they like."""
    for name in (b"PAYLOAD-SIGNATURE", b"payload-signature", b"pAyLoAd-SiGnAtUrE"):
        lines = [signature(BODY, name), length(BODY), b"Connection: close"]

        assert statuses(await service.raw(head(*lines) + BODY)) == [200]


async def test_a_header_that_looks_like_the_signature_is_none(service, conn):
    """An underscore is no hyphen."""
    for name in (b"Payload_Signature", b"X-Payload-Signature", b"Payload"):
        lines = [signature(BODY, name), length(BODY), b"Connection: close"]

        assert statuses(await service.raw(head(*lines) + BODY)) == [401]
    assert await recorded(conn) == []
