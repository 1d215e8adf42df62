"""The way to the admin service, and wrong command lines."""

from __future__ import annotations

import grpc
import pytest

from registry.cli.main import run
from registry.client.connection import check_address
from registry.dev.ports import free_ports
from tests.unit.cli.fake_admin import Refusal


def test_nobody_listens(capsys):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    assert run(["--admin", address, "get", "adapters", "--timeout", "0.3"]) == 6
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


@pytest.mark.parametrize("line", ["", "pool"])
def test_without_a_command_the_commands_are_shown(capsys, line):
    assert run(line.split()) == 2
    shown = capsys.readouterr()
    assert "create" in shown.out if line else "apply" in shown.out
    assert shown.err == "error: USAGE: name a command; see loraplane --help\n"


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
