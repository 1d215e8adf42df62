"""Whom a command talks to and as whom: contexts, pools, request ids; and what is asked in a protected one."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path
from unittest.mock import Mock

import click
import pytest

from registry.cli import main
from registry.cli.contexts import ContextFile, load_contexts
from registry.cli.failure import CliError, CommandFailure, Exit, usage
from registry.cli.main import run
from registry.cli.removal import agree
from registry.cli.session import GlobalOptions, NamedToken, Session, pool_or_only, request_id_or_new, session_from
from registry.cli.views.output import Format, Output
from registry.client.address import Tls
from registry.client.contexts import AdminContext, context_path
from registry.client.credentials import TokenCommand, TokenFile
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin, connected
from tests.support.ran import Ran
from tests.unit.cli.conftest import Terminal


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
    assert call(f"config set-context prod --admin {address} --pool dev").code == 0
    return tmp_path / "etc/loraplane/config.json"


@pytest.mark.parametrize(
    "line",
    ["delete sql", "delete -f f.yaml", "pool delete dev", "pool confirm-removals dev --revision 5"],
)
def test_what_removes_is_asked_about_where_it_is_protected(call, prod, admin, manifest, monkeypatch, line):
    manifest("a", file="f.yaml")
    assert call("config set-context prod --protected").code == 0
    ran = call(line)
    assert (ran.code, "in the protected context prod" in ran.err) == (2, True)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert call(line).code == 130
    assert [name for name, _ in admin.requests if name.startswith(("Apply", "Delete", "Confirm"))] == []
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert (call(line).code, call(f"{line} --yes").code) == (0, 0)
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
    assert (ran.code, told in ran.err, ran.err.count("\n"), call("explain adapter").code) == (2, True, 1, 0)


CA, CERT, KEY = Path("/c/ca"), Path("/c/cert"), Path("/c/key")
PROD = AdminContext("p:1", str(CA), str(CERT), str(KEY), pool="dev", protected=True)
BARE = AdminContext("b:1")
TYPED = Tls(Path("/t/ca"), Path("/t/cert"), Path("/t/key"))


@pytest.fixture
def two(tmp_path, monkeypatch) -> ContextFile:
    """Two two, of which prod is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "c/two.json"))
    ContextFile("prod", {"prod": PROD, "bare": BARE}, path=tmp_path / "c/two.json").save()
    return load_contexts(tmp_path / "c/two.json")


def session(
    admin: str | None = None,
    context: str | None = None,
    *typed: str,
    tls: Tls | None = None,
    command: str = "get",
    token: NamedToken | None = None,
) -> Session:
    output = Output(Format.CUSTOM_COLUMNS, "NAME:.name")
    return session_from(GlobalOptions(admin, context, output, tls or Tls(), typed, token or NamedToken()), command)


