"""What must hold of each admin service at every step. Each rule is a function that names its guarantee."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast
from unittest import mock

import grpc

from registry.admin.app import DRAIN_SECONDS, AdminService
from registry.admin.rpc.service import SERVICE
from registry.model.errors import Reason
from registry.residency.hub import Subscription
from registry.residency.view import PoolView
from tests.simulation.admins import SERVING, Admin, NotedHealth
from tests.simulation.loop import Process, is_thread
from tests.simulation.serving import Sent, ServerCall, SimServer

# So long after its last call an admin service has given back all that calls took.
GIVE_BACK_SECONDS = 0.5
# So long after its end nothing of a process runs any more.
END_SECONDS = 1.0
# What a thread of an admin service takes longer at most, in one world or another.
THREAD_SECONDS = (0.0, 0.01, 0.3)
_API = f"/{SERVICE}/"


@dataclass
class Services:
    """Follows each admin service; `on_post` is told of each view that its readers are told of."""

    violated: Callable[[str], None]
    rng: random.Random
    on_post: Callable[[object, PoolView], None] = lambda _subscription, _view: None
    calls: int = 0

    def __post_init__(self) -> None:
        self._most_seconds = self.rng.choice(THREAD_SECONDS)

    def thread_seconds(self) -> float:
        """For how long a thread has to wait for a processor now."""
        return self.rng.uniform(0.0, self._most_seconds)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Has each view noted that readers are told of."""
        post = Subscription.post

        def posted(subscription: Subscription, view: PoolView, keys: frozenset[str]) -> None:
            post(subscription, view, keys)
            self.on_post(subscription, view)

        with mock.patch.object(Subscription, "post", posted):
            yield

    def on_server(self, admin: Admin, service: AdminService, server: SimServer) -> None:
        """Each server that is opened."""
        server.on_end = partial(self._on_call_end, admin, service, server)
        server.on_last = partial(self._on_last, admin, service)
        server.on_turned_away = partial(self._on_turned_away, admin, service)

    def _on_turned_away(self, admin: Admin, service: AdminService, call: ServerCall) -> None:
        """Each call that an ending server does not take, or cuts."""
        self._check_health_before(admin, service, call, DRAIN_SECONDS)

    def _on_last(self, admin: Admin, service: AdminService, call: ServerCall, item: Sent) -> None:
        """Each answer, or the last of a stream."""
        if isinstance(item, grpc.aio.AioRpcError) and reason_of(item) == Reason.ADMIN_UNAVAILABLE:
            self._check_health_before(admin, service, call, 0.0)

    def _on_call_end(
        self, admin: Admin, service: AdminService, server: SimServer, call: ServerCall, error: BaseException | None
    ) -> None:
        """Each handler that has come to its end."""
        self.calls += 1
        if error is not None:
            self.violated(f"X2 a handler of {admin.name} let {error!r} out at {call.path}")
        if not any(one.path.startswith(_API) for one in server.calls):
            asyncio.get_running_loop().call_later(GIVE_BACK_SECONDS, self._check_given_back, admin, service, server)

    def on_end(self, admin: Admin) -> None:
        """Each end by a signal."""
        asyncio.get_running_loop().call_later(END_SECONDS, self._check_ended, admin, admin.process)

    def _check_health_before(self, admin: Admin, service: AdminService, call: ServerCall, seconds: float) -> None:
        """R18 readiness-follows: health stops saying SERVING before calls are refused, long enough to be heard."""
        health = cast("NotedHealth", service.ports.health)
        for name, (status, since) in health.since.items():
            if status == SERVING or _now() - since < seconds - 0.01:
                told = f"health of {name!r} is {status} since {_now() - since:.3f} s"
                self.violated(f"R18 {admin.name} turns {call.path} away, and {told}")

    def _check_given_back(
        self, admin: Admin, service: AdminService, server: SimServer, *, is_collected: bool = False
    ) -> None:
        """X3 given-back: after each error, cancellation and late answer, where no call runs nothing is held for any.

        A stream that was cancelled amid a message may be garbage that a collection has to find first.
        """
        if admin.server is not server or any(one.path.startswith(_API) for one in server.calls):
            return
        held = {what: found for what, found in _held(service) if found}
        if held and not is_collected:
            gc.collect()
            again = partial(self._check_given_back, admin, service, server, is_collected=True)
            asyncio.get_running_loop().call_later(GIVE_BACK_SECONDS, again)
        elif held:
            self.violated(f"X3 {admin.name} has no call, and holds {held}")

    def _check_ended(self, admin: Admin, process: Process) -> None:
        """X3 given-back: a process that has ended leaves nothing running."""
        process.kill()
        asyncio.get_running_loop().call_later(END_SECONDS, self._check_still, admin, process)

    def _check_still(self, admin: Admin, process: Process) -> None:
        if left := [str(handle) for handle in process.parked if not is_thread(handle)]:
            self.violated(f"X3 {admin.name} has ended, and goes on with {left}")


def _held(service: AdminService) -> Iterator[tuple[str, object]]:
    """What is held for calls, by what it is; empty where nothing is."""
    calls = service.calls
    for name, limiter in (("places of calls", calls.calls), ("places of work", calls.working)):
        yield name, limiter._running or limiter._queued or dict(limiter._held) or limiter._waiting
    yield "bytes of requests", dict(calls.request_bytes._held)
    yield "turns", calls.turns._running
    yield "locks", service.writer._locks._locks
    yield "readers", sum(one.readers for one in service.hub._followed.values())
    [streams] = service.metrics.streams.collect()
    yield "streams", [one.labels for one in streams.samples if one.value]


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason that a refusal of ours names; empty where there is none."""
    details = b"".join(value for key, value in error.trailing_metadata() or () if isinstance(value, bytes))
    return next((reason for reason in Reason if reason.value.encode() in details), "")


def _now() -> float:
    return asyncio.get_running_loop().time()
