"""Nothing but the server: what uvicorn can do at most."""

from typing import Any

_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"2")]


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": b"{}"})
