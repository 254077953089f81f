"""The signature is the bare hex HMAC-SHA-256 of the raw body, and nothing else is accepted."""

import ast
import hashlib
import hmac
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.shortcut import signature as module
from app.shortcut.signature import SIGNATURE_HEADER, sign, verify

SECRET = b"a secret of twenty bytes"
BODY = b'{ "z":1,\n "a" : 2.0, "t":"caf\\u00e9", "n":1e2 }'
RIGHT = hmac.new(SECRET, BODY, hashlib.sha256).hexdigest()


def test_sign_is_lower_case_hex() -> None:
    """A body is signed as Shortcut documents it, under the header it documents."""
    assert sign(SECRET, BODY) == RIGHT
    assert SIGNATURE_HEADER == b"payload-signature"


@pytest.mark.parametrize(
    "signature",
    [RIGHT, RIGHT.upper(), RIGHT[:32].upper() + RIGHT[32:], f" \t{RIGHT}  "],
    ids=["lower", "upper", "mixed", "surrounded"],
)
def test_a_right_signature_is_accepted(signature: str) -> None:
    """Either case of the digits will do, and whitespace around them doesn't count."""
    assert verify([SECRET], BODY, [signature.encode()])


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        b"    ",
        b"sha256=" + RIGHT.encode(),
        b"v1," + RIGHT.encode(),
        RIGHT[:-1].encode(),
        RIGHT[:-2].encode(),
        RIGHT.encode() + b"00",
        RIGHT[:32].encode() + b" " + RIGHT[32:].encode(),
        b"0" * 64,
        b"\xe9\xe9",
        b"\xff" * 64,
        b"\x00" * 64,
        "\uff11".encode() * 64,
        b"g" * 64,
        hmac.new(SECRET, BODY, hashlib.sha1).hexdigest().encode(),
    ],
)
def test_anything_else_is_refused(signature: bytes) -> None:
    """A prefix, a wrong length, a digit too many or bytes that are no hex: refused, not raised."""
    assert not verify([SECRET], BODY, [signature])


@pytest.mark.parametrize(
    "body", [BODY + b"\n", BODY[:-1], BODY.replace(b"2.0", b"2.1"), b"", BODY.replace(b"\n", b"")]
)
def test_one_changed_byte_is_refused(body: bytes) -> None:
    """The bytes count as they were sent, not what they mean."""
    assert not verify([SECRET], body, [RIGHT.encode()])


def test_there_is_exactly_one_signature() -> None:
    """No header is refused, and so are two, even if both are right."""
    right = RIGHT.encode()
    assert not verify([SECRET], BODY, [])
    assert not verify([SECRET], BODY, [right, right])
    assert not verify([SECRET], BODY, [right, b"0" * 64])


def test_any_of_the_secrets_may_match() -> None:
    """While a secret is being changed, the old one and the new one are both right."""
    assert verify([b"the next secret", SECRET], BODY, [RIGHT.encode()])
    assert verify([SECRET, b"the next secret"], BODY, [RIGHT.encode()])
    assert not verify([b"the next secret"], BODY, [RIGHT.encode()])
    assert not verify([], BODY, [RIGHT.encode()])


def test_an_empty_secret_matches_nothing() -> None:
    """A signature made with an empty secret is one that everybody can make."""
    assert not verify([b""], BODY, [sign(b"", BODY).encode()])


def test_secret_is_bytes() -> None:
    """A secret outside ASCII is its UTF-8 bytes."""
    secret = "pässwörd".encode()
    assert verify([secret], BODY, [sign(secret, BODY).encode()])


def test_an_empty_body_can_be_signed() -> None:
    """Shortcut is known to send empty bodies."""
    assert verify([SECRET], b"", [sign(SECRET, b"").encode()])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=3), st.binary(max_size=50))
def test_verify_never_raises(signatures: list[bytes], body: bytes) -> None:
    """Whatever bytes a stranger sends, the answer is no."""
    assert not verify([SECRET], body, signatures)


def test_digests_are_compared_in_constant_time() -> None:
    """How much of a signature is right takes no measurable time: no `==` on digests."""
    source = Path(module.__file__).read_text()
    compared = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Eq)]

    assert "hmac.compare_digest" in source
    assert compared == []