CHOICES = {
    "nothing is named: the current one": ((None, None), "prod", "p:1"),
    "a context by a variable": ((None, "bare"), "bare", "b:1"),
    "a context that is typed": ((None, "bare", "named_context"), "bare", "b:1"),
    "an address by a variable": (("a:1", None), "", "a:1"),
    "an address that is typed": (("a:1", None, "admin"), "", "a:1"),
    "a typed context goes before an address by a variable": (("a:1", "bare", "named_context"), "bare", "b:1"),
    "a typed address goes before a context by a variable": (("a:1", "bare", "admin"), "", "a:1"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_what_is_typed_goes_before_variables_and_these_before_the_file(two, case):
    """So that nobody changes a service that is elsewhere."""
    given, name, admin = CHOICES[case]
    found = session(*given)
    assert (found.context_name, found.named_admin) == (name, admin)
    assert (found.form, found.template, found.waits) == (Format.CUSTOM_COLUMNS, "NAME:.name", False)
    assert found.context == (two.contexts[name] if name else None)
    assert (found.is_context_typed, found.is_protected) == ("named_context" in given, name == "prod")


PLAIN = Session("a:1", Format.TABLE, Tls())
PROTECTED = Session("a:1", Format.TABLE, Tls(), PROD, "prod")


def test_what_is_set_is_told_with_whether_commands_use_it(call, tmp_path):
    """The first is used at once; which is used is told of each. The file is for its owner alone."""
    for line in ("a --admin a:1", "a --pool p"):
        assert call(f"-o json config set-context {line}").json["current"] is True
    ran = call("-o json config set-context b --admin b:1 --protected --tls-ca ca.pem --tls-cert c --tls-key k")
    told = (ran.json["current"], ran.json["tls_ca"], ran.json["protected"])
    assert told == (False, str(tmp_path / "ca.pem"), True)
    columns, a, b = "CURRENT NAME ADMIN POOL TLS PROTECTED", "a a:1 p no no", "b b:1 - yes yes"
    assert call("config get-contexts").lines == [columns, f"* {a}", b]
    for flags in ("--tls-ca ca.pem", "--tls-cert c --tls-key k"):
        assert call(f"config set-context c --admin c:1 {flags}").lines[1] == "c c:1 - yes no"
        assert call("config delete-context c").code == 0
    assert (call("config use-context b").lines[1], call("config set-context b --no-protected").code) == (f"* {b}", 0)
    shown = call("-o json config get-contexts").json["items"]
    told = [(one["name"], one["current"], one["protected"]) for one in shown]
    assert told == [("a", False, False), ("b", True, False)]
    assert (call("config delete-context b").out, call("-o name config get-contexts").out) == ("b\n", "a\n")
    file = tmp_path / "etc/loraplane/config.json"
    assert (json.loads(file.read_text())["current"], [*file.parent.iterdir()]) == ("", [file])
    assert [stat.S_IMODE(one.stat().st_mode) for one in (file, file.parent)] == [0o600, 0o700]
    assert call("config delete-context a").code == 0
    assert call("get pools --context a").err.startswith("error: USAGE: there is no context 'a' (there is none yet)")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("config set-context new", "needs --admin"),
        ("config set-context new --admin nonsense", "HOST:PORT"),
        ("config use-context new", "there is no context 'new' (known: prod)"),
        ("config delete-context new", "there is no context 'new'"),
        ("--context new get pools", "there is no context 'new'"),
        ("--context prod --admin a:1 get pools", "name one"),
        ("get pools --tls-ca other.pem", "other.pem"),
    ],
)
def test_what_is_no_context(call, prod, line, told):
    before = prod.read_text()
    ran = call(line)
    assert (ran.code, told in ran.err, prod.read_text() == before) == (2, True, True)


def test_an_address_that_is_named_is_not_the_context(call, prod, admin, address, monkeypatch):
    """Neither its service, nor its pool, certificates or protection; what is empty, as of a script, names nothing."""
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev"), pb.Pool(name="ops")])]
    for flags, pool in (("", "dev"), (" --pool ops", "ops")):
        assert (call(f"add sql --source s3://b/sql{flags}").code, admin.asked("ApplyAdapters")[-1].pool) == (0, pool)
    for variable in ("LORAPLANE_CONTEXT", "LORAPLANE_ADMIN"):
        monkeypatch.setenv(variable, "")
        assert call("get pools").code == 0
    assert call(f"get pools --admin {address}", "--context", "").code == 0
    call("config set-context prod --admin nobody:1 --pool elsewhere --protected --tls-ca nowhere")
    fresh = FakeAdmin()
    with connected(fresh) as other:
        assert call(f"--admin {other} delete sql").code == 0
        monkeypatch.setenv("LORAPLANE_CONTEXT", "prod")
        assert call(f"--admin {other} delete sql").code == 0
        monkeypatch.setenv("LORAPLANE_CONTEXT", "")
        monkeypatch.setenv("LORAPLANE_ADMIN", other)
        assert call("delete sql").code == 0
    assert [request.pool for request in fresh.asked("ApplyAdapters")] == ["dev"] * 3
    assert "nowhere" in call("get pools --context prod").err


def test_what_is_changed_without_a_name_is_told(call, prod, address, monkeypatch):
    """Nobody changes production in the belief that it is another; a variable is no name on the command line."""
    told, line = f"context: prod ({address})\n", "add sql --source s3://b/sql"
    assert told in call(line).err
    for quiet in (f"{line} --context prod", f"{line} --dry-run", "get adapters", f"-o json {line}"):
        assert told not in call(quiet).err
    call("config set-context other --admin o:1")
    call("config use-context other")
    monkeypatch.setenv("LORAPLANE_CONTEXT", "prod")
    assert told in call(line).err
    monkeypatch.setenv("LORAPLANE_ADMIN", "a:1")
    assert ("name one" in call("get pools").err, call("get pools --context prod").code) == (True, 0)


