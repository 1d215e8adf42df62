"""A fault of ours is never told as a mistake of the user's, nor passed over: it ends a command as what it is."""

from __future__ import annotations

from typing import NoReturn

import pytest

from registry.cli.commands import publish
from registry.cli.failure import Exit
from registry.cli.session import Session
from registry.cli.views.output import Format
from registry.client.address import Tls
from registry.lora.findings import Finding, UnfitAdapter
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import FakeAdmin, applied

SQL = pb.Adapter(name="sql", pool="dev", generation=3, etag="7", spec=pb.AdapterSpec(source=pb.Source(uri="s3://b/s")))


class Bug(Exception):
    """What nobody foresaw."""


def broken(*_arguments: object, **_options: object) -> NoReturn:
    raise Bug


@pytest.fixture
def store(admin, tmp_path, manifest) -> FakeAdmin:
    """A service that carries everything out, and files that can be read."""
    pool = pb.Pool(name="dev", base_models=["tiny"])
    admin.answers |= {
        "ApplyAdapters": [applied],
        "GetAdapter": [SQL],
        "GetPool": [pool],
        "UpdatePool": [pool],
        "GetReplica": [pb.Replica(name="r1", pool="dev")],
        "DrainReplica": [pb.DrainReplicaResponse(changed=True)],
        "ListReplicas": [pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", pool="dev")])],
        "ReadBackup": [pb.ReadBackupResponse(revision=12)],
        "ListAdapterHistory": [pb.ListAdapterHistoryResponse()],
        "WatchRollout": [[pb.Rollout(name="sql", generation=3, done=True)]],
    }
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_text("{}")
    (tmp_path / "base").mkdir()
    manifest("sql")
    return admin


CLIENT, COMMANDS = "registry.cli.client.AdminClient", "registry.cli.commands"
BROKEN = {
    "apply -f adapters.yaml --look-seconds 0": [
        f"{CLIENT}.apply",
        f"{CLIENT}.get_pool",
        "registry.cli.change_set.read_manifests",
        "registry.cli.change_set.check_unique",
        "registry.cli.manifest._WRITTEN.model_validate",
        "registry.cli.client.BackgroundLoop.run",
    ],
    "apply -f adapters.yaml --no-atomic": [f"{CLIENT}.apply"],
    "add sql --source adapter": [
        "registry.cli.change_set.manifest_of",
        "registry.cli.local_adapters.check_files",
        "registry.cli.source_reader.digest_here",
        f"{CLIENT}.get_pool",
    ],
    "add sql --source s3://b/s": [f"{COMMANDS}.apply.apply_changes"],
    "add sql --source s3://b/s --look-seconds 60": [
        "registry.cli.source_reader.AllowedSources",
        "registry.cli.source_reader.SourceReader.fetch",
    ],
    "add sql --source s3://b/s --request-id q": ["registry.cli.session.check_request_id"],
    "digest adapter": ["registry.cli.local_adapters.check_files", "registry.cli.change_set.Path.is_dir"],
    "digest s3://b/s": ["registry.cli.source_reader.SourceReader.fetch", "registry.cli.source_reader.AllowedSources"],
    "digest s3://b/s --credentials c": ["registry.cli.source_reader.read_credentials"],
    "check adapter --base-model base": ["registry.cli.local_adapters.read_base"],
    "check adapter --pool dev": ["registry.cli.local_adapters.check_files"],
    "check adapter --pool dev --explain": ["registry.cli.local_adapters.open_directory"],
    "publish adapter there": [f"{COMMANDS}.publish.destination"],
    "sign adapter --key adapter/adapter_config.json": ["registry.lora.ed25519.sign"],
    "backup b.jsonl": [f"{COMMANDS}.backup.os.fsync"],
    "restore adapters.yaml": [f"{COMMANDS}.backup.records_of", "registry.cli.backup.read_json"],
    "edit sql": [f"{COMMANDS}.adapters.subprocess.run"],
    "delete sql": [f"{COMMANDS}.adapters.apply_changes"],
    "dev up": [f"{COMMANDS}.dev.bring_up"],
    "dev down": [f"{COMMANDS}.dev.take_down"],
    "dev status": [f"{COMMANDS}.dev.opened"],
    "config set-context c": [f"{COMMANDS}.config.check_address", "registry.cli.contexts.json.dumps"],
    "drain r1 --wait": [f"{CLIENT}.get_replica", f"{COMMANDS}.replicas.activity_of"],
    "events --sidecar 127.0.0.1:1": [f"{COMMANDS}.events._cut_after"],
    "pool update dev --max-rank 3": [f"{CLIENT}.get_pool"],
    "pool create p --base-model tiny --from base": ["registry.cli.local_adapters.read_base"],
    "top": [f"{COMMANDS}.top.activity_of"],
    "describe adapter sql": [f"{CLIENT}.change_pages"],
    "get replicas r1": [f"{CLIENT}.get_replica"],
    "get pools": ["registry.cli.views.output.printable"],
    "doctor": ["registry.cli.doctor.command.collect"],
    "doctor --etcd e:1": ["registry.cli.doctor.command.DaemonSettings.model_validate"],
}


@pytest.mark.parametrize(("line", "place"), [(line, place) for line, places in BROKEN.items() for place in places])
def test_what_nobody_foresaw_is_no_mistake_of_the_user(cli, store, monkeypatch, tmp_path, line, place):
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "contexts.json"))
    monkeypatch.setattr(place, broken)
    with pytest.raises(Bug):
        cli(*line.split())


