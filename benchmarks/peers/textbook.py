"""The way that FastAPI's and asyncpg's documentation lead to: typed body, pool, one INSERT."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
from fastapi import FastAPI
from pydantic import BaseModel

SCHEMA = "create table if not exists textbook (id uuid primary key, payload jsonb not null)"


class Delivery(BaseModel):
    id: UUID
    changed_at: str
    version: str
    primary_id: int | None = None
    member_id: str | None = None
    actions: list[dict[str, Any]]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["BENCH_DSN"]) as pool:
        await pool.execute(SCHEMA)
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/webhooks/shortcut")
async def receive(delivery: Delivery) -> dict[str, bool]:
    async with app.state.pool.acquire() as conn:
        new = await conn.fetchval(
            "insert into textbook (id, payload) values ($1, $2) on conflict do nothing returning 1",
            delivery.id,
            delivery.model_dump_json(),
        )
    return {"duplicate": new is None}
