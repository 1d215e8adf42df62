"""apply, add, diff and rollback: what is sent, what is told, and how they end."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import grpc
import pytest

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal, applied

UNAVAILABLE = Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE", "no quorum")
TOO_MANY = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "TOO_MANY_CHANGES", "5 changes, 2 fit", {"max_changes": "2"})


def _limited(request: pb.ApplyAdaptersRequest) -> object:
    return TOO_MANY if len(request.changes) > 2 else applied(request)


def test_all_documents_of_all_files_are_one_change_set(cli, admin, manifest):
    """W2 atomic-set: what the user hands over at once is sent at once."""
    admin.answers["ApplyAdapters"] = [applied]
    ran = cli("apply", "-f", manifest("a", "b"), "-f", manifest("c", file="more.yaml"), "--request-id", "q1")
    assert (ran.code, ran.err) == (0, "")
    [request] = admin.asked("ApplyAdapters")
    assert [change.upsert.name for change in request.changes] == ["a", "b", "c"]
    assert (request.pool, request.request_id, request.validate_only) == ("dev", "q1", False)
    assert "created  a" in ran.out
    assert "revision 7, request id q1" in ran.out


def test_standard_input_is_a_file_too(cli, admin, manifest, monkeypatch):
    admin.answers["ApplyAdapters"] = [applied]
    text = io.StringIO(Path(manifest("a")).read_text())
    monkeypatch.setattr(sys, "stdin", text)
    assert cli("apply", "-f", "-").code == 0
    assert admin.asked("ApplyAdapters")[0].changes[0].upsert.name == "a"


def test_json_holds_request_id_revision_and_results(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [applied]
    value = cli("-o", "json", "apply", "-f", manifest("a"), "--request-id", "q1").json
    assert (value["request_id"], value["revision"], value["dry_run"]) == ("q1", 7, False)
    [result] = value["results"]
    assert (result["outcome"], result["adapter"]["name"], result["adapter"]["generation"]) == ("created", "a", 1)


def test_a_request_id_is_made_and_told_if_none_is_given(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [applied]
    told = cli("-o", "json", "apply", "-f", manifest("a")).json["request_id"]
    assert re.fullmatch(r"[0-9a-f-]{36}", told)
    assert admin.asked("ApplyAdapters")[0].request_id == told


def test_dry_run_says_so(cli, admin, manifest):
    """W9 dry-run: the flag reaches the service."""
    admin.answers["ApplyAdapters"] = [applied]
    ran = cli("apply", "-f", manifest("a"), "--dry-run")
    assert admin.asked("ApplyAdapters")[0].validate_only
    assert "dry run, nothing was changed" in ran.out


def test_unavailable_is_repeated_with_the_same_request_id(cli, admin, manifest):
    """W3 idempotent: the client's own repetition can be told from a second change."""
    admin.answers["ApplyAdapters"] = [UNAVAILABLE, UNAVAILABLE, applied]
    ran = cli("apply", "-f", manifest("a"))
    assert (ran.code, ran.err) == (0, "")
    ids = {request.request_id for request in admin.asked("ApplyAdapters")}
    assert len(admin.asked("ApplyAdapters")) == 3
    assert len(ids) == 1


def test_when_the_time_is_up_the_error_names_the_request_id(cli, admin, manifest, clock):
    """W8 no-false-fail: an unknown outcome is told with what settles it."""
    admin.answers["ApplyAdapters"] = [UNAVAILABLE, clock.late(UNAVAILABLE)]
    ran = cli("apply", "-f", manifest("a"), "--timeout", "3000", "--request-id", "q1")
    assert (ran.code, ran.err) == (6, "error: ETCD_UNAVAILABLE: no quorum (request id q1)\n")
    assert len(admin.asked("ApplyAdapters")) == 2


