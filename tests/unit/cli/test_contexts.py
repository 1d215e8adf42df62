"""Contexts: which admin service a command talks to, who knows of it, and what is asked in a protected one."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from registry.cli.contexts import context_path
from registry.cli.main import run
from registry.cli.session import GlobalOptions, session_from
from registry.cli.views.output import Format, Output
from registry.client.address import Tls
from registry.v1 import registry_pb2 as pb
from tests.support.ran import Ran
from tests.unit.cli.fake_admin import FakeAdmin, applied, served
from tests.unit.cli.test_sets import Terminal


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """Runs `loraplane` with no address but what the test names, and with a file of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LORAPLANE_ADMIN", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "etc"))
    monkeypatch.setenv("LORAPLANE_LOOK_SECONDS", "0")

    def loraplane(line: str, *more: str) -> Ran:
        code = run([*line.split(), *more])
        captured = capsys.readouterr()
        return Ran(int(code), captured.out, captured.err)

    return loraplane


@pytest.fixture
def prod(call, address, admin, tmp_path):
    """The context prod, of the service that answers; its file."""
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse()]
    assert call(f"config set-context prod --admin {address} --pool dev").code == 0
    return tmp_path / "etc/loraplane/config.json"


def test_the_file_is_for_its_owner_alone(prod):
    assert stat.S_IMODE(prod.stat().st_mode) == 0o600
    assert list(prod.parent.iterdir()) == [prod]


def test_its_place(monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("LORAPLANE_CONFIG", raising=False)
    monkeypatch.setenv("HOME", "/home/kim")
    assert str(context_path()) == "/home/kim/.config/loraplane/config.json"
    monkeypatch.setenv("LORAPLANE_CONFIG", "/x/c.json")
    assert str(context_path()) == "/x/c.json"


def test_what_is_set_is_told_with_whether_commands_use_it(call):
    """The first is used at once; which is used is told of each, however often it is set."""
    lines = ("config set-context a --admin a:1", "config set-context a --pool p", "config set-context b --admin b:1")
    assert [call(f"-o json {line}").json["current"] for line in lines] == [True, True, False]
    shown = call("-o json config get-contexts").json["items"]
    assert [(one["name"], one["current"]) for one in shown] == [("a", True), ("b", False)]


def test_set_use_get_and_delete(call, prod, tmp_path):
    ran = call("-o json config set-context next --admin n:7600 --protected --tls-ca ca.pem --tls-cert c --tls-key k")
    assert (ran.code, ran.json["current"]) == (0, False)
    assert (ran.json["tls_ca"], ran.json["protected"]) == (str(tmp_path / "ca.pem"), True)
    assert call("config use-context next").code == 0
    assert call("config set-context next --no-protected").code == 0
    shown = call("-o json config get-contexts").json["items"]
    assert [(one["name"], one["current"], one["protected"], one["admin"]) for one in shown[:1]] == [
        ("next", True, False, "n:7600")
    ]
    assert "*" in call("config get-contexts").out
    assert call("config delete-context next").out == "next\n"
    assert json.loads(prod.read_text())["current"] == ""
    assert call("-o name config get-contexts").out == "prod\n"
    assert call("config delete-context prod").code == 0
    assert call("get pools --context prod").err.startswith(
        "error: USAGE: there is no context 'prod' (there is none yet)"
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("config set-context new", "needs --admin"),
        ("config set-context new --admin nonsense", "HOST:PORT"),
        ("config use-context new", "there is no context 'new' (known: prod)"),
        ("config delete-context new", "there is no context 'new'"),
        ("--context new get pools", "there is no context 'new'"),
        ("--context prod --admin a:1 get pools", "name one"),
    ],
)
def test_what_is_no_context(call, prod, line, told):
    before = prod.read_text()
    ran = call(line)
    assert (ran.code, told in ran.err, prod.read_text() == before) == (2, True, True)


def test_the_context_names_service_and_pool(call, prod, admin):
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev"), pb.Pool(name="ops")])]
    ran = call("add sql --source s3://b/sql")
    assert ran.code == 0
    assert admin.asked("ApplyAdapters")[0].pool == "dev"
    assert call("add sql --source s3://b/sql --pool ops").code == 0
    assert admin.asked("ApplyAdapters")[1].pool == "ops"


def test_what_is_changed_without_a_name_is_told(call, prod, address):
    """Nobody changes production in the belief that it is another."""
    told = f"context: prod ({address})\n"
    assert told in call("add sql --source s3://b/sql").err
    assert told not in call("add sql --source s3://b/sql --context prod").err
    assert told not in call("add sql --source s3://b/sql --dry-run").err
    assert told not in call("get adapters").err
    assert call("-o json add sql --source s3://b/sql").err == ""


def test_a_variable_is_no_name_on_the_command_line(call, prod, monkeypatch):
    call("config set-context other --admin o:1")
    call("config use-context other")
    monkeypatch.setenv("LORAPLANE_CONTEXT", "prod")
    assert "context: prod" in call("add sql --source s3://b/sql").err
    monkeypatch.setenv("LORAPLANE_ADMIN", "a:1")
    assert "name one" in call("get pools").err
    assert call("get pools --context prod").code == 0


def test_an_address_that_is_named_is_not_the_context(call, prod, admin, monkeypatch):
    """Neither its service, nor its pool, certificates or protection."""
    call("config set-context prod --admin nobody:1 --pool elsewhere --protected --tls-ca nowhere")
    fresh = FakeAdmin()
    fresh.answers["ApplyAdapters"] = [applied]
    with served(fresh) as address:
        assert call(f"--admin {address} delete sql").code == 0
        monkeypatch.setenv("LORAPLANE_CONTEXT", "prod")
        assert call(f"--admin {address} delete sql").code == 0
        monkeypatch.delenv("LORAPLANE_CONTEXT")
        monkeypatch.setenv("LORAPLANE_ADMIN", address)
        assert call("delete sql").code == 0
    assert [request.pool for request in fresh.asked("ApplyAdapters")] == ["dev"] * 3


