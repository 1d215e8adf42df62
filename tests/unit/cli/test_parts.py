"""Parts of a change set: how it is cut, their ids, where a refusal stands, and the files that it is read from."""

from __future__ import annotations

import io
from pathlib import Path

import grpc
import pytest

from registry.cli.change_set import (
    Change,
    ChangeBatch,
    by_pool,
    deletions,
    derived_id,
    folder_of,
    is_here,
    placed,
    source_uri,
    split,
    upserts,
)
from registry.cli.failure import CliError, CommandFailure, Exit
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal


def change(name: str, pool: str = "dev") -> Change:
    return Change(pool, pb.AdapterChange(upsert=pb.Adapter(name=name, pool=pool)), f"{name}.yaml")


def batch(names: str, request_id: str = "q") -> ChangeBatch:
    return ChangeBatch("dev", tuple(map(change, names)), request_id)


@pytest.mark.parametrize(
    ("names", "request_id", "size", "parts"),
    [
        ("abcde", "q", 2, [("ab", "q:part1"), ("cd", "q:part2"), ("e", "q:part3")]),
        ("abcde", "q", 4, [("abcd", "q:part1"), ("e", "q:part2")]),
        ("abcde", "q:part2", 4, [("abc", "q:part2.1"), ("de", "q:part2.2")]),
        ("abcd", "q:part2", 9, [("ab", "q:part2.1"), ("cd", "q:part2.2")]),
        ("abcd", "q:part2", 1, [("a", "q:part2.1"), ("b", "q:part2.2"), ("c", "q:part2.3"), ("d", "q:part2.4")]),
        ("ab", "q:part1.1", 2, [("a", "q:part1.1.1"), ("b", "q:part1.1.2")]),
    ],
)
def test_a_part_that_has_to_be_cut_once_more_is_halved_at_least(names, request_id, size, parts):
    """So there are few levels of parts, however the service changes its mind of how many fit."""
    found = split(batch(names, request_id), size)
    assert [("".join(one.wire.upsert.name for one in part.changes), part.request_id) for part in found] == parts
    assert {part.pool for part in found} == {"dev"}


def test_each_pool_has_its_own_transaction_in_the_order_in_which_they_came():
    changes = [change("a", "p"), change("b", "q"), change("c", "p"), change("d", "r")]
    found = [
        (one.pool, "".join(it.wire.upsert.name for it in one.changes), one.request_id) for one in by_pool(changes, "i")
    ]
    assert found == [("p", "ac", "i"), ("q", "b", "i:pool2"), ("r", "d", "i:pool3")]


def test_an_id_that_would_be_too_long_ends_with_a_digest():
    """W3 idempotent: the same command sends the same ids again, also by another release; so this is written down."""
    assert derived_id("q" * 128) == "q" * 128
    assert derived_id("q" * 129) == "q" * 64 + ":part-f0886d9cc70695b46d863ebbe7eb7675"
    assert derived_id("q" * 128 + "r") != derived_id("q" * 129)


FIELDS = {
    "": "",
    "request_id": "request_id",
    "pool": "a.yaml: metadata.pool",
    "changes[0]": "a.yaml",
    "changes[0].upsert": "a.yaml",
    "changes[0].upsert.name": "a.yaml: metadata.name",
    "changes[0].upsert.pool": "a.yaml: metadata.pool",
    "changes[0].upsert.spec.labels": "a.yaml: metadata.labels",
    "changes[0].upsert.spec.base_model": "a.yaml: spec.baseModel",
    "changes[1].delete": "b",
    "changes[2].upsert.name": "changes[2].upsert.name",
    "changes[10].upsert.name": "changes[10].upsert.name",
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_refusal_names_the_place_where_the_user_wrote_it(field):
    of = ChangeBatch("dev", (change("a"), Change("dev", pb.AdapterChange(delete="b"), "b")), "q")
    failure = CommandFailure(Exit.REFUSED, "INVALID_FIELD", "no", field, {"k": "v"}, "q")
    expected = CommandFailure(Exit.REFUSED, "INVALID_FIELD", "no", FIELDS[field], {"k": "v"}, "q")
    assert placed(failure, of) == expected


def test_a_refusal_without_a_place_stays_without_one():
    failure = CommandFailure(Exit.REFUSED, "INVALID_FIELD", "no")
    assert placed(failure, batch("a")) == failure
    of_pool = CommandFailure(Exit.REFUSED, "INVALID_FIELD", "no", "pool")
    assert placed(of_pool, ChangeBatch("dev", (), "q")) == of_pool


def test_the_pool_of_a_deletion_is_no_field_of_a_document():
    of = ChangeBatch("dev", (Change("dev", pb.AdapterChange(delete="b"), "b"), change("a")), "q")
    failure = CommandFailure(Exit.NOT_FOUND, "POOL_NOT_FOUND", "no", "pool")
    assert placed(failure, of).field == "b: pool"


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ("adapters/a", "adapters/a"),
        ("/adapters/a", "/adapters/a"),
        ("file:///adapters/a%20b", "/adapters/a b"),
        ("file://localhost/adapters/a", "/adapters/a"),
        ("file://elsewhere/adapters/a", None),
        ("s3://bucket/a", None),
        ("https:///a", None),
    ],
)
def test_which_sources_are_folders_of_this_machine(source, folder):
    assert folder_of(source) == (Path(folder) if folder else None)


