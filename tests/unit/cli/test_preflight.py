"""What is seen of sources before a change is sent: which are looked at, which paths are doubtful, what is pinned."""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from registry.cli.change.sets import Change
from registry.cli.failure import CliError, Exit, usage
from registry.cli.local_adapters import base_here, base_message
from registry.cli.preflight import Looking, preflight, warn_if_gone
from registry.cli.session import Session
from registry.cli.source_reader import SourceReader
from registry.cli.views.output import Format
from registry.client.address import Tls
from registry.lora.directory import digest_of
from registry.sources.base import ArtifactError, Stop
from registry.sources.http import WebSource
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA, Draft
from tests.support.fake_admin import Refusal


def change(uri: str, pool: str = "dev", *, digest: str = "", is_local: bool = False) -> Change:
    spec = pb.AdapterSpec(source=pb.Source(uri=uri, digest=digest))
    return Change(pool, pb.AdapterChange(upsert=pb.Adapter(name="a", spec=spec)), "a.yaml", is_local)


DELETION = Change("dev", pb.AdapterChange(delete="s3://b/a"), "b")


@pytest.fixture
def pool(admin, tmp_path) -> None:
    base = base_message(base_here(LLAMA.write_base(tmp_path / "base")))
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny"], base=base)]


def sent(admin) -> list[str]:
    return [change.upsert.spec.source.digest for request in admin.asked("ApplyAdapters") for change in request.changes]


@pytest.mark.parametrize("digest", ["sha256:" + "0" * 64, ""])
def test_what_is_not_there_yet_is_left_to_the_replicas(cli, admin, pool, manifest, monkeypatch, tmp_path, digest):
    """And what changes while it is looked at: nobody knows its digest. A path that is typed is of this machine."""
    folder = LLAMA.draft().write(tmp_path / "a")
    add = ["add", "sql", "--source", str(folder)]
    with monkeypatch.context() as patched:
        patched.setattr("registry.cli.source_reader.digest_here", Mock(side_effect=usage(f"{folder} changed")))
        ran = cli(*add)
        told = "note: add: its digest is not pinned: its files change while they are read\n"
        assert (ran.code, ran.err, sent(admin)) == (0, told, [""])
    (Path(folder) / "adapter_model.safetensors").unlink()
    ran = cli(*add, *(["--digest", digest] if digest else []))
    assert (ran.code, sent(admin)) == (0, ["", digest])
    assert (f"serve what has {digest}: what lies here is not whole" in ran.err) is bool(digest)
    lacks = "its digest is not pinned: source_incomplete: adapter_model.safetensors: found no such file"
    assert (lacks in ran.err) is (not digest)
    (tmp_path / "bare").mkdir()  # as of a folder that was mistyped
    ran = cli("add", "sql", "--source", str(tmp_path / "bare"))
    assert (ran.code, "its digest is not pinned: source_incomplete: adapter_config.json: found" in ran.err) == (0, True)
    admin.answers["GetAdapter"] = [pb.Adapter(name="sql", pool="dev", spec=change("s3://b").wire.upsert.spec)]
    for command in ("add", "set"):
        for source, code in (("/none-such/deeper/a", 4), ("file:///none-such/deeper/a", 0)):
            assert (
                cli(command, "sql", "--source", source).code,
                cli(command, "sql", "--source", source, "--force").code,
            ) == (code, 0)
    assert cli("diff", "-f", manifest("sql", source={"uri": f"file://{tmp_path}/none"})).code == 4


def test_a_digest_that_the_files_here_contradict_is_refused(cli, admin, pool, tmp_path):
    """R4 digest-true: one of the two is not what is meant; who knows better goes on."""
    folder, digest = LLAMA.draft().write(tmp_path / "a"), "sha256:" + "0" * 64
    arguments = ["add", "sql", "--source", str(folder), "--digest", digest]
    ran = cli(*arguments)
    assert (ran.code, sent(admin), "error: DIGEST_MISMATCH: add: spec.source.digest:" in ran.err) == (4, [], True)
    ran = cli(*arguments, "--force")
    assert (ran.code, sent(admin)) == (0, [digest])
    assert f"serve what has {digest}: the files here have sha256:" in ran.err


def test_a_pool_is_made_from_its_base_models_directory(cli, admin, tmp_path):
    """The record says names, shapes and fingerprint, in a few lines."""
    folder = LLAMA.write_base(tmp_path / "base")
    arguments = ["--base-model", "tiny", "--from", str(folder), "--base-name", "org/llama", "--target-module", "q_proj"]
    ran = cli("-o", "json", "pool", "create", "dev", *arguments)
    assert ran.code == 0
    assert ran.json["base"]["fingerprint"] == base_here(folder).fingerprint
    assert ran.json["base"]["modules"]["model.layers.{0-1}.self_attn.k_proj"] == [16, 32]
    assert ran.json["limits"]["target_modules"] == ["q_proj"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), usage("it is not fit")])
