"""Which sources are looked at before a change is sent, which paths are doubtful, and what nobody looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from registry.cli.change_set import Change
from registry.cli.failure import CliError, Exit
from registry.cli.preflight import Looking, preflight
from registry.cli.session import Session
from registry.cli.views.output import Format
from registry.client.address import Tls
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal, applied

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture
def folders(tmp_path) -> Path:
    """Folders with both files, with one, with none; and a file."""
    for name, files in {"whole": (CONFIG, WEIGHTS), "half": (WEIGHTS,), "empty": ()}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("x")
    (tmp_path / "file").write_text("x")
    return tmp_path


def change(uri: str, pool: str = "dev", *, digest: str = "", is_local: bool = False) -> Change:
    spec = pb.AdapterSpec(source=pb.Source(uri=uri, digest=digest))
    return Change(pool, pb.AdapterChange(upsert=pb.Adapter(name="a", spec=spec)), "a.yaml", is_local)


DELETION = Change("dev", pb.AdapterChange(delete="s3://b/a"), "b")


@pytest.fixture
def looks(address, admin, monkeypatch) -> Any:
    """What is looked at of some changes: folders, or None of what is fetched; by the URIs."""
    admin.answers["GetPool"] = [lambda request: pb.Pool(name=request.name)]

    def ask(*changes: Change, seconds: float = 60.0, force: bool = False) -> list[tuple[str, Path | None]]:
        found: list[tuple[str, Path | None]] = []

        def look(seen: Any, pools: Any, _reader: Any, given: float, *, force: bool) -> list[Change]:
            found.extend((one.wire.upsert.spec.source.uri, folder) for one, folder in seen)
            assert set(pools) == {one.pool for one, _ in seen}
            assert (given, force) == (seconds, force)
            return [Change(one.pool, one.wire, f"looked {one.place}") for one, _ in seen]

        monkeypatch.setattr("registry.cli.source_reader.look_at_all", look)
        session = Session(address, Format.TABLE, Tls())
        after = preflight(session, changes, Looking(None, None, seconds, 60.0, force))
        seen = {uri for uri, _ in found}
        expected = [f"looked {one.place}" if one.wire.upsert.spec.source.uri in seen else one.place for one in changes]
        assert [one.place for one in after] == expected, "each keeps its place"
        return found

    return ask


def test_what_is_here_is_looked_at_where_it_is_and_what_is_elsewhere_is_fetched(looks, folders, admin):
    whole, half, empty = (f"file://{folders}/{name}" for name in ("whole", "half", "empty"))
    found = looks(
        change(whole), DELETION, change("s3://b/a"), change(half, "other"), change(empty), change("hf://a/b@c")
    )
    assert found == [
        (whole, folders / "whole"),
        ("s3://b/a", None),
        (half, folders / "half"),
        ("hf://a/b@c", None),
    ]
    assert sorted(one.name for one in admin.asked("GetPool")) == ["dev", "other"]


@pytest.mark.parametrize(
    "given",
    [
        change("s3://b/a", digest="sha256:1"),
        change("file://elsewhere/a"),
        DELETION,
    ],
    ids=["pinned", "another host's file", "a deletion"],
)
def test_what_nobody_need_look_at_asks_nobody(looks, admin, given):
    assert looks(given) == []
    assert admin.requests == []


def test_nothing_is_fetched_in_no_time_and_what_is_here_is_seen_all_the_same(looks, folders):
    whole = f"file://{folders}/whole"
    assert looks(change("s3://b/a"), change(whole, digest="sha256:1"), seconds=0.0) == [(whole, folders / "whole")]


@pytest.mark.parametrize(
    ("uri", "is_local", "told"),
    [
        ("s3://b/../a", False, "has .. in it"),
        ("s3://b/%2e%2e/a", False, "has .. in it"),
        ("file://{here}/../a", False, "has .. in it"),
        ("file://{here}/none", False, "there is no folder"),
        ("file://{here}/file", False, "there is no folder"),
        ("file:///none-such/deeper/a", True, "there is no folder"),
        ("file:///none-such/deeper/a", False, None),
        ("file:///none-such", False, None),
        ("s3://b/..a/b..", False, None),
        ("file://{here}/empty", False, None),
    ],
)
def test_a_path_that_is_certainly_not_meant_is_refused_unless_it_is_forced(looks, folders, uri, is_local, told):
    """Of a place that is not here at all the replicas know more."""
    given = change(uri.format(here=folders), digest="sha256:1", is_local=is_local)
    looks(given, force=True)
    if told is None:
        looks(given)
        return
    with pytest.raises(CliError) as raised:
        looks(given)
    failure = raised.value.failure
    assert (failure.exit, failure.field) == (Exit.REFUSED, "a.yaml: spec.source.uri")
    assert told in failure.message
    assert failure.message.endswith(", or give --force to go on")


@pytest.mark.parametrize(
    ("code", "reason", "where", "field"),
    [
        (grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND", "pool", "a.yaml: metadata.pool"),
        (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "", None),
    ],
)
def test_a_pool_that_cannot_be_read_is_told_where_it_was_written(looks, folders, admin, code, reason, where, field):
    admin.answers["GetPool"] = [Refusal(code, reason, "no", where=where)]
    with pytest.raises(CliError) as raised:
        looks(change(f"file://{folders}/whole"))
    assert (raised.value.failure.reason, raised.value.failure.field) == (reason, field)


@pytest.mark.parametrize("command", ["add", "set"])
@pytest.mark.parametrize(("source", "code"), [("/none-such/deeper/a", 4), ("file:///none-such/deeper/a", 0)])
def test_a_path_of_this_machine_that_is_not_there_was_mistyped(cli, admin, command, source, code):
    """Who writes a URI may mean the disks of the replicas."""
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["GetAdapter"] = [
        pb.Adapter(name="sql", pool="dev", spec=pb.AdapterSpec(source=pb.Source(uri="s3://b")))
    ]
    ran = cli(command, "sql", "--source", source)
    assert (ran.code, len(admin.asked("ApplyAdapters"))) == (code, 0 if code else 1)
    assert cli(command, "sql", "--source", source, "--force").code == 0
