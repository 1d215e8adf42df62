"""Lease as a scope: the body runs while the lease is held.

The body is cancelled when the lease is lost, and runs again under a new one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from registry.etcd3.backoff import Backoff
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, LeaseExpired

Body = Callable[[int], Coroutine[Any, Any, None]]
OnError = Callable[[EtcdError], None]

_RETRY = Backoff(base_seconds=0.1, cap_seconds=2.0)
_REVOKE_SECONDS = 1.0
_LOSS_PAUSE_SECONDS = 0.5


async def hold_lease(client: Client, *, ttl_seconds: int, body: Body, rng: random.Random, on_error: OnError) -> None:
    """Runs `body(lease)` under a lease, until it returns.

    The lease is renewed each third of its TTL. Only the server says that it is gone, never our own clock; then the
    body is cancelled, or has failed with `LeaseExpired` itself, and starts again under a new lease, whose keys it has
    to publish anew. At the end the lease is revoked, and its keys vanish with it.

    Args:
        client: where the lease lives.
        ttl_seconds: how long the lease outlives our last sign of life.
        body: gets the lease's id; what it raises is passed on, `LeaseExpired` excepted.
        rng: for jitter.
        on_error: is told each failed try to get or renew a lease; it is tried again.
    """
    while True:
        lease = await _grant(client, ttl_seconds, rng, on_error)
        try:
            await _run_under(client, lease, ttl_seconds, body, rng, on_error)
        except LeaseExpired as error:
            on_error(error)
        else:
            return
        finally:
            with suppress(EtcdError):
                await client.lease_revoke(lease, timeout_seconds=_REVOKE_SECONDS)
        await asyncio.sleep(rng.uniform(0.0, _LOSS_PAUSE_SECONDS))


async def _grant(client: Client, ttl_seconds: int, rng: random.Random, on_error: OnError) -> int:
    failures = 0
    while True:
        try:
            return await client.lease_grant(ttl_seconds)
        except EtcdError as error:
            on_error(error)
        failures += 1
        await asyncio.sleep(_RETRY.delay(failures, rng.uniform))


async def _run_under(
    client: Client, lease: int, ttl_seconds: int, body: Body, rng: random.Random, on_error: OnError
) -> None:
    """Ends as the body ends, or raises LeaseExpired after cancelling it."""
    running = asyncio.create_task(body(lease), name="under lease")
    keeping = asyncio.create_task(_keep(client, lease, ttl_seconds, rng, on_error), name="keep lease")
    try:
        await asyncio.wait({running, keeping}, return_when=asyncio.FIRST_COMPLETED)
        await (running if running.done() else keeping)
    finally:
        running.cancel()
        keeping.cancel()
        await asyncio.gather(running, keeping, return_exceptions=True)


async def _keep(client: Client, lease: int, ttl_seconds: int, rng: random.Random, on_error: OnError) -> None:
    """Renews for ever; a failure to reach etcd says nothing about the lease.

    Raises:
        LeaseExpired: the server says that it is gone.
    """
    failures = 0
    while True:
        pause = _RETRY.delay(failures, rng.uniform) if failures else ttl_seconds / 3 * rng.uniform(0.8, 1.0)
        await asyncio.sleep(pause)
        try:
            await client.lease_keepalive(lease)
            failures = 0
        except LeaseExpired:
            raise
        except EtcdError as error:
            on_error(error)
            failures += 1
