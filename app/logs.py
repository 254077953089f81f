"""Structured logs: JSON lines for machines, readable ones for people; no value makes a line."""

import logging
import sys

import structlog


def configure(*, log_format: str, level: str) -> None:
    """Sets up structlog and the standard library's logging once per process, on stderr."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering = _rendering(log_format)
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    own = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[own, *rendering], foreign_pre_chain=shared)
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for chatty in ("httpx", "httpcore", "alembic", "asyncio", "uvicorn"):
        # httpx tells whole URLs at INFO.
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _rendering(log_format: str) -> list[structlog.typing.Processor]:
    # Before anything is rendered: structlog's own way with exceptions would tell local variables.
    exceptions = structlog.processors.format_exc_info
    if log_format == "console":
        colors = sys.stderr.isatty()
        return [exceptions, _printable, structlog.dev.ConsoleRenderer(colors=colors)]
    # JSON escapes control characters, so a value can't forge a line of its own.
    return [exceptions, structlog.processors.JSONRenderer()]


def _printable(
    _: structlog.typing.WrappedLogger, __: str, entry: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escapes what could forge a line or steer a terminal; a traceback's lines are indented."""
    exception = entry.pop("exception", None)
    told = {key: _escaped(value) for key, value in entry.items()}
    if exception is not None:
        told["exception"] = "\n".join(f"    {_escaped(line)}" for line in exception.splitlines())
    return told


def _escaped(value: object) -> object:
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if not isinstance(value, str) or value.isprintable():
        return value
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