def test_what_was_refused_is_not_repeated(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH", "stale")]
    ran = cli("apply", "-f", manifest("a"))
    assert (ran.code, ran.err) == (5, "error: ETAG_MISMATCH: stale\n")
    assert len(admin.asked("ApplyAdapters")) == 1


def test_the_services_field_becomes_file_document_and_field(cli, admin, manifest):
    where = "changes[1].upsert.spec.base_model"
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "bad", where=where)]
    path = manifest("a", "b")
    ran = cli("-o", "json", "apply", "-f", path)
    assert ran.code == 4
    assert ran.error["field"] == f"{path}: document 2 (line 6): spec.baseModel"


def test_a_wrong_manifest_is_refused_before_anything_is_sent(cli, admin, manifest):
    ran = cli("apply", "-f", manifest("a", laod="lazy"))
    assert ran.code == 4
    assert ran.err.startswith("error: INVALID_MANIFEST: ")
    assert "did you mean load?" in ran.err
    assert ran.err.count("\n") == 1
    assert admin.requests == []


def test_several_pools_need_no_atomic(cli, admin, manifest):
    ran = cli("apply", "-f", manifest("a", "other:b"))
    assert ran.code == 4
    assert "for dev, other; split them, or give --no-atomic" in ran.err
    assert admin.requests == []


def test_no_atomic_sends_one_transaction_for_each_pool(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [applied]
    ran = cli("-o", "json", "apply", "-f", manifest("a", "other:b", "c"), "--no-atomic", "--request-id", "q1")
    assert ran.code == 0
    sent = [(one.pool, one.request_id, len(one.changes)) for one in admin.asked("ApplyAdapters")]
    assert sent == [("dev", "q1", 2), ("other", "q1:pool2", 1)]
    assert [one["request_id"] for one in ran.json["transactions"]] == ["q1", "q1:pool2"]


def test_too_many_changes_are_refused_with_the_remedy(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [_limited]
    ran = cli("-o", "json", "apply", "-f", manifest(*"abcde"))
    assert ran.code == 4
    assert ran.error["reason"] == "TOO_MANY_CHANGES"
    assert ran.error["metadata"] == {"max_changes": "2"}
    assert "--no-atomic" in ran.error["message"]
    assert len(admin.asked("ApplyAdapters")) == 1


def test_no_atomic_splits_what_does_not_fit_with_ids_that_follow_from_the_first(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [_limited]
    path = manifest(*"abcde")
    assert cli("apply", "-f", path, "--no-atomic", "--request-id", "q1").code == 0
    first, *parts = admin.asked("ApplyAdapters")
    assert len(first.changes) == 5
    assert [one.request_id for one in parts] == ["q1:part1", "q1:part2", "q1:part3"]
    assert [change.upsert.name for one in parts for change in one.changes] == list("abcde")
    ran = cli("apply", "-f", path, "--no-atomic", "--request-id", "q1")
    assert "3 of 3 transactions applied" in ran.out
    assert [one.request_id for one in admin.asked("ApplyAdapters")[5:]] == ["q1:part1", "q1:part2", "q1:part3"]


def test_no_atomic_goes_on_after_a_refusal_and_reports_each(cli, admin, manifest):
    refusal = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "full")
    admin.answers["ApplyAdapters"] = [TOO_MANY, refusal, applied]
    ran = cli("apply", "-f", manifest(*"abcd"), "--no-atomic", "--request-id", "q1")
    assert ran.code == 4
    assert "error: QUOTA_EXCEEDED: full" in ran.out
    assert "request id q1:part2" in ran.out
    assert ran.err == (
        "error: QUOTA_EXCEEDED: 1 of 2 transactions were not applied; the first: full; once that is mended, the same "
        "command goes on with the rest\n"
    )


def test_no_atomic_stops_where_nobody_answers(cli, admin, manifest, clock):
    admin.answers["ApplyAdapters"] = [TOO_MANY, UNAVAILABLE, clock.late(UNAVAILABLE)]
    ran = cli("-o", "json", "apply", "-f", manifest(*"abcd"), "--no-atomic", "--timeout", "3000", "--request-id", "q1")
    assert ran.code == 6
    assert [one.request_id for one in admin.asked("ApplyAdapters")[1:]] == ["q1:part1", "q1:part1"]
    assert [one["error"]["reason"] for one in ran.json["transactions"]] == ["ETCD_UNAVAILABLE"] * 2


@pytest.mark.parametrize("line", ["apply", "diff"])
def test_a_manifest_must_be_named(cli, line):
    ran = cli(line)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "--file" in ran.err


def test_a_file_that_is_not_there(cli):
    ran = cli("apply", "-f", "nowhere.yaml")
    remedy = "name a file or a folder that can be read, or - for standard input"
    told = f"error: USAGE: --file: cannot read nowhere.yaml: No such file or directory; {remedy}\n"
    assert (ran.code, ran.err) == (2, told)


def test_a_file_that_is_no_text(cli, tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    assert "not text in UTF-8" in cli("apply", "-f", "x").err


def test_a_file_of_8_gibibytes_is_not_read_whole(cli, tmp_path):
    """X3 given-back."""
    (tmp_path / "x").touch()
    os.truncate(tmp_path / "x", 8 << 30)
    ran = cli("apply", "-f", "x")
    told = "error: USAGE: --file: x has more than 67108864 characters; give its manifests in several\n"
    assert (ran.code, ran.err) == (2, told)


def test_a_request_id_that_cannot_be_one(cli, admin, manifest):
    ran = cli("apply", "-f", manifest("a"), "--request-id", "a b")
    assert ran.code == 4
    assert admin.requests == []


def test_add_makes_a_path_absolute(cli, admin, tmp_path):
    admin.answers["ApplyAdapters"] = [applied]
    (tmp_path / "adapters" / "sql").mkdir(parents=True)
    ran = cli("add", "sql", "--source", "adapters/sql", "--lazy", "--label", "team=bi", "--priority", "3")
    assert ran.code == 0
    [request] = admin.asked("ApplyAdapters")
    upsert = request.changes[0].upsert
    assert upsert.spec.source.uri == f"file://{tmp_path}/adapters/sql"
    assert (upsert.name, upsert.spec.load, upsert.spec.priority) == ("sql", "lazy", 3)
    assert dict(upsert.spec.labels) == {"team": "bi"}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--source", "file:sql"], 4, "write file:///absolute/path"),
        (["--source", "file:///sql", "--digest", "md5:1"], 4, "64 lower-case hex digits"),
        (["--source", "file:///sql", "--label", "team"], 2, "KEY=VALUE"),
        ([], 2, "--source"),
    ],
)
def test_add_checks_as_a_manifest_is_checked(cli, admin, arguments, code, told):
    ran = cli("add", "sql", *arguments)
    assert ran.code == code
    assert told in ran.err
    assert admin.asked("ApplyAdapters") == []


def test_add_without_a_pool_takes_the_only_one(cli, admin):
    admin.answers["ApplyAdapters"] = [applied]
    assert cli("add", "sql", "--source", "s3://b/sql").code == 0
    assert admin.asked("ApplyAdapters")[0].pool == "dev"


def test_with_several_pools_one_must_be_chosen(cli, admin):
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="a"), pb.Pool(name="b")])]
    ran = cli("add", "sql", "--source", "s3://b/sql")
    assert ran.code == 2
    assert "several pools (a, b); choose one with --pool" in ran.err


