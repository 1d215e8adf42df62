"""The way to the admin service, and wrong command lines."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import grpc
import pytest

from registry.cli.client import AdminClient
from registry.cli.main import run
from registry.client.address import Tls, check_address
from registry.etcd3.backoff import Backoff
from registry.tools.devstack.processes import Process, remember
from registry.tools.devstack.stack_file import DEFAULT_FOLDER, EngineKind, make_layout, pid_file, save
from registry.v1 import registry_pb2 as pb
from tests.support.unanswered import nobody_listens
from tests.unit.cli.fake_admin import Refusal, applied


def test_nobody_listens(capsys, monkeypatch):
    """Told after the first try: the last of several might have so little time left that it ends before any answer."""
    monkeypatch.setattr("registry.client.transport.REPEAT", Backoff(base_seconds=3600.0, cap_seconds=3600.0))
    monkeypatch.setattr("registry.client.transport.random.uniform", lambda _, most: most)
    with nobody_listens() as address:
        assert run(["--admin", address, "get", "adapters"]) == 6
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"error: ADMIN_UNAVAILABLE: no connection to the admin service at {address}")
    assert "--admin" in error


@pytest.mark.parametrize("address", ["admin", "http://admin:7600", "admin:port", "admin:"])
def test_an_address_that_is_none(capsys, address):
    assert run(["--admin", address, "get", "adapters"]) == 2
    error = capsys.readouterr().err
    assert error == f"error: USAGE: --admin: {address!r} is not HOST:PORT, such as 127.0.0.1:7600\n"


@pytest.mark.parametrize("address", ["dns:///admin:7600", "[::1]:7600", "unix:/run/admin", "admin.svc:7600"])
def test_an_address_that_is_one(address):
    check_address(address)


def test_an_error_without_details_is_told_all_the_same(cli, admin):
    admin.answers["ListAdapters"] = [Refusal(grpc.StatusCode.INTERNAL, message="boom")]
    ran = cli("-o", "json", "get", "adapters")
    assert (ran.code, ran.error["reason"]) == (1, "INTERNAL")
    assert "boom" in ran.error["message"]


def test_an_older_service_that_lacks_a_call(cli, admin):
    admin.answers["ListTenants"] = [Refusal(grpc.StatusCode.UNIMPLEMENTED, message="unknown")]
    ran = cli("get", "tenants")
    assert ran.code == 4
    assert ran.err.startswith("error: UNSUPPORTED: ")


@pytest.mark.parametrize("line", ["get", "get foos", "nonsense", "get adapters --nonsense", "-o csv get adapters"])
def test_a_wrong_command_line_is_told_in_one_line(cli, line):
    ran = cli(*line.split())
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("error: USAGE: ")


def test_a_group_without_a_command_shows_its_commands(capsys):
    assert run(["pool"]) == 2
    shown = capsys.readouterr()
    assert "create" in shown.out
    assert shown.err == "error: USAGE: name a command; see loraplane pool --help\n"


def test_a_wrong_command_line_is_told_as_json(cli):
    assert cli("get", "foos", "-o", "json").error["reason"] == "USAGE"


def test_a_form_that_is_typed_goes_before_the_variable_for_errors_too(cli, monkeypatch):
    monkeypatch.setenv("LORAPLANE_OUTPUT", "json")
    assert cli("get", "foos").error["reason"] == "USAGE"
    assert cli("get", "foos", "-o", "table").err.startswith("error: USAGE: ")


def test_the_address_comes_from_the_environment(address, admin, monkeypatch, capsys):
    monkeypatch.setenv("LORAPLANE_ADMIN", address)
    monkeypatch.setenv("LORAPLANE_OUTPUT", "name")
    assert run(["get", "pools"]) == 0
    assert capsys.readouterr().out == "dev\n"


def test_a_certificate_needs_its_key(cli, tmp_path):
    (tmp_path / "cert.pem").write_text("x")
    ran = cli("get", "pools", "--tls-cert", "cert.pem")
    assert ran.code == 2
    assert "belong together" in ran.err
    assert "cannot read ca.pem" in cli("get", "pools", "--tls-ca", "ca.pem").err


@pytest.fixture
def unnamed(monkeypatch, tmp_path) -> Path:
    """An empty working directory, where nothing names an admin service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LORAPLANE_ADMIN", raising=False)
    return tmp_path


def make_stack(address: str, *, runs: bool) -> None:
    """Writes down a local stack whose admin service is at that address; it is this process, or has ended."""
    save(DEFAULT_FOLDER, make_layout(EngineKind.SIM, 1, {"admin": int(address.rpartition(":")[2])}))
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    remember(pid_file(DEFAULT_FOLDER, "admin"), Process(os.getpid(), started if runs else started + 1))


