"""Watch over handoffs: reads, once a second, whether other replicas took over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import structlog

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Range, RangeResult, Txn
from registry.model.keys import Keys
from registry.model.names import matches
from registry.model.replica_state import ParsedStatus, StatusReading
from sidecar.desired.mailbox import Mailbox
from sidecar.plan.handoff import Handoff, HandoffVerdict, OtherReplica, Taken, evaluate_handoff
from sidecar.report.status_reader import StatusReader

_log = structlog.get_logger()
ASK_SECONDS = 1.0
# What was taken over is unloaded so much later: routers hear of it through this status and the admin service.
LET_GO_SECONDS = 2.0
# etcd takes at most 128 operations in a transaction, unless it is told otherwise.
_KEYS_AT_ONCE = 100


class HandoffWatch:
    """Keeps the verdicts on what is handed over. It reads single keys and watches nothing."""

    def __init__(self, client: Client, keys: Keys, pool: str, mailbox: Mailbox) -> None:
        self._client = client
        self._keys = keys
        self._reader = StatusReader(client, keys, pool)
        self._pool = pool
        self._mailbox = mailbox
        self._open: frozenset[Handoff] = frozenset()
        self._verdicts: Mapping[Handoff, HandoffVerdict] = {}
        self._taken_since: dict[Handoff, float] = {}
        self._news = asyncio.Event()

    def verdicts(self) -> Mapping[Handoff, HandoffVerdict]:
        """Last verdicts of those who are to take over, on open hand-overs."""
        return self._verdicts

    def follow(self, leaving: Iterable[Handoff]) -> None:
        """Says what the engine lists and others are to serve.

        What was said of anything else is forgotten: when it comes to that again, those others may have gone and come.
        """
        self._open = frozenset(leaving)
        self._tell(self._verdicts)
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
        """Reads the verdicts; there are none while the desired state may be old."""
        verdicts: Mapping[Handoff, HandoffVerdict] = {}
        snapshot = self._mailbox.snapshot
        if snapshot.connected and not snapshot.held:
            try:
                verdicts = self._aged(await self._judged(self._open))
            except EtcdError as error:
                _log.warning("not_handed_over", error=str(error))
        if self._tell(verdicts):
            self._mailbox.wake()

    def _aged(self, verdicts: Mapping[Handoff, HandoffVerdict]) -> Mapping[Handoff, HandoffVerdict]:
        """The verdicts, with those of what was taken over just now marked as news."""
        now = asyncio.get_running_loop().time()
        taken = [one for one, verdict in verdicts.items() if isinstance(verdict, Taken)]
        self._taken_since = {one: self._taken_since.get(one, now) for one in taken}
        news = {one for one, since in self._taken_since.items() if now - since < LET_GO_SECONDS}
        return {one: Taken(routers_know=False) if one in news else verdict for one, verdict in verdicts.items()}

    def _tell(self, verdicts: Mapping[Handoff, HandoffVerdict]) -> bool:
        """Puts the verdicts in force that are still of use; True if that is a change."""
        before = self._verdicts
        self._verdicts = {one: verdict for one, verdict in verdicts.items() if one in self._open}
        return self._verdicts != before

    async def _judged(self, asked: frozenset[Handoff]) -> dict[Handoff, HandoffVerdict]:
        labels = await self._reader.labels() if any(one.owners is None for one in asked) else {}
        owners = {one: one.owners if one.owners is not None else _fitting(one, labels) for one in asked}
        statuses = await self._reader.statuses({owner for many in owners.values() for owner in many})
        owners |= {one: _reporting(owners[one], statuses) for one in asked if one.owners is None}
        # After the statuses, so that a record which stands now stood when they were written.
        revisions = await self._revisions(sorted({one.key for one in asked}))
        return {one: evaluate_handoff(one, owners[one], statuses, revisions.get(one.key, 0)) for one in asked}

    async def others(self, than: str) -> list[OtherReplica]:
        """Live replicas that report and do not leave, each with whether it is ready; without one. Raises EtcdError."""
        labels = dict(await self._reader.labels())
        labels.pop(than, None)
        statuses = await self._reader.statuses(labels)
        return [OtherReplica(labels[one], _is_ready(statuses[one])) for one in _reporting(labels, statuses)]

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


def _is_ready(reading: StatusReading) -> bool:
    return isinstance(reading, ParsedStatus) and reading.status.ready and not reading.status.stale


def _reporting(replicas: Iterable[str], statuses: Mapping[str, StatusReading]) -> tuple[str, ...]:
    """Those that are no presences alone, which nobody could wait for."""
    return tuple(one for one in replicas if statuses[one] is not None)


def _fitting(leaving: Handoff, labels: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    selector = leaving.terms.placement.selector
    return tuple(sorted(replica for replica, of in labels.items() if matches(selector, of)))
