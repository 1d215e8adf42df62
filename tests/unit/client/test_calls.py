"""The client against an admin service whose answers the test lays down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import grpc
import pytest

from loraplane import (
    Conflict,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    Reason,
    Registry,
    Unavailable,
)
from registry.client.adapters import Canaries
from registry.client.errors import CallErrors
from registry.model.messages import spec_dict
from registry.model.records import Canary, Strategy
from registry.v1 import registry_pb2 as pb
from tests.support.unanswered import nobody_listens
from tests.support.fake_admin import Refusal, applied, connected

ADAPTER = pb.Adapter(
    name="acme/A",
    pool="p",
    tenant="acme",
    generation=3,
    spec=pb.AdapterSpec(source=pb.Source(uri="s3://a/3/", digest="sha256:3"), labels={"team": "bi"}, priority=5),
    etag="17",
)
SERVED = pb.Rollout(name="acme/A", generation=3, done=True)
NEXT_PAGE = "after acme/A"
UNAVAILABLE = Refusal(grpc.StatusCode.UNAVAILABLE)


@pytest.fixture
def registry(admin) -> Iterator[Registry]:
    with connected(admin) as address, Registry(address) as registry:
        yield registry


def test_an_adapter_is_a_plain_value(registry, admin):
    admin.answers["GetAdapter"] = [ADAPTER]
    found = registry.get("acme/a", "p")
    assert (found.name, found.tenant, found.generation, found.etag) == ("acme/A", "acme", 3, "17")
    assert (found.uri, found.digest, found.load, found.priority) == ("s3://a/3/", "sha256:3", "eager", 5)
    assert (dict(found.labels), found.stable_generation, found.halted) == ({"team": "bi"}, None, "")
    canary = pb.CanaryRollout(stable_generation=2, halted="1 of 1 canaries refuse it")
    admin.answers["GetAdapter"] = [pb.Adapter(name="a", generation=3, rollout=canary)]
    found = registry.get("a", "p")
    assert (found.stable_generation, found.halted) == (2, "1 of 1 canaries refuse it")


def test_a_listing_is_all_of_its_pages_and_tells_what_cannot_be_read(registry, admin):
    admin.answers["ListAdapters"] = [
        pb.ListAdaptersResponse(adapters=[ADAPTER], next_page_token=NEXT_PAGE, revision=9),
        pb.ListAdaptersResponse(unreadable=["b"], revision=9),
    ]
    listing = registry.list("p", matching="load=lazy")
    assert ([one.name for one in listing.adapters], listing.unreadable, listing.revision) == (["acme/A"], ("b",), 9)
    assert [one.page_token for one in admin.asked("ListAdapters")] == ["", NEXT_PAGE]
    assert {one.filter for one in admin.asked("ListAdapters")} == {"load=lazy"}


def test_a_page_is_of_a_thousand(registry, admin):
    """As its documentation says; with small ones a listing of a large pool would take long."""
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse()]
    registry.list("p")
    assert [one.page_size for one in admin.asked("ListAdapters")] == [1000]


def test_what_is_not_said_of_canaries_is_as_a_record_has_it():
    """By whichever way a rollout is begun."""
    recorded = Strategy(canary=Canary(replicas=2))
    told = Canaries(2)
    assert (told.promote, told.max_failures, told.soak_seconds) == (
        recorded.promote,
        recorded.max_failures,
        recorded.soak_seconds,
    )


async def test_a_fault_of_the_caller_is_not_taken_for_one_of_the_call():
    with pytest.raises(ZeroDivisionError), CallErrors("h:1", {}).translated():
        raise ZeroDivisionError


def test_pages_that_lead_in_a_circle_are_an_error(registry, admin):
    """X2 unbreakable: a server that repeats a token would be asked for ever, and what it says kept in memory."""
    first, second = (pb.ListAdaptersResponse(adapters=[ADAPTER], next_page_token=one) for one in ("a", "b"))
    admin.answers["ListAdapters"] = [first, second, first, pb.ListAdaptersResponse()]
    with pytest.raises(Internal, match="page_token came twice") as caught:
        registry.list("p")
    assert caught.value.field == "page_token"
    assert [one.page_token for one in admin.asked("ListAdapters")] == ["", "a", "b"]


def test_history_has_the_newest_first(registry, admin):
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=[ADAPTER], unreadable=[2])]
    history = registry.history("acme/a", "p")
    assert ([one.generation for one in history.generations], history.unreadable) == ([3], (2,))
    told = pb.Adapter(name="a", restored_by=pb.Restoration(principal="mallory", at="then"))
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=[ADAPTER, told])]
    mine, theirs = registry.history("acme/a", "p").generations
    assert [(one.restored_by, one.restored_at) for one in (mine, theirs)] == [("", ""), ("mallory", "then")]


def test_a_rollback_returns_once_it_is_served(registry, admin):
    result = pb.AdapterResult(outcome=pb.AdapterResult.UPDATED, adapter=ADAPTER)
    admin.answers["RollbackAdapter"] = [pb.ApplyAdaptersResponse(results=[result], revision=17, request_id="r")]
    admin.answers["WatchRollout"] = [[SERVED]]
    assert registry.rollback("acme/a", "p", to_generation=1, restored=True, etag="16").generation == 3
    (asked,) = admin.asked("RollbackAdapter")
    assert (asked.to_generation, asked.restored, asked.etag, bool(asked.request_id)) == (1, True, "16", True)
    assert [one.generation for one in admin.asked("WatchRollout")] == [3]
    registry.rollback("acme/a", "p", wait=False)
    assert len(admin.asked("WatchRollout")) == 1


def test_waiting_goes_on_over_streams_that_break_or_end(registry, admin):
    admin.answers["GetAdapter"] = [ADAPTER]
    admin.answers["WatchRollout"] = [UNAVAILABLE, [], [SERVED]]
    registry.wait(registry.get("acme/a", "p"))
    assert len(admin.asked("WatchRollout")) == 3


def test_a_stale_etag_withdraws_nothing(registry, admin):
    refusal = Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH", metadata={"etag": "17"})
    admin.answers["ApplyAdapters"] = [refusal]
    with pytest.raises(Conflict) as stale:
        registry.withdraw("acme/a", "p", etag="16", request_id="mine")
    assert (stale.value.reason, stale.value.metadata["etag"]) == (Reason.ETAG_MISMATCH, "17")
    (asked,) = admin.asked("ApplyAdapters")
    assert (asked.changes[0].delete, asked.changes[0].etag) == ("acme/a", "16")


def test_a_change_is_repeated_with_its_request_id(registry, admin):
    """W3 idempotent: the service knows the repetition by it."""
    admin.answers["ApplyAdapters"] = [UNAVAILABLE, UNAVAILABLE, applied]
    registry.withdraw("acme/a", "p")
    ids = [one.request_id for one in admin.asked("ApplyAdapters")]
    assert (len(ids), len(set(ids))) == (3, 1)


def test_a_call_that_the_service_cancelled_is_a_failure_like_others(registry, admin):
    """grpc.aio raises CancelledError for it, which would end the caller's task in silence."""
    admin.answers["GetAdapter"] = [Refusal(grpc.StatusCode.CANCELLED), ADAPTER]
    assert registry.get("a", "p").generation == 3
    admin.answers["WatchRollout"] = [Refusal(grpc.StatusCode.CANCELLED), [SERVED]]
    registry.wait(registry.get("a", "p"))


