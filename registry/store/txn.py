"""Runs one change: read, plan, commit, plan again from the else-branch.

Its request and audit records stand under leases that many records share, so that old ones go by themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from registry.etcd3.backoff import Backoff
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, LeaseExpired, NoSpace
from registry.etcd3.ops import Delete, KeyValue, Put, Range, Txn, TxnResult
from registry.model.errors import Conflict, Reason, RegistryError, Unavailable
from registry.runtime.clock import Deadline
from registry.store.failures import outcome_unknown, refusal
from registry.transactions.builder import Commit, Settled, Unchanged, fence, is_fenced, replay, request_reads
from registry.transactions.changes import Change
from registry.transactions.context import Context, LeaseIds
from registry.transactions.decode import ReadSet, read_set_of
from registry.transactions.plan import may_be_guessed, plan_change, reads_beside, reads_of

HOUR_SECONDS = 3600
DAY_SECONDS = 24 * HOUR_SECONDS


class SharedLease:
    """A lease that is granted at its first use and replaced by a new one regularly.

    It is never kept alive: a record put under it lives between `ttl_seconds - renew_seconds` and `ttl_seconds`.
    `monotonic` None: the clock of the running event loop.
    """

    def __init__(
        self, client: Client, *, ttl_seconds: int, renew_seconds: float, monotonic: Callable[[], float] | None = None
    ) -> None:
        self._client = client
        self._ttl_seconds = ttl_seconds
        self._renew_seconds = renew_seconds
        self._monotonic = monotonic or asyncio.get_running_loop().time
        self._lock = asyncio.Lock()
        self._lease = 0
        self._renew_at = 0.0

    async def current(self, timeout_seconds: float) -> int:
        """The lease to put a record under.

        Raises:
            EtcdError: none could be granted.
        """
        async with self._lock:
            if not self._is_fresh():
                self._lease = await self._client.lease_grant(self._ttl_seconds, timeout_seconds=timeout_seconds)
                self._renew_at = self._monotonic() + self._renew_seconds
            return self._lease

    def forget(self, lease: int) -> None:
        """Notes that etcd does not know a lease any more."""
        if lease == self._lease:
            self._lease = 0

    def _is_fresh(self) -> bool:
        return self._lease != 0 and self._monotonic() < self._renew_at


@dataclass(frozen=True, slots=True)
class Retention:
    """Least time that the records of a change live: the one of its request (guarantee W3), and the audit record."""

    request_seconds: int = DAY_SECONDS
    audit_seconds: int = 30 * DAY_SECONDS


USUAL_RETENTION = Retention()
# A lease is shared for this part of the time, and that much longer its first record lives.
_REQUEST_PART, _AUDIT_PART = 24, 30
# Least time that the record of a refused call lives; they are shared for a day.
DENIAL_DAYS = 7


def request_lease(client: Client, retention: Retention = USUAL_RETENTION) -> SharedLease:
    """For request records."""
    return _lease(client, retention.request_seconds, _REQUEST_PART)


def audit_lease(client: Client, retention: Retention = USUAL_RETENTION) -> SharedLease:
    """For audit records."""
    return _lease(client, retention.audit_seconds, _AUDIT_PART)


def denial_lease(client: Client) -> SharedLease:
    """For records of refused calls."""
    return _lease(client, DENIAL_DAYS * DAY_SECONDS, DENIAL_DAYS)


def _lease(client: Client, seconds: int, part: int) -> SharedLease:
    renew_seconds = seconds // part
    return SharedLease(client, ttl_seconds=seconds + renew_seconds, renew_seconds=renew_seconds)


_RESEND = Backoff(base_seconds=0.05, cap_seconds=1.0)


@dataclass(frozen=True, slots=True)
class Sent:
    """Outcome of a transaction. `copies`: it was sent more than once, so a copy may yet arrive."""

    result: TxnResult
    copies: bool


async def commit(client: Client, txn: Txn, request_id: str, deadline: Deadline, rng: random.Random) -> Sent:
    """Sends `txn`; after a failure that may have applied it, the same again.

    That does no harm, since it compares that its own request record is absent. If its compares fail, its else-branch
    shows whether it was applied.

    Raises:
        EtcdError: it was certainly not applied.
        Unavailable: the time is up and nobody knows.
    """
    try:
        return Sent(await client.txn(txn, timeout_seconds=deadline.share()), copies=False)
    except EtcdError as error:
        if error.certainly_not_applied:
            raise
        return await _send_again(client, txn, request_id, deadline, rng, error)


async def _send_again(
    client: Client, txn: Txn, request_id: str, deadline: Deadline, rng: random.Random, last: EtcdError
) -> Sent:
    failures = 1
    while True:
        delay = _RESEND.delay(failures, rng.uniform)
        if delay >= deadline.left():
            raise outcome_unknown(last, request_id) from last
        await asyncio.sleep(delay)
        try:
            return Sent(await client.txn(txn, timeout_seconds=deadline.share()), copies=True)
        except EtcdError as error:
            last = error
            failures += 1


_CACHED_ENTRIES = 5000
_LARGEST_CACHED_BYTES = 8 * 1024


class ReadCache:
    """The last known values of keys below some prefixes; the least recently used are forgotten."""

    def __init__(self, prefixes: Iterable[bytes]) -> None:
        self._prefixes = tuple(prefixes)
        self._known: OrderedDict[bytes, KeyValue] = OrderedDict()

    def guess(self, reads: tuple[Range, ...]) -> ReadSet:
        """A view in which everything unknown is absent."""
        found = {read.key: kv for read in reads if (kv := self._known.get(read.key))}
        for key in found:
            self._known.move_to_end(key)
        return ReadSet(0, reads, found)

    def saw(self, view: ReadSet) -> None:
        """Learns what a reading found."""
        for read in view.reads:
            if not read.range_end:
                self._learn(read.key, view.key(read.key))

    def wrote(self, txn: Txn, revision: int) -> None:
        """Learns what a transaction of ours did."""
        for op in txn.success:
            match op:
                case Put():
                    self._learn(op.key, KeyValue(op.key, op.value, 0, revision, 0))
                case Delete(range_end=b""):
                    self._learn(op.key, None)
                case _:
                    pass

    def _learn(self, key: bytes, kv: KeyValue | None) -> None:
        self._known.pop(key, None)
        if kv is None or not key.startswith(self._prefixes) or len(kv.value) > _LARGEST_CACHED_BYTES:
            return
        self._known[key] = kv
        if len(self._known) > _CACHED_ENTRIES:
            self._known.popitem(last=False)


_TRIES = 20
_RACE = Backoff(base_seconds=0.005, cap_seconds=0.5)


@dataclass(frozen=True, slots=True)
class Tools:
    """State that all attempts share."""

    client: Client
    hints: ReadCache
    request_lease: SharedLease
    audit_lease: SharedLease
    rng: random.Random


class TxnRunner:
    """One change by one caller, within one deadline."""

    def __init__(self, change: Change, context: Context, tools: Tools, deadline: Deadline) -> None:
        self._change = change
        self._context = context
        self._tools = tools
        self._deadline = deadline
        self._reads = reads_of(change, context)
        self._copies = context.caller.repeats

    async def foretell(self) -> Settled:
        """Effect that the change would have. Raises as `carry_out`."""
        try:
            view = await self._whole(await self._read())
        except EtcdError as error:
            raise refusal(error) from error
        known = await self._replay(view)
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
            with self.unfenced():
                if not self._copies or isinstance(error, Unavailable):
                    raise
            return await self._fence(error)

    @contextmanager
    def unfenced(self) -> Iterator[None]:
        """Around what may fail and puts no fence: if something that was sent may yet take effect, nobody knows."""
        try:
            yield
        except RegistryError as error:
            if not self._copies or error.reason is Reason.OUTCOME_UNKNOWN:
                raise
            why = error.__cause__ if isinstance(error.__cause__, EtcdError) else error
            raise outcome_unknown(why, self._context.caller.request_id) from error

    async def _carry_out(self) -> Settled:
        try:
            await self._take_leases()
            return await self._by_guess() or await self._from(await self._read())
        except NoSpace as error:
            known = await self._known()
            if known is None:
                raise refusal(error) from error
            return known
        except EtcdError as error:
            raise refusal(error) from error

    async def _known(self) -> Settled | None:
        """Outcome of an earlier call with this request id. Read plainly: without space no transaction is taken."""
        reads = request_reads(self._context)
        try:
            found = [await self._tools.client.range(read, timeout_seconds=self._deadline.spend()) for read in reads]
        except EtcdError as error:
            raise refusal(error) from error
        return replay(read_set_of(reads, found[0].revision, found), self._context)

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

    async def _from(self, view: ReadSet) -> Settled:
        """Plans from a true view, and from those that follow, until it is settled."""
        for lost in range(_TRIES):
            known = await self._replay(view)
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
                await asyncio.sleep(min(_RACE.delay(lost, self._tools.rng.uniform), max(0.0, self._deadline.left())))
        raise Conflict(
            Reason.LOST_RACE, f"others changed the same records {_TRIES} times in a row; nothing was changed, repeat it"
        )

    async def _replay(self, view: ReadSet) -> Settled | None:
        """Outcome of an earlier call with this request id, if it was settled.

        Raises:
            RegistryError: it was refused: as this one would be now, or its request id is used up.
        """
        if is_fenced(view, self._context):
            plan_change(self._change, await self._whole(view), self._context)
        return replay(view, self._context)

    async def _whole(self, view: ReadSet) -> ReadSet:
        """With what only this kind of pool has to be planned from. From then on each else-branch reads that too."""
        beside = set(reads_beside(self._change, view, self._context)) - set(self._reads)
        if not beside:
            return view
        self._reads = (*self._reads, *beside)
        return await self._read()

    async def _send(self, planned: Commit) -> Sent | None:
        """Outcome of the transaction; None: its leases are gone, and there are new ones now."""
        self._deadline.spend()
        request_id = self._context.caller.request_id
        try:
            sent = await commit(self._tools.client, planned.txn, request_id, self._deadline, self._tools.rng)
        except LeaseExpired:
            self._tools.request_lease.forget(self._context.leases.request)
            self._tools.audit_lease.forget(self._context.leases.audit)
            await self._take_leases()
            return None
        self._copies |= sent.copies
        if sent.result.succeeded:
            self._tools.hints.wrote(planned.txn, sent.result.revision)
        return sent

    def _seen(self, sent: Sent) -> ReadSet:
        """Reads of the else-branch."""
        view = read_set_of(self._reads, sent.result.revision, sent.result.responses)
        self._tools.hints.saw(view)
        return view

    async def _read(self) -> ReadSet:
        """Everything that a plan is made from, in as few round trips as etcd's limit allows."""
        most = self._context.limits.max_ops
        results = [
            await self._tools.client.txn(
                Txn((), self._reads[start : start + most]), timeout_seconds=self._deadline.spend()
            )
            for start in range(0, len(self._reads), most)
        ]
        responses = [response for result in results for response in result.responses]
        view = read_set_of(self._reads, min(result.revision for result in results), responses)
        self._tools.hints.saw(view)
        return view

    async def _take_leases(self) -> None:
        leases = LeaseIds(
            request=await self._tools.request_lease.current(self._deadline.spend()),
            audit=await self._tools.audit_lease.current(self._deadline.spend()),
        )
        self._context = replace(self._context, leases=leases)

    async def _fence(self, error: RegistryError) -> Settled:
        """Refuses only once no copy of what was sent can take effect any more."""
        request_id = self._context.caller.request_id
        try:
            sent = await commit(self._tools.client, fence(self._context), request_id, self._deadline, self._tools.rng)
        except EtcdError as failure:
            raise outcome_unknown(failure, request_id) from failure
        if sent.result.succeeded:
            raise error
        reads = request_reads(self._context)
        view = read_set_of(reads, sent.result.revision, sent.result.responses)
        # A fence that stands already is a copy of this one, whose reply was lost.
        known = None if is_fenced(view, self._context) else replay(view, self._context)
        if known is None:
            raise error
        return known
