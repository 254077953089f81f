"""Nothing but FastAPI: a route that reads nothing and does nothing."""

from fastapi import FastAPI

app = FastAPI()


@app.post("/webhooks/shortcut")
async def receive() -> dict[str, bool]:
    return {"ok": True}
