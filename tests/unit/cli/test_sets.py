"""Sets of adapters: edit, retry, delete, apply --prune. What was not meant is not removed."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import Refusal, applied
from tests.unit.cli.conftest import Terminal


def adapter(name: str, etag: str = "9", **labels: str) -> pb.Adapter:
    spec = pb.AdapterSpec(source=pb.Source(uri=f"file:///adapters/{name}"), labels=labels)
    return pb.Adapter(name=name, pool="dev", generation=3, etag=etag, spec=spec)


@pytest.fixture
def store(admin):
    """A service with a and b of team x, c of team y, and one record that cannot be read."""
    found = [adapter("a", "11", team="x"), adapter("b", "12", team="x"), adapter("c", "13", team="y")]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=found, unreadable=["torn"])]
    admin.answers["GetAdapter"] = [lambda request: next(one for one in found if one.name == request.name.lower())]
    return admin


def deleted(admin) -> list[list[tuple[str, str]]]:
    """Names and etags of each request's deletions."""
    asked = [request for request in admin.asked("ApplyAdapters") if not request.validate_only]
    return [[(one.delete, one.etag) for one in request.changes if one.delete] for request in asked]


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """Makes an editor of a shell script, which finds the file in $1."""

    def make(script: str) -> None:
        path = tmp_path / "my editor"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setenv("EDITOR", f"'{path}'")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    return make


def kept(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("loraplane-edit-*"))


def is_told_as_nothing(ran: Any) -> bool:
    """True if programs got the object that a change gives them, with no result in it."""
    return (ran.code, ran.json["results"], ran.json["request_id"]) == (0, [], None)


def test_edit_changes_what_was_shown_and_no_other_state(cli, store, editor, tmp_path, monkeypatch):
    """W4 etag: somebody else's change meanwhile is not overwritten. An interrupt within the editor is the editor's: a
    terminal sends it to both. Of nothing nothing is changed; one whose rollout fails keeps no file.
    """
    before = signal.getsignal(signal.SIGINT)
    editor("echo '# thought about it' >> \"$1\"")
    ran = cli("edit", "a")
    assert (ran.code, "nothing was changed" in ran.err, store.asked("ApplyAdapters")) == (0, True, [])
    assert is_told_as_nothing(cli("-o", "json", "edit", "a"))
    editor('stat -c %a "$1" > mode; trap \'sed -i "s/team: x/team: z/" "$1"\' INT; kill -INT $PPID $$')
    assert (cli("edit", "a").code, signal.getsignal(signal.SIGINT)) == (0, before)
    [change] = store.asked("ApplyAdapters")[0].changes
    assert (change.upsert.name, change.etag, dict(change.upsert.spec.labels)) == ("a", "11", {"team": "z"})
    assert (kept(tmp_path), (tmp_path / "mode").read_text().strip()) == ([], "600")
    store.answers["WatchRollout"] = [[pb.Rollout(name="a", generation=1, done=True, failure="replicas_failed")]]
    assert (cli("edit", "a", "--wait").code, kept(tmp_path)) == (7, [])
    for named in ("no-such-editor", "'"):
        monkeypatch.setenv("VISUAL", named)
        ran = cli("edit", "a")
        assert (ran.code, "name one with EDITOR" in ran.err) == (2, True)
        assert signal.getsignal(signal.SIGINT) == before, "X3 given-back"


