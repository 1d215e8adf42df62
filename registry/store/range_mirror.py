"""A range of etcd as it stands, with what is known of how far: for who has to compare it with other ranges."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue, prefix_end
from registry.etcd3.reflections import Changed, Listed, Progressed, Reflection
from registry.etcd3.reflector import Reflector


class RangeMirror:
    """The newest known state of all keys below a prefix.

    Attributes:
        prefix: of the keys.
        kvs: by key; None: it has not been listed yet.
        revision: up to which the range is known.
        version: rises with each change of `kvs`.
    """

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.kvs: dict[bytes, KeyValue] | None = None
        self.revision = 0
        self.version = 0

    async def follow(self, client: Client, wake: asyncio.Event, *, rng: random.Random) -> None:
        """Follows etcd until it is cancelled; sets `wake` at each change."""
        reflector = Reflector(client, self.prefix, prefix_end(self.prefix), rng=rng)
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                if self.take(reflection):
                    wake.set()

    def take(self, reflection: Reflection) -> bool:
        """Notes what the reflector tells; True if `kvs` changed."""
        match reflection:
            case Listed():
                self.kvs = {kv.key: kv for kv in reflection.kvs}
            case Changed():
                self._change(reflection)
            case Progressed():
                self.revision = reflection.revision
                return False
            case _:
                return False
        self.revision = reflection.revision
        self.version += 1
        return True

    def _change(self, changed: Changed) -> None:
        kvs = self.kvs if self.kvs is not None else {}
        for event in changed.events:
            if event.kv is None:
                kvs.pop(event.key, None)
            else:
                kvs[event.key] = event.kv
