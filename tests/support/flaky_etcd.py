"""A client of a `MemoryEtcd` whose calls fail as told: before they arrive, after, or to arrive much later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdUnavailable, LeaseExpired, Timeout
from registry.etcd3.ops import Put, Txn, TxnResult
from tests.support.memory_etcd import MemoryEtcd
from tests.support.ordered import ordered


class Fault(Enum):
    """What happens to one transaction that writes."""

    NONE = "none"
    REFUSED = "refused"  # certainly not applied
    LOST = "lost"  # it never arrives, and nobody knows
    REPLY_LOST = "reply lost"  # it is applied, and nobody knows
    LATE = "late"  # it arrives after others, and nobody knows
    LEASE_GONE = "lease gone"


@dataclass
class FlakyEtcd:
    """What `Client` is to the store: the methods that a change needs. Reads always work."""

    etcd: MemoryEtcd = field(default_factory=MemoryEtcd)
    faults: Iterator[Fault] = field(default_factory=lambda: iter(()))
    late: list[Txn] = field(default_factory=list)
    meanwhile: Callable[[], object] | None = None
    sent: int = 0
    granted: int = 0

    def fail(
        self, faults: Iterable[Fault], *, meanwhile: Callable[[], object] | None = None, all_strike: bool = True
    ) -> None:
        """What happens to the transactions that follow; after these, nothing.

        `meanwhile` is called once, after the first that fails, before it can be sent again. Not `all_strike`: there may
        be fewer transactions than faults.
        """
        self.faults = mine = iter(faults)
        self.meanwhile = meanwhile
        if all_strike:
            ordered("a fault of a transaction", lambda: next(mine, None) is None)

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        """Carries a transaction out, or not."""
        if not any(isinstance(op, Put) for op in txn.success):
            return self.etcd.txn(txn)
        self.sent += 1
        fault = next(self.faults, Fault.NONE)
        if fault is Fault.NONE:
            return self.etcd.txn(txn)
        try:
            self._fail(fault, txn)
        finally:
            happens, self.meanwhile = self.meanwhile, None
            if happens:
                happens()
        raise Timeout(f"cut after {timeout_seconds} s", maybe_applied=True)

    def _fail(self, fault: Fault, txn: Txn) -> None:
        match fault:
            case Fault.REFUSED:
                raise EtcdUnavailable("no connection", maybe_applied=False)
            case Fault.LEASE_GONE:
                raise LeaseExpired("no such lease")
            case Fault.REPLY_LOST:
                self.etcd.txn(txn)
            case Fault.LATE:
                self.late.append(txn)
            case _:
                pass

    async def lease_grant(self, ttl_seconds: int, *, timeout_seconds: float | None = None) -> int:
        """A new lease."""
        self.granted += 1
        lease = ttl_seconds + self.granted
        await asyncio.sleep(0)  # others ask meanwhile
        return lease

    def arrive(self) -> None:
        """All that is late arrives."""
        late, self.late = self.late, []
        for txn in late:
            self.etcd.txn(txn)

    def as_client(self) -> Client:
        """Itself, for those who ask for the real one."""
        return self  # type: ignore[return-value] # it has the methods that the store's writer calls


class NoChance(random.Random):
    """Waits are as short as they can be."""

    def uniform(self, a: float, b: float) -> float:
        """The lower bound."""
        return min(a, b)


class Longest(random.Random):
    """Waits are as long as they can be."""

    def uniform(self, a: float, b: float) -> float:
        """The upper bound."""
        return max(a, b)
