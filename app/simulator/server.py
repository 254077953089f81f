"""Puts the simulator together as one ASGI application."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI

from app.simulator import api, api_v4, control, oauth, page, page_around
from app.simulator.deliver import Deliverer, Hook, Weather
from app.simulator.faults import Fault, FaultGate, Faults
from app.simulator.oauth import CLIENT_ID, OAuth
from app.simulator.records import PEOPLE
from app.simulator.simulation import Simulation, Version

#: What `shuffle` mixes: everything within this many seconds.
SHUFFLE_WINDOW_SECONDS = 0.25


def create_simulator(
    *,
    webhook_url: str | None,
    secret: str,
    api_token: str,
    versions: Sequence[Version] = ("v1",),
    copies: int = 1,
    shuffle: bool = False,
    seed: int = 0,
    window_seconds: float | None = None,
    delay_seconds: float = 0.0,
    jitter_seconds: float = 0.0,
    drop_percent: float = 0.0,
    empty_percent: float = 0.0,
    senders: int = 4,
    max_tries: int = 12,
    first_backoff_seconds: float = 0.25,
    longest_backoff_seconds: float = 5.0,
    per_minute: int | None = None,
    faults: Sequence[Fault] = (),
    first_id: int = 4101,
    seeded: bool = True,
    client_id: str = CLIENT_ID,
    client_secret: str = "",
    token_seconds: float = 3600.0,
) -> FastAPI:
    """A workspace whose lifespan delivers; its parts are at `app.state.simulation`.

    `webhook_url` is registered as a workspace webhook for version 1, and is the agent app's for
    version 2, which is sent as long as the app is installed, too. `api_token` is the agent's.
    `seed` decides what is dropped, mixed and delayed, so that a run can be repeated. Give
    `first_id` a new value where a receiver remembers an earlier run: it knows stories by their
    numbers. With a `client_secret` the agent app can be installed by OAuth; its access tokens last
    `token_seconds`. `Weather` and `Faults` explain the rest.
    """
    if window_seconds is None:
        window_seconds = SHUFFLE_WINDOW_SECONDS if shuffle else 0.0
    weather = Weather(
        copies=copies,
        window_seconds=window_seconds,
        delay_seconds=delay_seconds,
        jitter_seconds=jitter_seconds,
        drop_percent=drop_percent,
        empty_percent=empty_percent,
        senders=senders,
        max_tries=max_tries,
        first_backoff_seconds=first_backoff_seconds,
        longest_backoff_seconds=longest_backoff_seconds,
    )
    hook = Hook(url=webhook_url, secret=secret.encode()) if webhook_url else None
    simulation = Simulation(
        api_token=api_token,
        deliverer=Deliverer(weather, seed=seed),
        faults=Faults(per_minute=per_minute),
        oauth=OAuth(client_id=client_id, client_secret=client_secret, token_seconds=token_seconds),
        first_id=first_id,
        versions=frozenset(versions),
        app_hook=hook,
        seeded=seeded,
    )
    if hook is not None:
        simulation.register(PEOPLE[0], hook)
    simulation.faults.pending += [fault.model_copy() for fault in faults]
    return _application(simulation)


def _application(simulation: Simulation) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with simulation.deliverer.running():
            yield

    app = FastAPI(title="Simulated Shortcut", lifespan=lifespan, redirect_slashes=False)
    app.state.simulation = simulation
    api.install(app)
    app.include_router(api_v4.router)
    app.include_router(oauth.router)
    app.include_router(control.router)
    app.include_router(page.router)
    app.include_router(page_around.router)
    app.add_middleware(FaultGate, faults=simulation.faults)
    return app
