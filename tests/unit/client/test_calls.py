"""What a program sends and is told: reads, publications, rollbacks, retries, and what waits for them."""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from google.protobuf import field_mask_pb2

from loraplane import (
    KEEP,
    AsyncRegistry,
    Canaries,
    Conflict,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Reason,
    Registry,
    Unavailable,
)
from registry.client.adapters import NOWHERE, Published, not_served
from registry.client.errors import CallErrors
from registry.lora.directory import digest_of
from registry.model.messages import spec_dict
from registry.model.names import REPEATED_METADATA
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA
from tests.support.fake_admin import FakeAdmin, Hold, Refusal, applied
from tests.support.unanswered import nobody_listens

UNAVAILABLE = Refusal(grpc.StatusCode.UNAVAILABLE)


def upsert(admin: FakeAdmin) -> pb.Adapter:
    """What was sent last."""
    (change,) = admin.asked("ApplyAdapters")[-1].changes
    return change.update


@pytest.mark.parametrize("digest", ["none", "right"])
def test_a_folder_is_pinned_by_what_lies_in_it(registry, admin, tmp_path, monkeypatch, digest):
    """R4 digest-true: by its whole path, since replicas have other working directories."""
    folder = Path(LLAMA.draft().write(tmp_path / "a"))
    found = digest_of(folder)
    monkeypatch.chdir(tmp_path)
    for source in ("a", folder):
        registry.publish(source, "a", "p", digest=found if digest == "right" else "", wait=False)
        assert (upsert(admin).spec.source.uri, upsert(admin).spec.source.digest) == (folder.as_uri(), found)


