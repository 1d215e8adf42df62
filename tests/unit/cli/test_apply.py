"""apply, add, set, diff and rollback: what is sent, what is told, and how they end."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest

from registry.cli.change import sets
from registry.cli.commands import apply as apply_commands
from registry.residency.health import AdapterRow, state
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin, Refusal, applied, updated

UNAVAILABLE = Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE", "no quorum")
TOO_MANY = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "TOO_MANY_CHANGES", "5 changes, 2 fit", {"max_changes": "2"})
NEW = ["add", "sql", "--source", "s3://b/sql"]


def limited(request: pb.ApplyAdaptersRequest) -> object:
    return TOO_MANY if len(request.changes) > 2 else applied(request)


def sent(admin: FakeAdmin) -> list[tuple[str, str, str]]:
    """Pool, names and id of each request."""
    return [
        (one.pool, "".join(change.upsert.name for change in one.changes), one.request_id)
        for one in admin.asked("ApplyAdapters")
    ]


def test_what_is_handed_over_at_once_is_sent_at_once(cli, admin, manifest, monkeypatch):
    """W2 atomic-set, W9 dry-run: of all files, and of standard input; a request id is made where none is given."""
    ran = cli("apply", "-f", manifest("a", "b"), "-f", manifest("c", file="more.yaml"), "--request-id", "q1")
    assert (ran.code, ran.err, "created  a" in ran.out, "revision 7, request id q1" in ran.out) == (0, "", True, True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(Path(manifest("d")).read_text()))
    value = cli("-o", "json", "apply", "-f", "-", "--dry-run").json
    assert re.fullmatch(r"[0-9a-f-]{36}", value["request_id"])
    assert sent(admin) == [("dev", "abc", "q1"), ("dev", "d", value["request_id"])]
    first, second = admin.asked("ApplyAdapters")
    assert (first.validate_only, second.validate_only, value["dry_run"]) == (False, True, True)
    assert (first.retry, first.retry_replica) == (False, ""), "only who asks for another try gets one"


def test_a_change_is_repeated_with_its_id_while_nobody_answers(cli, admin, manifest, clock):
    """W3 idempotent, W8 no-false-fail: an unknown outcome is told with what settles it; a refusal is one, and the
    service's field becomes file, document and field.
    """
    path = manifest("a", "b")
    admin.answers["ApplyAdapters"] = [UNAVAILABLE, UNAVAILABLE, applied]
    assert (cli("apply", "-f", path).code, len(sent(admin)), len({*sent(admin)})) == (0, 3, 1)
    admin.answers["ApplyAdapters"] = [UNAVAILABLE, clock.late(UNAVAILABLE)]
    ran = cli("apply", "-f", path, "--timeout", "3000", "--request-id", "q1")
    assert (ran.code, ran.err) == (6, "error: ETCD_UNAVAILABLE: no quorum (request id q1)\n")
    where = "changes[1].upsert.spec.base_model"
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH", "stale", where=where)]
    ran = cli("apply", "-f", path)
    told = f"error: ETAG_MISMATCH: {path}: document 2 (line 6): spec.baseModel: stale\n"
    assert (ran.code, ran.err, len(sent(admin))) == (5, told, 6)


def of_an_earlier_release(request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse:
    """Protobuf passes over fields that are not known."""
    reply = applied(request)
    for result in reply.results:
        for name in ("enabled", "ttl_seconds", "keep", "ttl_from"):
            result.adapter.spec.ClearField(name)
        result.adapter.spec.placement.ClearField("by_load")
    return reply


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"ttl": "7d"}, "spec.ttl"),
        ({"enabled": False}, "spec.enabled"),
        ({"placement": {"replicas": {"min": 1, "max": 3, "perReplica": 4}}}, "spec.placement.byLoad.max"),
        ({"priority": 3, "enabled": True, "strategy": {"canary": {"replicas": 1}}}, ""),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--no-atomic",)])
def test_a_field_that_an_admin_service_passed_over_is_no_success(cli, admin, manifest, spec, field, more):
    """W8: one of an earlier release served what was to be disabled, and all was told as done."""
    path = manifest("a", **spec)
    admin.answers["ApplyAdapters"] = [of_an_earlier_release]
    ran = cli("apply", "-f", path, *more)
    assert (ran.code, "created  a" in ran.out) == (4 if field else 0, True), ran
    where = f"error: UNSUPPORTED: {path}: document 1 (line 1): {field}: the admin service does not know it"
    assert (ran.err.startswith(where), "upgrade loraplane-admin" in ran.err) == (bool(field), bool(field)), ran.err


def test_what_is_wrong_here_is_refused_before_anything_is_sent(cli, admin, manifest, tmp_path):
    """W6 one-digest: one adapter twice, also in other letters; X3 given-back: a file of 8 GiB is not read whole."""
    ran = cli("-o", "json", "apply", "-f", manifest("a"), "-f", manifest("A", file="more.yaml"))
    assert (ran.code, ran.error["reason"]) == (4, "DUPLICATE_NAME")
    ran = cli("apply", "-f", manifest("a", "other:b"))
    assert (ran.code, "for dev, other; split them, or give --no-atomic" in ran.err) == (4, True)
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    assert "not text in UTF-8" in cli("apply", "-f", "x").err
    (tmp_path / "x").write_text("")
    os.truncate(tmp_path / "x", 8 << 30)
    told = "error: USAGE: --file: x has more than 67108864 characters; give its manifests in several\n"
    assert (cli("apply", "-f", "x").err, admin.requests) == (told, [])


def test_no_atomic_splits_what_does_not_fit_with_ids_that_follow_from_the_first(cli, admin, manifest, clock):
    """Without it the remedy is told; with it the same command sends the same ids again. Pools have their own. It goes
    on after a refusal, and stops where nobody answers.
    """
    ran = cli("-o", "json", "apply", "-f", manifest("a", "other:b", "c"), "--no-atomic", "--request-id", "q1")
    assert (ran.code, sent(admin)) == (0, [("dev", "ac", "q1"), ("other", "b", "q1:pool2")])
    assert [one["request_id"] for one in ran.json["transactions"]] == ["q1", "q1:pool2"]
    admin.requests.clear()
    admin.answers["ApplyAdapters"] = [limited]
    path = manifest(*"abcde")
    ran = cli("-o", "json", "apply", "-f", path)
    assert (ran.code, ran.error["reason"], ran.error["metadata"]) == (4, "TOO_MANY_CHANGES", {"max_changes": "2"})
    assert ("--no-atomic" in ran.error["message"], len(sent(admin))) == (True, 1)
    admin.requests.clear()
    for _ in range(2):
        ran = cli("apply", "-f", path, "--no-atomic", "--request-id", "q1")
        assert (ran.code, "3 of 3 transactions applied" in ran.out) == (0, True)
    parts = [("dev", "ab", "q1:part1"), ("dev", "cd", "q1:part2"), ("dev", "e", "q1:part3")]
    assert sent(admin) == [("dev", "abcde", "q1"), *parts] * 2
    admin.requests.clear()
    refusal = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "full")
    admin.answers["ApplyAdapters"] = [TOO_MANY, refusal, applied]
    command = ["apply", "-f", manifest(*"abcd"), "--no-atomic", "--request-id", "q1"]
    ran = cli(*command)
    assert (ran.code, "error: QUOTA_EXCEEDED: full" in ran.out, "request id q1:part2" in ran.out) == (4, True, True)
    assert ran.err == (
        "error: QUOTA_EXCEEDED: 1 of 2 transactions were not applied; the first: full; once that is mended, the same "
        "command goes on with the rest\n"
    )
    admin.requests.clear()
    admin.answers["ApplyAdapters"] = [TOO_MANY, UNAVAILABLE, clock.late(UNAVAILABLE)]
    ran = cli("-o", "json", *command, "--timeout", "3000")
    assert (ran.code, [one[2] for one in sent(admin)[1:]]) == (6, ["q1:part1", "q1:part1"])
    assert [one["error"]["reason"] for one in ran.json["transactions"]] == ["ETCD_UNAVAILABLE"] * 2


@pytest.mark.parametrize(
    ("reason", "fits"),
    [("TOO_MANY_CHANGES", "0"), ("TOO_MANY_CHANGES", "5"), ("TOO_MANY_CHANGES", "many"), ("QUOTA_EXCEEDED", "2")],
)
def test_a_number_that_fits_and_helps_nobody_is_not_followed(cli, admin, manifest, reason, fits):
    """X2 unbreakable: a service that says so of any set would be sent the same for ever."""
    refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, reason, "no", {"max_changes": fits})
    admin.answers["ApplyAdapters"] = [refusal]
    assert (cli("apply", "-f", manifest(*"abcde"), "--no-atomic").code, len(sent(admin))) == (4, 1)


def test_no_atomic_sends_no_message_that_the_service_does_not_take(cli, admin, manifest):
    """One of 5 MiB is refused by gRPC itself, which does not say how much fits."""
    names = [f"a{number}" for number in range(300)]
    path = manifest(*names, placement={"selector": {f"label-{number}": "x" * 256 for number in range(64)}})
    ran = cli("-o", "json", "apply", "-f", path)
    assert (ran.code, ran.error["reason"], "--no-atomic" in ran.error["message"]) == (4, "TOO_LARGE", True)
    assert cli("apply", "-f", path, "--no-atomic", "--request-id", "q1").code == 0
    assert ["".join(part) for part in zip(*sent(admin), strict=True)][1:] == ["".join(names), "q1:part1q1:part2"]


@pytest.mark.parametrize(
    ("name", "bound", "parts"),
    [
        ("_MAX_SENT", 2, ["ab", "cd", "e"]),
        ("_MAX_SENT", 5, ["abcde"]),
        ("_MAX_SENT_BYTES", 1, list("abcde")),
        ("_MAX_SENT_BYTES", 180, ["ab", "cd", "e"]),
    ],
)
def test_each_part_is_as_large_as_it_may_be_and_none_is_empty(cli, admin, manifest, monkeypatch, name, bound, parts):
    """One that alone is too large goes alone: the service says what is wrong with it."""
    monkeypatch.setattr(sets, name, bound)
    assert cli("apply", "-f", manifest(*"abcde"), "--no-atomic").code == 0
    assert [names for _, names, _ in sent(admin)] == parts


def test_what_cannot_be_one_transaction_is_refused_before_any_source_is_read(cli, admin, manifest, monkeypatch):
    """And `diff` refuses what `apply` refuses, unless it is asked of several transactions, too."""
    many, pools = manifest(*"abc"), manifest("dev:a", "ops:b", file="pools.yaml")
    monkeypatch.setattr(sets, "_MAX_SENT", 2)
    monkeypatch.setattr(apply_commands, "preflight", Mock(side_effect=AssertionError))
    for line in ("apply", "apply --dry-run", "diff"):
        ran = cli(*line.split(), "-f", many)
        assert (ran.code, "3 changes are more than one transaction takes; give --no-atomic" in ran.err) == (4, True)
        assert "these documents are for dev, ops" in cli(*line.split(), "-f", pools).err
    assert admin.requests == []
    monkeypatch.undo()
    admin.answers["ApplyAdapters"] = [limited]
    for line in ("apply --dry-run", "diff"):
        ran = cli(*line.split(), "-f", many)
        assert (ran.code, "TOO_MANY_CHANGES" in ran.err, "--no-atomic" in ran.err) == (4, True, True)
        assert cli(*line.split(), "-f", many, "--no-atomic").code == 0
    assert all(one.validate_only for one in admin.asked("ApplyAdapters"))


def test_two_generations_of_an_adapter_are_compared(cli, admin):
    specs = [pb.AdapterSpec(source=pb.Source(uri=f"s3://b/{number}"), priority=1) for number in (1, 2, 2)]
    three = [pb.Adapter(name="a", pool="dev", generation=at, spec=spec) for at, spec in enumerate(specs, 1)]
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=reversed(three))]
    told = [line for line in cli("diff", "a", "1", "3").out.splitlines() if line[:1] in "+-"]
    assert told == ["--- dev/a generation 1", "+++ dev/a generation 3", "-  uri: s3://b/1", "+  uri: s3://b/2"]
    assert cli("diff", "a", "3", "2").out == "The two are the same.\n"
    found = cli("-o", "json", "diff", "a", "1", "2").json
    assert (found["before"]["generation"], found["after"]["generation"]) == (1, 2)
    ran = cli("diff", "a", "1", "9")
    assert (ran.code, "has no generation 9 any more, or yet; it has 3, 2, 1" in ran.err) == (3, True)
    for line in ("a", "a 1", "a 1 2 3", "a 1 x"):
        assert (cli("diff", *line.split()).code, admin.asked("ApplyAdapters")) == (2, [])
    assert cli("diff", "a", "1", "2", "-f", "x.yaml").code == 2


def test_diff_shows_changed_lines_and_what_is_new_and_is_refused_as_a_change_is(cli, admin, manifest):
    """W9: whoever asks before a change is told that it would be refused, not that there is nothing to do."""
    before, after, same = (
        pb.Adapter(
            name=name,
            pool="dev",
            generation=generation,
            spec=pb.AdapterSpec(source=pb.Source(uri=f"file:///adapters/{name}"), load=load),
        )
        for name, generation, load in (("a", 1, "eager"), ("a", 2, "lazy"), ("b", 1, ""))
    )
    changed = pb.AdapterResult(outcome=pb.AdapterResult.UPDATED, adapter=after)
    equal = pb.AdapterResult(outcome=pb.AdapterResult.UNCHANGED, adapter=same)
    admin.answers |= {"ApplyAdapters": [pb.ApplyAdaptersResponse(results=[changed])], "GetAdapter": [before]}
    path = manifest("a", "b")
    ran = cli("diff", "-f", path)
    assert (ran.code, admin.asked("ApplyAdapters")[0].validate_only) == (0, True)
    told = [line for line in ran.out.splitlines() if line[:1] in "+-"]
    assert told == ["--- dev/a generation 1", "+++ dev/a generation 2", "-load: eager", "+load: lazy"]
    admin.answers["ApplyAdapters"] = [
        lambda asked: pb.ApplyAdaptersResponse(results=[applied(asked).results[0], equal])
    ]
    ran = cli("diff", "-f", path)
    assert ("--- nothing" in ran.out, "dev/b" in ran.out) == (True, False)
    changes = cli("-o", "json", "diff", "-f", path).json["changes"]
    assert [(one["outcome"], one["before"] is None) for one in changes] == [("created", True), ("unchanged", False)]
    assert cli("-o", "name", "diff", "-f", path).out == "a\n"
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")]
    for form in ("table", "json", "name"):
        ran = cli("-o", form, "diff", "-f", path)
        assert (ran.code, ran.out, "of 1 transactions" in ran.err) == (4, "", False)


def test_add_is_for_new_names_and_set_changes_what_it_names_and_shows_it(cli, admin):
    """What is not given of one that exists would be erased without a word. What is expected of files goes with them."""
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH", "stale etag")]
    ran = cli(*NEW)
    assert (ran.code, admin.asked("ApplyAdapters")[0].changes[0].etag) == (5, "0")
    assert ("error: ADAPTER_EXISTS:" in ran.err, "loraplane set sql" in ran.err) == (True, True)
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "full")]
    assert "QUOTA_EXCEEDED" in cli(*NEW).err
    admin.answers["ApplyAdapters"] = [applied]
    assert (cli(*NEW, "--replace").code, admin.asked("ApplyAdapters")[-1].changes[0].etag) == (0, "")
    assert admin.asked("ApplyAdapters")[-1].changes[0].upsert.spec.priority == 0
    admin.requests.clear()
    expect = pb.Expect(answers=[pb.ExpectedAnswer(prompt=[1], tokens=[2])])
    before = there(priority=1, load="lazy", expect=expect)
    admin.answers |= {"GetAdapter": [before], "ApplyAdapters": [updated]}
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=[before])]
    ran = cli("set", "sql", "--priority", "5", "--label", "team=ml", "--label", "old-", "--replicas", "2", "--eager")
    lines = ["labels.old: 1 → -", "labels.team: bi → ml", "load: lazy → eager", "placement.replicas: all → 2"]
    assert (ran.code, ran.out.splitlines()[:5]) == (0, [*lines, "priority: 1 → 5"])
    assert cli("set", "sql", "--source", "s3://b/v2", "--lazy").code == 0
    (same,), (other,) = (one.changes for one in admin.asked("ApplyAdapters"))
    source = same.upsert.spec.source
    assert (same.etag, source.digest, source.signature, same.upsert.spec.expect) == (
        "9",
        before.spec.source.digest,
        "s",
        expect,
    )
    assert (other.upsert.spec.HasField("expect"), other.upsert.spec.source.digest) == (False, "")


def placed(least: int, most: int | None = None, per_replica: int = 0) -> dict[str, object]:
    by_load = pb.ByLoad(max=most, per_replica=per_replica) if most else None
    return {"placement": pb.Placement(replicas=least, by_load=by_load)}


@pytest.mark.parametrize(
    ("has", "words", "wanted"),
    [
        ({}, "--ttl 7d", {"ttl_seconds": 604_800}),
        ({"ttl_seconds": 600}, "--ttl none", {}),
        ({"ttl_seconds": 600}, "--ttl none --ttl-from use", {"ttl_from": "use"}),
        ({"ttl_seconds": 600}, "--ttl-from use", {"ttl_seconds": 600, "ttl_from": "use"}),
        ({"ttl_seconds": 600, "ttl_from": "use"}, "--ttl none", {}),
        *(({}, "--keep 3", {"keep": 3}), ({"keep": 4}, "--keep none", {})),
        ({}, "--replicas 2 --max-replicas 8 --per-replica 50", placed(2, 8, 50)),
        (placed(2, 8, 50), "--max-replicas 4", placed(2, 4, 50)),
        (placed(2, 8, 50), "--per-replica 9", placed(2, 8, 9)),
        (placed(2, 8, 50), "--replicas 3 --per-replica 9", placed(3, 8, 9)),
        (placed(2, 8, 50), "--replicas 3", placed(3)),
        (placed(2, 8, 50), "--replicas 0", placed(0)),
        (placed(2, 8, 50), "--priority 9", {**placed(2, 8, 50), "priority": 9}),
    ],
)
def test_set_gives_an_adapter_what_is_named_and_takes_it_away(cli, admin, has, words, wanted):
    """In the words of a manifest. A number of replicas alone is a fixed one; where a ttl begins goes with the ttl."""
    admin.answers |= {"GetAdapter": [there(**has)], "ApplyAdapters": [updated]}
    assert cli("set", "sql", *words.split()).code == 0
    (asked,) = admin.asked("ApplyAdapters")
    assert asked.changes[0].upsert.spec == there(**wanted).spec


def history_of(*earlier: pb.Adapter) -> object:
    """The history of each adapter: its present generation, and the one before where it is among these."""

    def answer(asked: pb.ListAdapterHistoryRequest) -> pb.ListAdapterHistoryResponse:
        before = [one for one in earlier if one.name == asked.name]
        return pb.ListAdapterHistoryResponse(generations=[pb.Adapter(name=asked.name, generation=4), *before])

    return answer


def earlier(name: str, generation: int = 3) -> pb.Adapter:
    spec = pb.AdapterSpec(source=pb.Source(uri="s3://b/v0"), priority=7)
    return pb.Adapter(name=name, pool="dev", generation=generation, spec=spec)


def test_what_changes_of_an_adapter_is_told(cli, admin, manifest):
    """No field is erased without a word, in a dry run neither; what nobody knows any more is no reason to fail. Of more
    than twenty nobody reads it.
    """
    names = [f"a{number}" for number in range(21)]
    admin.answers |= {"ApplyAdapters": [updated], "GetAdapter": [earlier("a")]}
    admin.answers["ListAdapterHistory"] = [history_of(*map(earlier, [*"ab", *names]))]
    told = ["priority: 7 → 0", "source.uri: s3://b/v0 → file:///adapters/a"]
    for flags in ([], ["--dry-run"]):
        assert cli("apply", "-f", manifest("a"), *flags).out.splitlines()[:2] == told
    both = cli("apply", "-f", manifest("a", "b", "c")).out.splitlines()
    assert both[:3] == [*(f"a: {line}" for line in told), "b: priority: 7 → 0"]
    for count, are_told in ((20, 20), (21, 0)):
        assert cli("apply", "-f", manifest(*names[:count])).out.count("source.uri: s3://b/v0 → file:///") == are_told
    assert "→" not in cli("apply", "-f", manifest("a"), "--retry").out, "whose generation stays is not looked up"
    for unknown in (history_of(), history_of(earlier("a", 2)), Refusal(grpc.StatusCode.UNIMPLEMENTED)):
        admin.answers["ListAdapterHistory"] = [unknown]
        ran = cli("apply", "-f", manifest("a"))
        assert (ran.code, "→" in ran.out) == (0, False)
    admin.answers |= {"ApplyAdapters": [same_generation], "ListAdapterHistory": [history_of(earlier("a"))]}
    assert "→" not in cli("apply", "-f", manifest("a")).out, "which is another generation's change"
    tried = cli("apply", "-f", manifest("a"), "--dry-run").out.splitlines()
    assert tried[:2] == told, "what stands is known before a change"


def same_generation(request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse:
    """The answer where a change makes no generation, such as of a time to live."""
    reply = updated(request)
    reply.results[0].adapter.request_id = "that-of-its-generation"
    return reply


def there(**spec: object) -> pb.Adapter:
    source = pb.Source(uri="s3://b/v1", digest="sha256:" + "1" * 64, signature="s")
    whole = pb.AdapterSpec(source=source, labels={"team": "bi", "old": "1"}, **spec)
    return pb.Adapter(name="sql", pool="dev", generation=3, etag="9", spec=whole)


def replica_with(room: int, served: int, revision: int) -> pb.ListReplicasResponse:
    status = {"served": {"count": served}, "pending_count": 2, "observed_revision": revision}
    status["engine"] = {"limits": {"max_cpu_loras": room}}
    alike = [pb.Replica(name=name, pool="dev", status_json=json.dumps(status)) for name in ("r1", "r2")]
    return pb.ListReplicasResponse(replicas=alike)


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
def test_more_than_there_is_room_for_is_warned_of(cli, admin, manifest, room, served, revision, limit, told):
    """Whether replicas have heard of the change already is seen by the revision; a dry run has none of its own."""
    admin.answers["ApplyAdapters"] = [lambda request: applied(request, 0 if request.validate_only else 7)]
    admin.answers["GetPool"] = [pb.Pool(name="dev", limits=pb.PoolLimits(max_adapters=limit))]
    admin.answers["ListReplicas"] = [replica_with(room, served, revision)]
    path = manifest("a", "b")
    ran, dry = cli("apply", "-f", path), cli("apply", "-f", path, "--dry-run")
    assert (ran.code, dry.code, told in ran.err, bool(ran.err)) == (0, 0, True, bool(told))
    assert not told or "of them wait (over_capacity)" in dry.err


@pytest.mark.parametrize(
    ("answer", "spec"),
    [
        *((applied, {"load": "lazy"}), (applied, {"placement": {"replicas": 1}}), (updated, {})),
        (applied, {"placement": {"selector": {"gpu": "a10"}}}),
    ],
)
def test_what_takes_no_more_room_everywhere_is_not_counted(cli, admin, manifest, answer, spec):
    """What does is told of each part; statuses of many replicas are many bytes, and read once for all."""
    admin.answers |= {"ApplyAdapters": [answer], "ListReplicas": [replica_with(1, 1, 6)]}
    ran = cli("apply", "-f", manifest("a", **spec))
    assert (ran.code, ran.err, admin.asked("ListReplicas")) == (0, "", [])
    admin.answers |= {"ApplyAdapters": [limited], "ListReplicas": [replica_with(16, 13, 0)]}
    ran = cli("apply", "-f", manifest(*"abcde"), "--no-atomic")
    assert (ran.code, ran.err.count("is to hold 17: 1 of them wait (over_capacity)")) == (0, 2)
    assert (len(admin.asked("GetPool")), len(admin.asked("ListReplicas"))) == (1, 1)
    denied = Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "not you")
    admin.answers |= {"ApplyAdapters": [applied], "GetPool": [denied]}
    ran = cli("apply", "-f", manifest("a"))
    assert (ran.code, ran.err) == (0, ""), "what was asked for is done, and nobody may look at the pool"


def test_an_adapter_is_switched_off_and_on_and_says_so(cli, admin):
    """All else of it is kept, as nothing else is named."""
    for verb, is_on in (("disable", False), ("enable", True)):
        assert cli(verb, "acme/a", "--request-id", verb).code == 0
        asked = admin.asked("ApplyAdapters")[-1]
        (change,) = asked.changes
        assert (asked.pool, asked.request_id, change.update_mask.paths) == ("dev", verb, ["enabled"])
        spec = change.update.spec
        assert (change.update.name, spec.HasField("enabled"), spec.enabled) == ("acme/a", True, is_on)
        said = state(AdapterRow(pb.Adapter(spec=spec, rollout=pb.CanaryRollout(halted="" if is_on else "why"))))
        assert said == ("" if is_on else "Disabled")
