"""Structured logs: JSON lines for machines, readable ones for people; never more than one line."""

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
    if log_format == "console":
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    # JSON escapes control characters, so a value can't forge a line of its own.
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