def test_what_ends_one_look_at_a_source_ends_all(address, admin, monkeypatch, error):
    """An interrupt does not wait for sources that send slowly, nor does the news that an adapter is not fit."""
    begun, stopped = Event(), list[str]()

    def look(_pools, _reader, stop, seen, *, force):
        if seen[0].place == "first":
            assert begun.wait(120)
            raise error
        begun.set()
        try:
            stop.check(120)
        except ArtifactError as told:
            stopped.append(told.reason)

    monkeypatch.setattr("registry.cli.source_reader._foreseen", look)
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny"])]
    spec = pb.AdapterSpec(source=pb.Source(uri="s3://b/a"))
    changes = [
        Change("dev", pb.AdapterChange(upsert=pb.Adapter(name=place, spec=spec)), place)
        for place in ("first", "second")
    ]
    with pytest.raises(type(error)):
        preflight(Session(address, Format.TABLE, Tls()), changes, Looking(None, None, 3600, 60))
    assert stopped == ["staging_stopped"]


REMOTE = ["add", "sql", "--source", "s3://b/a", "--look-seconds", "60"]


@pytest.fixture
def arrives(monkeypatch):
    """Lays down what a source of another host sends: the files of a draft, or an error; and what was asked of it."""
    asked: list[tuple[str, str | None]] = []

    def lay_down(draft: Draft | None = None, error: Exception | None = None) -> list[tuple[str, str | None]]:
        def fetch(_reader: object, uri: str, credential: str | None, folder: Path, _stop: Stop) -> str:
            asked.append((uri, credential))
            if error is not None:
                raise error
            assert draft is not None
            there = Path(draft.write(folder / "there"))
            digest = digest_of(there)
            for file in there.iterdir():
                file.rename(folder / file.name)
            return digest

        monkeypatch.setattr(SourceReader, "fetch", fetch)
        return asked

    return lay_down


def test_what_another_host_sends_is_pinned(cli, admin, pool, arrives, tmp_path):
    """R4: with the credential that is named, in a folder that is gone afterwards."""
    asked = arrives(LLAMA.draft())
    ran = cli(*REMOTE, "--credential", "mine")
    assert (ran.code, ran.err, sent(admin)) == (0, "", [digest_of(LLAMA.draft().write(tmp_path / "a"))])
    assert (asked, cli(*REMOTE, "--digest", "sha256:" + "0" * 64).code) == ([("s3://b/a", "mine")], 0)
    assert len(asked) == 1, "what is pinned is left to the replicas"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ArtifactError("not_found", "no files\nat all"), "not_found: no files at all"),
        (ArtifactError("staging_stopped", "stopped"), "there was no time to read it; see --look-seconds"),
        (OSError(errno.ENOSPC, "No space left"), "it cannot be kept here: No space left; see TMPDIR"),
    ],
)
def test_what_is_no_matter_for_others_is_noted_and_left_to_them(cli, admin, pool, arrives, error, told):
    """The replicas have other credentials, disks and time."""
    arrives(error=error)
    ran = cli(*REMOTE)
    assert (ran.code, sent(admin), ran.err) == (0, [""], f"note: add: its digest is not pinned: {told}\n")


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


@pytest.fixture
def looks(address, admin, monkeypatch) -> Any:
    """What is looked at of some changes: folders, or None of what is fetched; by the URIs."""

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


