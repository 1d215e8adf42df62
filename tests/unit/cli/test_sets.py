"""Sets of adapters: edit, label, delete by names and labels, apply --prune. What was not meant is not removed."""

from __future__ import annotations

import io
import json
import re
import signal
from pathlib import Path

import grpc
import pytest

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal, applied


def adapter(name: str, etag: str = "9", **labels: str) -> pb.Adapter:
    spec = pb.AdapterSpec(source=pb.Source(uri=f"file:///adapters/{name}"), labels=labels)
    return pb.Adapter(name=name, pool="dev", generation=3, etag=etag, spec=spec)


@pytest.fixture
def store(admin):
    """A service with a and b of team x, c of team y, and one record that cannot be read."""
    found = [adapter("a", "11", team="x"), adapter("b", "12", team="x"), adapter("c", "13", team="y")]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=found, unreadable=["torn"])]
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["GetAdapter"] = [lambda request: next(one for one in found if one.name == request.name)]
    return admin


def deleted(admin) -> list[list[tuple[str, str]]]:
    """Names and etags of each request's deletions."""
    return [
        [(one.delete, one.etag) for one in request.changes if one.delete] for request in admin.asked("ApplyAdapters")
    ]


class Terminal(io.StringIO):
    """Somebody who sits there."""

    def isatty(self) -> bool:
        return True


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


def test_edit_changes_what_was_shown_and_no_other_state(cli, store, editor, tmp_path):
    """W4 etag: somebody else's change meanwhile is not overwritten."""
    editor('stat -c %a "$1" > mode; sed -i \'s/team: x/team: z/\' "$1"')
    assert cli("edit", "a").code == 0
    [change] = store.asked("ApplyAdapters")[0].changes
    assert (change.upsert.name, change.etag, dict(change.upsert.spec.labels)) == ("a", "11", {"team": "z"})
    assert (kept(tmp_path), (tmp_path / "mode").read_text().strip()) == ([], "600")


def test_edit_of_nothing_changes_nothing(cli, store, editor, tmp_path):
    editor("echo '# thought about it' >> \"$1\"")
    ran = cli("edit", "a")
    assert (ran.code, store.asked("ApplyAdapters"), kept(tmp_path)) == (0, [], [])
    assert "nothing was changed" in ran.err


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("echo 'load: [' >> \"$1\"", 4, "not a YAML manifest"),
        ("sed -i 's/name: a/name: b/' \"$1\"", 2, "one manifest, of dev/a"),
        ('sed \'s/name: a/name: b/\' "$1" > b; cat b >> "$1"', 2, "one manifest, of dev/a"),
        (': > "$1"', 4, "INVALID_MANIFEST"),
        ("exit 3", 2, "ended with 3"),
        ("sed -i 's/team: x/team: z/' \"$1\"", 5, "ETAG_MISMATCH"),
    ],
)
def test_what_was_written_is_never_lost(cli, store, editor, tmp_path, script, code, told):
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH", "it is at another")]
    editor(script)
    ran = cli("edit", "a")
    assert (ran.code, told in ran.err) == (code, True)
    [path] = kept(tmp_path)
    assert f"kept in {path}" in ran.err


def test_an_interrupt_within_the_editor_is_the_editors(cli, store, editor, tmp_path):
    """A terminal sends it to both; what was typed and not saved would go with the editor."""
    before = signal.getsignal(signal.SIGINT)
    editor('trap \'sed -i "s/team: x/team: z/" "$1"\' INT; kill -INT $PPID $$')
    assert cli("edit", "a").code == 0
    assert len(store.asked("ApplyAdapters")) == 1
    assert (kept(tmp_path), signal.getsignal(signal.SIGINT)) == ([], before)


def test_an_interrupt_after_the_editor_tells_where_the_text_is(cli, store, editor, tmp_path, monkeypatch):
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("registry.cli.commands.adapters.preflight", interrupted)
    editor("sed -i 's/team: x/team: z/' \"$1\"")
    ran = cli("edit", "a")
    [path] = kept(tmp_path)
    assert (ran.code, f"kept in {path}" in ran.err) == (130, True)


@pytest.mark.parametrize("editor_named", ["no-such-editor", "'"])
def test_an_editor_that_does_not_start(cli, store, monkeypatch, editor_named):
    monkeypatch.setenv("VISUAL", editor_named)
    ran = cli("edit", "a")
    assert (ran.code, "name one with EDITOR" in ran.err) == (2, True)


def test_edit_whose_rollout_fails_keeps_no_file(cli, store, editor, tmp_path):
    editor("sed -i 's/team: x/team: z/' \"$1\"")
    store.answers["WatchRollout"] = [[pb.Rollout(name="a", generation=1, done=True, failure="replicas_failed")]]
    assert (cli("edit", "a", "--wait").code, kept(tmp_path)) == (7, [])


