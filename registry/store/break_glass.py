"""Deletes a record while etcd is out of space: what it takes then is a plain deletion, and nothing beside it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from registry.errors import FailedPrecondition, NotFound, Reason, Unavailable
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, NoSpace
from registry.etcd3.ops import Delete, KeyValue, Range
from registry.keys import Keys
from registry.model.records import AdapterRecord, Removed
from registry.store.budget import Budget
from registry.store.failures import refusal
from registry.store.gate import Gate
from registry.transactions.context import Caller
from registry.transactions.stored import read_adapter
from registry.transactions.target import stale_etag

# Asked for only to see whether etcd refuses it.
_PROBE_TTL_SECONDS = 10
_REMEMBERED = 1000
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed: the receipt from which it is settled later."""

    record: AdapterRecord
    removed: Removed


class BreakGlass:
    """Removals under NOSPACE. Made inside a running event loop."""

    def __init__(self, client: Client, keys: Keys, gate: Gate, *, now: Callable[[], datetime]) -> None:
        self._client = client
        self._keys = keys
        self._gate = gate
        self._now = now
        self._done: OrderedDict[str, Removal] = OrderedDict()

    async def delete(self, pool: str, name: str, etag: int | None, caller: Caller, budget: Budget) -> Removal:
        """Deletes an adapter's record, and tells how it stood.

        The etag is compared just before the deletion, not with it, since etcd takes no transaction now. Nobody else
        can write meanwhile, but for the moment in which the alarm ends; the receipt shows what was deleted in truth.

        Raises:
            FailedPrecondition: etcd takes changes, so there is no glass to break; or the record cannot be read.
            NotFound: there is no such adapter.
            Conflict: the etag is stale.
            Unavailable: etcd does not answer, or it is not known whether the record was deleted.
        """
        self._gate.check()
        if caller.request_id in self._done:
            return self._done[caller.request_id]
        try:
            stood = await self._record(pool, name, etag, budget)
            await self._check_full(budget)
        except EtcdError as error:
            raise refusal(error) from error
        # The second copy of the receipt, since etcd takes none. Told first: who dies after the deletion tells nothing.
        record = stood.value.decode(errors="backslashreplace")
        _log.warning("breaking_glass", pool=pool, name=name, record=record, by=caller.principal, role=caller.role)
        removal = await self._delete(pool, stood, caller, budget)
        self._remember(caller.request_id, removal)
        return removal

    async def _record(self, pool: str, name: str, etag: int | None, budget: Budget) -> KeyValue:
        # No transaction, not even to read: some servers refuse that too.
        found = (await self._client.range(Range(self._keys.adapter(pool, name)), timeout_seconds=budget.spend())).kvs
        if not found:
            message = f"there is no adapter {name!r} in pool {pool!r}"
            raise NotFound(Reason.ADAPTER_NOT_FOUND, message, field="name")
        read_adapter(pool, found[0])
        if etag is not None and etag != found[0].mod_revision:
            raise stale_etag(etag, found[0].mod_revision, field="etag")
        return found[0]

    async def _check_full(self, budget: Budget) -> None:
        """etcd itself says whether it is out of space, by refusing what it takes at any other time."""
        try:
            lease = await self._client.lease_grant(_PROBE_TTL_SECONDS, timeout_seconds=budget.spend())
        except NoSpace:
            return
        await self._client.lease_revoke(lease, timeout_seconds=budget.spend())
        raise FailedPrecondition(
            Reason.SPACE_LEFT, "etcd takes changes, so there is no glass to break; use loraplane delete adapter"
        )

    async def _delete(self, pool: str, stood: KeyValue, caller: Caller, budget: Budget) -> Removal:
        at = self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        try:
            deleted = await self._client.delete(Delete(stood.key), timeout_seconds=budget.share())
        except EtcdError as error:
            if error.certainly_not_applied:
                raise refusal(error) from error
            revision = await self._gone_at(stood, budget, error)
        else:
            revision = deleted.revision
            stood = next(iter(deleted.kvs), stood)
        return Removal(read_adapter(pool, stood), Removed(revision=revision, at=at, by=caller.principal))

    async def _gone_at(self, stood: KeyValue, budget: Budget, error: EtcdError) -> int:
        """A revision at which the record is gone, after nobody knows what became of the deletion."""
        try:
            now = await self._client.range(Range(stood.key), timeout_seconds=budget.spend())
        except EtcdError as failure:
            raise _unknown(failure) from failure
        if now.kvs:
            raise _unknown(error) from error
        return now.revision

    def _remember(self, request_id: str, removal: Removal) -> None:
        self._done[request_id] = removal
        if len(self._done) > _REMEMBERED:
            self._done.popitem(last=False)


def _unknown(error: EtcdError) -> Unavailable:
    message = f"it is not known whether the record was deleted; look whether it is there, and repeat: {error}"
    return Unavailable(Reason.OUTCOME_UNKNOWN, message)
