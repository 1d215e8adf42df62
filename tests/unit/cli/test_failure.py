"""Every error has an exit code and one line; and a fault of ours is never told as a mistake of the user's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import NoReturn

import grpc
import pytest

from registry.cli import main
from registry.cli.client import AdminClient
from registry.cli.commands import publish
from registry.cli.failure import EXIT_OF, CommandFailure, Exit, failure_of
from registry.client import admin_api as api
from registry.client.errors import KIND_OF
from registry.lora.findings import Finding, UnfitAdapter
from registry.model.errors import NotFound, Reason, RegistryError
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin


@pytest.fixture
def store(admin, tmp_path, manifest) -> FakeAdmin:
    """A service that carries everything out, and files that can be read."""
    one = pb.Replica(name="r1", pool="dev")
    admin.answers |= {"GetAdapter": [SQL], "GetReplica": [one]}
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[one])]
    for name in ("adapter/adapter_config.json", "adapter/adapter_model.safetensors", "base/empty"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    manifest("sql")
    return admin


def _leaves(kind: type[RegistryError]) -> Iterator[type[RegistryError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _leaves(child)


SQL = pb.Adapter(name="sql", pool="dev", generation=3, etag="7", spec=pb.AdapterSpec(source=pb.Source(uri="s3://b/s")))


class Bug(Exception):
    """What nobody foresaw."""


def broken(*_arguments: object, **_options: object) -> NoReturn:
    raise Bug


def broken_at(method: api.AdminMethod, call: Callable[..., object]) -> Callable[..., object]:
    """The same but for one method of the admin service."""
    return lambda client, asked, *request: broken() if asked is method else call(client, asked, *request)


COMMANDS = "registry.cli.commands"
# Places in the code, and calls to the admin service: over each loop and thread. A broad `except` is refused by ruff.
BROKEN = {
    "apply -f adapters.yaml": [api.APPLY_ADAPTERS, "registry.cli.client.BackgroundLoop.run"],
    "apply -f adapters.yaml --no-atomic": [api.APPLY_ADAPTERS],
    "add sql --source adapter": ["registry.cli.change.documents.manifest_of", api.GET_POOL],
    "add sql --source s3://b/s --look-seconds 60": ["registry.cli.source_reader.SourceReader.fetch"],
    "publish adapter there": [f"{COMMANDS}.publish.destination"],
    "restore adapters.yaml": ["registry.cli.backup.read_json"],
    "edit sql": [f"{COMMANDS}.adapters.subprocess.run"],
    "dev up": [f"{COMMANDS}.dev.bring_up"],
    "config get-contexts": ["registry.client.contexts._context"],
    "drain r1 --wait": [api.GET_REPLICA, f"{COMMANDS}.replicas.activity_of"],
    "events --sidecar 127.0.0.1:1": ["registry.cli.sidecars._page"],
    "top": [f"{COMMANDS}.top.activity_of"],
    "describe adapter sql": [api.LIST_CHANGES],
    "get replicas r1": [api.GET_REPLICA],
    "doctor": ["registry.cli.doctor.command.collect"],
}


@pytest.mark.parametrize(("line", "place"), [(line, place) for line, places in BROKEN.items() for place in places])
def test_what_nobody_foresaw_is_no_mistake_of_the_user(cli, store, monkeypatch, tmp_path, line, place):
    contexts = tmp_path / "contexts.json"
    contexts.write_text('{"current": "", "contexts": {"a": {"admin": "a:1"}}}')
    contexts.chmod(0o600)
    monkeypatch.setenv("LORAPLANE_CONFIG", str(contexts))
    if isinstance(place, str):
        monkeypatch.setattr(place, broken)
    else:
        for kind in ("unary", "pages"):
            monkeypatch.setattr(AdminClient, kind, broken_at(place, getattr(AdminClient, kind)))
    with pytest.raises(Bug):
        cli(*line.split())


FINDING = Finding("bad_rank", "k", "1", "2", "change it")
FAILURES = [
    (UnfitAdapter([FINDING]), Exit.REFUSED, "ADAPTER_UNFIT", "bad_rank"),
    (publish.CannotPublish("no torch"), Exit.REFUSED, "CANNOT_PUBLISH", "no torch"),
    (publish.DestinationTaken("s3://b/d"), Exit.CONFLICT, "DESTINATION_TAKEN", "s3://b/d is there with other content"),
    (publish.Unfinished("half"), Exit.UNAVAILABLE, "UPLOAD_UNFINISHED", "half"),
    (publish.ArtifactError("away", "no"), Exit.UNAVAILABLE, "SOURCE_UNREADABLE", "away: no"),
    (OSError(13, "Permission denied", "x/y"), Exit.USAGE, "USAGE", "cannot read or write x/y: Permission denied"),
    (OSError(13, "Permission denied"), Exit.USAGE, "USAGE", "cannot read or write adapter: Permission denied"),
]


@pytest.mark.parametrize(("error", "code", "reason", "told"), FAILURES, ids=lambda one: type(one).__name__)
def test_each_way_in_which_a_publication_fails_has_its_code(cli, store, monkeypatch, error, code, reason, told):
    def fail(_target: str) -> NoReturn:
        raise error

    monkeypatch.setattr(f"{COMMANDS}.publish.destination", fail)
    ran = cli("-o", "json", "publish", "adapter", "there")
    assert (ran.code, ran.error["reason"], told in ran.error["message"]) == (code, reason, True)


def _broken(arguments: list[str]) -> int:
    return {}[arguments[0]]


def test_what_nobody_foresaw_is_told_with_the_line_that_it_comes_from(monkeypatch, capsys):
    """Programs are told it as an object."""
    monkeypatch.setattr(main, "run", _broken)
    line = _broken.__code__.co_firstlineno + 1
    told = f"KeyError: 'get' (at {__file__}:{line}); please report it"
    for arguments, variable in (("get pools", ""), ("-o json get", ""), ("get", "json"), ("get -o json", "")):
        monkeypatch.setenv("LORAPLANE_OUTPUT", variable)
        monkeypatch.setattr(sys, "argv", ["loraplane", *arguments.split()])
        with pytest.raises(SystemExit, match=r"^1$"):
            main.main()
        out, err = capsys.readouterr()
        if "pools" in arguments:
            assert (out, err) == ("", f"error: INTERNAL: {told}\n")
        else:
            error = json.loads(err)["error"]
            assert (error["reason"], error["exit_code"]) == ("INTERNAL", 1)


def test_every_error_of_the_tree_has_the_exit_code_of_the_interface_and_is_one_line():
    """And every status but OK is one of our errors."""
    assert set(EXIT_OF) == set(_leaves(RegistryError))
    assert set(KIND_OF) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    codes = {status.name: int(EXIT_OF[kind]) for status, kind in KIND_OF.items()}
    refused = ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "UNAUTHENTICATED")
    expected = dict.fromkeys(refused, 4) | {"NOT_FOUND": 3, "ALREADY_EXISTS": 5, "ABORTED": 5}
    expected |= {"UNAVAILABLE": 6, "DEADLINE_EXCEEDED": 6, "INTERNAL": 1}
    assert {name: codes[name] for name in expected} == expected
    failure = CommandFailure(Exit.REFUSED, "X", "first\nsecond\r\n third", field="a.yaml:\n1", request_id="r1")
    assert failure.line() == "error: X: a.yaml: 1: first second third (request id r1)"
    error = NotFound(Reason.POOL_NOT_FOUND, "no pool", field="pool", metadata={"a": "b"})
    told = {"reason": "POOL_NOT_FOUND", "message": "no pool", "field": "pool", "metadata": {"a": "b"}}
    assert json.loads(json.dumps(failure_of(error).as_dict())) == told | {"request_id": None, "exit_code": 3}


UNREADABLE = {
    "digest adapter": "digest_of",
    "check adapter --pool dev": "examine_directory",
    "check adapter --pool dev --explain": "open_directory",
}


@pytest.mark.parametrize("line", UNREADABLE)
def test_a_file_that_cannot_be_read_is_named_with_why(cli, store, monkeypatch, line):
    def denied(*_arguments: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    examined = SimpleNamespace(verdict=SimpleNamespace(warnings=()))
    for name, stand_in in (("check_files", None), ("examine_directory", examined)):
        monkeypatch.setattr(f"registry.cli.local_adapters.{name}", lambda *_, stand_in=stand_in: stand_in)
    monkeypatch.setattr(f"registry.cli.local_adapters.{UNREADABLE[line]}", denied)
    ran = cli(*line.split())
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ("cannot" in ran.err, "Permission denied" in ran.err) == (True, True)


def test_what_is_traced_is_sent_before_the_program_ends(monkeypatch):
    did = list[str]()
    monkeypatch.setattr(main, "spare_collector", lambda: None)
    monkeypatch.setattr(main, "run", lambda _: 5)
    monkeypatch.setattr(main.tracing, "start", lambda *_: did.append("started"))
    monkeypatch.setattr(main.tracing, "stop", lambda: did.append("sent"))
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, did) == (5, ["started", "sent"])
