"""What apply and add see of sources that this machine can read."""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Event

import pytest

from registry.cli.change_set import Change
from registry.cli.failure import usage
from registry.cli.local_adapters import base_here, base_message
from registry.cli.preflight import Looking, preflight
from registry.cli.session import Session
from registry.cli.source_reader import SourceReader
from registry.cli.views.output import Format
from registry.client.address import Tls
from registry.lora.directory import digest_of
from registry.sources.base import ArtifactError, Stop
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA, Draft
from tests.unit.cli.fake_admin import applied


@pytest.fixture
def pool(admin, tmp_path) -> None:
    base = base_message(base_here(LLAMA.write_base(tmp_path / "base")))
    admin.answers |= {"ApplyAdapters": [applied], "GetPool": [pb.Pool(name="dev", base_models=["tiny"], base=base)]}


def sent(admin) -> list[str]:
    return [change.upsert.spec.source.digest for request in admin.asked("ApplyAdapters") for change in request.changes]


def test_the_digest_of_what_can_be_read_is_pinned(cli, admin, pool, manifest, tmp_path):
    """R4: what is served later is what lay here at this moment."""
    folder = LLAMA.draft().write(tmp_path / "a")
    assert cli("add", "sql", "--source", str(folder)).code == 0
    assert cli("apply", "-f", manifest("sql", source={"uri": folder.as_uri()})).code == 0
    assert cli("apply", "-f", manifest("elsewhere")).code == 0
    assert sent(admin) == [digest_of(folder), digest_of(folder), ""]


def test_what_would_be_refused_everywhere_is_refused_here(cli, admin, pool, manifest, tmp_path):
    """W9, R8: nothing is sent, and the reason is that of the replicas."""
    draft = LLAMA.draft()
    draft.config["lora_alpha"] = 0
    folder = draft.write(tmp_path / "a")
    ran = cli("-o", "json", "apply", "-f", manifest("sql", source={"uri": folder.as_uri()}))
    assert (ran.code, ran.error["reason"]) == (4, "ADAPTER_UNFIT")
    assert ran.error["metadata"]["finding"] == "zero_alpha"
    assert "adapters.yaml" in ran.error["field"]
    assert not admin.asked("ApplyAdapters")


@pytest.mark.parametrize("digest", ["sha256:" + "0" * 64, ""])
def test_what_is_not_there_yet_is_left_to_the_replicas(cli, admin, pool, tmp_path, digest):
    folder = LLAMA.draft().write(tmp_path / "a")
    (Path(folder) / "adapter_model.safetensors").unlink()
    ran = cli("add", "sql", "--source", str(folder), *(["--digest", digest] if digest else []))
    assert (ran.code, sent(admin)) == (0, [digest])
    assert (f"serve what has {digest}: what lies here is not whole" in ran.err) is bool(digest)


def test_a_digest_that_the_files_here_contradict_is_refused(cli, admin, pool, tmp_path):
    """R4 digest-true: one of the two is not what is meant; who knows better goes on."""
    folder, digest = LLAMA.draft().write(tmp_path / "a"), "sha256:" + "0" * 64
    arguments = ["add", "sql", "--source", str(folder), "--digest", digest]
    ran = cli(*arguments)
    assert (ran.code, sent(admin)) == (4, [])
    assert "error: DIGEST_MISMATCH: add: spec.source.digest:" in ran.err
    ran = cli(*arguments, "--force")
    assert (ran.code, sent(admin)) == (0, [digest])
    assert f"serve what has {digest}: the files here have sha256:" in ran.err


def test_a_folder_that_is_not_there_is_refused(cli, admin, pool, manifest, tmp_path):
    """A path is one of this machine, and so is a URI in a folder that is here; of others the replicas may know more."""
    ran = cli("add", "sql", "--source", "nowhere")
    assert (ran.code, sent(admin)) == (4, [])
    assert f"SOURCE_UNREADABLE: add: spec.source.uri: there is no folder {tmp_path}/nowhere here" in ran.err
    assert cli("add", "sql", "--source", "nowhere", "--force").code == 0
    assert cli("apply", "-f", manifest("sql", source={"uri": "file:///nowhere"})).code == 0
    assert cli("apply", "-f", manifest("sql", source={"uri": "file:///nowhere/at/all"})).code == 0
    missing = manifest("sql", source={"uri": (tmp_path / "missing").as_uri()})
    ran = cli("apply", "-f", missing)
    assert (ran.code, f"there is no folder {tmp_path}/missing here" in ran.err) == (4, True)
    assert cli("apply", "-f", missing, "--force").code == 0


@pytest.mark.parametrize("uri", ["file:///a/../b", "s3://b/a/%2E./c"])
def test_a_path_with_dots_is_refused(cli, admin, pool, manifest, uri):
    """Every sidecar refuses it."""
    path = manifest("sql", source={"uri": uri})
    ran = cli("apply", "-f", path)
    assert (ran.code, sent(admin)) == (4, [])
    assert "has .. in it" in ran.err
    assert cli("apply", "-f", path, "--force").code == 0


def test_a_typed_path_with_dots_is_written_without(cli, admin, pool, tmp_path):
    folder = LLAMA.draft().write(tmp_path / "a")
    assert cli("add", "sql", "--source", f"{tmp_path}/x/../a".replace("/x/", "/base/")).code == 0
    assert admin.asked("ApplyAdapters")[0].changes[0].upsert.spec.source.uri == Path(folder).as_uri()


