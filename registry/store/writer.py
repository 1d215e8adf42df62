"""The only writer of desired state: one change of a tenant after another.

Locks by name keep racers from wasting transactions. etcd decides what is right. A gate is shut until the store's own
record was read, and for as long as that forbids writing.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime

from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Range, RangeResult, Txn, absent
from registry.model.errors import FailedPrecondition, Reason, RegistryError, Unavailable
from registry.model.keys import Keys
from registry.model.records import Meta
from registry.runtime.clock import Deadline
from registry.store.txn import USUAL_RETENTION, ReadCache, Retention, Tools, TxnRunner, audit_lease, request_lease
from registry.transactions.builder import Settled
from registry.transactions.changes import Change, payload_digest, tenants_of
from registry.transactions.context import Caller, Context, LeaseIds, TxnLimits


class WriteGate:
    """Shut until the store's own record has been read, and for as long as that forbids writing."""

    def __init__(self) -> None:
        self._refusal: RegistryError | None = Unavailable(
            Reason.ETCD_UNAVAILABLE, "etcd has not answered since the admin service started; nothing was changed"
        )

    def open(self) -> None:
        """Lets changes pass from now on."""
        self._refusal = None

    def shut(self, error: FailedPrecondition) -> None:
        """Refuses every change with this error."""
        self._refusal = error

    def check(self) -> None:
        """Raises RegistryError unless changes may be made."""
        if self._refusal is not None:
            raise self._refusal


async def ensure_meta(client: Client, keys: Keys) -> Meta:
    """The store's own record, made now if there is none.

    Raises:
        FailedPrecondition: it is from a future schema or cannot be read, so nothing may be written.
        EtcdError: etcd does not answer.
    """
    key = keys.meta()
    # Read first: a full etcd refuses every transaction that could put, and is still good for reading.
    known = (await client.range(Range(key))).kvs
    if known:
        return _parse(known[0].value, key)
    created_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    made = Meta(epoch=secrets.token_hex(16), created_at=created_at)
    result = await client.txn(Txn((absent(key),), (Put(key, made.to_bytes()),), (Range(key),)))
    match result.responses:
        case (RangeResult(kvs=(kv,)),):
            return _parse(kv.value, key)
        case _:
            return made


def _parse(value: bytes, key: bytes) -> Meta:
    try:
        return Meta.parse(value)
    except FailedPrecondition as error:
        message = f"the record at {key.decode()} forbids writing: {error.message}"
        raise FailedPrecondition(error.reason, message, metadata={"key": key.decode()}) from error


@dataclass(slots=True)
class _Lock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class NamedLocks:
    """One lock for each name that somebody holds or waits for, none for others."""

    def __init__(self) -> None:
        self._locks: dict[str, _Lock] = {}

    @asynccontextmanager
    async def hold(self, names: Iterable[str], *, timeout_seconds: float) -> AsyncIterator[None]:
        """Holds all of them, taken in sorted order.

        Raises:
            TimeoutError: they could not be had in time.
        """
        held: list[str] = []
        try:
            wanted = sorted(set(names))
            # What nobody holds is had at once, and a deadline costs more than that.
            async with nullcontext() if self._locks.keys().isdisjoint(wanted) else asyncio.timeout(timeout_seconds):
                await self._take_all(wanted, held)
            yield
        finally:
            for name in held:
                self._locks[name].lock.release()
                self._leave(name)

    async def _take_all(self, names: Iterable[str], held: list[str]) -> None:
        for name in names:
            entry = self._locks.setdefault(name, _Lock())
            entry.users += 1
            try:
                await entry.lock.acquire()
            except asyncio.CancelledError:
                self._leave(name)
                raise
            held.append(name)

    def _leave(self, name: str) -> None:
        self._locks[name].users -= 1
        if not self._locks[name].users:
            del self._locks[name]


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def audit_id(now: datetime) -> str:
    """A new id of an audit record; they sort by time."""
    return f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}"


class Writer:
    """The only writer of desired state. Made inside a running event loop."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        limits: TxnLimits,
        gate: WriteGate,
        *,
        rng: random.Random,
        now: Callable[[], datetime] = utc_now,
        retention: Retention = USUAL_RETENTION,
    ) -> None:
        self._keys = keys
        self._limits = limits
        self._gate = gate
        self._now = now
        self._locks = NamedLocks()
        leases = request_lease(client, retention), audit_lease(client, retention)
        self._tools = Tools(client, ReadCache(keys.records()), *leases, rng)

    async def change(self, change: Change, caller: Caller, deadline: Deadline, *, validate_only: bool) -> Settled:
        """Carries a change out, or only tells what would become of it.

        Raises:
            Unavailable: the outcome is not known, or etcd does not answer; its reason and text tell which.
            RegistryError: it is refused, and nothing was changed.
        """
        attempt = TxnRunner(change, self._context(change, caller), self._tools, deadline)
        if validate_only:
            self._gate.check()
            return await attempt.foretell()
        async with AsyncExitStack() as held:
            with attempt.unfenced():
                await held.enter_async_context(self._turn(change, deadline.spend()))
                self._gate.check()  # behind the turn: a later release may have come meanwhile
            return await attempt.carry_out()

    @asynccontextmanager
    async def _turn(self, change: Change, timeout_seconds: float) -> AsyncIterator[None]:
        try:
            async with self._locks.hold(tenants_of(change), timeout_seconds=timeout_seconds):
                yield
        except TimeoutError as error:
            message = "no turn came in time among changes of the same tenant; nothing was changed, repeat it"
            raise Unavailable(Reason.DEADLINE_EXCEEDED, message) from error

    def _context(self, change: Change, caller: Caller) -> Context:
        now = self._now()
        return Context(
            keys=self._keys,
            limits=self._limits,
            caller=caller,
            leases=LeaseIds(),
            at=now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            audit_id=audit_id(now),
            payload_digest=payload_digest(change),
        )
