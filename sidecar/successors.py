"""Asks, once a second while something is handed over, whether those who are to serve it say that they do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import structlog

from registry.errors import RegistryError
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Range, RangeResult, Txn
from registry.keys import Keys, last_part
from registry.model.placement import matches
from registry.model.status import Presence, ReplicaStatus
from sidecar.inputs import Inputs
from sidecar.leaving import Leaving, Verdict, judge

_log = structlog.get_logger()
ASK_SECONDS = 1.0
# etcd takes at most 128 operations in a transaction, unless it is told otherwise.
_KEYS_AT_ONCE = 100


class Successors:
    """Keeps `Inputs.handed` at what is so. It reads single keys and watches nothing."""

    def __init__(self, client: Client, keys: Keys, pool: str, inputs: Inputs) -> None:
        self._client = client
        self._keys = keys
        self._pool = pool
        self._inputs = inputs
        self._open: frozenset[Leaving] = frozenset()
        self._news = asyncio.Event()

    def follow(self, leaving: Iterable[Leaving]) -> None:
        """Says what the engine lists and others are to serve.

        What was said of anything else is forgotten: when it comes to that again, those others may have gone and come.
        """
        self._open = frozenset(leaving)
        self._tell(self._inputs.handed)
        if self._open:
            self._news.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._open:
                await self._ask()
                await asyncio.sleep(ASK_SECONDS)

    async def _ask(self) -> None:
        """Nothing is let go of while what is followed may be old: it may be for us to serve by now."""
        handed: Mapping[Leaving, Verdict] = {}
        if self._inputs.connected and not self._inputs.held:
            try:
                handed = await self._verdicts(self._open)
            except EtcdError as error:
                _log.warning("not_handed_over", error=str(error))
        if self._tell(handed):
            self._inputs.wake()

    def _tell(self, handed: Mapping[Leaving, Verdict]) -> bool:
        """Puts in force what of these verdicts is still asked for; True if that makes a difference."""
        before = self._inputs.handed
        self._inputs.handed = {one: verdict for one, verdict in handed.items() if one in self._open}
        return self._inputs.handed != before

    async def _verdicts(self, asked: frozenset[Leaving]) -> dict[Leaving, Verdict]:
        labels = await self._labels() if any(one.owners is None for one in asked) else {}
        owners = {one: one.owners if one.owners is not None else _fitting(one, labels) for one in asked}
        statuses = await self._statuses({owner for many in owners.values() for owner in many})
        # After the statuses, so that a record which stands now stood when they were written.
        revisions = await self._revisions(sorted({one.key for one in asked}))
        return {one: judge(one, owners[one], statuses, revisions.get(one.key, 0)) for one in asked}

    async def _labels(self) -> dict[str, Mapping[str, str]]:
        """The labels of the live replicas; of one whose presence cannot be read: none."""
        found: dict[str, Mapping[str, str]] = {}
        for kv in (await self._client.list_prefix(self._keys.replicas(self._pool))).kvs:
            try:
                found[last_part(kv.key)] = Presence.parse(kv.value).labels
            except RegistryError:
                continue  # the feed of members tells of it
        return found

    async def _statuses(self, replicas: Iterable[str]) -> dict[str, ReplicaStatus]:
        """One by one, since each may be large."""
        found = {}
        for replica in sorted(replicas):
            for kv in (await self._client.range(Range(self._keys.status(self._pool, replica)))).kvs:
                try:
                    found[replica] = ReplicaStatus.parse(kv.value)
                except RegistryError as error:
                    _log.warning("status_unreadable", replica=replica, error=error.message)
        return found

    async def _revisions(self, keys: list[str]) -> dict[str, int]:
        """Name key to the revision of the record that stands under it."""
        found = {}
        prefix = self._keys.adapters(self._pool)
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            reads = tuple(Range(prefix + key.encode(), keys_only=True) for key in some)
            for key, result in zip(some, (await self._client.txn(Txn((), reads))).responses, strict=True):
                if isinstance(result, RangeResult) and result.kvs:
                    found[key] = result.kvs[0].mod_revision
        return found


def _fitting(leaving: Leaving, labels: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    selector = dict(leaving.selector)
    return tuple(sorted(replica for replica, of in labels.items() if matches(selector, of)))
