"""FastAPI with procrastinate: the delivery is a job, deferred in the request."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import procrastinate
from fastapi import FastAPI

jobs = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_DSN"]))


@jobs.task(name="draft")
async def draft(payload: dict[str, Any]) -> None:
    if "BENCH_STARTED" in os.environ:
        with open(os.environ["BENCH_STARTED"], "a") as started:  # noqa: ASYNC230
            started.write(f"{time.time_ns()}\n")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with jobs.open_async():
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/webhooks/shortcut")
async def receive(payload: dict[str, Any]) -> dict[str, int]:
    return {"job": await draft.defer_async(payload=payload)}
