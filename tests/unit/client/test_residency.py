"""What a router makes of the stream of residency."""

from __future__ import annotations

from registry.client.residency import Follower, PoolResidency, State, WantedResidence
from registry.v1 import registry_pb2 as pb


def adapter(name: str, state: int = pb.RolloutReplica.SERVING) -> pb.AdapterResidency:
    return pb.AdapterResidency(name=name, generation=1, replicas=[pb.Residence(replica="r1", state=state)])


def response(*adapters: pb.AdapterResidency, **fields: object) -> pb.WatchResidencyResponse:
    return pb.WatchResidencyResponse(revision=7, adapters=adapters, **fields)


def names(state: PoolResidency | None) -> list[str]:
    assert state is not None
    return [*state.adapters]


def test_parts_are_one_state():
    follower = Follower()
    assert follower.take(response(adapter("A"), snapshot=True, more=True)) is None
    first = follower.take(response(adapter("b"), snapshot=True))
    assert names(first) == ["a", "b"]
    assert follower.take(response(adapter("c"), gone=["a"], more=True)) is None
    assert names(follower.take(response(gone=["x"]))) == ["b", "c"]
    assert names(first) == ["a", "b"]


def test_a_new_snapshot_replaces_everything():
    follower = Follower()
    follower.take(response(adapter("a"), snapshot=True))
    assert names(follower.take(response(adapter("b"), snapshot=True))) == ["b"]


def test_only_what_is_proven_is_served():
    """R9: a state that this release does not know is none in which requests may come."""
    follower = Follower()
    for state, known in ((pb.RolloutReplica.SERVING, State.SERVING), (0, State.UNKNOWN), (99, State.UNKNOWN)):
        told = follower.take(response(adapter("a", state), snapshot=True))
        assert told is not None
        (one,) = told.adapters["a"].replicas
        assert (one.state, len(told.adapters["a"].serving)) == (known, known is State.SERVING)


def test_what_is_served_instead_of_the_newest_is_told_with_what_became_of_that():
    """R9: requests may go there, and whoever asks which weights they get is told."""
    one = pb.Residence(
        replica="r1",
        generation=3,
        state=pb.RolloutReplica.SERVING,
        reason="earlier_generation",
        wanted_generation=4,
        wanted_state=pb.RolloutReplica.FAILED,
        wanted_reason="digest_mismatch",
    )
    told = Follower().take(response(pb.AdapterResidency(name="a", generation=4, replicas=[one]), snapshot=True))
    assert told is not None
    (served,) = told.adapters["a"].serving
    assert (served.generation, served.wanted) == (3, WantedResidence(4, State.FAILED, "digest_mismatch"))