def test_the_stack_of_this_folder_goes_before_the_current_context(call, prod, tmp_path, admin):
    """A tour in a folder of its own does not change production."""
    (tmp_path / ".loraplane").mkdir(mode=0o700)
    (tmp_path / ".loraplane/stack.json").write_text("{}")
    ran = call("add sql --source s3://b/sql")
    assert (ran.code, "does not run" in ran.err, admin.asked("ApplyAdapters")) == (6, True, [])
    assert call("add sql --source s3://b/sql --context prod").code == 0


def test_typed_certificates_go_before_those_of_the_context(call, prod):
    call("config set-context prod --tls-ca missing.pem")
    assert "missing.pem" in call("get pools").err
    assert "other.pem" in call("get pools --tls-ca other.pem").err


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_each_certificate_that_is_typed_goes_before_its_own_alone(call, prod, name):
    call("config set-context prod --admin h:1 --tls-ca /c/ca --tls-cert /c/cert --tls-key /c/key")
    call("config use-context prod")
    typed, kept = Path(f"/t/{name}"), {one: Path(f"/c/{one}") for one in ("ca", "cert", "key")}
    given = GlobalOptions(None, None, Output(Format.TABLE), Tls(**{name: typed}), [f"tls_{name}"])
    assert session_from(given, "get").tls == Tls(**(kept | {name: typed}))


@pytest.mark.parametrize("variable", ["LORAPLANE_CONTEXT", "LORAPLANE_ADMIN"])
def test_a_variable_that_is_empty_names_nothing(call, prod, monkeypatch, admin, variable):
    """As a shell has it where something was not set."""
    call("config use-context prod")
    monkeypatch.setenv(variable, "")
    assert call("get pools").code == 0
    assert admin.asked("ListPools")


def test_a_context_that_is_typed_empty_is_none(call, prod, address, admin):
    """As a script has it where its variable was not set."""
    assert call(f"get pools --admin {address}", "--context", "").code == 0
    assert admin.asked("ListPools")


@pytest.mark.parametrize(
    "line",
    ["delete sql", "delete -f f.yaml", "pool delete dev", "pool confirm-removals dev --revision 5"],
)
def test_what_removes_is_asked_about_where_it_is_protected(call, prod, admin, manifest, monkeypatch, line):
    manifest("a", file="f.yaml")
    admin.answers["DeletePool"] = [pb.DeletePoolResponse(revision=9)]
    admin.answers["ConfirmRemovals"] = [pb.Pool(name="dev")]
    assert call("config set-context prod --protected").code == 0
    ran = call(line)
    assert (ran.code, "in the protected context prod" in ran.err) == (2, True)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert call(line).code == 130
    assert [name for name, _ in admin.requests if name.startswith(("Apply", "Delete", "Confirm"))] == []
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert call(line).code == 0
    assert call(f"{line} --yes").code == 0
    assert call(f"{line} --dry-run").code == 0
    call("config set-context prod --no-protected")
    assert call(line).code == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "has not the form"),
        ("[]", "has not the form"),
        ('{"current": "", "contexts": {"a": {"admin": "a:1", "protectd": true}}}', "protectd"),
        ('{"current": "", "contexts": {"a": {"admin": "a:1", "protected": "yes"}}}', "protected has another type"),
        ('{"current": "", "contexts": {"a": {}}}', "admin"),
        ("[" * 200_000, "has not the form"),
    ],
)
def test_a_file_that_cannot_be_understood_is_not_guessed_at(call, prod, text, told):
    prod.write_text(text)
    ran = call("get pools")
    assert (ran.code, told in ran.err, ran.err.count("\n")) == (2, True, 1)
    assert call("explain adapter").code == 0


def test_a_file_that_others_may_write_is_not_believed(call, prod):
    """It says whom commands talk to, and with which certificates."""
    prod.chmod(0o620)
    ran = call("get pools")
    assert (ran.code, "may be written by others" in ran.err) == (4, True)
    prod.chmod(0o600)
    prod.parent.chmod(0o770)
    assert call("get pools").code == 4


def test_a_file_that_cannot_be_read_or_written(call, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir(mode=0o700)
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "folder"))
    tmp_path.chmod(0o700)
    assert "cannot read" in call("get pools").err
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "file/config.json"))
    assert "cannot write" in call("config set-context prod --admin a:1").err


def test_contexts_are_completed(call, prod, monkeypatch, capsys):
    monkeypatch.setenv("_LORAPLANE_COMPLETE", "complete_bash")
    for line, word in (("loraplane config use-context p", "3"), ("loraplane get pools --context p", "4")):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", word)
        with pytest.raises(SystemExit):
            run([])
        assert capsys.readouterr().out == "prod\n"


def test_names_are_completed_where_the_context_is_typed_empty(call, prod, address, admin, monkeypatch, capsys):
    """As the command that is typed would be carried out: an empty one beside an address is no second name."""
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[pb.Adapter(name="sql", pool="dev")])]
    monkeypatch.setattr("registry.cli.completion.SECONDS", 60.0)
    monkeypatch.setenv("_LORAPLANE_COMPLETE", "complete_bash")
    words = ["loraplane", "--admin", address, "--context", "''", "get", "adapters", "s"]
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        run([])
    assert capsys.readouterr().out == "sql\n"
