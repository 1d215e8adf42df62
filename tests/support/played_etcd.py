"""An etcd of the simulation by itself, on virtual time, under the client as it is: its links break as a test says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from inspect import Signature, signature
from typing import Any
from unittest import mock

import pytest

from registry.etcd3.channel import MemberConnection
from registry.etcd3.client import Client
from registry.etcd3.codec import Method, Req, Res
from registry.etcd3.errors import ResponseTooLarge
from registry.etcd3.options import ClientOptions
from tests.simulation import loop
from tests.simulation.channels import SimChannel
from tests.simulation.links import Link
from tests.simulation.members import Cluster, Habits, Member
from tests.simulation.store import EtcdStore

# More than any scene takes; who waits in vain while others go on would never end.
LONGEST_SECONDS = 7200.0


class PlayedEtcd:
    """A cluster, and the ways to its members.

    Attributes:
        store: what stands in it; write to it as somebody else would.
        links: one to each member; its endpoint has the member's name.
        opened: the endpoints of all connections, in order.
    """

    def __init__(self, members: int) -> None:
        self.store = EtcdStore()
        self.cluster = Cluster(self.store, random.Random(0), Habits())
        made = [Member(f"m{number}", number + 1, self.cluster) for number in range(members)]
        self.links = {one.name: Link(one.name, one, random.Random(0)) for one in made}
        self.opened: list[str] = []

    def client(self, seed: int = 0) -> Client:
        """A client of all members."""
        return Client(ClientOptions(tuple(self.links)), rng=random.Random(seed))

    def open_channel(self, endpoint: str, _tls: object) -> SimChannel:
        """In place of `registry.etcd3.channel._open`."""
        self.opened.append(endpoint)
        return SimChannel(self.links[endpoint], len(self.opened))


def play(scene: Callable[[PlayedEtcd], Coroutine[Any, Any, None]], members: int = 1) -> None:
    """Plays a scene to its end; what it began and did not end is ended with it."""

    async def work() -> None:
        etcd = PlayedEtcd(members)
        with mock.patch("registry.etcd3.channel._open", etcd.open_channel):
            async with asyncio.timeout(LONGEST_SECONDS):
                await scene(etcd)

    loop.play(work())


Scene = Callable[..., Coroutine[Any, Any, None]]


def as_test(play: Callable[[Scene], None], scene: Scene, worlds: int) -> Callable[..., None]:
    """A test that plays a scene: its first arguments, so many, are what `play` gives it; pytest gives the others."""

    @wraps(scene)
    def test(**given: Any) -> None:
        play(partial(scene, **given))

    # What pytest looks at for its fixtures.
    test.__signature__ = Signature([*signature(scene).parameters.values()][worlds:])  # type: ignore[attr-defined]
    return test


def played(scene: Scene) -> Callable[..., None]:
    """Makes a test of a scene with an etcd of one member."""
    return as_test(play, scene, 1)


def played_by(members: int) -> Callable[[Scene], Callable[..., None]]:
    """Makes a test of a scene with an etcd of so many members."""
    return lambda scene: as_test(partial(play, members=members), scene, 1)


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


def limit_messages(monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    """Has clients take no answer of a call that is larger; they take 64 MiB else."""
    call = MemberConnection.call

    async def limited(self: MemberConnection, method: Method[Req, Res], request: Req, **more: Any) -> Res:
        reply = await call(self, method, request, **more)
        if reply.ByteSize() > most_bytes:
            raise ResponseTooLarge(f"larger than max ({reply.ByteSize()} vs. {most_bytes})", maybe_applied=False)
        return reply

    monkeypatch.setattr(MemberConnection, "call", limited)