def test_a_policy_of_the_manifest_is_that_of_the_look(cli, admin, pool, manifest, tmp_path):
    draft = LLAMA.draft()
    draft.config["use_dora"] = True
    source = {"uri": draft.write(tmp_path / "a").as_uri()}
    assert cli("apply", "-f", manifest("sql", source=source)).code == 4
    assert cli("apply", "-f", manifest("sql", source=source, prepare={"dora": "strip"})).code == 0


def test_a_pool_is_made_from_its_base_models_directory(cli, admin, tmp_path):
    """The record says names, shapes and fingerprint, in a few lines."""
    admin.answers["CreatePool"] = [lambda request: request.pool]
    folder = LLAMA.write_base(tmp_path / "base")
    arguments = ["--base-model", "tiny", "--from", str(folder), "--base-name", "org/llama", "--target-module", "q_proj"]
    ran = cli("-o", "json", "pool", "create", "dev", *arguments)
    assert ran.code == 0
    assert ran.json["base"]["fingerprint"] == base_here(folder).fingerprint
    assert ran.json["base"]["modules"]["model.layers.{0-1}.self_attn.k_proj"] == [16, 32]
    assert ran.json["limits"]["target_modules"] == ["q_proj"]


@pytest.mark.parametrize("line", ["add sql --source {}", "digest {}"])
def test_a_folder_that_cannot_be_looked_at_is_named(cli, admin, pool, tmp_path, monkeypatch, line):
    """Bad input gets one clear error, never an internal one."""

    def denied(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", denied)
    ran = cli(*line.replace("{}", str(tmp_path / "a")).split())
    assert (ran.code, "cannot read" in ran.err, "Permission denied" in ran.err) == (2, True, True)
    assert not admin.asked("ApplyAdapters")


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


def test_what_is_fetched_to_be_looked_at_is_there_until_it_was(monkeypatch):
    def fetch(_: object, uri: str, _credential: str | None, folder: Path, _stop: Stop) -> str:
        (folder / "said").write_text(uri)
        return "sha256:0"

    monkeypatch.setattr(SourceReader, "fetch", fetch)
    with SourceReader(None).fetched("s3://b/a", None, 60.0) as folder:
        assert (folder / "said").read_text() == "s3://b/a"
    assert not folder.exists()


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
    assert asked == [("s3://b/a", "mine")]
    assert cli(*REMOTE, "--digest", "sha256:" + "0" * 64).code == 0
    assert len(asked) == 1, "what is pinned is left to the replicas"


def test_what_another_host_sends_and_no_replica_would_serve_is_refused(cli, admin, pool, arrives):
    draft = LLAMA.draft()
    draft.config["lora_alpha"] = 0
    arrives(draft)
    ran = cli("-o", "json", *REMOTE)
    assert (ran.code, ran.error["reason"], ran.error["field"]) == (4, "ADAPTER_UNFIT", "add: spec.source.uri")
    assert (ran.error["metadata"]["finding"], sent(admin)) == ("zero_alpha", [])


@pytest.mark.parametrize("reason", ["bad_archive", "weights_not_safetensors"])
def test_what_is_wrong_with_a_source_for_everybody_is_refused_here(cli, admin, pool, arrives, reason):
    arrives(error=ArtifactError(reason, "no such thing"))
    ran = cli("-o", "json", *REMOTE)
    assert (ran.code, ran.error["reason"], ran.error["field"]) == (4, "ADAPTER_UNFIT", "add: spec.source.uri")
    assert (ran.error["metadata"], sent(admin)) == ({"finding": reason, "findings": "1"}, [])
    assert f"{reason}: no such thing" in ran.error["message"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ArtifactError("not_found", "no files\nat all"), "not_found: no files at all"),
        (
            ArtifactError("staging_stopped", "stopped"),
            "there was no time to read it; see --look-seconds",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "it cannot be kept here: No space left on device; see TMPDIR",
        ),
    ],
)
def test_what_is_no_matter_for_others_is_noted_and_left_to_them(cli, admin, pool, arrives, error, told):
    """The replicas have other credentials, disks and time."""
    arrives(error=error)
    ran = cli(*REMOTE)
    assert (ran.code, sent(admin)) == (0, [""])
    assert ran.err == f"note: add: its digest is not pinned: {told}\n"


def test_what_changes_while_it_is_looked_at_is_left_to_the_replicas(cli, admin, pool, monkeypatch, tmp_path):
    """Its files were right a moment later, and nobody knows their digest."""

    def torn(folder: Path) -> str:
        raise usage(f"{folder} changed")

    monkeypatch.setattr("registry.cli.source_reader.digest_here", torn)
    ran = cli("add", "sql", "--source", str(LLAMA.draft().write(tmp_path / "a")))
    assert (ran.code, ran.err, sent(admin)) == (0, "", [""])


def test_each_change_keeps_its_place_among_those_that_are_not_looked_at(cli, admin, pool, manifest, arrives, tmp_path):
    """W2: what is sent is what was written, in the same order."""
    folder = LLAMA.draft().write(tmp_path / "a")
    paths = [manifest("a", file="1.yaml"), manifest("b", file="2.yaml", source={"uri": folder.as_uri()})]
    assert cli("apply", "-f", paths[0], "-f", paths[1], "-f", manifest("c", file="3.yaml")).code == 0
    (request,) = admin.asked("ApplyAdapters")
    assert [(one.upsert.name, bool(one.upsert.spec.source.digest)) for one in request.changes] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]
