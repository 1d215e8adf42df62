"""A change set: how it is cut, the ids of its parts, where a refusal stands, and the files that it is read from."""

from __future__ import annotations

import io
import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from registry.cli.change.addresses import is_here, source_uri
from registry.cli.change.documents import deletions, upserts
from registry.cli.change.sets import Change, ChangeBatch, by_pool, derived_id, placed, split
from registry.cli.failure import CliError, CommandFailure, Exit
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import applied


def change(name: str, pool: str = "dev") -> Change:
    return Change(pool, pb.AdapterChange(upsert=pb.Adapter(name=name, pool=pool)), f"{name}.yaml")


def deletion(name: str) -> Change:
    return Change("dev", pb.AdapterChange(delete=name), name)


def names(changes: object) -> str:
    return "".join(one.wire.delete or one.wire.upsert.name for one in changes)


@pytest.mark.parametrize(
    ("given", "request_id", "size", "parts"),
    [
        ("abcde", "q", 2, [("ab", "q:part1"), ("cd", "q:part2"), ("e", "q:part3")]),
        ("abcde", "q", 4, [("abcd", "q:part1"), ("e", "q:part2")]),
        ("abcde", "q:part2", 4, [("abc", "q:part2.1"), ("de", "q:part2.2")]),
        ("abcd", "q:part2", 9, [("ab", "q:part2.1"), ("cd", "q:part2.2")]),
        ("abcd", "q:part2", 1, [("a", "q:part2.1"), ("b", "q:part2.2"), ("c", "q:part2.3"), ("d", "q:part2.4")]),
        ("ab", "q:part1.1", 2, [("a", "q:part1.1.1"), ("b", "q:part1.1.2")]),
    ],
)
def test_a_part_that_has_to_be_cut_once_more_is_halved_at_least(given, request_id, size, parts):
    """So there are few levels of parts, however the service changes its mind of how many fit."""
    found = split(ChangeBatch("dev", tuple(map(change, given)), request_id), size)
    assert [(part.pool, names(part.changes), part.request_id) for part in found] == [("dev", *part) for part in parts]


def test_an_id_that_would_be_too_long_ends_with_a_digest_and_each_pool_has_one():
    """W3 idempotent: the same command sends the same ids again, also by another release; so this is written down."""
    assert derived_id("q" * 128) == "q" * 128
    assert derived_id("q" * 129) == "q" * 64 + ":part-f0886d9cc70695b46d863ebbe7eb7675"
    assert derived_id("q" * 128 + "r") != derived_id("q" * 129)
    found = by_pool([change("a", "p"), change("b", "q"), change("c", "p"), change("d", "r")], "i")
    told = [(one.pool, names(one.changes), one.request_id) for one in found]
    assert told == [("p", "ac", "i"), ("q", "b", "i:pool2"), ("r", "d", "i:pool3")]


BOTH = (change("a"), deletion("b"))
PLACES = [
    *((BOTH, None, None), (BOTH, "", ""), (BOTH, "request_id", "request_id"), (BOTH, "pool", "a.yaml: metadata.pool")),
    *((BOTH, "changes[0]", "a.yaml"), (BOTH, "changes[0].upsert", "a.yaml")),
    (BOTH, "changes[0].upsert.name", "a.yaml: metadata.name"),
    (BOTH, "changes[0].upsert.pool", "a.yaml: metadata.pool"),
    (BOTH, "changes[0].upsert.spec.labels", "a.yaml: metadata.labels"),
    (BOTH, "changes[0].upsert.spec.base_model", "a.yaml: spec.baseModel"),
    (BOTH, "changes[1].delete", "b"),
    (BOTH, "changes[2].upsert.name", "changes[2].upsert.name"),
    (BOTH, "changes[10].upsert.name", "changes[10].upsert.name"),
    (BOTH[::-1], "pool", "b: pool"),
    ((), "pool", "pool"),
]


