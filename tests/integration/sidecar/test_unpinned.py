"""Two hosts that read a source without a digest at different times: who says so, and how it ends."""

from __future__ import annotations

from registry.etcd3.ops import KeyValue
from registry.lora.directory import digest_of
from registry.model.keys import Keys
from registry.rollout.status import Question, ReplicaFailure, Rollout, derive_rollout
from tests.support.adapters import write_adapter
from tests.support.residency_world import LEASE, pool_snapshot
from tests.support.rig import POOL, Rig, running_rig

KEYS = Keys()


def rollout(*rigs: Rig) -> Rollout:
    """What the admin service makes of what the replicas say."""
    kv = KeyValue(KEYS.adapter(POOL, "a"), rigs[0].record("a"), 1, 1, 1)
    names = [f"r{number}" for number in range(len(rigs))]
    presences = [KeyValue(KEYS.replica(POOL, name), b"", 1, 1, 1, LEASE) for name in names]
    said = zip(names, rigs, strict=True)
    statuses = [KeyValue(KEYS.status(POOL, name), rig.status.to_bytes(), 1, 1, 1, LEASE) for name, rig in said]
    return derive_rollout(Question(POOL, "a", 0), kv, pool_snapshot(presences, statuses))


async def test_two_hosts_with_different_files_are_told_apart(tmp_path):
    """W6 one-digest, R9 status-truth: both say what they found, and no rollout of that succeeds."""
    async with running_rig(tmp_path / "one") as one, running_rig(tmp_path / "two") as two:
        one.desire(1, a="a")
        write_adapter(two.sources / "a", seed=99)
        two.desire(1, a="a")
        await one.served(1, "a")
        await two.served(1, "a")
        assert [found.digest for found in one.status.found] == [digest_of(one.sources / "a")]
        assert [found.digest for found in two.status.found] == [digest_of(two.sources / "a")]
        assert rollout(one, one).failure is None
        differing = rollout(one, two)
        assert differing.failure is ReplicaFailure.REPLICAS_FAILED
        assert {replica.reason for replica in differing.replicas} == {"digests_differ"}