@pytest.mark.parametrize("line", ["set-context prod --pool x", "use-context prod", "delete-context prod"])
def test_a_file_that_cannot_be_read_or_written(call, prod, tmp_path, monkeypatch, line):
    """And what could not be written is not told as done."""
    with monkeypatch.context() as patched:
        patched.setattr("os.open", Mock(side_effect=OSError(28, "No space left on device")))
        ran = call(f"config {line}")
        assert (ran.code, ran.out, "No space left on device" in ran.err) == (2, "", True)
    (tmp_path / "folder").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "folder"))
    assert "cannot read" in call("get pools").err
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "file/config.json"))
    assert "cannot write" in call("config set-context prod --admin a:1").err


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("loraplane config use-context p", "prod\n"),
        ("loraplane get pools --context p", "prod\n"),
        *(("loraplane get adapters s", "sql\n"), ("loraplane --context none get adapters s", "\n")),
        ("loraplane --admin {} --context '' get adapters s", "sql\nsql\n"),
    ],
)
def test_contexts_and_names_are_completed(call, prod, address, admin, monkeypatch, capsys, line, offered):
    """As the command that is typed would be carried out: an empty one beside an address is no second name."""
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev"), pb.Pool(name="ops")])]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[pb.Adapter(name="sql", pool="dev")])]
    monkeypatch.setattr("registry.cli.completion.SECONDS", 60.0)
    words = line.format(address)
    environment = {"_LORAPLANE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        run([])
    assert capsys.readouterr().out.replace("plain,", "") == offered


@pytest.mark.parametrize(
    ("readable", "unreadable", "pool"),
    [("a", "", "a"), ("a", "b", "a"), ("", "b", "b"), ("ab", "", None), ("", "ab", None)],
)
def test_a_pool_may_be_left_out_where_there_is_one(client, admin, readable, unreadable, pool):
    empty = pb.ListPoolsResponse(next_page_token="n")  # noqa: S106 - of a listing
    found = pb.ListPoolsResponse(pools=[pb.Pool(name=name) for name in readable], unreadable=unreadable)
    admin.answers["ListPools"] = [empty, found]
    if pool:
        assert (pool_or_only(client, "given"), pool_or_only(client, None)) == ("given", pool)
    else:
        with pytest.raises(CliError, match=r"there are several pools \(a, b\); choose one with --pool"):
            pool_or_only(client, None)
    admin.answers["ListPools"] = [pb.ListPoolsResponse()]
    with pytest.raises(CliError, match="loraplane pool create") as raised:
        pool_or_only(client, None)
    assert raised.value.failure.exit is Exit.NOT_FOUND


@pytest.mark.parametrize(
    ("answer", "agrees"),
    [
        *((one, True) for one in ("y\n", "Y\n", "yes\n", " YES \n")),
        *((one, False) for one in ("\n", "n\n", "", "yess\n", "ja\n", None)),
    ],
)
def test_who_agrees_goes_on_and_who_does_not_or_is_not_there_changes_nothing(monkeypatch, capsys, answer, agrees):
    """A terminal shows what does not end its line only once it is flushed: before the answer is waited for."""
    monkeypatch.setattr("sys.stdin", Terminal(answer) if answer is not None else io.StringIO("y\n"))
    flushed: list[str] = []
    flush = Mock(side_effect=lambda shown=sys.stderr: flushed.append(shown.getvalue()))
    monkeypatch.setattr(sys.stderr, "flush", flush)
    if agrees:
        agree(PLAIN, ["dev/a"], yes=False)
        assert flushed[-1] == capsys.readouterr().err == "delete dev/a\ndelete 1? [y/N] "
    elif answer is None:
        with pytest.raises(
            CliError, match=r"would delete 1 in the protected context prod, and there is no terminal .*--yes$"
        ):
            agree(PROTECTED, ["dev/a"], yes=False)
    else:
        with pytest.raises(click.Abort):
            agree(PROTECTED, ["dev/a"], yes=False)
        told = "delete dev/a\ndelete 1 in the protected context prod? [y/N] note: nothing was changed\n"
        assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("ends", "code", "told"),
    [
        *((None, 0, ""), (0, 0, ""), (4, 4, ""), (usage("no"), 2, "error: USAGE: no\n")),
        (CliError(CommandFailure(Exit.CONFLICT, "R", "no", "f", {}, "q")), 5, "error: R: f: no (request id q)\n"),
        *((click.Abort(), 130, ""), (KeyboardInterrupt(), 130, "")),
    ],
)
def test_how_a_command_ends(monkeypatch, capsys, ends, code, told):
    monkeypatch.setattr(main, "make_command", lambda: Mock(main=Mock(side_effect=[ends])))
    assert (run(["get", "pools"]), capsys.readouterr()) == (code, ("", told))


