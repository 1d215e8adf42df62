"""What is said of a generation that not all serve, and what waits for it."""

from __future__ import annotations

import grpc
import pytest

from loraplane import FailedPrecondition, NotFound, Reason, Registry, Unavailable
from registry.client.adapters import Published, not_served
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import Hold, Refusal, connected

PUBLISHED = Published("acme/a", "p", 4, "s3://a/4/", "", 17, "mine")
STATE = pb.RolloutReplica.State.Value


def replica(name: str, state: str, **fields: object) -> pb.RolloutReplica:
    return pb.RolloutReplica(replica=name, state=STATE(state), **fields)


SERVING = replica("r1", "SERVING")
REFUSES = replica("r2", "FAILED", reason="digest_mismatch", message="m", serving_generation=3)
LOADS = replica("r3", "PENDING", reason="staging", serving_generation=0)
SILENT = replica("r4", "UNKNOWN")
REFUSAL = "failed - digest_mismatch - m - serving generation 3"
REMEDY = "; digest_mismatch: loraplane digest URI, then loraplane retry adapter acme/a --pool p"
OF_X = "; x: loraplane describe adapter acme/a --pool p; once it is mended: loraplane retry adapter acme/a --pool p"
LOADING = "pending - staging - serving an earlier generation"


def rollout(*replicas: pb.RolloutReplica, **fields: object) -> pb.Rollout:
    return pb.Rollout(name="acme/a", generation=4, replicas=replicas, **fields)


@pytest.mark.parametrize("last", [rollout(done=True), rollout(SERVING, done=True), rollout(LOADS, done=True)])
def test_what_is_done_without_a_failure_is_served(last):
    assert not_served(PUBLISHED, last) is None


@pytest.mark.parametrize(
    ("last", "message", "told"),
    [
        (None, "acme/a generation 4: nothing was heard of it in time", {}),
        (rollout(SERVING), "acme/a generation 4 is not served in time: ", {}),
        (rollout(SERVING, waiting="for room"), "acme/a generation 4 is not served in time: for room", {}),
        (
            rollout(SILENT, LOADS, SERVING, REFUSES, waiting="for room"),
            f"acme/a generation 4 is not served in time: r2: {REFUSAL}; r3: {LOADING}; r4: unknown{REMEDY}",
            {"r2": REFUSAL, "r3": LOADING, "r4": "unknown"},
        ),
    ],
)
def test_who_is_late_is_named_with_what_it_serves_meanwhile(last, message, told):
    """W8, R9: and with the request id that a repetition needs."""
    error = not_served(PUBLISHED, last)
    assert isinstance(error, Unavailable)
    assert (error.reason, error.message) == (Reason.DEADLINE_EXCEEDED, message)
    assert error.metadata == told | {"request_id": "mine"}


@pytest.mark.parametrize(
    ("last", "message", "told"),
    [
        (rollout(done=True, failure="superseded"), "acme/a generation 4: superseded", {}),
        (
            rollout(SERVING, REFUSES, done=True, failure="replicas_failed"),
            f"acme/a generation 4: replicas_failed - r2: {REFUSAL}{REMEDY}",
            {"r2": REFUSAL},
        ),
        (
            rollout(
                replica("r1", "FAILED", reason="x", canary=True),
                SILENT,
                done=True,
                failure="halted",
                canary=pb.CanaryRollout(halted="1 of 1 canaries refuse it"),
            ),
            f"acme/a generation 4: halted - 1 of 1 canaries refuse it - r1: failed - x{OF_X}",
            {"r1": "failed - x"},
        ),
    ],
)
def test_who_refuses_is_named(last, message, told):
    """R8: with the command that helps. Of canaries these alone: the others are not meant to serve it."""
    error = not_served(PUBLISHED, last)
    assert isinstance(error, FailedPrecondition)
    assert (error.reason, error.message, error.metadata) == (Reason.ROLLOUT_FAILED, message, told)


@pytest.fixture
def registry(admin):
    with connected(admin) as address, Registry(address, timeout_seconds=120) as registry:
        yield registry


def test_a_rollout_that_fails_is_an_error(registry, admin):
    """R9 status-truth: nobody takes it for served; what comes after its end is not waited for."""
    admin.answers["WatchRollout"] = [[rollout(LOADS), rollout(REFUSES, done=True, failure="replicas_failed"), Hold()]]
    with pytest.raises(FailedPrecondition) as refused:
        registry.wait(PUBLISHED)
    assert refused.value.metadata == {"r2": REFUSAL}
    (asked,) = admin.asked("WatchRollout")
    assert (asked.pool, asked.name, asked.generation) == ("p", "acme/a", 4)


def test_what_is_not_served_in_time_is_an_error(registry, admin):
    admin.answers["WatchRollout"] = [[rollout(LOADS), Hold()]]
    with pytest.raises(Unavailable) as late:
        registry.wait(PUBLISHED, timeout_seconds=0.3)
    assert (late.value.reason, late.value.metadata["request_id"]) == (Reason.DEADLINE_EXCEEDED, "mine")


def test_what_is_no_longer_there_is_not_waited_for(registry, admin):
    admin.answers["WatchRollout"] = [Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")]
    with pytest.raises(NotFound):
        registry.wait(PUBLISHED)


@pytest.mark.parametrize("wait", [True, False])
def test_a_change_is_waited_for_only_where_that_is_asked_for(registry, admin, wait):
    """With the etag and the name that were given."""
    result = pb.AdapterResult(outcome=pb.AdapterResult.UPDATED, adapter=pb.Adapter(name="a", pool="p", generation=4))
    admin.answers["RollbackAdapter"] = [pb.ApplyAdaptersResponse(results=[result], revision=17, request_id="r")]
    admin.answers["WatchRollout"] = [[rollout(done=True, failure="superseded")]]
    if wait:
        with pytest.raises(FailedPrecondition, match="superseded"):
            registry.rollback("a", "p", wait=wait)
    else:
        assert registry.rollback("a", "p", wait=wait).generation == 4