def test_nor_is_it_a_stack_that_does_not_run(monkeypatch):
    monkeypatch.setattr("registry.cli.session.admin_of_stack", broken)
    with pytest.raises(Bug):
        _ = Session(None, Format.TABLE, Tls()).admin


UNREADABLE = {
    "digest adapter": "registry.cli.local_adapters.digest_of",
    "check adapter --pool dev": "registry.cli.local_adapters.examine_directory",
    "check adapter --pool dev --explain": "registry.cli.local_adapters.open_directory",
    "sign adapter --key none.pem": None,
    "restore none.jsonl": None,
    "apply -f none.yaml": None,
}


@pytest.mark.parametrize("line", UNREADABLE)
def test_a_file_that_cannot_be_read_is_named_with_why(cli, store, monkeypatch, line):
    def denied(*_arguments: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    if "check" in line:
        monkeypatch.setattr("registry.cli.local_adapters.check_files", lambda _folder: None)
    if line.startswith(("digest", "sign")):
        monkeypatch.setattr("registry.cli.local_adapters.check_files", lambda _folder: None)
        monkeypatch.setattr(
            "registry.cli.local_adapters.digest_of", denied if UNREADABLE[line] else lambda _: "sha256:1"
        )
    elif place := UNREADABLE[line]:
        if "explain" in line:
            monkeypatch.setattr("registry.cli.local_adapters.examine_directory", lambda *_: _Examined())
        monkeypatch.setattr(place, denied)
    ran = cli(*line.split())
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "cannot" in ran.err
    assert "Permission denied" in ran.err or "No such file" in ran.err


class _Examined:
    """Stands for a look at an adapter that found nothing."""

    class verdict:  # noqa: N801 - as what it stands for names it
        warnings = ()


FINDING = Finding("bad_rank", "k", "1", "2", "change it")
FAILURES = [
    (UnfitAdapter([FINDING]), Exit.REFUSED, "ADAPTER_UNFIT", "bad_rank"),
    (publish.CannotPublish("no torch"), Exit.REFUSED, "CANNOT_PUBLISH", "no torch"),
    (publish.DestinationTaken("s3://b/d"), Exit.CONFLICT, "DESTINATION_TAKEN", "s3://b/d is there with other content"),
    (publish.Unfinished("half"), Exit.UNAVAILABLE, "UPLOAD_UNFINISHED", "half"),
    (publish.ArtifactError("away", "no"), Exit.UNAVAILABLE, "SOURCE_UNREADABLE", "away: no"),
    (
        OSError(13, "Permission denied", "there/x"),
        Exit.USAGE,
        "USAGE",
        "cannot read or write there/x: Permission denied",
    ),
    (OSError(13, "Permission denied"), Exit.USAGE, "USAGE", "cannot read or write adapter: Permission denied"),
]


@pytest.mark.parametrize(("error", "code", "reason", "told"), FAILURES, ids=lambda one: type(one).__name__)
def test_each_way_in_which_a_publication_fails_has_its_code(cli, store, monkeypatch, error, code, reason, told):
    def fail(_target: str) -> NoReturn:
        raise error

    monkeypatch.setattr(f"{COMMANDS}.publish.destination", fail)
    ran = cli("-o", "json", "publish", "adapter", "there")
    assert (ran.code, ran.error["reason"], told in ran.error["message"]) == (code, reason, True)


def test_nor_is_it_a_file_of_contexts_that_was_mistyped(cli, monkeypatch, tmp_path):
    path = tmp_path / "contexts.json"
    path.write_text('{"current": "", "contexts": {"a": {"admin": "a:1"}}}')
    path.chmod(0o600)
    monkeypatch.setenv("LORAPLANE_CONFIG", str(path))
    assert cli("config", "get-contexts").code == 0
    for place in ("registry.cli.contexts._context", "registry.cli.contexts.check_own_path"):
        with monkeypatch.context() as patched:
            patched.setattr(place, broken)
            with pytest.raises(Bug):
                cli("config", "get-contexts")


def test_what_a_source_sent_and_nobody_can_read_is_no_fault_of_the_source(monkeypatch, cli, store):
    monkeypatch.setattr("registry.cli.source_reader.look", broken)
    with pytest.raises(Bug):
        cli("add", "sql", "--source", "adapter")