def test_an_admin_service_that_was_not_named_is_told(unnamed, address, admin, capsys, monkeypatch):
    """Standard output is what it was; of two calls, one line."""
    monkeypatch.setattr("registry.cli.session.DEFAULT_ADMIN", address)
    assert run(["-o", "name", "get", "pools"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "dev\n"
    assert shown.err == f"admin service: {address} (the default; --admin or LORAPLANE_ADMIN names one)\n"
    assert run(["--admin", address, "-o", "name", "get", "pools"]) == 0
    assert capsys.readouterr().err == ""


def test_the_stack_of_this_folder_is_told(unnamed, address, admin, capsys):
    make_stack(address, runs=True)
    assert run(["-o", "name", "get", "pools"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("dev\n", f"admin service: {address} (of the stack in .loraplane)\n")


def test_standard_error_stays_one_object_for_programs(unnamed, capsys, monkeypatch):
    with nobody_listens() as nobody:
        monkeypatch.setattr("registry.cli.session.DEFAULT_ADMIN", nobody)
        assert run(["-o", "json", "get", "pools", "--timeout", "0.2"]) == 6
    error = json.loads(capsys.readouterr().err)["error"]
    assert nobody in error["message"]


def test_a_stack_that_is_down_is_an_error_and_no_other_service_is_spoken_to(
    unnamed, address, admin, capsys, monkeypatch
):
    """X2: another service than the user means would be told everything, and changed."""
    monkeypatch.setattr("registry.cli.session.DEFAULT_ADMIN", address)
    make_stack(address, runs=False)
    assert run(["get", "pools"]) == 6
    error = capsys.readouterr().err
    assert error.startswith("error: STACK_NOT_READY: the admin service of the stack in .loraplane does not run; ")
    assert "loraplane dev up" in error
    assert "--admin" in error
    assert run(["doctor"]) == 6
    assert capsys.readouterr().err.startswith("error: STACK_NOT_READY: ")
    assert run(["--admin", address, "-o", "name", "get", "pools"]) == 0


@pytest.mark.parametrize("command", ["get pools", "dev status", "dev down", "dev up"])
def test_a_stack_of_another_user_is_not_obeyed(unnamed, address, admin, capsys, monkeypatch, command):
    """X2: whoever may write into the working directory would be told everything."""
    make_stack(address, runs=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert run(command.split()) == 4
    error = capsys.readouterr().err
    assert error.startswith("error: STACK_NOT_TRUSTED: .loraplane is another user's; ")
    assert error.count("\n") == 1


def test_what_needs_no_admin_service_minds_no_stack(unnamed, address, capsys):
    make_stack(address, runs=False)
    assert run(["digest", "nothing"]) != 6
    assert "STACK" not in capsys.readouterr().err


@pytest.mark.parametrize("given", ["10", "30", "60"])
def test_a_change_ends_as_well_once_etcd_is_known_to_be_away(cli, admin, monkeypatch, given):
    """W8 no-false-fail: it may have been made, so the error says how that is settled; who gives a time waits."""
    held = threading.Event()

    async def says_so(_calls: object) -> bool:
        return True

    def slow(request: pb.ApplyAdaptersRequest) -> object:
        held.wait(60)
        return applied(request)

    monkeypatch.delenv("LORAPLANE_TIMEOUT")
    monkeypatch.setattr("registry.cli.client._ASK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr("registry.cli.client._is_without_etcd", says_so)
    admin.answers["ApplyAdapters"] = [slow]
    ran = cli("delete", "adapter", "a", "--pool", "dev", "--request-id", "q1")
    held.set()
    assert ran.code == 6
    assert "ETCD_UNAVAILABLE: the admin service at" in ran.err
    assert "--request-id q1" in ran.err
    assert cli("delete", "adapter", "a", "--pool", "dev", "--timeout", given).code == 0


def test_an_answer_that_takes_long_is_waited_for_where_nobody_says_that_etcd_is_away(cli, admin, monkeypatch):
    monkeypatch.delenv("LORAPLANE_TIMEOUT")
    monkeypatch.setattr("registry.cli.client._ASK_AFTER_SECONDS", 0.0)
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="a")])]
    admin.answers["GetPool"] = [pb.Pool(name="a")]
    assert cli("-o", "name", "get", "pools").out == "a\n"
    assert cli("-o", "name", "get", "pool", "a").out == "a\n"


def test_clients_have_one_thread_among_them(address):
    """R16 bounded: whoever asks many services, as completion and doctor do, holds nothing that it is done with."""

    def threads() -> int:
        return sum(one.name == "loraplane-client" for one in threading.enumerate())

    with AdminClient(address, Tls(), timeout_seconds=60.0), AdminClient(address, Tls(), timeout_seconds=60.0):
        assert threads() == 1
    assert threads() == 1