def test_what_a_later_release_knows_of_an_adapter_outlives_an_edit_and_is_missed_in_an_export(cli, admin, editor):
    """Command lines are upgraded after the admin services: fields of which they know nothing are not theirs to take."""
    later = b"\x98\x06\x05"  # field 99
    spec = pb.AdapterSpec(source=pb.Source(uri="file:///adapters/a"), labels={"team": "x"})
    spec.MergeFromString(later)
    spec.placement.MergeFromString(later)
    stands = pb.Adapter(name="a", pool="dev", etag="11", spec=spec)
    admin.answers |= {"GetAdapter": [stands], "ListAdapters": [pb.ListAdaptersResponse(adapters=[stands])]}
    editor('sed -i "s/team: x/team: z/" "$1"')
    assert cli("edit", "a").code == 0
    [change] = admin.asked("ApplyAdapters")[0].changes
    sent = change.upsert.spec
    assert dict(sent.labels) == {"team": "z"}
    assert [[(one.field_number, one.data) for one in UnknownFieldSet(of)] for of in (sent, sent.placement)] == [
        [(99, 5)]
    ] * 2
    ran = cli("export", "--pool", "dev")
    note = "fields of a later release are left out of dev/a; before they are applied, upgrade"
    assert (ran.code, note in ran.err, "name: a\n" in ran.out) == (0, True, True)
    stands.DiscardUnknownFields()
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[stands])]
    assert "later" not in cli("export", "--pool", "dev").err


@pytest.fixture
def of_team_x(tmp_path) -> str:
    """A manifest of an adapter a of team x, which differs in case from what stands."""
    text = "apiVersion: loraplane/v1\nkind: Adapter\nmetadata: {name: A, pool: dev, labels: {team: x}}\n"
    path = tmp_path / "x.yaml"
    path.write_text(text + "spec: {source: {uri: 'file:///adapters/a'}}\n")
    return str(path)


def test_prune_deletes_what_stands_in_no_manifest_in_the_same_transaction(cli, store, of_team_x):
    """W2 atomic-set, W4 etag: the rest of the set goes as it was listed, or nothing changes at all. A mistaken label
    would make everything of another team superfluous. With room for its id behind the longest, and not after a
    failure; nor where nobody agrees.
    """
    pruned, found = ["-f", of_team_x, "--prune", "-l", "team=x"], store.answers["ListAdapters"]
    ran = cli("diff", *pruned)
    assert (ran.code, "--- dev/b generation 3" in ran.out) == (0, True)
    assert "summary: +1 ~0 -1 (of 2 adapters)" in ran.out
    plain = cli("-o", "json", "diff", *pruned).json
    assert plain["summary"] == {"created": 1, "updated": 0, "deleted": 1, "unchanged": 0}
    assert [one["after"] is None for one in plain["changes"]] == [False, True]
    store.requests.clear()
    ran = cli("apply", *pruned, "--yes")
    assert (ran.code, deleted(store)) == (0, [[("b", "12")]])
    assert (store.asked("ApplyAdapters")[0].changes[0].upsert.name, "delete dev/b\n" in ran.err) == ("A", True)
    assert "dev/a" not in ran.err
    ran = cli("apply", "-f", of_team_x, "--prune", "-l", "team=y", "--yes")
    assert (ran.code, len(deleted(store))) == (4, 1)
    assert re.search(r"x\.yaml: document 1 \(line 1\): metadata\.labels: has not the labels of -l", ran.err)
    store.requests.clear()
    whole = ["apply", "-f", of_team_x, "--prune", "-l", "team=x"]
    assert (cli(*whole).code, deleted(store)) == (2, [])
    assert (cli(*whole, "--dry-run").code, store.asked("ApplyAdapters")[0].validate_only) == (0, True)
    for request_id in ("q", "q" * 128):
        store.requests.clear()
        assert cli(*whole, "--yes", "--no-atomic", "--request-id", request_id).code == 0
        first, second = [request.request_id for request in store.asked("ApplyAdapters")]
        assert (deleted(store), first) == ([[], [("b", "12")]], request_id)
        assert (second != first, len(second) <= 128, second.startswith("q:prune:")) == (True, True, request_id == "q")
    store.requests.clear()
    same = pb.ListAdaptersResponse(adapters=[adapter("A", "11", team="x")])
    for listed in (same, pb.ListAdaptersResponse(adapters=[adapter("a", "11", team="x")])):
        store.answers["ListAdapters"] = [listed]
        assert (cli(*whole, "--yes").code, deleted(store)[-1]) == (0, []), "capitals make no other name"
    store.requests.clear()
    store.answers["ListAdapters"] = found
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")]
    assert (cli(*whole, "--yes", "--no-atomic").code, deleted(store)) == (4, [[]])