def test_without_any_pool_the_remedy_is_told(cli, admin):
    admin.answers["ListPools"] = [pb.ListPoolsResponse()]
    ran = cli("add", "sql", "--source", "s3://b/sql")
    assert ran.code == 3
    assert "loraplane pool create" in ran.err


def test_rollback_sends_where_to(cli, admin):
    result = pb.AdapterResult(
        outcome=pb.AdapterResult.UPDATED, adapter=pb.Adapter(name="sql", pool="dev", generation=4)
    )
    admin.answers["RollbackAdapter"] = [pb.ApplyAdaptersResponse(results=[result], revision=9, request_id="q1")]
    ran = cli("rollback", "sql", "--to", "2", "--etag", "5", "--request-id", "q1")
    assert ran.code == 0
    [request] = admin.asked("RollbackAdapter")
    assert (request.pool, request.name, request.to_generation, request.etag) == ("dev", "sql", 2, "5")
    assert "updated  sql   dev   4" in ran.out


def test_diff_shows_changed_lines_and_changes_nothing(cli, admin, manifest):
    after = pb.Adapter(name="a", pool="dev", generation=2, spec=pb.AdapterSpec(load="lazy"))
    before = pb.Adapter(name="a", pool="dev", generation=1, spec=pb.AdapterSpec(load="eager"))
    result = pb.AdapterResult(outcome=pb.AdapterResult.UPDATED, adapter=after)
    admin.answers["ApplyAdapters"] = [pb.ApplyAdaptersResponse(results=[result], revision=5)]
    admin.answers["GetAdapter"] = [before]
    ran = cli("diff", "-f", manifest("a"))
    assert ran.code == 0
    assert admin.asked("ApplyAdapters")[0].validate_only
    assert [line for line in ran.out.splitlines() if line[:1] in "+-"] == [
        "--- dev/a generation 1",
        "+++ dev/a generation 2",
        "-load: eager",
        "+load: lazy",
    ]


