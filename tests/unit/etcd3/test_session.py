"""When a lease is renewed, in virtual time. What etcd makes of it is in tests/contract."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing, suppress
from dataclasses import dataclass, field

import pytest

from registry.etcd3.errors import EtcdError, EtcdUnavailable, LeaseExpired
from registry.etcd3.session import hold_lease
from tests.simulation.loop import VirtualLoop

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


def hold(leases: Leases, seed: int) -> list[EtcdError]:
    errors: list[EtcdError] = []

    async def body(_lease: int) -> None:
        await asyncio.sleep(HELD_SECONDS)

    with closing(VirtualLoop()) as loop, suppress(asyncio.CancelledError):
        held = hold_lease(leases, ttl_seconds=TTL_SECONDS, body=body, rng=random.Random(seed), on_error=errors.append)
        loop.run_until_complete(held)
    return errors


@pytest.mark.parametrize("seed", range(5))
def test_a_lease_is_renewed_each_third_of_its_ttl(seed):
    """R10: two renewals in a row may be lost, and it lives; and no more often than that, for a fleet has thousands."""
    leases = Leases()
    assert hold(leases, seed) == []
    assert leases.longest_pause_seconds() <= TTL_SECONDS / 3
    assert leases.tried <= HELD_SECONDS / (TTL_SECONDS / 3 * 0.8)


@pytest.mark.parametrize("seed", range(5))
def test_a_renewal_that_is_lost_is_tried_again_long_before_the_lease_ends(seed):
    """R10."""
    leases = Leases(lost=frozenset({2, 3, 4, 5}))
    assert len(hold(leases, seed)) == 4
    assert leases.longest_pause_seconds() < TTL_SECONDS * 0.6


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