def test_time_that_is_up_is_told_with_the_request_id(registry, admin):
    """W8 no-false-fail."""
    admin.answers["ApplyAdapters"] = [UNAVAILABLE]
    with pytest.raises(Unavailable) as unknown:
        registry.withdraw("a", "p", timeout_seconds=0.1, request_id="mine")
    assert unknown.value.metadata == {"request_id": "mine"}


def test_a_reason_of_a_newer_service_is_kept(registry, admin):
    admin.answers["GetAdapter"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, "TOO_NEW", metadata={"a": "b"})]
    with pytest.raises(FailedPrecondition) as refused:
        registry.get("a", "p")
    assert (refused.value.reason, refused.value.metadata) == (Reason.INTERNAL, {"a": "b", "reason": "TOO_NEW"})


def test_an_adapter_that_is_none(registry, admin):
    admin.answers["GetAdapter"] = [Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", where="name")]
    with pytest.raises(NotFound) as refused:
        registry.get("a", "p")
    assert (refused.value.reason, refused.value.field) == (Reason.ADAPTER_NOT_FOUND, "name")


def test_a_router_is_told_when_nobody_answers_for_so_long():
    with (
        nobody_listens() as address,
        Registry(address) as registry,
        closing(registry.residency("p", timeout_seconds=0.2)) as states,
        pytest.raises(Unavailable, match=f"no connection to the admin service at {address}"),
    ):
        next(states)


EXPECT = {"answers": [{"prompt": [1, 2], "tokens": [3], "logprobs": [-0.5]}], "tolerance": 0.1}


def test_what_it_should_answer_is_published_with_it(registry, admin):
    """As `loraplane expect -o json` prints it."""
    admin.answers["ApplyAdapters"] = [applied]
    registry.publish("s3://a/1/", "a", "p", expect=EXPECT, wait=False)
    (change,) = admin.asked("ApplyAdapters")[0].changes
    assert spec_dict(change.upsert.spec)["expect"] == EXPECT


@pytest.mark.parametrize("expect", [{"answer": []}, {"answers": 3}, {"answers": [{"prompt": ["a"]}]}])
def test_what_nothing_can_answer_is_refused_by_name(registry, admin, expect):
    with pytest.raises(InvalidArgument) as refused:
        registry.publish("s3://a/1/", "a", "p", expect=expect, wait=False)
    assert (refused.value.field, admin.asked("ApplyAdapters")) == ("expect", [])


def test_the_spellings_of_the_last_release_still_work(registry, admin):
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["WatchRollout"] = [[SERVED]]
    with pytest.warns(DeprecationWarning, match="timeout_seconds"):
        published = registry.publish("s3://a/1/", "a", "p", wait=60)
    with pytest.warns(DeprecationWarning, match="use wait"):
        registry.wait_served(published, 60)
