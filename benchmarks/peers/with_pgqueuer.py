"""FastAPI with PgQueuer: the delivery is a job, enqueued in the request."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from fastapi import FastAPI, Request
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["BENCH_DSN"]) as pool:
        app.state.queries = Queries(AsyncpgPoolDriver(pool))
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/webhooks/shortcut")
async def receive(request: Request) -> dict[str, str]:
    (job,) = await app.state.queries.enqueue("draft", await request.body())
    return {"job": str(job)}


async def work() -> None:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(os.environ["BENCH_DSN"])))

    @queue.entrypoint("draft")
    async def draft(job: Job) -> None:
        with open(os.environ["BENCH_STARTED"], "a") as started:  # noqa: ASYNC230
            started.write(f"{time.time_ns()}\n")

    await queue.run()


if __name__ == "__main__":
    # Its command `run` does not start with the newest version of what it is made with.
    asyncio.run(work())