@pytest.mark.parametrize("form", ["table", "json", "name"])
def test_diff_of_what_the_service_refuses_is_no_difference(cli, admin, manifest, form):
    """Whoever asks before a change is told that it would be refused, and not that there is nothing to do."""
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")]
    ran = cli("-o", form, "diff", "-f", manifest("a"))
    assert (ran.code, ran.out) == (4, "")


def test_diff_shows_what_is_new_and_leaves_out_what_is_equal(cli, admin, manifest):
    equal = pb.AdapterResult(outcome=pb.AdapterResult.UNCHANGED, adapter=pb.Adapter(name="b", pool="dev"))

    def answer(request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse:
        return pb.ApplyAdaptersResponse(results=[applied(request).results[0], equal])

    admin.answers["ApplyAdapters"] = [answer]
    path = manifest("a", "b")
    ran = cli("diff", "-f", path)
    assert "--- nothing" in ran.out
    assert "dev/b" not in ran.out
    changes = cli("-o", "json", "diff", "-f", path).json["changes"]
    assert [(one["outcome"], one["before"] is None) for one in changes] == [("created", True), ("unchanged", False)]
    assert cli("-o", "name", "diff", "-f", path).out == "a\n"


def test_nothing_that_is_written_comes_from_the_environment(cli, admin, monkeypatch):
    """A variable for the stack, or for a sidecar, is no wish for an adapter."""
    for name, value in {"REPLICAS": "16", "PRIORITY": "3", "LABEL": "a=b", "LAZY": "1", "DIGEST": "sha256:1"}.items():
        monkeypatch.setenv(f"LORAPLANE_{name}", value)
    admin.answers["ApplyAdapters"] = [applied]
    assert cli("add", "sql", "--source", "s3://b/sql").code == 0
    spec = admin.asked("ApplyAdapters")[0].changes[0].upsert.spec
    assert (spec.placement.replicas, spec.priority, spec.labels, spec.load, spec.source.digest) == (
        0,
        0,
        {},
        "eager",
        "",
    )


def test_add_is_for_new_names(cli, admin):
    """What is not given of one that exists would be erased without a word."""
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH", "stale etag")]
    ran = cli("add", "sql", "--source", "s3://b/sql")
    assert (ran.code, admin.asked("ApplyAdapters")[0].changes[0].etag) == (5, "0")
    assert "error: ADAPTER_EXISTS:" in ran.err
    assert "loraplane set sql" in ran.err
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "full")]
    assert "QUOTA_EXCEEDED" in cli("add", "sql", "--source", "s3://b/sql").err
    admin.answers["ApplyAdapters"] = [applied]
    assert cli("add", "sql", "--source", "s3://b/sql", "--replace").code == 0
    assert admin.asked("ApplyAdapters")[-1].changes[0].etag == ""