def test_label_sets_and_takes_away(cli, store):
    """W4 etag: what is written is what was read, but for the labels."""
    ran = cli("label", "a", "team-", "tier=gold", "other-")
    assert ran.code == 0
    [change] = store.asked("ApplyAdapters")[0].changes
    assert (change.etag, dict(change.upsert.spec.labels)) == ("11", {"tier": "gold"})
    assert change.upsert.spec.source.uri == "file:///adapters/a"
    assert cli("-o", "name", "label", "a", "team=z").out == "a\n"


@pytest.mark.parametrize("word", ["team", "-", "=x"])
def test_a_label_must_be_one(cli, store, word):
    assert (cli("label", "a", "--", word).code, store.asked("ApplyAdapters")) == (2, [])


@pytest.mark.parametrize("line", ["delete a b", "delete adapter a b", "delete adapters a b"])
def test_several_are_deleted_together(cli, store, line):
    assert cli(*line.split()).code == 0
    assert deleted(store) == [[("a", ""), ("b", "")]]


def test_delete_of_what_is_not_there_is_passed_over_if_wanted(cli, store):
    gone = Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", where="changes[1].delete")
    store.answers["ApplyAdapters"] = [gone, applied]
    assert cli("delete", "a", "zz", "b", "TORN", "--ignore-not-found").code == 0
    assert deleted(store) == [[("a", ""), ("b", ""), ("TORN", "")], [("a", ""), ("TORN", "")]]
    assert len({request.request_id for request in store.asked("ApplyAdapters")}) == 2
    assert cli("delete", "a", "zz", "--ignore-not-found", "--request-id", "q" * 128).code == 0
    assert {len(request.request_id) <= 128 for request in store.asked("ApplyAdapters")} == {True}
    ran = cli("delete", "zz", "--ignore-not-found")
    assert (ran.code, "nothing was changed" in ran.err) == (0, True)


def test_other_refusals_of_a_deletion_are_told(cli, store):
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND")]
    assert cli("delete", "a", "--ignore-not-found").code == 3


def test_delete_by_labels_takes_what_was_listed_and_nothing_else(cli, store):
    """W4 etag: what was changed since it was listed is not deleted."""
    ran = cli("delete", "adapter", "-l", "team=x", "--yes")
    assert (ran.code, deleted(store)) == (0, [[("a", "11"), ("b", "12")]])
    assert "delete dev/a\ndelete dev/b\n" in ran.err
    assert "1 adapters of pool dev cannot be read, and stay" in ran.err
    ran = cli("delete", "-l", "team=none", "--yes")
    assert (ran.code, "has these labels" in ran.err) == (0, True)


def test_nobody_to_ask_is_no_consent(cli, store):
    ran = cli("delete", "-l", "team=x")
    assert (ran.code, deleted(store)) == (2, [])
    assert "nobody is here to ask; give --yes" in ran.err
    failure = cli("-o", "json", "delete", "-l", "team=x").err.splitlines()[-1]
    assert json.loads(failure)["error"]["exit_code"] == 2
    assert cli("delete", "-l", "team=x", "--dry-run").code == 0
    assert store.asked("ApplyAdapters")[0].validate_only


@pytest.mark.parametrize(("answer", "code", "count"), [("y\n", 0, 1), ("\n", 130, 0), ("", 130, 0), ("no\n", 130, 0)])
def test_a_person_is_asked(cli, store, monkeypatch, answer, code, count):
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    ran = cli("delete", "-l", "team=x")
    assert (ran.code, len(deleted(store))) == (code, count)
    assert "delete 2? [y/N]" in ran.err


def test_more_than_the_limit_is_refused_before_anything_is_sent(cli, store):
    names = [f"n{number}" for number in range(30)]
    store.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[adapter(one, team="x") for one in names])]
    ran = cli("delete", "-l", "team=x", "--yes")
    assert (ran.code, deleted(store)) == (4, [])
    assert "30 adapters would be deleted (n0, n1" in ran.err
    assert "give --delete-limit 30" in ran.err
    ran = cli("delete", "-l", "team=x", "--yes", "--delete-limit", "30")
    assert (ran.code, len(deleted(store)[0])) == (0, 30)
    assert "and 10 more" in ran.err


@pytest.mark.parametrize(("count", "code"), [(10, 0), (11, 4)])
def test_ten_are_deleted_by_labels_without_a_word_about_how_many(cli, store, count, code):
    """As the help of --delete-limit says; all of them are told, and no more than there are."""
    found = [adapter(f"n{number}", team="x") for number in range(count)]
    store.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=found)]
    ran = cli("delete", "-l", "team=x", "--yes")
    assert (ran.code, len(deleted(store))) == (code, int(not code))
    assert re.search("and -?[0-9]+ more", ran.err) is None


