"""Who sent a request is what trusted proxies say, and nothing that anybody else makes up."""

import json

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.errors import SettingsError
from app.forwarded import Proxies
from app.settings import load
from app.shortcut.signature import sign
from tests import shapes
from tests.locks import until
from tests.service import receiver
from tests.stack import stack

BODY = shapes.labelled(1)
PROXIES = Proxies(["10.0.0.0/8", "2001:db8::/32", "192.0.2.1", "unix"])


def client(peer: str | None, *said: str, proxies: Proxies = PROXIES) -> str | None:
    """The client's address, where these headers came with the request."""
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in said]
    address = proxies.client(peer, headers)
    return None if address is None else str(address)


@pytest.mark.parametrize(
    ("peer", "said", "expected"),
    [
        ("203.0.113.9", ["6.6.6.6"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.9, 192.0.2.1,10.1.1.1"], "203.0.113.9"),
        ("10.0.0.1", ["10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:db9::1]:4711"], "2001:db9::1"),
        ("10.0.0.1", ["2001:db9::1"], "2001:db9::1"),
        ("2001:db8::1", ["203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["::ffff:203.0.113.9"], "203.0.113.9"),
        (None, ["203.0.113.9"], "203.0.113.9"),
        (None, [], None),
        ("10.0.0.1", ["203.0.113.9, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, "], "10.0.0.1"),
        ("10.0.0.1", ["fe80::1%\x1b[2J\r\n"], "fe80::1"),
        ("10.0.0.1", ["203.0.113.9, 010.0.0.1"], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.2," * 50_000 + "10.0.0.3"], "10.0.0.2"),
    ],
)
def test_the_nearest_address_that_is_no_proxy_s(peer, said, expected):
    """From the right, as far as each one who says so is trusted; what can't be read ends it."""
    assert client(peer, *said) == expected


def test_without_proxies_the_peer_is_the_client():
    """Nobody is trusted by default, the Unix socket included."""
    nobody = Proxies([])
    assert client("203.0.113.9", "6.6.6.6", proxies=nobody) == "203.0.113.9"
    assert client(None, "6.6.6.6", proxies=nobody) is None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_no_header_makes_it_raise(values):
    """Whatever bytes are said, there is an answer, and it is an address of plain characters."""
    address = PROXIES.client("10.0.0.1", [(b"x-forwarded-for", value) for value in values])

    assert set(str(address)) <= set("0123456789abcdef.:")


@pytest.mark.parametrize("names", ["10.0.0.1/8", "localhost", "*", "10.0.0.1,", "10.0.0.0/33"])
def test_a_proxy_that_is_none_is_a_wrong_setting(names):
    """Names, wildcards and networks that are none are refused at once."""
    with pytest.raises(SettingsError, match="TRUSTED_PROXIES"):
        load(trusted_proxies=names, _env_file=None)


@pytest.mark.parametrize("path", ["draftgate", "/", "/a/", "/a b", "/a?b", "//a", "/a\n"])
def test_a_root_path_that_is_none_is_a_wrong_setting(path):
    """A path begins with a slash and does not end with one."""
    with pytest.raises(SettingsError, match="ROOT_PATH"):
        load(root_path=path, _env_file=None)


async def test_a_refusal_says_whose_it_was(database):
    """The log has the client's address; one that the client made up stays out of it."""
    for proxies, expected in (("", "127.0.0.1"), ("127.0.0.1", "203.0.113.9")):
        async with receiver(database, trusted_proxies=proxies) as service:
            with capture_logs() as entries:
                headers = {"X-Forwarded-For": "6.6.6.6, 203.0.113.9"}
                headers["Payload-Signature"] = "0" * 64
                await service.post(BODY, headers=headers)

        (refusal,) = [entry for entry in entries if entry["event"] == "delivery.rejected"]
        assert (refusal["client"], refusal["code"]) == (expected, "signature-invalid")


@pytest.mark.parametrize("prefix", ["", "/hooks/draftgate"])
async def test_everything_works_under_a_path(database, prefix):
    """Whether or not the proxy cuts the path off: the webhook, health, and the description."""
    async with receiver(database, root_path="/hooks/draftgate") as service:
        headers = {"Payload-Signature": sign(b"a secret of tests only", BODY)}
        for path in ("/webhooks/shortcut", "/webhooks/shortcut/shortcut/"):
            answer = await service.client.post(prefix + path, content=BODY, headers=headers)
            assert answer.status_code == 200
        for path in ("/livez", "/readyz", "/openapi.json"):
            assert (await service.client.get(prefix + path)).status_code == 200
        described = (await service.client.get(prefix + "/openapi.json")).json()
        elsewhere = await service.client.post("/elsewhere/webhooks/shortcut", content=BODY)

    assert described["servers"] == [{"url": "/hooks/draftgate"}]
    assert elsewhere.status_code == 404


async def test_a_unix_socket_is_a_door_too(database, conn, tmp_path):
    """Deliveries come in by it, and whoever connects there may be trusted to name the client."""
    path = tmp_path / "draftgate.sock"
    async with stack(database, tmp_path) as it:
        it.settings |= {"DRAFTGATE_TRUSTED_PROXIES": "unix", "DRAFTGATE_LOG_FORMAT": "json"}
        await it.start("serve", "--role", "receiver", "--uds", str(path))
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=60) as http:
            url, named = "/webhooks/shortcut", {"X-Forwarded-For": "203.0.113.9"}
            await until(lambda: _answers(http))
            signed = {"Payload-Signature": sign(it.trial.secret.encode(), BODY)}
            accepted = await http.post(url, content=BODY, headers=signed)
            refused = await http.post(url, content=BODY, headers=named)

    assert (accepted.status_code, refused.status_code) == (200, 401)
    assert await conn.fetchval("select count(*) from events") == 1
    lines = [json.loads(line) for line in it.log().splitlines()]
    assert [line["client"] for line in lines if line["event"] == "delivery.rejected"] == [
        "203.0.113.9"
    ]


async def _answers(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False
