"""One change on its way into etcd: read, plan, commit, and plan again from what the else-branch saw."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

from registry.errors import Conflict, Reason, RegistryError
from registry.etcd3.backoff import Backoff
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, LeaseExpired, NoSpace
from registry.etcd3.ops import Txn
from registry.store.budget import Budget
from registry.store.commit import Sent, commit
from registry.store.failures import outcome_unknown, refusal
from registry.store.hints import Hints
from registry.store.leases import SharedLease
from registry.transactions.changes import Change
from registry.transactions.context import Context, Leases
from registry.transactions.draft import Commit, Unchanged, fence, request_read
from registry.transactions.plan import may_be_guessed, plan_change, reads_beside, reads_of
from registry.transactions.replay import Settled, is_fenced, replay
from registry.transactions.view import View, view_of

_TRIES = 20
_RACE = Backoff(base_seconds=0.005, cap_seconds=0.5)


@dataclass(frozen=True, slots=True)
class Tools:
    """What all attempts share."""

    client: Client
    hints: Hints
    request_lease: SharedLease
    audit_lease: SharedLease
    rng: random.Random


class Attempt:
    """One change by one caller, within one budget."""

    def __init__(self, change: Change, context: Context, tools: Tools, budget: Budget) -> None:
        self._change = change
        self._context = context
        self._tools = tools
        self._budget = budget
        self._reads = reads_of(change, context)
        self._copies = False

    async def foretell(self) -> Settled:
        """What would become of the change. Raises as `carry_out`."""
        try:
            view = await self._whole(await self._read())
        except EtcdError as error:
            raise refusal(error) from error
        known = replay(view, self._context)
        return known or Settled(plan_change(self._change, view, self._context).reply, view.revision)

    async def carry_out(self) -> Settled:
        """Settles the change.

        Raises:
            Unavailable: the outcome is not known, or etcd does not answer; its reason and text tell which.
            RegistryError: it is refused, and nothing was changed, nor will be.
        """
        try:
            return await self._carry_out()
        except RegistryError as error:
            if not self._copies or error.reason is Reason.OUTCOME_UNKNOWN:
                raise
            return await self._fence(error)

    async def _carry_out(self) -> Settled:
        try:
            await self._take_leases()
            return await self._by_guess() or await self._by_reading()
        except NoSpace as error:
            known = await self._known()
            if known is None:
                raise refusal(error) from error
            return known
        except EtcdError as error:
            raise refusal(error) from error

    async def _known(self) -> Settled | None:
        """How an earlier call with this request id was settled. Read plainly: without space no transaction is taken."""
        read = request_read(self._context.keys, self._context.caller.request_id)
        try:
            found = await self._tools.client.range(read, timeout_seconds=self._budget.spend())
        except EtcdError as error:
            raise refusal(error) from error
        return replay(view_of((read,), found.revision, (found,)), self._context)

    async def _by_guess(self) -> Settled | None:
        """One round trip, if what we last saw still is so; None: it is not, or nothing can be told without reading."""
        if not may_be_guessed(self._change):
            return None
        try:
            planned = plan_change(self._change, self._tools.hints.guess(self._reads), self._context)
        except RegistryError:
            return None
        if isinstance(planned, Unchanged):
            return None
        sent = await self._send(planned)
        if sent is None:
            return None
        if sent.result.succeeded:
            return Settled(planned.reply, sent.result.revision)
        return await self._from(self._seen(sent))

    async def _by_reading(self) -> Settled:
        return await self._from(await self._read())

    async def _from(self, view: View) -> Settled:
        """Plans from a true view, and from those that follow, until it is settled."""
        for lost in range(_TRIES):
            known = replay(view, self._context)
            if known is not None:
                return known
            view = await self._whole(view)
            planned = plan_change(self._change, view, self._context)
            if isinstance(planned, Unchanged):
                return Settled(planned.reply, view.revision)
            sent = await self._send(planned)
            if sent is not None and sent.result.succeeded:
                return Settled(planned.reply, sent.result.revision)
            if sent is not None:
                view = self._seen(sent)
                await asyncio.sleep(min(_RACE.delay(lost, self._tools.rng), max(0.0, self._budget.left())))
        raise Conflict(
            Reason.LOST_RACE, f"others changed the same records {_TRIES} times in a row; nothing was changed, repeat it"
        )

    async def _whole(self, view: View) -> View:
        """With what only this kind of pool has to be planned from. From then on each else-branch reads that too."""
        beside = set(reads_beside(self._change, view, self._context)) - set(self._reads)
        if not beside:
            return view
        self._reads = (*self._reads, *beside)
        return await self._read()

    async def _send(self, planned: Commit) -> Sent | None:
        """What became of the transaction; None: its leases are gone, and there are new ones now."""
        self._budget.spend()
        request_id = self._context.caller.request_id
        try:
            sent = await commit(self._tools.client, planned.txn, request_id, self._budget, self._tools.rng)
        except LeaseExpired:
            self._tools.request_lease.forget(self._context.leases.request)
            self._tools.audit_lease.forget(self._context.leases.audit)
            await self._take_leases()
            return None
        self._copies |= sent.copies
        if sent.result.succeeded:
            self._tools.hints.wrote(planned.txn, sent.result.revision)
        return sent

    def _seen(self, sent: Sent) -> View:
        """What the else-branch read."""
        view = view_of(self._reads, sent.result.revision, sent.result.responses)
        self._tools.hints.saw(view)
        return view

    async def _read(self) -> View:
        """Everything that a plan is made from, in as few round trips as etcd's limit allows."""
        most = self._context.limits.max_ops
        results = [
            await self._tools.client.txn(
                Txn((), self._reads[start : start + most]), timeout_seconds=self._budget.spend()
            )
            for start in range(0, len(self._reads), most)
        ]
        responses = [response for result in results for response in result.responses]
        view = view_of(self._reads, min(result.revision for result in results), responses)
        self._tools.hints.saw(view)
        return view

    async def _take_leases(self) -> None:
        leases = Leases(
            request=await self._tools.request_lease.current(self._budget.spend()),
            audit=await self._tools.audit_lease.current(self._budget.spend()),
        )
        self._context = replace(self._context, leases=leases)

    async def _fence(self, error: RegistryError) -> Settled:
        """Refuses only once no copy of what was sent can take effect any more."""
        request_id = self._context.caller.request_id
        try:
            sent = await commit(self._tools.client, fence(self._context), request_id, self._budget, self._tools.rng)
        except EtcdError as failure:
            raise outcome_unknown(failure, request_id) from failure
        if sent.result.succeeded:
            raise error
        reads = (request_read(self._context.keys, request_id),)
        view = view_of(reads, sent.result.revision, sent.result.responses)
        # A fence that stands already is a copy of this one, whose reply was lost.
        known = None if is_fenced(view, self._context) else replay(view, self._context)
        if known is None:
            raise error
        return known