def test_a_source_is_sent_so_that_replicas_understand_it(tmp_path, monkeypatch):
    """They know no working directory of ours."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "to")
    assert source_uri("s3://b/a") == "s3://b/a"
    assert source_uri("a b") == f"file://{tmp_path}/a%20b"
    assert source_uri("/x/a") == "file:///x/a"
    assert source_uri("to/../a") == f"file://{tmp_path}/a"
    assert source_uri("link") == f"file://{tmp_path}/link", "a link is the user's own name for it"
    with pytest.raises(CliError, match="--source is empty"):
        source_uri("")


def test_a_folder_that_cannot_be_looked_at_is_neither_here_nor_away(monkeypatch, tmp_path):
    def refuse(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    assert (is_here(tmp_path), is_here(tmp_path / "none")) == (True, False)
    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(CliError, match="Permission denied"):
        is_here(tmp_path)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with manifests, and with what is none."""
    monkeypatch.chdir(tmp_path)
    for place in ("b.yaml", "a.yml", "c.json", ".hidden.yaml", "notes.txt", "in/d.yaml", ".git/e.yaml", "in/z/f.yaml"):
        path = tmp_path / "all" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.name.strip(".").partition(".")[0]
        path.write_text(
            f'{{"apiVersion": "loraplane/v1", "kind": "Adapter", "metadata": {{"name": "{name}", "pool": "dev"}}, '
            f'"spec": {{"source": {{"uri": "s3://b/{name}"}}}}}}'
        )
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    return tmp_path


def names(changes: list[Change]) -> list[str]:
    return [one.wire.delete or one.wire.upsert.name for one in changes]


def test_a_folder_stands_for_the_manifests_in_it_by_their_names(folder):
    """What is hidden, and what has another ending, is none."""
    assert names(upserts(["all"])) == ["a", "b", "c"]
    assert names(upserts(["all"], recursive=True)) == ["a", "b", "c", "d", "f"]
    assert names(deletions(["all"])) == ["a", "b", "c"]
    assert names(deletions(["all"], recursive=True)) == ["a", "b", "c", "d", "f"]
    assert names(upserts(["all/.hidden.yaml", "all/in"])) == ["hidden", "d"], "what is named is read"


def test_a_folder_without_a_manifest_is_no_empty_set(folder):
    """To delete or prune by it would be by mistake."""
    with pytest.raises(CliError, match=r"empty is a folder without a manifest .*; -R reads the folders in it too"):
        upserts(["empty"])
    with pytest.raises(CliError) as raised:
        upserts(["empty"], recursive=True)
    assert raised.value.failure.exit == Exit.USAGE
    assert "-R" not in raised.value.failure.message
    with pytest.raises(CliError, match="no manifest was given"):
        upserts([])


def test_a_folder_that_cannot_be_read_is_not_passed_over(folder, monkeypatch):
    """Half of a set would be applied, or with --prune the other half deleted."""

    def walk(_name: str, onerror):
        onerror(PermissionError(13, "Permission denied", "all/in"))
        return []

    monkeypatch.setattr("registry.cli.change_set.os.walk", walk)
    with pytest.raises(CliError, match="cannot read all/in: Permission denied"):
        upserts(["all"], recursive=True)


@pytest.mark.parametrize("line", ["apply", "delete"])
def test_bytes_that_are_no_text_are_no_fault_of_ours(cli, admin, monkeypatch, line):
    """X2: where the locale is C, Python reads such bytes of standard input as halves of letters."""
    monkeypatch.setattr("sys.stdin", io.StringIO("a: \udcff"))
    ran = cli(line, "-f", "-")
    assert (ran.code, ran.err, admin.requests) == (2, "error: USAGE: cannot read -: it is not text in UTF-8\n", [])


def test_only_a_set_that_has_too_many_changes_is_cut(cli, admin, manifest):
    """Whatever else the service says of how many it takes."""
    refusal = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "full", {"max_changes": "2"})
    admin.answers["ApplyAdapters"] = [refusal]
    assert cli("apply", "-f", manifest(*"abc"), "--no-atomic").code == 4
    assert len(admin.asked("ApplyAdapters")) == 1