class Kept:
    """Takes one change at a time, keeps each answer by its id, and refuses a second deletion until it is let."""

    def __init__(self, admin, found: list[pb.Adapter]) -> None:
        self.answers: dict[str, tuple[bytes, pb.ApplyAdaptersResponse]] = {}
        self.found, self.is_done = found, False
        admin.answers["ApplyAdapters"] = [self.apply]
        admin.answers["ListAdapters"] = [lambda _request: pb.ListAdaptersResponse(adapters=self.found)]

    def apply(self, request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse | Refusal:
        if request.validate_only:
            return GONE
        payload = b"".join(one.SerializeToString(deterministic=True) for one in request.changes)
        known, reply = self.answers.get(request.request_id, (payload, applied(request)))
        if known != payload:
            return Refusal(grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED", "it was used")
        if len(request.changes) > 1:
            return Refusal(grpc.StatusCode.INVALID_ARGUMENT, "TOO_MANY_CHANGES", metadata={"max_changes": "1"})
        gone = request.changes[0].delete
        if gone and self.is_done:
            return Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
        self.answers[request.request_id] = payload, reply
        self.found = [one for one in self.found if one.name != gone]
        self.is_done = self.is_done or bool(gone)
        return reply


@pytest.mark.parametrize(
    "command",
    [
        ["apply", "--prune", "-l", "team=x", "--yes", "-f"],
        ["delete", "-l", "team=x", "--yes"],
        ["delete", "b", "d", "e", "zz", "--ignore-not-found"],
    ],
)
def test_the_same_command_goes_on_with_the_rest_of_what_stood(cli, store, of_team_x, command):
    """W3 idempotent: in several transactions, with the id that its user named. What is left is another list than at
    first, and no id is sent with two payloads; what stands in files has the id, and the answer, that it had.
    """
    kept = Kept(store, [adapter(name, "12", team="x") for name in "bde"])
    whole = [*command, *([of_team_x] if "-f" in command else []), "--no-atomic", "--request-id", "q"]
    for left in "de", "e", "":
        kept.is_done = False
        ran = cli(*whole)
        assert (ran.code, "".join(one.name for one in kept.found)) == (4 if left else 0, left), ran.err
    assert cli(*whole).code == 0


def test_what_is_deleted_by_its_names_has_the_id_that_was_given(cli, store):
    """W3 idempotent: also where it may be several transactions, of which the first has the id itself."""
    for more in ([], ["--no-atomic"]):
        assert cli("delete", "a", "b", "--yes", "--request-id", "q", *more).code == 0
        assert store.asked("ApplyAdapters")[-1].request_id == "q"


def test_a_change_that_follows_from_what_stood_is_not_made_again(cli, store, of_team_x):
    """W3 idempotent: once it was made something else stands, so the same id comes with another payload: it is refused,
    with where to see what was done.
    """
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED", "it was used")]
    ran = cli("apply", "--prune", "-l", "team=x", "--yes", "-f", of_team_x, "--request-id", "q")
    assert (ran.code, "it was used; loraplane events -o wide shows what was done under it" in ran.err) == (4, True)


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("echo 'load: [' >> \"$1\"", 4, "not a YAML manifest"),
        ("sed -i 's/name: a/name: b/' \"$1\"", 2, "one manifest, of dev/a"),
        ('sed \'s/name: a/name: b/\' "$1" > b; cat b >> "$1"', 2, "one manifest, of dev/a"),
        (': > "$1"', 4, "INVALID_MANIFEST"),
        ("exit 3", 2, "ended with 3"),
        ("sed -i 's/team: x/team: z/' \"$1\"", 5, "ETAG_MISMATCH"),
        ("sed -i 's/team: x/team: y/' \"$1\"", 130, ""),
    ],
)
def test_what_was_written_is_never_lost(cli, store, editor, tmp_path, monkeypatch, script, code, told):
    """Nor by an interrupt after the editor."""

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    if code == 130:
        monkeypatch.setattr("registry.cli.commands.adapters.preflight", interrupted)
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH", "it is at another")]
    editor(script)
    ran = cli("edit", "a")
    [path] = kept(tmp_path)
    assert (ran.code, told in ran.err, f"kept in {path}" in ran.err) == (code, True, True)