def test_a_folder_with_other_files_than_are_meant_is_refused(registry, admin, tmp_path):
    """R4 digest-true: and nothing is sent of what is no adapter, or cannot be read."""
    folder = Path(LLAMA.draft().write(tmp_path / "a"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfit").mkdir()
    (tmp_path / "unfit/adapter_config.json").write_text("{")
    cases = {
        folder: ("sha256:" + "0" * 64, Reason.INVALID_FIELD, "digest", digest_of(folder)),
        tmp_path / ("n" * 300): ("", Reason.INVALID_FIELD, "source", "cannot read"),
        tmp_path / "none": ("", Reason.INVALID_FIELD, "source", f"no such folder: {tmp_path / 'none'}"),
        tmp_path / "unfit/adapter_config.json": ("", Reason.INVALID_FIELD, "source", "is no folder"),
        tmp_path / "empty": ("", Reason.ADAPTER_UNFIT, "source", "adapter_config.json"),
        tmp_path / "unfit": ("", Reason.ADAPTER_UNFIT, "source", "adapter_model.safetensors"),
    }
    for source, (digest, reason, field, told) in cases.items():
        with pytest.raises(InvalidArgument, match=told) as refused:
            registry.publish(source, "a", "p", digest=digest)
        assert (refused.value.reason, refused.value.field) == (reason, field), source
    assert admin.asked("ApplyAdapters") == []


def unchanged(request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse:
    """The answer of a service that has all of it already, unless it is asked to write it anew."""
    answer = applied(request)
    answer.results[0].outcome = pb.AdapterResult.UPDATED if request.retry else pb.AdapterResult.UNCHANGED
    return answer


@pytest.mark.parametrize(("etag", "revision"), [("5", 5), ("", 7)])
def test_where_nothing_changed_the_revision_is_that_of_the_last_change(registry, admin, etag, revision):
    """So that a picker that follows the pool comes to it; a service that tells no etag is believed as it is."""

    def answer(request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse:
        answer = unchanged(request)
        answer.results[0].adapter.etag = etag
        return answer

    admin.answers["ApplyAdapters"] = [answer]
    assert registry.publish("s3://b/a", "a", "p").revision == revision


def test_a_retry_asks_for_the_same_again_of_one_replica_or_all(registry, admin):
    """S5: it changes nothing, and takes nothing away that was changed meanwhile."""
    spec = pb.AdapterSpec(source=pb.Source(uri="s3://b/a"), priority=7)
    admin.answers |= {"GetAdapter": [pb.Adapter(name="a", pool="p", generation=1, spec=spec, etag="5")]}
    for replica in ("", "r1"):
        assert registry.retry("A", "p", replica=replica, request_id="mine").name == "a"
        request = admin.asked("ApplyAdapters")[-1]
        assert (request.retry, request.retry_replica, len(request.changes)) == (True, replica, 1)
        assert request.changes[0] == pb.AdapterChange(update=pb.Adapter(name="a"))
    assert len(admin.asked("WatchRollout")) == 2
    registry.retry("a", "p", wait=False)
    assert len(admin.asked("WatchRollout")) == 2


PUBLISHED = Published("acme/a", "p", 4, "s3://a/4/", "", 17, "mine")
STATE = pb.RolloutReplica.State.Value


def replica(name: str, state: str, **fields: object) -> pb.RolloutReplica:
    return pb.RolloutReplica(replica=name, state=STATE(state), **fields)


SERVING = replica("r1", "SERVING")
REFUSES = replica("r2", "FAILED", reason="digest_mismatch", message="m", serving_generation=3)
LOADS = replica("r3", "PENDING", reason="staging", serving_generation=0)
SILENT = replica("r4", "UNKNOWN")
CANARY = replica("r1", "FAILED", reason="x", canary=True)
DAMAGED = replica("r2", "FAILED", reason="artifact_damaged", message="m")
REFUSAL = "failed - digest_mismatch - m - serving generation 3"
REMEDY = "; digest_mismatch: loraplane digest URI, then loraplane retry adapter acme/a --pool p"
OF_DAMAGED = "; artifact_damaged: loraplane describe adapter acme/a --pool p; once it is mended: "
OF_DAMAGED += "loraplane retry adapter acme/a --pool p"
OF_X = "; x: loraplane describe adapter acme/a --pool p; once it is mended: loraplane retry adapter acme/a --pool p"
HALTED = pb.CanaryRollout(halted="1 of 1 refuse it")
LOADING = "pending - staging - serving an earlier generation"


def rollout(*replicas: pb.RolloutReplica, **fields: object) -> pb.Rollout:
    return pb.Rollout(name="acme/a", generation=4, replicas=replicas, **fields)


@pytest.mark.parametrize(
    ("last", "kind", "message", "told"),
    [
        (None, Unavailable, "no report on it in time", {}),
        (rollout(SERVING), Unavailable, "is not served in time: ", {}),
        (rollout(SERVING, waiting="for room"), Unavailable, "is not served in time: for room", {}),
        (
            *(rollout(SILENT, LOADS, SERVING, REFUSES, waiting="for room"), Unavailable),
            f"is not served in time: r2: {REFUSAL}; r3: {LOADING}; r4: unknown{REMEDY}",
            {"r2": REFUSAL, "r3": LOADING, "r4": "unknown"},
        ),
        (rollout(done=True, failure="superseded"), FailedPrecondition, "superseded", {}),
        (
            *(rollout(SERVING, REFUSES, done=True, failure="replicas_failed"), FailedPrecondition),
            *(f"replicas_failed - r2: {REFUSAL}{REMEDY}", {"r2": REFUSAL}),
        ),
        (
            *(rollout(DAMAGED), Unavailable, "is not served in time: r2: failed - artifact_damaged - m" + OF_DAMAGED),
            {"r2": "failed - artifact_damaged - m"},
        ),
        (
            *(rollout(CANARY, SILENT, done=True, failure="halted", canary=HALTED), FailedPrecondition),
            *(f"halted - 1 of 1 refuse it - r1: failed - x{OF_X}", {"r1": "failed - x"}),
        ),
    ],
)
def test_who_is_late_or_refuses_is_named_with_what_it_serves_meanwhile(last, kind, message, told):
    """W8, R9: and with the request id that a repetition needs. R8: with the command that helps; of canaries these
    alone: the others are not meant to serve it.
    """
    error, is_late = not_served(PUBLISHED, last), kind is Unavailable
    colon = ":" if not message.startswith("is not served") else ""
    assert (type(error), error.message) == (kind, f"acme/a generation 4{colon} {message}")
    assert error.reason == (Reason.DEADLINE_EXCEEDED if is_late else Reason.ROLLOUT_FAILED)
    assert error.metadata == (told | {"request_id": "mine"} if is_late else told)


def test_what_is_not_served_is_an_error_and_not_waited_for(registry, admin):
    """R9 status-truth: nobody takes it for served; what comes after its end is not waited for."""
    failed = rollout(REFUSES, done=True, failure="replicas_failed")
    for stream, kind, told in (
        ([rollout(LOADS), failed, Hold()], FailedPrecondition, {"r2": REFUSAL}),
        ([rollout(LOADS), Hold()], Unavailable, {"r3": LOADING, "request_id": "mine"}),
        ([Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")], NotFound, {}),
    ):
        admin.answers["WatchRollout"] = [stream]
        with pytest.raises(kind) as refused:
            registry.wait(PUBLISHED, timeout_seconds=0.3 if kind is Unavailable else 120)
        assert refused.value.metadata == told
    asked = admin.asked("WatchRollout")[0]
    assert (asked.pool, asked.name, asked.generation) == ("p", "acme/a", 4)


def test_a_rollback_returns_once_it_is_served(registry, admin):
    assert registry.rollback("acme/a", "p", to_generation=1, restored=True, etag="16").generation == 3
    (asked,) = admin.asked("RollbackAdapter")
    assert (asked.to_generation, asked.restored, asked.etag, bool(asked.request_id)) == (1, True, "16", True)
    admin.answers["WatchRollout"] = [[rollout(done=True, failure="superseded")]]
    with pytest.raises(FailedPrecondition, match="superseded"):
        registry.rollback("a", "p")
    assert registry.rollback("acme/a", "p", wait=False).generation == 3
    assert [one.generation for one in admin.asked("WatchRollout")] == [3, 3]


def test_a_rollback_to_what_nobody_has_ends_at_once(registry, admin):
    """What a trainer rotated away does not come by itself, as files of a new version may.

    W8: as long as one replica may have them it is late.
    """
    gone = [replica(name, "PENDING", reason="source_missing", message="not there") for name in ("r1", "r2")]
    admin.answers["WatchRollout"] = [[rollout(*gone), Hold()]]
    begun = time.monotonic()
    with pytest.raises(FailedPrecondition, match=NOWHERE) as refused:
        registry.rollback("acme/a", "p", timeout_seconds=120)
    assert time.monotonic() - begun < 60
    assert refused.value.reason == Reason.ROLLOUT_FAILED
    assert refused.value.metadata["r2"] == "pending - source_missing - not there"
    admin.answers["WatchRollout"] = [[rollout(*gone), Hold()]]
    with pytest.raises(Unavailable, match="not served in time"):
        registry.wait(PUBLISHED, timeout_seconds=0.3)
    admin.answers["WatchRollout"] = [[rollout(*gone), rollout(SERVING, done=True), Hold()]]
    registry.wait(PUBLISHED, timeout_seconds=120)
    admin.answers["WatchRollout"] = [[rollout(gone[0], SILENT), Hold()]]
    with pytest.raises(Unavailable, match="not served in time"):
        registry.rollback("a", "p", timeout_seconds=0.3)


def test_a_listing_is_all_of_its_pages(registry, admin):
    """Of a thousand each, as its documentation says; and what cannot be read is told."""
    first = pb.ListAdaptersResponse(adapters=[pb.Adapter(name="A")], next_page_token="after A", revision=9)  # noqa: S106
    admin.answers["ListAdapters"] = [first, pb.ListAdaptersResponse(unreadable=["b"], revision=10)]
    listing = registry.list("p", matching="load=lazy")
    assert ([one.name for one in listing.adapters], listing.unreadable, listing.revision) == (["A"], ("b",), 9)
    asked = [(one.page_token, one.page_size, one.filter) for one in admin.asked("ListAdapters")]
    assert asked == [("", 1000, "load=lazy"), ("after A", 1000, "load=lazy")]


def test_a_change_is_repeated_with_its_request_id_until_its_time_is_up(registry, admin):
    """W3 idempotent, W8 no-false-fail, W4 etag: the service knows the repetition; a refusal withdraws nothing."""
    admin.answers["ApplyAdapters"] = [UNAVAILABLE, UNAVAILABLE, applied]
    registry.withdraw("acme/a", "p", etag="16")
    asked = admin.asked("ApplyAdapters")
    assert (len(asked), len({one.request_id for one in asked})) == (3, 1)
    assert (asked[0].changes[0].delete, asked[0].changes[0].etag) == ("acme/a", "16")
    (channel,) = admin.channels
    assert channel.metadata == [None, (REPEATED_METADATA,), (REPEATED_METADATA,)]
    registry.withdraw("a", "p", request_id="mine")
    assert channel.metadata[3:] == [(REPEATED_METADATA,)], "whoever names an id may have used it before"
    admin.answers["ApplyAdapters"] = [UNAVAILABLE]
    with pytest.raises(Unavailable) as unknown:
        registry.withdraw("a", "p", timeout_seconds=0.1, request_id="mine")
    assert unknown.value.metadata == {"request_id": "mine"}
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH", metadata={"etag": "17"})]
    with pytest.raises(Conflict) as stale:
        registry.withdraw("acme/a", "p", etag="16")
    assert (stale.value.reason, stale.value.metadata["etag"]) == (Reason.ETAG_MISMATCH, "17")


async def test_a_fault_of_the_caller_is_not_taken_for_one_of_the_call(registry, admin, tmp_path, monkeypatch):
    """Nor one of ours for one of the folder."""

    def broken(_folder: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), CallErrors("h:1", {}).translated():
        raise ZeroDivisionError
    monkeypatch.setattr("registry.lora.directory.check_files", broken)
    with pytest.raises(ZeroDivisionError):
        registry.publish(tmp_path, "a", "p")
    assert admin.asked("ApplyAdapters") == []


def test_a_router_is_told_when_nobody_answers_for_so_long():
    with (
        nobody_listens() as address,
        Registry(address) as registry,
        closing(registry.residency("p", timeout_seconds=0.2)) as states,
        pytest.raises(Unavailable, match=f"no connection to the admin service at {address}"),
    ):
        next(states)


async def test_what_is_not_given_has_its_default(registry, admin, address):
    """And a deprecation names the line that is to be changed; in a program with an event loop, too."""
    published = registry.publish("s3://b/a", "acme/a", "p")
    async with AsyncRegistry(address, timeout_seconds=120) as other:
        await other.publish("s3://b/a", "acme/a", "p")
        await other.rollback("a", "p")
        with pytest.warns(DeprecationWarning, match="timeout_seconds") as publishing:
            await other.publish("s3://b/a", "acme/a", "p", wait=60)
        with pytest.warns(DeprecationWarning, match="use wait") as waiting:
            await other.wait_served(published, 60)
    with pytest.warns(DeprecationWarning, match="timeout_seconds") as of_plain:
        registry.publish("s3://b/a", "acme/a", "p", wait=60)
    with pytest.warns(DeprecationWarning, match="use wait") as waits:
        registry.wait_served(published)
    warned = [*publishing, *waiting, *of_plain, *waits]
    assert [one.filename for one in warned] == [__file__] * 4
    spec = pb.AdapterSpec(source=pb.Source(uri="s3://b/a"))
    mask = field_mask_pb2.FieldMask(paths=["expect", "source"])
    change = pb.AdapterChange(update=pb.Adapter(name="acme/a", spec=spec), update_mask=mask)
    for asked in admin.asked("ApplyAdapters"):
        assert asked == pb.ApplyAdaptersRequest(pool="p", changes=[change], request_id=asked.request_id)
        assert asked.request_id != ""
    assert published.request_id == admin.asked("ApplyAdapters")[0].request_id
    [back] = admin.asked("RollbackAdapter")
    assert back == pb.RollbackAdapterRequest(pool="p", name="a", request_id=back.request_id)
    generations = [(one.name, one.generation) for one in admin.asked("WatchRollout")]
    assert generations == [("acme/a", 1), ("acme/a", 1), ("a", 3), *[("acme/a", 1)] * 4]


EXPECT = {"answers": [{"prompt": [1, 2], "tokens": [3], "logprobs": [-0.5]}], "tolerance": 0.1}


@pytest.mark.parametrize(
    ("labels", "field", "told"),
    [
        ({"team": "bi", "step": 1}, "labels.step", "the label 'step' is of type int; labels are text: write '1'"),
        ({1: "a"}, "labels", "the name of the label 1 is of type int; labels have names of text"),
    ],
)
def test_a_label_that_is_no_text_is_named_with_its_type(registry, admin, labels, field, told):
    with pytest.raises(InvalidArgument) as refused:
        registry.publish("s3://b/a", "a", "p", labels=labels)
    assert (refused.value.field, refused.value.message) == (field, told)
    assert admin.asked("ApplyAdapters") == []


def test_what_is_not_given_stays_as_it_is_unless_all_is_replaced(registry, admin):
    """Weights bring what is said of them alone: the source, and what they have to answer."""
    assert repr(KEEP) == "KEEP"
    given = {"load": "lazy", "placement": {"replicas": 2, "selector": {"zone": "a"}}, "prepare": {"drop": ["x"]}}
    given |= {"credentials": "s3", "description": "d", "base_model": "tiny", "labels": None, "canaries": None}
    registry.publish("s3://b/a", "a", "p", **given, signature="sig", wait=False)
    (change,) = admin.asked("ApplyAdapters")[-1].changes
    named = ["base_model", "credentials", "description", "expect", "labels", "load", "placement", "prepare", "source"]
    assert change.update_mask.paths == [*named, "strategy"]
    spec = pb.AdapterSpec(source=pb.Source(uri="s3://b/a", signature="sig"), load="lazy", base_model="tiny")
    spec.MergeFrom(pb.AdapterSpec(credentials="s3", description="d", prepare=pb.Prepare(drop=["x"])))
    spec.MergeFrom(pb.AdapterSpec(placement=pb.Placement(replicas=2, selector={"zone": "a"})))
    assert change.update == pb.Adapter(name="a", spec=spec)
    registry.publish("s3://b/a", "a", "p", placement={"replicas": "all"}, replace=True, wait=False)
    (change,) = admin.asked("ApplyAdapters")[-1].changes
    placed = pb.AdapterSpec(source=pb.Source(uri="s3://b/a"), placement=pb.Placement())
    assert change == pb.AdapterChange(upsert=pb.Adapter(name="a", spec=placed))
    ranged = {"replicas": {"min": 2, "max": 8, "perReplica": 50}}
    registry.publish("s3://b/a", "a", "p", placement=ranged, replace=True, wait=False)
    by_load = pb.ByLoad(max=8, per_replica=50)
    (change,) = admin.asked("ApplyAdapters")[-1].changes
    assert change.upsert.spec.placement == pb.Placement(replicas=2, by_load=by_load)


def test_what_is_given_is_sent(registry, admin):
    """Also a plan for canaries, and what `loraplane expect -o json` prints; a digest of elsewhere is taken as it is."""
    digest = "sha256:" + "1" * 64
    more = {"labels": {"team": "x"}, "priority": -3, "canaries": Canaries("25%", "manual", 2, 90), "expect": EXPECT}
    published = registry.publish("s3://b/a", "a", "p", digest=digest, wait=False, request_id="mine", **more)
    spec = upsert(admin).spec
    assert (spec.source.digest, dict(spec.labels), spec.priority) == (digest, {"team": "x"}, -3)
    assert spec.strategy == pb.Strategy(canary_replicas="25%", promote="manual", max_failures=2, soak_seconds=90)
    assert spec_dict(spec)["expect"] == EXPECT
    told = (published.request_id, published.digest, published.uri, published.revision)
    assert (told, admin.asked("WatchRollout")) == (("mine", digest, "s3://b/a", 7), [])


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "\ud800"}, "name"),
        ({"priority": 1 << 40}, "priority"),
        ({"signature": "\ud800"}, "signature"),
        ({"canaries": Canaries(1, max_failures=1 << 40)}, "canaries"),
        *(
            ({"placement": one}, "placement")
            for one in ({"replicas": 0}, {"replicas": "some"}, {"zone": "a"}, {"replicas": {"min": 1}})
        ),
        *(({"prepare": one}, "prepare") for one in ({"remap": 1}, {"vison": "drop"})),
        *(({"expect": {"answers": one}}, "expect") for one in ([{"tokens": [-1.5]}], 3, [{"prompt": ["a"]}])),
        ({"expect": {"answer": []}}, "expect"),
        ({"keep": "many"}, "keep"),
        *(({name: one}, name) for name in ("placement", "prepare", "canaries", "labels") for one in (1, "all", ["a"])),
        ({"canaries": {"replicas": 1}}, "canaries"),
        *(({"placement": {"replicas": one}}, "placement") for one in (-1, True, 1.5)),
        ({"placement": {"selector": "zone"}}, "placement"),
        ({"placement": {"selector": {"zone": 1}}}, "placement.selector.zone"),
        *(({"prepare": {"drop": one}}, "prepare") for one in ("lm_head", b"lm_head", [1])),
        *(({name: 1}, name) for name in ("description", "credentials", "load", "ttl_from", "base_model")),
        ({"description": b"text"}, "description"),
        *(({"ttl": one}, "ttl") for one in ("soon", "", True, float("nan"), float("inf"), [1], 1e30)),
    ],
)
def test_what_no_message_takes_is_refused_by_name(registry, admin, given, field):
    arguments = {"source": "s3://b/a", "name": "a", "pool": "p"} | given
    with pytest.raises(InvalidArgument) as refused:
        registry.publish(**arguments)
    assert (refused.value.reason, refused.value.field) == (Reason.INVALID_FIELD, field)
    assert not re.search("_placement|built-in|argument after", refused.value.message)
    assert admin.asked("ApplyAdapters") == []


@pytest.mark.parametrize(
    ("state", "reason", "message", "is_tried"),
    [
        ("FAILED", "weights_not_safetensors", "convert it", True),
        ("PENDING", "source_missing", "HOST answered 404", True),
        ("PENDING", "staging", "", False),
        ("PENDING", "not_seen", "at revision 3", False),
    ],
)
def test_what_is_refused_is_tried_anew_at_the_next_publication(registry, admin, state, reason, message, is_tried):
    """S5: and what comes of that is waited for, not what came of the first."""
    before = rollout(replica("r1", state, reason=reason, message=message), done=True, failure="replicas_failed")
    admin.answers |= {"ApplyAdapters": [unchanged], "WatchRollout": [[before], *admin.answers["WatchRollout"]]}
    published = registry.publish("s3://b/a", "a", "p", request_id="mine")
    asked = admin.asked("ApplyAdapters")
    assert ([one.retry for one in asked], asked[-1].changes) == ([False, True][: 1 + is_tried], asked[0].changes)
    assert len({one.request_id for one in asked}) == len(asked)
    assert (published.request_id, len(admin.asked("WatchRollout"))) == (asked[-1].request_id, 2)
