"""Carries a change out: read, plan, commit, and plan again from what the else-branch saw."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from registry.errors import Conflict, Reason, Unavailable
from registry.etcd3.backoff import Backoff
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, LeaseExpired
from registry.etcd3.ops import Range, Txn, TxnResult
from registry.keys import Keys
from registry.store.budget import Budget
from registry.store.commit import commit
from registry.store.failures import refusal
from registry.store.gate import Gate
from registry.store.leases import audit_lease, request_lease
from registry.store.locks import Locks
from registry.transactions.changes import Change, payload_digest, tenants_of
from registry.transactions.context import Caller, Context, Leases, Limits
from registry.transactions.draft import Commit, Unchanged
from registry.transactions.plan import plan_change, reads_of
from registry.transactions.replay import Settled, replay
from registry.transactions.view import View, view_of

_TRIES = 20
_RACE = Backoff(base_seconds=0.005, cap_seconds=0.5)


def _now() -> datetime:
    return datetime.now(UTC)


class Writer:
    """The only writer of desired state. Made inside a running event loop."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        limits: Limits,
        gate: Gate,
        *,
        rng: random.Random,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._client = client
        self._keys = keys
        self._limits = limits
        self._gate = gate
        self._rng = rng
        self._now = now
        self._locks = Locks()
        self._request_lease = request_lease(client)
        self._audit_lease = audit_lease(client)

    async def change(self, change: Change, caller: Caller, budget: Budget, *, validate_only: bool) -> Settled:
        """Carries a change out, or only tells what would become of it.

        Raises:
            Unavailable: the outcome is not known, or etcd does not answer; its reason and text tell which.
            RegistryError: it is refused, and nothing was changed.
        """
        self._gate.check()
        context = self._context(change, caller)
        reads = reads_of(change, context)
        try:
            if validate_only:
                return self._foretell(change, await self._read(reads, budget), context)
            async with self._locks.hold(tenants_of(change), timeout_seconds=budget.spend()):
                return await self._carry_out(change, reads, context, budget)
        except EtcdError as error:
            raise refusal(error) from error
        except TimeoutError as error:
            message = "other changes of the same tenant took all the time; nothing was changed, repeat it"
            raise Unavailable(Reason.DEADLINE_EXCEEDED, message) from error

    def _context(self, change: Change, caller: Caller) -> Context:
        now = self._now()
        return Context(
            keys=self._keys,
            limits=self._limits,
            caller=caller,
            leases=Leases(),
            at=now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            audit_id=f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}",
            payload_digest=payload_digest(change),
        )

    def _foretell(self, change: Change, view: View, context: Context) -> Settled:
        known = replay(view, context)
        return known or Settled(plan_change(change, view, context).reply, view.revision)

    async def _carry_out(self, change: Change, reads: tuple[Range, ...], context: Context, budget: Budget) -> Settled:
        view = await self._read(reads, budget)
        for lost in range(_TRIES):
            known = replay(view, context)
            if known is not None:
                return known
            context = await self._leased(context, budget)
            planned = plan_change(change, view, context)
            if isinstance(planned, Unchanged):
                return Settled(planned.reply, view.revision)
            result = await self._commit(planned, context, budget)
            if result is not None and result.succeeded:
                return Settled(planned.reply, result.revision)
            if result is not None:
                view = view_of(reads, result.revision, result.responses)
                await asyncio.sleep(min(_RACE.delay(lost, self._rng), max(0.0, budget.left())))
        raise Conflict(
            Reason.LOST_RACE, f"others changed the same records {_TRIES} times in a row; nothing was changed, repeat it"
        )

    async def _commit(self, planned: Commit, context: Context, budget: Budget) -> TxnResult | None:
        """The transaction's result; None if its leases are gone, so that it needs new ones."""
        try:
            return await commit(self._client, planned.txn, context.caller.request_id, budget, self._rng)
        except LeaseExpired:
            self._request_lease.forget(context.leases.request)
            self._audit_lease.forget(context.leases.audit)
            return None

    async def _leased(self, context: Context, budget: Budget) -> Context:
        leases = Leases(
            request=await self._request_lease.current(budget.spend()),
            audit=await self._audit_lease.current(budget.spend()),
        )
        return context if leases == context.leases else replace(context, leases=leases)

    async def _read(self, reads: tuple[Range, ...], budget: Budget) -> View:
        """Everything that a plan is made from, as few round trips as etcd's limit allows."""
        most = self._limits.max_ops
        results = [
            await self._client.txn(Txn((), reads[start : start + most]), timeout_seconds=budget.spend())
            for start in range(0, len(reads), most)
        ]
        responses = [response for result in results for response in result.responses]
        return view_of(reads, min(result.revision for result in results), responses)