@pytest.mark.parametrize(("changes", "field", "told"), PLACES)
def test_a_refusal_names_the_place_where_the_user_wrote_it(changes, field, told):
    """X2 unbreakable: also of a change that was not sent."""
    failure = CommandFailure(Exit.REFUSED, "INVALID_FIELD", "no", field, {"k": "v"}, "q")
    expected = CommandFailure(Exit.REFUSED, "INVALID_FIELD", "no", told, {"k": "v"}, "q")
    assert placed(failure, ChangeBatch("dev", changes, "q")) == expected


def test_a_source_is_sent_so_that_replicas_understand_it(tmp_path, monkeypatch):
    """They know no working directory of ours."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "to")
    assert (source_uri("s3://b/a"), source_uri("a b")) == ("s3://b/a", f"file://{tmp_path}/a%20b")
    assert (source_uri("/x/a"), source_uri("to/../a")) == ("file:///x/a", f"file://{tmp_path}/a")
    assert source_uri("link") == f"file://{tmp_path}/link", "a link is the user's own name for it"
    with pytest.raises(CliError, match="--source is empty"):
        source_uri("")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with manifests, and with what is none."""
    monkeypatch.chdir(tmp_path)
    for place in ("b.yaml", "a.yml", "c.json", ".h.yaml", "notes.txt", "in/d.yaml", ".git/e.yaml", "in/z/f.yaml"):
        path = tmp_path / "all" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.name.strip(".").partition(".")[0]
        one = {"apiVersion": "loraplane/v1", "kind": "Adapter", "metadata": {"name": name, "pool": "dev"}}
        path.write_text(json.dumps({**one, "spec": {"source": {"uri": f"s3://b/{name}"}}}))
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("read", [upserts, deletions])
def test_a_folder_stands_for_the_manifests_in_it_by_their_names(folder, read):
    """What is hidden, and what has another ending, is none; what is named is read."""
    assert (names(read(["all"])), names(read(["all"], recursive=True))) == ("abc", "abcdf")
    assert names(read(["all/.h.yaml", "all/in"])) == "hd"


@pytest.mark.parametrize("command", ["apply", "delete", "diff"])
def test_folders_in_a_folder_are_read_where_that_is_asked_for(folder, cli, admin, command):
    """Else more is deleted than is meant."""
    admin.answers["ApplyAdapters"] = [applied]
    for flags, named in (([], 3), (["-R"], 5)):
        cli(command, "-f", "all", *flags)
        assert len(admin.asked("ApplyAdapters")[-1].changes) == named


def test_a_folder_without_a_manifest_is_no_empty_set(folder, cli, monkeypatch):
    """To delete or prune by it would be by mistake. One that cannot be read is not passed over: half of a set would be
    applied; and one that cannot be looked at is neither here nor away.
    """
    with pytest.raises(CliError, match=r"empty is a folder without a manifest .*; -R reads the folders in it too"):
        upserts(["empty"])
    ran = cli("apply", "-R", "-f", "empty")
    assert (ran.code, "folder without a manifest" in ran.err, "-R" in ran.err) == (2, True, False)
    with pytest.raises(CliError, match="no manifest was given"):
        upserts([])
    no = PermissionError(13, "Permission denied", "all/in")
    monkeypatch.setattr("registry.cli.change.documents.os.walk", lambda _, onerror: onerror(no) or [])
    with pytest.raises(CliError, match="cannot read all/in: Permission denied"):
        upserts(["all"], recursive=True)
    assert (is_here(folder), is_here(folder / "none")) == (True, False)
    monkeypatch.setattr(Path, "is_dir", Mock(side_effect=no))
    with pytest.raises(CliError, match="Permission denied"):
        is_here(folder)


@pytest.mark.parametrize("line", ["apply", "delete"])
def test_bytes_that_are_no_text_are_no_fault_of_ours(cli, admin, monkeypatch, line):
    """X2: where the locale is C, Python reads such bytes of standard input as halves of letters."""
    monkeypatch.setattr("sys.stdin", io.StringIO("a: \udcff"))
    ran = cli(line, "-f", "-")
    assert (ran.code, ran.err, admin.requests) == (2, "error: USAGE: cannot read -: it is not text in UTF-8\n", [])