@pytest.mark.parametrize(
    "line",
    [
        "delete",
        "delete adapter",
        "delete a -l team=x",
        "delete -l team",
        "delete -l =x",
        "delete -l team=x,team=y",
        "delete a b --etag 5",
        "delete pool dev",
        "delete tenants acme",
        "apply -f f.yaml --prune",
        "apply -f f.yaml -l team=x",
    ],
)
def test_what_is_not_said_whole_removes_nothing(cli, store, manifest, line):
    manifest("a", file="f.yaml")
    ran = cli(*line.split())
    assert (ran.code, ran.err.count("\n"), store.asked("ApplyAdapters")) == (2, 1, [])


def test_no_variable_selects_or_removes(cli, store, monkeypatch, manifest):
    for name in ("SELECTOR", "PRUNE", "YES", "DELETE_LIMIT", "IGNORE_NOT_FOUND"):
        monkeypatch.setenv(f"LORAPLANE_{name}", "team=x" if name == "SELECTOR" else "1")
    assert cli("apply", "-f", manifest("a")).code == 0
    assert deleted(store) == [[]]


@pytest.fixture
def of_team_x(tmp_path) -> str:
    """A manifest of an adapter a of team x, which differs in case from what stands."""
    text = "apiVersion: loraplane/v1\nkind: Adapter\nmetadata: {name: A, pool: dev, labels: {team: x}}\n"
    path = tmp_path / "x.yaml"
    path.write_text(text + "spec: {source: {uri: 'file:///adapters/a'}}\n")
    return str(path)


def test_prune_deletes_what_stands_in_no_manifest_in_the_same_transaction(cli, store, of_team_x):
    """W2 atomic-set, W4 etag: the rest of the set goes as it was listed, or nothing changes at all."""
    ran = cli("apply", "-f", of_team_x, "--prune", "-l", "team=x", "--yes")
    assert (ran.code, deleted(store)) == (0, [[("b", "12")]])
    assert store.asked("ApplyAdapters")[0].changes[0].upsert.name == "A"
    assert "delete dev/b\n" in ran.err
    assert "dev/a" not in ran.err


def test_prune_asks_and_limits(cli, store, of_team_x):
    assert (cli("apply", "-f", of_team_x, "--prune", "-l", "team=x").code, deleted(store)) == (2, [])
    assert cli("apply", "-f", of_team_x, "--prune", "-l", "team=x", "--dry-run").code == 0
    assert store.asked("ApplyAdapters")[0].validate_only


def test_prune_by_the_label_of_another_set_is_refused(cli, store, of_team_x):
    """A mistaken label would make everything of another team superfluous."""
    ran = cli("apply", "-f", of_team_x, "--prune", "-l", "team=y", "--yes")
    assert (ran.code, deleted(store)) == (4, [])
    assert re.search(r"x\.yaml: document 1 \(line 1\): metadata\.labels: has not the labels of -l", ran.err)


def test_prune_in_parts_comes_after_all_else(cli, store, of_team_x):
    whole = ["apply", "-f", of_team_x, "--prune", "-l", "team=x", "--yes", "--no-atomic", "--request-id", "q"]
    assert cli(*whole).code == 0
    assert deleted(store) == [[], [("b", "12")]]
    assert [request.request_id for request in store.asked("ApplyAdapters")] == ["q", "q:prune"]


def test_the_longest_request_id_has_room_for_the_part_that_prunes(cli, store, of_team_x):
    """Where a second id is refused for its length, half of the set is applied."""
    whole = ["apply", "-f", of_team_x, "--prune", "-l", "team=x", "--yes", "--no-atomic", "--request-id", "q" * 128]
    assert cli(*whole).code == 0
    first, second = [request.request_id for request in store.asked("ApplyAdapters")]
    assert (first, len(second) <= 128, second == first) == ("q" * 128, True, False)


def test_prune_does_not_follow_a_failure(cli, store, of_team_x):
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")]
    assert cli("apply", "-f", of_team_x, "--prune", "-l", "team=x", "--yes", "--no-atomic").code == 4
    assert deleted(store) == [[]]


def test_diff_of_a_pruned_set(cli, store, of_team_x):
    ran = cli("diff", "-f", of_team_x, "--prune", "-l", "team=x")
    assert ran.code == 0
    assert "--- dev/b generation 3" in ran.out
    assert "summary: +1 ~0 -1 (of 2 adapters)" in ran.out
    plain = cli("-o", "json", "diff", "-f", of_team_x, "--prune", "-l", "team=x").json
    assert plain["summary"] == {"created": 1, "updated": 0, "deleted": 1, "unchanged": 0}
    assert [one["after"] is None for one in plain["changes"]] == [False, True]
