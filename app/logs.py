"""Structured logs: JSON lines for machines, readable ones for people; never more than one line."""

import logging
import sys

import structlog


def configure(*, log_format: str, level: str) -> None:
    """Sets up structlog and the standard library's logging once per process, on stderr."""
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        # JSON escapes control characters, so a value can't forge a line of its own.
        processors += [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    else:
        processors += [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format="%(levelname)s %(message)s")
    for chatty in ("httpx", "httpcore", "alembic", "asyncio"):
        # httpx tells whole URLs at INFO.
        logging.getLogger(chatty).setLevel(logging.WARNING)
