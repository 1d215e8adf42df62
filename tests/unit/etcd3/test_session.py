"""When a lease is renewed, in virtual time. What etcd makes of it is in tests/contract."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import pytest

from registry.etcd3.errors import EtcdError, EtcdUnavailable, LeaseExpired
from registry.etcd3.session import hold_lease
from tests.simulation.loop import VirtualLoop, virtual
from tests.support.flaky_etcd import Longest, NoChance
from tests.support.played_etcd import now

TTL_SECONDS = 30
HELD_SECONDS = 600.0


@dataclass
class Leases:
    """A client; at the renewals of `gone` the lease is not known any more."""

    gone: frozenset[int] = frozenset()
    tried: int = 0

    async def lease_grant(self, ttl_seconds: int) -> int:
        return ttl_seconds

    async def lease_keepalive(self, lease: int) -> int:
        self.tried += 1
        assert self.tried < HELD_SECONDS, "it is renewed without a pause"
        if self.tried in self.gone:
            raise LeaseExpired("no such lease")
        return lease

    async def lease_revoke(self, lease: int, timeout_seconds: float) -> None:
        pass


def hold(
    leases: Leases, body: Callable[[int], Awaitable[None]], rng: random.Random | None = None
) -> tuple[list[EtcdError], set[str]]:
    """Holds a lease until the body ends; what was told of failures, and the tasks that are left."""
    errors: list[EtcdError] = []

    async def scene() -> set[str]:
        rest = {"rng": rng or random.Random(0), "on_error": errors.append}
        await hold_lease(leases, ttl_seconds=TTL_SECONDS, body=body, **rest)  # type: ignore[arg-type]
        return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    with closing(VirtualLoop()) as loop:
        return errors, loop.run_until_complete(scene())


def test_a_lease_that_is_gone_ends_what_ran_under_it_at_once_and_it_begins_anew():
    """R10 one-owner: whoever holds the key since is alone with it. R16: it leaves no task behind."""
    lives = list[tuple[float, float]]()

    async def body(_lease: int) -> None:
        begun = now()
        try:
            await asyncio.sleep(HELD_SECONDS)
        finally:
            lives.append((begun, now()))

    errors, left = hold(Leases(gone=frozenset({3})), body)
    (first, lost), (again, ended) = lives
    assert ([type(error) for error in errors], left) == ([LeaseExpired], set())
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
    rest = {"rng": random.Random(0), "on_error": [].append}
    holding = asyncio.create_task(hold_lease(leases, ttl_seconds=TTL_SECONDS, body=body, **rest))  # type: ignore[arg-type]
    await asyncio.sleep(TTL_SECONDS * 2)
    assert told == ["begun", "ended", "revoked", "begun"]
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert told[4:] == ["ended", "revoked"]


class Failing(Leases):
    """Each of these calls fails so often, one after another; notes when each was made."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.at: dict[str, list[float]] = {"grant": [], "renew": []}

    def _note(self, call: str) -> None:
        self.at[call].append(now())
        assert len(self.at[call]) < HELD_SECONDS, "it is tried without a pause"
        if len(self.at[call]) <= self.failures:
            raise EtcdUnavailable("no way", maybe_applied=False)

    async def lease_grant(self, ttl_seconds: int) -> int:
        self._note("grant")
        return ttl_seconds

    async def lease_keepalive(self, lease: int) -> int:
        self._note("renew")
        return lease

    def pauses(self, call: str) -> list[float]:
        return [round(after - before, 6) for before, after in pairwise(self.at[call])]


def test_what_fails_is_tried_again_ever_more_slowly_up_to_every_two_seconds():
    """R13, R10: a lease that lives for ten seconds more is tried for five times at least; a fleet does so in turns."""

    async def body(_lease: int) -> None:
        await asyncio.sleep(HELD_SECONDS)

    leases = Failing(8)
    errors, _ = hold(leases, body, Longest())
    assert len(errors) == 16, "each failure is told"
    backoff = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert leases.pauses("grant") == backoff
    assert leases.pauses("renew")[:10] == [*backoff, TTL_SECONDS / 3, TTL_SECONDS / 3]
    assert leases.at["renew"][0] - leases.at["grant"][-1] == pytest.approx(TTL_SECONDS / 3)
    soonest = Failing(0)
    hold(soonest, body, NoChance())
    assert set(soonest.pauses("renew")) == {TTL_SECONDS / 3 * 0.8}


@pytest.mark.parametrize(("rng", "pause"), [(Longest(), 0.5), (NoChance(), 0.0)], ids=["late", "soon"])
def test_replicas_that_lost_their_leases_together_do_not_come_back_together(rng, pause):
    """R8: each within half a second."""
    begun = list[float]()

    async def body(_lease: int) -> None:
        begun.append(now())
        if len(begun) == 1:
            raise LeaseExpired("gone")

    hold(Leases(), body, rng)
    assert begun == [0.0, pause]


class Defect(Exception):
    """A fault of ours."""


@pytest.mark.parametrize("call", ["body", "lease_grant", "lease_keepalive", "lease_revoke"])
def test_a_fault_of_ours_is_no_trouble_with_etcd(call, monkeypatch):
    """R12 crash-only: it is passed on, what ran under the lease has ended, and the lease is given up."""
    running, revoked = list[int](), list[int]()

    async def fails(*_: object, **__: object) -> None:
        raise Defect

    async def revokes(lease: int, **_: object) -> None:
        revoked.append(lease)

    async def body(lease: int) -> None:
        running.append(lease)
        try:
            await (fails() if call == "body" else asyncio.sleep(HELD_SECONDS))
        finally:
            running.remove(lease)

    leases = Leases()
    monkeypatch.setattr(leases, "lease_revoke", revokes)
    if call != "body":
        monkeypatch.setattr(leases, call, fails)
    with pytest.raises(Defect):
        hold(leases, body)
    assert running == []
    assert revoked == ([TTL_SECONDS] if call in {"body", "lease_keepalive"} else [])


def test_what_fails_as_it_is_ended_for_a_lease_that_is_gone_begins_anew():
    """R10: that the lease is gone is what has to be mended."""
    begun = list[float]()

    async def body(_lease: int) -> None:
        begun.append(now())
        try:
            await asyncio.sleep(HELD_SECONDS if len(begun) == 1 else 0)
        except asyncio.CancelledError:
            raise Defect from None

    hold(Leases(gone=frozenset({1})), body)
    assert len(begun) == 2
