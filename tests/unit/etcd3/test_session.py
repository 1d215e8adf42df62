"""When a lease is renewed, in virtual time. What etcd makes of it is in tests/contract."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from registry.etcd3.errors import EtcdError, EtcdUnavailable, LeaseExpired
from registry.etcd3.session import hold_lease
from tests.simulation.loop import VirtualLoop
from tests.support.flaky_etcd import Longest, NoChance
from tests.support.played_etcd import virtual

TTL_SECONDS = 30
HELD_SECONDS = 600.0


@dataclass
class Leases:
    """A client; the renewals of `lost` never reach it, and at those of `gone` the lease is not known any more."""

    lost: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    renewed_at: list[float] = field(default_factory=list)
    tried: int = 0

    async def lease_grant(self, ttl_seconds: int) -> int:
        self.renewed_at.append(asyncio.get_running_loop().time())
        return ttl_seconds

    async def lease_keepalive(self, lease: int) -> int:
        self.tried += 1
        if self.tried in self.lost:
            raise EtcdUnavailable("no way", maybe_applied=False)
        if self.tried in self.gone:
            raise LeaseExpired("no such lease")
        self.renewed_at.append(asyncio.get_running_loop().time())
        return lease

    async def lease_revoke(self, lease: int, timeout_seconds: float) -> None:
        pass

    def longest_pause_seconds(self) -> float:
        return max(after - before for before, after in zip(self.renewed_at, self.renewed_at[1:], strict=False))


def test_a_lease_that_is_gone_ends_what_ran_under_it_at_once_and_it_begins_anew():
    """R10 one-owner: whoever holds the key since is alone with it."""
    leases, errors, lives = Leases(gone=frozenset({3})), list[EtcdError](), list[tuple[float, float]]()

    async def body(_lease: int) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(HELD_SECONDS)
        finally:
            lives.append((begun, asyncio.get_running_loop().time()))

    with closing(VirtualLoop()) as loop:
        rng = random.Random(0)
        loop.run_until_complete(hold_lease(leases, ttl_seconds=TTL_SECONDS, body=body, rng=rng, on_error=errors.append))
    (first, lost), (again, ended) = lives
    assert [type(error) for error in errors] == [LeaseExpired]
    assert 0.8 * TTL_SECONDS <= lost - first <= TTL_SECONDS
    assert lost <= again < lost + TTL_SECONDS
    assert ended - again == HELD_SECONDS


@virtual
async def test_what_ran_under_a_lease_has_ended_before_the_lease_is_given_up():
    """R10: what it still does as it ends, it does as the owner; and nothing of it goes on after that."""
    told = list[str]()

    class Noting(Leases):
        async def lease_revoke(self, lease: int, timeout_seconds: float) -> None:
            assert lease == TTL_SECONDS
            assert 0.5 <= timeout_seconds <= 1.0, "the end of a process waits no longer for an etcd that is dead"
            told.append("revoked")
            raise EtcdUnavailable("no way", maybe_applied=False)

    async def body(_lease: int) -> None:
        told.append("begun")
        try:
            await asyncio.sleep(HELD_SECONDS)
        finally:
            await asyncio.sleep(5.0)
            told.append("ended")

    leases = Noting(gone=frozenset({2}))
    holding = asyncio.create_task(hold_lease(leases, ttl_seconds=TTL_SECONDS, body=body, rng=random.Random(0)))
    await asyncio.sleep(TTL_SECONDS * 2)
    assert told == ["begun", "ended", "revoked", "begun"]
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert told[4:] == ["ended", "revoked"]


def test_what_fails_under_a_lease_is_passed_on_and_the_lease_is_given_up():
    revoked = list[int]()

    class Noting(Leases):
        async def lease_revoke(self, lease: int, timeout_seconds: float) -> None:
            revoked.append(lease)

    async def body(_lease: int) -> None:
        raise KeyError("of ours")

    with closing(VirtualLoop()) as loop, pytest.raises(KeyError):
        loop.run_until_complete(hold_lease(Noting(), ttl_seconds=TTL_SECONDS, body=body, rng=random.Random(0)))
    assert revoked == [TTL_SECONDS]


class Failing(Leases):
    """Each of these calls fails so often, one after another; notes when each was made."""

    def __init__(self, *, grants: int = 0, renewals: int = 0) -> None:
        super().__init__()
        self.failing = {"grant": grants, "renew": renewals}
        self.at: dict[str, list[float]] = {"grant": [], "renew": []}

    def _note(self, call: str) -> None:
        self.at[call].append(asyncio.get_running_loop().time())
        if len(self.at[call]) <= self.failing[call]:
            raise EtcdUnavailable("no way", maybe_applied=False)

    async def lease_grant(self, ttl_seconds: int) -> int:
        self._note("grant")
        return ttl_seconds

    async def lease_keepalive(self, lease: int) -> int:
        self._note("renew")
        return lease

    def pauses(self, call: str) -> list[float]:
        return [round(after - before, 6) for before, after in pairwise(self.at[call])]


def play(leases: Leases, rng: random.Random, seconds: float = HELD_SECONDS) -> list[EtcdError]:
    """Holds a lease for so long; what was told of failures."""
    errors: list[EtcdError] = []

    async def body(_lease: int) -> None:
        await asyncio.sleep(seconds)

    with closing(VirtualLoop()) as loop:
        held = hold_lease(leases, ttl_seconds=TTL_SECONDS, body=body, rng=rng, on_error=errors.append)
        loop.run_until_complete(held)
    return errors


def test_what_fails_is_tried_again_ever_more_slowly_up_to_every_two_seconds():
    """R13, R10: a lease that lives for ten seconds more is tried for five times at least; a fleet does so in turns."""
    leases = Failing(grants=8, renewals=8)
    assert len(play(leases, Longest())) == 16, "each failure is told"
    backoff = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert leases.pauses("grant") == backoff
    assert leases.pauses("renew")[:10] == [*backoff, TTL_SECONDS / 3, TTL_SECONDS / 3]
    assert leases.at["renew"][0] - leases.at["grant"][-1] == pytest.approx(TTL_SECONDS / 3)
    soonest = Failing()
    play(soonest, NoChance())
    assert set(soonest.pauses("renew")) == {TTL_SECONDS / 3 * 0.8}


@pytest.mark.parametrize(("rng", "pause"), [(Longest(), 0.5), (NoChance(), 0.0)], ids=["late", "soon"])
def test_replicas_that_lost_their_leases_together_do_not_come_back_together(rng, pause):
    """R8: each within half a second."""
    begun = list[float]()

    async def body(_lease: int) -> None:
        begun.append(asyncio.get_running_loop().time())
        if len(begun) == 1:
            raise LeaseExpired("gone")

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(hold_lease(Leases(), ttl_seconds=TTL_SECONDS, body=body, rng=rng))
    assert begun == [0.0, pause]


class Defect(Exception):
    """A fault of ours."""


@pytest.mark.parametrize("call", ["lease_grant", "lease_keepalive", "lease_revoke"])
def test_a_fault_of_ours_is_no_trouble_with_etcd(call, monkeypatch):
    """R12 crash-only: it is passed on, and what ran under the lease has ended."""
    running = list[int]()

    async def fails(*_: object, **__: object) -> None:
        raise Defect

    async def body(lease: int) -> None:
        running.append(lease)
        try:
            await asyncio.sleep(HELD_SECONDS)
        finally:
            running.remove(lease)

    leases = Leases()
    monkeypatch.setattr(leases, call, fails)
    with closing(VirtualLoop()) as loop, pytest.raises(Defect):
        loop.run_until_complete(hold_lease(leases, ttl_seconds=TTL_SECONDS, body=body, rng=random.Random(0)))
    assert running == []


def test_what_fails_as_it_is_ended_for_a_lease_that_is_gone_begins_anew():
    """R10: that the lease is gone is what has to be mended."""
    begun = list[float]()

    async def body(_lease: int) -> None:
        begun.append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(HELD_SECONDS if len(begun) == 1 else 0)
        except asyncio.CancelledError:
            raise Defect from None

    with closing(VirtualLoop()) as loop:
        leases = Leases(gone=frozenset({1}))
        loop.run_until_complete(hold_lease(leases, ttl_seconds=TTL_SECONDS, body=body, rng=random.Random(0)))
    assert len(begun) == 2


def test_a_process_that_ends_leaves_no_task_of_its_lease_behind():
    """R16 bounded."""

    async def scenario() -> set[str]:
        async def body(_lease: int) -> None:
            await asyncio.sleep(1)

        await hold_lease(Leases(), ttl_seconds=TTL_SECONDS, body=body, rng=random.Random(0))
        return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    with closing(VirtualLoop()) as loop:
        assert loop.run_until_complete(scenario()) == set()