def updated(request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse:
    """The answer of a service in which all of it stands already, with other specs."""
    reply = applied(request)
    for result in reply.results:
        result.outcome, result.adapter.generation = pb.AdapterResult.UPDATED, 2
    return reply


def test_what_changes_of_an_adapter_is_told(cli, admin, manifest):
    """No field is erased without a word, neither by a file nor in a dry run."""
    earlier = [pb.Adapter(name=name, pool="dev", generation=1) for name in "ab"]
    for one in earlier:
        one.spec.CopyFrom(pb.AdapterSpec(source=pb.Source(uri="s3://b/v0"), priority=7))
    admin.answers["ApplyAdapters"] = [updated]
    admin.answers["GetAdapter"] = [earlier[0]]
    told = ["priority: 7 → 0", "source.uri: s3://b/v0 → file:///adapters/a"]
    dry = cli("apply", "-f", manifest("a"), "--dry-run")
    assert dry.out.splitlines()[:2] == told
    admin.answers["ListAdapterHistory"] = [lambda asked: history_of(asked.name, earlier)]
    assert cli("apply", "-f", manifest("a")).out.splitlines()[:2] == told
    both = cli("apply", "-f", manifest("a", "b", "c")).out.splitlines()
    assert both[:2] == [f"a: {line}" for line in told]
    assert both[2] == "b: priority: 7 → 0"
    assert "→" not in cli("apply", "-f", manifest("a"), "--retry").out, "whose generation stays is not looked up"
    assert "→" not in cli("apply", "-f", manifest(*(f"a{number}" for number in range(21)))).out
    admin.answers["ListAdapterHistory"] = [Refusal(grpc.StatusCode.UNIMPLEMENTED)]
    ran = cli("apply", "-f", manifest("a"))
    assert (ran.code, "→" in ran.out) == (0, False)


def history_of(name: str, earlier: list[pb.Adapter]) -> pb.ListAdapterHistoryResponse:
    return pb.ListAdapterHistoryResponse(generations=[one for one in earlier if one.name == name])


def there(**spec: object) -> pb.Adapter:
    source = pb.Source(uri="s3://b/v1", digest="sha256:" + "1" * 64, signature="s")
    return pb.Adapter(
        name="sql",
        pool="dev",
        generation=1,
        etag="9",
        spec=pb.AdapterSpec(source=source, labels={"team": "bi", "old": "1"}, **spec),
    )


def test_set_changes_what_it_names_and_shows_it(cli, admin):
    before = there(priority=1, load="lazy")
    admin.answers["GetAdapter"] = [before]
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=[before])]
    admin.answers["ApplyAdapters"] = [updated]
    ran = cli("set", "sql", "--priority", "5", "--label", "team=ml", "--label", "old-", "--replicas", "2", "--eager")
    assert ran.code == 0
    (change,) = admin.asked("ApplyAdapters")[0].changes
    spec = change.upsert.spec
    assert (change.etag, spec.priority, dict(spec.labels), spec.load) == ("9", 5, {"team": "ml"}, "eager")
    assert (spec.source.digest, spec.source.signature, spec.placement.replicas) == ("sha256:" + "1" * 64, "s", 2)
    assert ran.out.splitlines()[:5] == [
        "labels.old: 1 → -",
        "labels.team: bi → ml",
        "load: lazy → eager",
        "placement.replicas: all → 2",
        "priority: 1 → 5",
    ]


def test_set_moves_an_adapter_to_the_replicas_of_labels(cli, admin):
    admin.answers["GetAdapter"] = [there(placement=pb.Placement(replicas=1, selector={"zone": "a", "gpu": "a10"}))]
    admin.answers["ApplyAdapters"] = [applied]
    assert cli("set", "sql", "--on", "zone=b", "--on", "gpu-").code == 0
    placement = admin.asked("ApplyAdapters")[0].changes[0].upsert.spec.placement
    assert (placement.replicas, dict(placement.selector)) == (1, {"zone": "b"})


def test_add_takes_the_labels_of_replicas(cli, admin):
    admin.answers["ApplyAdapters"] = [applied]
    assert cli("add", "sql", "--source", "s3://b/v1", "--on", "zone=b", "--on", "gpu=a10").code == 0
    spec = admin.asked("ApplyAdapters")[0].changes[0].upsert.spec
    assert (spec.placement.replicas, dict(spec.placement.selector)) == (0, {"zone": "b", "gpu": "a10"})