GONE = Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", where="changes[1].delete")


def test_delete_of_what_is_not_there_is_passed_over_if_wanted(cli, store):
    """W2 atomic-set: else it refuses the rest."""
    store.answers["ApplyAdapters"] = [GONE, applied]
    assert (cli("delete", "a", "b").code, len(deleted(store))) == (3, 1)
    store.requests.clear()
    store.answers["ApplyAdapters"] = [GONE, GONE, applied]
    assert cli("delete", "a", "zz", "b", "TORN", "--ignore-not-found").code == 0
    assert deleted(store) == [[("a", ""), ("b", ""), ("TORN", "")], [("a", ""), ("TORN", "")]]
    assert len({one.request_id for one in store.asked("ApplyAdapters") if not one.validate_only}) == 2
    assert cli("delete", "a", "zz", "--ignore-not-found", "--request-id", "q" * 128).code == 0
    assert {len(request.request_id) <= 128 for request in store.asked("ApplyAdapters")} == {True}
    ran = cli("delete", "zz", "--ignore-not-found")
    assert (ran.code, "nothing was changed" in ran.err) == (0, True)
    assert is_told_as_nothing(cli("-o", "json", "delete", "zz", "--ignore-not-found"))


def test_what_somebody_may_not_see_is_not_told_as_absent(cli, store):
    """A2 deny-by-default: a list without another tenant's adapters does not say that there are none."""
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "not yours")]
    ran = cli("delete", "a", "beta/zz", "--ignore-not-found")
    assert (ran.code, "not yours" in ran.err, "none of them exists" in ran.err) == (4, True, False)
    asked = store.asked("ApplyAdapters")
    assert [(one.validate_only, [it.delete for it in one.changes]) for one in asked] == [(True, ["beta/zz"])]


@pytest.mark.parametrize("reason", ["ADAPTER_NOT_FOUND", "POOL_NOT_FOUND"])
@pytest.mark.parametrize("where", ["", "changes[7].delete"])
def test_what_is_not_there_and_is_none_of_those_that_were_named_is_told(cli, store, reason, where):
    """X2: a service that says so of another adapter would be asked for ever."""
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.NOT_FOUND, reason, "none", where=where)]
    assert (cli("delete", "a", "b", "--ignore-not-found").code, len(deleted(store))) == (3, 1)