@pytest.mark.parametrize(
    ("uri", "is_local", "told"),
    [
        *((uri, False, "has .. in it") for uri in ("s3://b/../a", "s3://b/%2e%2e/a", "file://{here}/../a")),
        *((uri, False, "there is no folder") for uri in ("file://{here}/none", "file://{here}/file")),
        ("file:///none-such/deeper/a", True, "there is no folder"),
        *((f"file:///{path}", False, None) for path in ("none-such/deeper/a", "none-such", "{here}/empty")),
        ("s3://b/..a/b..", False, None),
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
    assert (failure.exit, failure.field, told in failure.message) == (Exit.REFUSED, "a.yaml: spec.source.uri", True)
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


def test_what_is_here_is_looked_at_where_it_is_what_is_elsewhere_is_fetched_and_the_rest_asks_nobody(
    looks, admin, folders
):
    """What is pinned, on another host's disk, or deleted. In no time nothing is fetched; what is here is seen."""
    for given in (change("s3://b/a", digest="sha256:1"), change("file://elsewhere/a"), DELETION):
        assert (looks(given), admin.requests) == ([], [])
    whole = f"file://{folders}/whole"
    assert looks(change("s3://b/a"), change(whole, digest="sha256:1"), seconds=0.0) == [(whole, folders / "whole")]
    admin.requests.clear()
    whole, half, empty = (f"file://{folders}/{name}" for name in ("whole", "half", "empty"))
    given = (change("s3://b/a"), change(half, "other"), change(empty), change("hf://a/b@c"))
    here = [(f"file://{folders}/{name}", folders / name) for name in ("whole", "half", "empty")]
    there = [("s3://b/a", None), ("hf://a/b@c", None)]
    assert looks(change(whole), DELETION, *given) == [here[0], there[0], *here[1:], there[1]]
    assert sorted(one.name for one in admin.asked("GetPool")) == ["dev", "other"]


def test_the_digest_of_what_can_be_read_is_pinned(cli, admin, pool, manifest, arrives, tmp_path):
    """R4: what is served later is what lay here at this moment; W2: each change keeps its place."""
    folder = LLAMA.draft().write(tmp_path / "a")
    assert cli("add", "sql", "--source", f"{tmp_path}/base/../a").code == 0
    paths = [manifest("a", file="1.yaml"), manifest("b", file="2.yaml", source={"uri": folder.as_uri()})]
    assert cli("apply", "-f", paths[0], "-f", paths[1], "-f", manifest("c", file="3.yaml")).code == 0
    first, second = admin.asked("ApplyAdapters")
    assert (first.changes[0].upsert.spec.source.uri, sent(admin)) == (
        folder.as_uri(),
        [digest_of(folder), "", digest_of(folder), ""],
    )
    assert "".join(one.upsert.name for one in second.changes) == "abc"


def test_what_would_be_refused_everywhere_is_refused_here(cli, admin, pool, manifest, arrives, tmp_path):
    """W9, R8: nothing is sent, and the reason is that of the replicas; by the policy of the manifest."""
    draft = LLAMA.draft()
    draft.config["lora_alpha"] = 0
    arrives(draft)
    local = ["apply", "-f", manifest("sql", source={"uri": draft.write(tmp_path / "a").as_uri()})]
    for line, field in ((local, "adapters.yaml"), (REMOTE, "add: spec.source.uri")):
        ran = cli("-o", "json", *line)
        assert (ran.code, ran.error["reason"], ran.error["metadata"]["finding"]) == (4, "ADAPTER_UNFIT", "zero_alpha")
        assert (field in ran.error["field"], sent(admin)) == (True, [])
    for reason in ("bad_archive", "weights_not_safetensors"):
        arrives(error=ArtifactError(reason, "no such thing"))
        ran = cli("-o", "json", *REMOTE)
        assert (ran.code, ran.error["reason"], ran.error["field"]) == (4, "ADAPTER_UNFIT", "add: spec.source.uri")
        assert (ran.error["metadata"], sent(admin)) == ({"finding": reason, "findings": "1"}, [])
        assert f"{reason}: no such thing" in ran.error["message"]
    draft = LLAMA.draft()
    draft.config["use_dora"] = True
    source = {"uri": draft.write(tmp_path / "dora").as_uri()}
    assert cli("apply", "-f", manifest("sql", source=source)).code == 4
    assert cli("apply", "-f", manifest("sql", source=source, prepare={"dora": "strip"})).code == 0


def back_to(uri: str, credentials: str = "") -> list[str]:
    """What is told of going back to a generation of this source."""
    told: list[str] = []
    spec = pb.AdapterSpec(source=pb.Source(uri=uri), credentials=credentials)
    warn_if_gone(pb.Adapter(name="a", pool="dev", generation=3, spec=spec), told.append)
    return told


@pytest.mark.parametrize("kept", [None, [], ["adapter_config.json"]])
def test_a_roll_back_to_a_folder_that_is_gone_is_told(tmp_path, kept):
    """Of a place that is not on this machine the replicas know more."""
    folder = Path(LLAMA.draft().write(tmp_path / "step-7"))
    assert back_to(folder.as_uri()) == back_to("file:///nowhere/at/all") == back_to("file://other/a") == []
    for file in folder.iterdir():
        if file.name not in (kept or []):
            file.unlink()
    if kept is None:
        folder.rmdir()
    [told] = back_to(folder.as_uri())
    assert told.startswith(
        f"{folder.as_uri()} has not the files any more, as seen from here: replicas serve generation 3"
    )


@pytest.mark.parametrize(("line", "is_told"), [("rollback sql", True), ("rollout abort sql", False)])
def test_a_command_that_goes_back_tells_it(cli, admin, tmp_path, line, is_told):
    spec = pb.AdapterSpec(source=pb.Source(uri=(tmp_path / "gone").as_uri()))
    made = pb.AdapterResult(adapter=pb.Adapter(name="sql", pool="dev", generation=3, spec=spec))
    for method in ("RollbackAdapter", "AbortRollout"):
        admin.answers[method] = [pb.ApplyAdaptersResponse(results=[made])]
    assert ("has not the files any more" in cli(*line.split()).err) is is_told


def test_a_roll_back_to_a_source_that_says_it_is_gone_is_told(monkeypatch):
    """Whom nobody here can ask says nothing: a credential is not given to this command."""
    is_gone = Mock(side_effect=[True, False, ArtifactError("source_denied", "no")])
    monkeypatch.setattr(WebSource, "is_gone", is_gone)
    uri = "https://example.com/a/"
    assert [len(back_to(uri)) for _ in range(3)] == [1, 0, 0]
    assert back_to(uri, "mine") == back_to("https://169.254.0.1/a/") == back_to("wandb-artifact:///a/b") == []
    assert is_gone.call_count == 3
