"""Signs deliveries and posts them: what `draftgate send` and the demo are made of."""

import asyncio
import json
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import httpx

from app.shortcut.signature import sign

#: From connecting to the end of the answer, in seconds.
TIMEOUT_SECONDS = 30.0
MAX_CONCURRENCY = 1_000
#: More deliveries than this in one call are refused: the latency of each is kept.
MAX_DELIVERIES = 10_000_000
#: The part of an answer that is read for its `duplicate`, in bytes.
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one delivery.

    Attributes:
        index: which of the bodies it was.
        status: the HTTP status; None where no whole answer came.
        duplicate: what the receiver said, if it said.
        error: the kind of failure where no whole answer came, e.g. `ConnectError`.
    """

    index: int
    status: int | None
    duplicate: bool | None
    error: str | None
    milliseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of all of them.

    Attributes:
        answers: how many answers of each (status, duplicate) came.
        errors: how many deliveries got none, by kind of failure.
        p50_milliseconds: the median latency of those that were answered; None if none was.
        seconds: how long it all took.
    """

    answers: Mapping[tuple[int, bool | None], int]
    errors: Mapping[str, int]
    p50_milliseconds: float | None
    p99_milliseconds: float | None
    seconds: float

    @property
    def sent(self) -> int:
        return sum(self.answers.values()) + sum(self.errors.values())

    @property
    def ok(self) -> bool:
        """Every delivery was answered with success."""
        return not self.errors and all(200 <= status < 300 for status, _ in self.answers)


async def send(
    url: str,
    bodies: Sequence[bytes],
    *,
    secret: bytes,
    repeat: int = 1,
    concurrency: int = 1,
    shuffle: bool = False,
    seed: int | None = None,
    on_answer: Callable[[Answer], None] | None = None,
) -> Report:
    """Posts every body, signed byte for byte, and then all of them again, `repeat` times in all.

    Raises ValueError for numbers out of bounds. A delivery that fails is counted, not sent again.
    """
    _check(len(bodies), repeat, concurrency)
    order = iter(_order(len(bodies), repeat, random.Random(seed) if shuffle else None))
    signatures = [sign(secret, body) for body in bodies]
    tally, tls = _Tally(), httpx.create_ssl_context(trust_env=False)
    started = perf_counter()

    async def post_what_is_left() -> None:
        # A client each: a pool compares every connection with every other for each request.
        async with httpx.AsyncClient(trust_env=False, verify=tls) as http:
            for index in order:
                body, signature = bodies[index], signatures[index]
                answer = await post(http, url, body, signature=signature, index=index)
                tally.add(answer)
                if on_answer is not None:
                    on_answer(answer)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(concurrency, len(bodies) * repeat)):
            tasks.create_task(post_what_is_left())
    return tally.report(seconds=perf_counter() - started)


async def post(
    http: httpx.AsyncClient,
    url: str,
    body: bytes,
    *,
    signature: str | None,
    index: int = 0,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Answer:
    """Posts one delivery; whatever becomes of it is an answer."""
    headers = {"Content-Type": "application/json"}
    if signature is not None:
        headers["Payload-Signature"] = signature
    status, duplicate, error = None, None, None
    started = perf_counter()
    try:
        # httpx bounds each read; an answer that drips would never end.
        async with asyncio.timeout(timeout_seconds):
            async with http.stream(
                "POST", url, content=body, headers=headers, timeout=timeout_seconds
            ) as response:
                duplicate = _duplicate(await _beginning(response))
                status = response.status_code
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as failure:
        error = type(failure).__name__
    return Answer(
        index=index,
        status=status,
        duplicate=duplicate,
        error=error,
        milliseconds=(perf_counter() - started) * 1000,
    )


def _check(bodies: int, repeat: int, concurrency: int) -> None:
    if repeat < 1:
        raise ValueError("repeat is less than 1")
    if not 1 <= concurrency <= MAX_CONCURRENCY:
        raise ValueError(f"concurrency is not within 1 to {MAX_CONCURRENCY}")
    if bodies * repeat > MAX_DELIVERIES:
        raise ValueError(f"more than {MAX_DELIVERIES:,} deliveries")


def _order(bodies: int, repeat: int, dice: random.Random | None) -> Iterable[int]:
    if dice is None:
        return _in_turn(bodies, repeat)
    mixed = array("l", _in_turn(bodies, repeat))
    dice.shuffle(mixed)
    return mixed


def _in_turn(bodies: int, repeat: int) -> Iterator[int]:
    return (index for _ in range(repeat) for index in range(bodies))


async def _beginning(response: httpx.Response) -> bytes:
    received = bytearray()
    async for chunk in response.aiter_raw():
        received += chunk
        if len(received) > _READ_BYTES:
            break
    return bytes(received)


def _duplicate(body: bytes) -> bool | None:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    duplicate = said.get("duplicate") if isinstance(said, dict) else None
    return duplicate if isinstance(duplicate, bool) else None


@dataclass(slots=True)
class _Tally:
    answers: Counter[tuple[int, bool | None]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    milliseconds: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, answer: Answer) -> None:
        if answer.status is None:
            self.errors[answer.error or "unknown"] += 1
            return
        self.answers[answer.status, answer.duplicate] += 1
        self.milliseconds.append(answer.milliseconds)

    def report(self, *, seconds: float) -> Report:
        ordered = sorted(self.milliseconds)
        return Report(
            answers=dict(self.answers),
            errors=dict(self.errors),
            p50_milliseconds=_percentile(ordered, 50),
            p99_milliseconds=_percentile(ordered, 99),
            seconds=seconds,
        )


def _percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The smallest value that at least so many percent do not exceed."""
    if not ordered:
        return None
    return ordered[max(-(-len(ordered) * percent // 100) - 1, 0)]