def test_delete_by_labels_takes_what_was_listed_and_nothing_else(cli, store, manifest, monkeypatch):
    """W4 etag: what was changed since it was listed is not deleted; and nobody's consent is none. Of files it goes by
    each manifest's pool.
    """
    ran = cli("delete", "adapter", "-l", "team=x", "--yes")
    assert (ran.code, deleted(store)) == (0, [[("a", "11"), ("b", "12")]])
    assert "delete dev/a\ndelete dev/b\n" in ran.err
    assert "1 adapters of pool dev cannot be read, and stay" in ran.err
    assert "delete dev/a" not in cli("-o", "json", "delete", "-l", "team=x", "--yes").err, "programs have their own"
    ran = cli("delete", "-l", "team=none", "--yes")
    assert (ran.code, "has these labels" in ran.err) == (0, True)
    assert is_told_as_nothing(cli("-o", "json", "delete", "-l", "team=none", "--yes"))
    store.requests.clear()
    ran = cli("-o", "json", "delete", "-l", "team=x")
    assert (ran.code, json.loads(ran.err.splitlines()[-1])["error"]["exit_code"], deleted(store)) == (2, 2, [])
    for answer, code in (("no\n", 130), ("y\n", 0)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        ran = cli("delete", "-l", "team=x")
        assert (ran.code, "delete 2? [y/N]" in ran.err, len(deleted(store))) == (code, True, int(not code))
    ran = cli("delete", "-l", "team=x", "--dry-run", "--request-id", "q")
    asked = store.asked("ApplyAdapters")[-1]
    assert (ran.code, asked.validate_only, asked.request_id) == (0, True, "q")
    monkeypatch.setenv("LORAPLANE_POOL", "other")
    assert (cli("delete", "-f", manifest("a", "b")).code, deleted(store)[-1]) == (0, [("a", ""), ("b", "")])


@pytest.mark.parametrize(
    ("count", "limit", "code", "more"),
    [(10, None, 0, []), (11, None, 4, []), (20, 20, 0, []), (21, 21, 0, ["1"]), (30, 30, 0, ["10"]), (21, 20, 4, [])],
)
def test_ten_are_deleted_by_labels_without_a_word_about_how_many(cli, store, count, limit, code, more):
    """As the help of --delete-limit says; of more the first twenty are told, and no more than there are."""
    found = [adapter(f"n{number}", team="x") for number in range(count)]
    first = pb.ListAdaptersResponse(adapters=found[:5], next_page_token="n")  # noqa: S106 - of a listing
    store.answers["ListAdapters"] = [first, pb.ListAdaptersResponse(adapters=found[5:])]
    ran = cli("delete", "-l", "team=x", "--yes", *([f"--delete-limit={limit}"] if limit else []))
    assert (ran.code, len(deleted(store)), re.findall("and (-?[0-9]+) more", ran.err)) == (code, int(not code), more)
    assert "cannot be read" not in ran.err
    some = ", ".join(one.name for one in found[:20]) + (", …" if count > 20 else "")
    told = f"{count} adapters would be deleted ({some}), more than {limit or 10}; if all of them are meant, give "
    assert (f"error: TOO_MANY_CHANGES: --delete-limit: {told}--delete-limit {count}\n" in ran.err) == bool(code)


def failed(*names: str, **more: object) -> dict[str, object]:
    return {"failed": [{"name": name, "reason": "x"} for name in names], **more}


READY = {"ready": True}


@pytest.mark.parametrize("flags", [[], ["--replica", "r1"]])
@pytest.mark.parametrize(
    ("statuses", "is_tried"),
    [
        *((one, True) for one in ([failed("a")], [READY, failed("other", "A")], [failed(omitted=2)], [None])),
        *((one, False) for one in ([], [READY, failed("other")], [failed(omitted=0)])),
    ],
)
def test_what_may_have_failed_is_tried_again(cli, store, statuses, is_tried, flags):
    """R17: as it stands; also where a status does not say which failed."""
    texts = [json.dumps(one) if one is not None else "" for one in (statuses[-1:] if flags else statuses)]
    live = [pb.Replica(name=f"r{at}", pool="dev", status_json=text) for at, text in enumerate(texts, 1)]
    missing = [pb.MissingReplica(name="r9")]
    store.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=live, missing=missing)]
    store.answers["GetReplica"] = live[:1] or store.answers["GetReplica"]
    ran = cli("retry", "adapter", "a", *flags)
    if flags and not live:
        assert (ran.code, store.asked("ApplyAdapters")) == (3, [])
    elif is_tried:
        (request,) = store.asked("ApplyAdapters")
        assert (ran.code, ran.err, request.retry, request.retry_replica) == (0, "", True, "r1" if flags else "")
        assert [*request.changes] == [pb.AdapterChange(update=pb.Adapter(name="a"))]
    else:
        where = "replica 'r1'" if flags else "any replica of pool 'dev'; nothing is tried again"
        assert (ran.code, f"has not failed on {where}" in ran.err, store.asked("ApplyAdapters")) == (0, True, [])
        assert is_told_as_nothing(cli("-o", "json", "retry", "adapter", "a", *flags))