def test_a_file_is_believed_where_it_should_be_and_nobody_else_may_write_it(call, prod, tmp_path, admin, monkeypatch):
    """It says whom commands talk to. The stack of this folder goes before it: a tour does not change production."""
    (tmp_path / ".loraplane").mkdir(mode=0o700)
    (tmp_path / ".loraplane/stack.json").write_text("{}")
    ran = call("add sql --source s3://b/sql")
    assert (ran.code, "does not run" in ran.err, admin.asked("ApplyAdapters")) == (6, True, [])
    assert call("add sql --source s3://b/sql --context prod").code == 0
    (tmp_path / ".loraplane/stack.json").unlink()
    for path, mode in ((prod, 0o620), (prod.parent, 0o770)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        ran = call("get pools")
        assert (ran.code, "may be written by others" in ran.err) == (4, True)
        path.chmod(before)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/kim")
    assert str(context_path()) == "/home/kim/.config/loraplane/config.json"
    monkeypatch.setenv("LORAPLANE_CONFIG", "/x/c.json")
    assert str(context_path()) == "/x/c.json"


def test_certificates_are_those_of_the_context_unless_they_are_typed(two):
    """Each by itself; a variable is of another service."""
    kept = {"ca": CA, "cert": CERT, "key": KEY}
    for name in kept:
        typed = Path(f"/t/{name}")
        found = session(None, None, f"tls_{name}", tls=Tls(**{name: typed}))
        assert found.tls == Tls(**(kept | {name: typed}))
    assert session(tls=TYPED).tls == Tls(CA, CERT, KEY)
    assert session(None, None, "tls_ca", "tls_cert", "tls_key", tls=TYPED).tls == TYPED
    assert session(None, "bare", tls=TYPED).tls == Tls(None, None, None)
    file, program = NamedToken(Path("/t/token")), NamedToken(command="print it")
    assert session(None, None, "token_file", token=file).token == TokenFile(Path("/t/token"))
    assert session(None, None, "token_command", token=program).token == TokenCommand(["print", "it"])
    assert (session(token=file).token, session("a:1", token=file).token) == (None, TokenFile(Path("/t/token")))


@pytest.mark.parametrize("command", ["completion", "config", "dev", "digest", "explain", "schema"])
def test_commands_that_ask_no_service_read_no_contexts(two, monkeypatch, command):
    """W3: of request ids one that is given stays, two that are made differ."""
    two.path.write_text("{")
    both = NamedToken(Path("/t/token"), "print it")
    assert session("a:1", "none", "admin", "named_context", command=command, token=both).context is None
    with pytest.raises(CliError):
        session()
    monkeypatch.setenv("LORAPLANE_CONFIG", str(two.path.parent / "none.json"))
    found = session(tls=TYPED)
    assert (found.context, found.context_name, found.named_admin, found.tls) == (None, "", None, TYPED)
    assert (request_id_or_new("q1"), request_id_or_new(None) != request_id_or_new(None)) == ("q1", True)
    with pytest.raises(CliError) as raised:
        request_id_or_new("")
    assert raised.value.failure.field == "--request-id"


def test_the_pool_of_a_context_counts_for_commands_of_groups_too(prod, admin, call):
    """But not for users of etcd, which no context names."""
    admin.answers["CheckAccess"] = [pb.CheckAccessResponse(allowed=True)]
    assert call("auth can-i apply acme/a").code == 0
    assert call("auth can-i apply acme/a --pool other").code == 0
    assert [one.pool for one in admin.asked("CheckAccess")] == ["dev", "other"]
    assert call("replica forget r1").code == 0
    assert [one.pool for one in admin.asked("ForgetReplica")] == ["dev"]