@pytest.mark.parametrize("command", [("set", "sql"), ("add", "sql", "--source", "s3://b/v1")])
def test_a_label_of_replicas_that_is_no_pair_is_named(cli, admin, command):
    admin.answers["GetAdapter"] = [there()]
    ran = cli(*command, "--on", "zone")
    assert (ran.code, admin.asked("ApplyAdapters")) == (2, [])
    assert "--on zone: write KEY=VALUE" in ran.err


def test_a_digest_goes_with_the_source_that_it_was_of(cli, admin):
    """And so does what is expected of its files."""
    expect = pb.Expect(answers=[pb.ExpectedAnswer(prompt=[1], tokens=[2])])
    admin.answers["GetAdapter"] = [there(expect=expect), there(expect=expect)]
    admin.answers["ApplyAdapters"] = [applied, applied]
    assert cli("-o", "json", "set", "sql", "--priority", "7").json["results"]
    assert admin.asked("ApplyAdapters")[0].changes[0].upsert.spec.expect == expect
    assert cli("-o", "json", "set", "sql", "--source", "s3://b/v2", "--lazy").json["results"]
    spec = admin.asked("ApplyAdapters")[1].changes[0].upsert.spec
    assert not spec.HasField("expect")
    assert (spec.source.uri, spec.source.digest, spec.source.signature, spec.load) == ("s3://b/v2", "", "", "lazy")


@pytest.mark.parametrize("flags", [[], ["--label", "team=bi"], ["--label", "none-"]])
def test_set_says_so_where_there_is_nothing_to_set(cli, admin, flags):
    admin.answers["GetAdapter"] = [there()]
    ran = cli("set", "sql", *flags)
    assert (ran.code, admin.asked("ApplyAdapters")) == (2, [])
    assert "say what to set" in ran.err


@pytest.mark.parametrize("root", ["q1", "x" * 126, "x" * 128])
def test_ids_of_parts_of_parts_stay_short_and_the_same(cli, admin, manifest, root):
    """A service that says again and again that less fits than it said: nobody gave an id that is too long."""

    def fits_one_less(request: pb.ApplyAdaptersRequest) -> object:
        count = len(request.changes)
        too_many = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "TOO_MANY_CHANGES", "no", {"max_changes": str(count - 1)})
        return too_many if count > 1 else applied(request)

    admin.answers["ApplyAdapters"] = [fits_one_less]
    path = manifest(*(f"a{number:02}" for number in range(24)))
    assert cli("apply", "-f", path, "--no-atomic", "--request-id", root).code == 0
    asked = admin.asked("ApplyAdapters")
    ids = [one.request_id for one in asked]
    assert len(set(ids)) == len(ids)
    assert max(map(len, ids)) <= 128
    assert sorted(one.changes[0].upsert.name for one in asked if len(one.changes) == 1) == [
        f"a{i:02}" for i in range(24)
    ]
    assert cli("apply", "-f", path, "--no-atomic", "--request-id", root).code == 0
    assert [one.request_id for one in admin.asked("ApplyAdapters")][len(ids) :] == ids


def replica_with(room: int, served: int, revision: int) -> pb.ListReplicasResponse:
    status = {"served": {"count": served}, "pending_count": 2, "observed_revision": revision}
    status["engine"] = {"limits": {"max_cpu_loras": room}}
    return pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", pool="dev", status_json=json.dumps(status))])


