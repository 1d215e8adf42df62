"""What `publish` makes of a source, and what it sends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loraplane import AsyncRegistry, Canaries, InvalidArgument, Reason, Registry
from registry.lora.directory import digest_of
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA
from tests.support.fake_admin import FakeAdmin, applied, connected

SERVED = pb.Rollout(name="a", generation=1, done=True)


@pytest.fixture
def registry(admin: FakeAdmin) -> Iterator[Registry]:
    admin.answers |= {"ApplyAdapters": [applied], "WatchRollout": [[SERVED]]}
    with connected(admin) as address, Registry(address, timeout_seconds=120) as registry:
        yield registry


def upsert(admin: FakeAdmin) -> pb.Adapter:
    """What was sent last."""
    (change,) = admin.asked("ApplyAdapters")[-1].changes
    return change.upsert


def test_what_is_not_given_has_its_default(registry, admin):
    published = registry.publish("s3://b/a", "acme/a", "p")
    (request,) = admin.asked("ApplyAdapters")
    assert (request.pool, request.validate_only, request.retry, len(request.changes)) == ("p", False, False, 1)
    assert request.changes[0].etag == ""
    assert upsert(admin) == pb.Adapter(name="acme/a", spec=pb.AdapterSpec(source=pb.Source(uri="s3://b/a")))
    assert published.request_id == request.request_id != ""
    assert [(one.name, one.generation) for one in admin.asked("WatchRollout")] == [("acme/a", 1)]


def test_what_is_given_is_sent(registry, admin):
    """Also a plan for canaries; a digest of a source elsewhere is taken as it is."""
    digest = "sha256:" + "1" * 64
    more = {"labels": {"team": "x"}, "priority": -3, "canaries": Canaries("25%", "manual", 2, 90)}
    published = registry.publish("s3://b/a", "a", "p", digest=digest, wait=False, request_id="mine", **more)
    spec = upsert(admin).spec
    assert (spec.source.digest, dict(spec.labels), spec.priority) == (digest, {"team": "x"}, -3)
    assert spec.strategy == pb.Strategy(canary_replicas="25%", promote="manual", max_failures=2, soak_seconds=90)
    assert (published.request_id, published.digest, published.uri, published.revision) == (
        "mine",
        digest,
        "s3://b/a",
        7,
    )
    assert admin.asked("WatchRollout") == []


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
        tmp_path / "none": ("", Reason.ADAPTER_UNFIT, "source", "adapter_config.json"),
        tmp_path / "empty": ("", Reason.ADAPTER_UNFIT, "source", "adapter_config.json"),
        tmp_path / "unfit": ("", Reason.ADAPTER_UNFIT, "source", "adapter_model.safetensors"),
    }
    for source, (digest, reason, field, told) in cases.items():
        with pytest.raises(InvalidArgument) as refused:
            registry.publish(source, "a", "p", digest=digest)
        assert (refused.value.reason, refused.value.field, told in refused.value.message) == (reason, field, True), (
            source
        )
    assert admin.asked("ApplyAdapters") == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "\ud800"}, "name"),
        ({"priority": 1 << 40}, "priority, labels or canaries"),
        ({"labels": {"a": 1}}, "priority, labels or canaries"),
        ({"canaries": Canaries(1, max_failures=1 << 40)}, "priority, labels or canaries"),
        ({"expect": {"answers": [{"tokens": [-1.5]}]}}, "expect"),
    ],
)
def test_what_no_message_takes_is_refused_by_name(registry, admin, given, field):
    arguments = {"source": "s3://b/a", "name": "a", "pool": "p"} | given
    with pytest.raises(InvalidArgument) as refused:
        registry.publish(**arguments)
    assert (refused.value.reason, refused.value.field) == (Reason.INVALID_FIELD, field)
    assert admin.asked("ApplyAdapters") == []


def test_a_deprecation_names_the_line_that_is_to_be_changed(registry, admin):
    """And seconds are waited, as they were."""
    with pytest.warns(DeprecationWarning, match="timeout_seconds") as publishing:
        published = registry.publish("s3://b/a", "a", "p", wait=60)
    with pytest.warns(DeprecationWarning, match="use wait") as waiting:
        registry.wait_served(published)
    assert [one.filename for one in (*publishing, *waiting)] == [__file__] * 2
    assert len(admin.asked("WatchRollout")) == 2


async def test_so_does_one_of_a_program_with_an_event_loop(admin):
    admin.answers |= {"ApplyAdapters": [applied], "WatchRollout": [[SERVED]]}
    with connected(admin) as address:
        async with AsyncRegistry(address, timeout_seconds=120) as registry:
            with pytest.warns(DeprecationWarning, match="timeout_seconds") as publishing:
                published = await registry.publish("s3://b/a", "a", "p", wait=60)
            with pytest.warns(DeprecationWarning, match="use wait") as waiting:
                await registry.wait_served(published)
    assert [one.filename for one in (*publishing, *waiting)] == [__file__] * 2
    assert len(admin.asked("WatchRollout")) == 2


def test_a_fault_of_ours_is_not_told_as_one_of_the_folder(registry, admin, tmp_path, monkeypatch):
    def broken(_folder: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("registry.lora.directory.check_files", broken)
    with pytest.raises(ZeroDivisionError):
        registry.publish(tmp_path, "a", "p")
    assert admin.asked("ApplyAdapters") == []


def unchanged(request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse:
    """The answer of a service that has all of it already, unless it is asked to write it anew."""
    answer = applied(request)
    answer.results[0].outcome = pb.AdapterResult.UPDATED if request.retry else pb.AdapterResult.UNCHANGED
    return answer


REFUSING = pb.RolloutReplica(
    replica="r1", state=pb.RolloutReplica.FAILED, reason="weights_not_safetensors", message="convert it"
)
FAILING = pb.RolloutReplica(
    replica="r1", state=pb.RolloutReplica.PENDING, reason="source_missing", message="HOST answered 404"
)
STAGING = pb.RolloutReplica(replica="r1", state=pb.RolloutReplica.PENDING, reason="staging")
BEHIND = pb.RolloutReplica(replica="r1", state=pb.RolloutReplica.PENDING, reason="not_seen", message="at revision 3")


@pytest.mark.parametrize(
    ("replica", "is_tried"), [(REFUSING, True), (FAILING, True), (STAGING, False), (BEHIND, False)]
)
def test_what_replicas_refuse_is_tried_anew_when_it_is_published_again(registry, admin, replica, is_tried):
    """S5: and what comes of that is waited for, not what came of the first."""
    before = pb.Rollout(name="a", generation=1, done=True, failure="replicas_failed", replicas=[replica])
    admin.answers |= {"ApplyAdapters": [unchanged], "WatchRollout": [[before], [SERVED]]}
    published = registry.publish("s3://b/a", "a", "p", request_id="mine")
    asked = admin.asked("ApplyAdapters")
    assert [one.retry for one in asked] == [False, True][: 1 + is_tried]
    assert asked[-1].changes == asked[0].changes
    assert len({one.request_id for one in asked}) == len(asked)
    assert published.request_id == asked[-1].request_id
    assert len(admin.asked("WatchRollout")) == 2


def test_a_retry_asks_for_the_same_again_of_one_replica_or_all(registry, admin):
    """S5: it changes nothing, and takes nothing away that was changed meanwhile."""
    spec = pb.AdapterSpec(source=pb.Source(uri="s3://b/a"), priority=7)
    admin.answers |= {"GetAdapter": [pb.Adapter(name="a", pool="p", generation=1, spec=spec, etag="5")]}
    for replica in ("", "r1"):
        assert registry.retry("A", "p", replica=replica).name == "a"
        (change,) = admin.asked("ApplyAdapters")[-1].changes
        request = admin.asked("ApplyAdapters")[-1]
        assert (request.retry, request.retry_replica, change.etag, change.upsert.spec) == (True, replica, "5", spec)
    assert len(admin.asked("WatchRollout")) == 2
    registry.retry("a", "p", wait=False)
    assert len(admin.asked("WatchRollout")) == 2