@pytest.mark.parametrize(
    ("room", "served", "revision", "limit", "told"),
    [
        (16, 13, 6, 0, "has room for 16 adapters and is to hold 17: 1 of them wait"),
        (16, 13, 7, 0, ""),
        (16, 12, 6, 0, ""),
        (16, 12, 6, 4, "has room for 4 adapters and is to hold 16: 12 of them wait"),
        (0, 900, 6, 0, ""),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_more_than_there_is_room_for_is_warned_of(cli, admin, manifest, room, served, revision, limit, told, flags):
    """Whether replicas have heard of the change already is seen by the revision; a dry run has none of its own."""
    admin.answers["ApplyAdapters"] = [lambda request: applied(request, 0 if request.validate_only else 7)]
    admin.answers["GetPool"] = [pb.Pool(name="dev", limits=pb.PoolLimits(max_adapters=limit))]
    admin.answers["ListReplicas"] = [replica_with(room, served, revision)]
    ran = cli("apply", "-f", manifest("a", "b"), *flags)
    assert ran.code == 0
    if not flags:
        assert (told in ran.err) if told else ran.err == ""
    elif told:
        assert "of them wait (over_capacity)" in ran.err


def test_the_room_of_a_pool_is_read_once_for_all_parts(cli, admin, manifest):
    """Statuses of many replicas are many bytes; each part that is too much is told all the same."""
    admin.answers["ApplyAdapters"] = [_limited]
    admin.answers["GetPool"] = [pb.Pool(name="dev")]
    admin.answers["ListReplicas"] = [replica_with(16, 13, 0)]
    ran = cli("apply", "-f", manifest(*"abcde"), "--no-atomic")
    assert (ran.code, ran.err.count("is to hold 17: 1 of them wait (over_capacity)")) == (0, 2)
    assert (len(admin.asked("GetPool")), len(admin.asked("ListReplicas"))) == (1, 1)


@pytest.mark.parametrize(
    "spec", [{"load": "lazy"}, {"placement": {"replicas": 1}}, {"placement": {"selector": {"gpu": "a10"}}}]
)
def test_what_takes_no_room_everywhere_is_not_counted(cli, admin, manifest, spec):
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["GetPool"] = [pb.Pool(name="dev")]
    admin.answers["ListReplicas"] = [replica_with(1, 1, 6)]
    ran = cli("apply", "-f", manifest("a", **spec))
    assert (ran.code, ran.err) == (0, "")
    assert admin.asked("ListReplicas") == []


def test_what_stands_already_takes_no_more_room(cli, admin, manifest):
    admin.answers["ApplyAdapters"] = [updated]
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse()]
    admin.answers["GetPool"] = [pb.Pool(name="dev")]
    admin.answers["ListReplicas"] = [replica_with(1, 1, 6)]
    ran = cli("apply", "-f", manifest("a"))
    assert (ran.code, ran.err, admin.asked("ListReplicas")) == (0, "", [])


@pytest.mark.parametrize("fits", ["0", "5", "9", "many", ""])
def test_a_number_that_fits_and_helps_nobody_is_not_followed(cli, admin, manifest, fits):
    """X2 unbreakable: a service that says so of any set would be sent the same for ever."""
    admin.answers["ApplyAdapters"] = [
        Refusal(grpc.StatusCode.INVALID_ARGUMENT, "TOO_MANY_CHANGES", "no", {"max_changes": fits})
    ]
    ran = cli("apply", "-f", manifest(*"abcde"), "--no-atomic")
    assert (ran.code, len(admin.asked("ApplyAdapters"))) == (4, 1)


def test_only_who_asks_for_another_try_gets_one(cli, admin, manifest):
    """R8: what is applied again as it is leaves alone what waits for its pause to end."""
    admin.answers["ApplyAdapters"] = [applied]
    assert cli("apply", "-f", manifest("a")).code == 0
    [sent] = admin.asked("ApplyAdapters")
    assert (sent.retry, sent.retry_replica) == (False, "")


def test_a_field_of_a_change_that_was_not_sent_is_told_as_it_is(cli, admin, manifest):
    """X2 unbreakable: whatever a service of another release answers."""
    admin.answers["ApplyAdapters"] = [
        Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "no", where="changes[1].upsert.name")
    ]
    ran = cli("-o", "json", "apply", "-f", manifest("a"))
    assert (ran.code, ran.error["field"]) == (4, "changes[1].upsert.name")


def test_two_documents_of_one_adapter_are_refused_before_anything_is_sent(cli, admin, manifest):
    """W6 one-digest: also where they stand in two files, and in other letters."""
    ran = cli("-o", "json", "apply", "-f", manifest("a"), "-f", manifest("A", file="more.yaml"))
    assert (ran.code, ran.error["reason"], admin.requests) == (4, "DUPLICATE_NAME", [])
