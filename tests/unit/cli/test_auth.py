"""The commands of auth, and how a token comes to the admin service."""

from __future__ import annotations

import json
import sys

import pytest

from registry.access.questions import Verb
from registry.access.roles import AccessRole
from registry.cli.commands.auth import usual_resource
from registry.cli.main import run
from registry.v1 import registry_pb2 as pb

PUBLISHER = {"role": "publisher", "binding": 3, "tenants": ["acme"], "pools": ["qwen-*"], "credentials": ["acme-*"]}
PUBLISHER["sources"] = ["s3://adapters/acme/"]
ME = pb.WhoAmIResponse(
    access_digest="sha256:1",
    principal="ci:job",
    credential="token",
    groups=["ci:ml", "ci:ops"],
    roles=[
        pb.HeldRole(**PUBLISHER),
        pb.HeldRole(role="pool-operator", binding=4, pools=["*"]),
        pb.HeldRole(role="backup", pools=["*"]),
    ],
)
SHOWN = (("authorization", "Bearer secret"),)


def test_whoami_tells_name_credential_groups_and_roles(cli, admin):
    admin.answers["WhoAmI"] = [ME]
    assert cli("auth", "whoami").lines == [
        "principal: ci:job",
        "credential: token",
        "groups: ci:ml, ci:ops",
        "ROLE BINDING TENANTS POOLS SOURCES",
        "publisher 3 acme qwen-* s3://adapters/acme/",
        "pool-operator 4 - * -",
        "backup - - * -",
    ]
    told = cli("auth", "whoami", "-o", "json").json
    assert (told["principal"], told["groups"], told["access_digest"]) == ("ci:job", ["ci:ml", "ci:ops"], "sha256:1")
    assert told["roles"][0] == PUBLISHER
    assert cli("auth", "whoami", "-o", "name").out == "ci:job\n"
    admin.answers["WhoAmI"] = [pb.WhoAmIResponse(access_digest="sha256:1", principal="bob", credential="certificate")]
    assert cli("auth", "whoami").lines[2:] == ["groups: -", "no role: no binding of the access file names you"]
    admin.answers["WhoAmI"] = [pb.WhoAmIResponse(principal="anonymous")]
    assert "no access file, so everybody may do everything" in cli("auth", "whoami").out


@pytest.mark.parametrize(
    ("answer", "code", "plain", "verbose"),
    [
        (pb.CheckAccessResponse(allowed=True, role="publisher", binding=3), 0, "yes", "yes: publisher by binding 3"),
        (pb.CheckAccessResponse(allowed=True, role="operator"), 0, "yes", "yes: operator"),
        (pb.CheckAccessResponse(allowed=True), 0, "yes", "yes: no role is needed"),
        (
            pb.CheckAccessResponse(roles=["publisher", "restorer"]),
            4,
            "no",
            "no: the role publisher or restorer allows it",
        ),
        (pb.CheckAccessResponse(), 4, "no", "no: no role allows it"),
    ],
)
def test_can_i_tells_yes_or_no_and_why(cli, admin, answer, code, plain, verbose):
    admin.answers["CheckAccess"] = [answer]
    for more, out in (((), plain), (("-v",), verbose)):
        ran = cli("auth", "can-i", "apply", "acme/a", *more)
        assert (ran.code, ran.out, ran.err) == (code, f"{out}\n", "")
    ran = cli("auth", "can-i", "apply", "acme/a", "-o", "json")
    by = {"role": answer.role, "binding": answer.binding} if answer.role else None
    asked = {"verb": "apply", "resource": "adapters"}
    assert (ran.code, ran.json) == (code, {"allowed": answer.allowed, "by": by, "roles": [*answer.roles], **asked})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("delete acme/a", "note: delete is about pools; whether an adapter may be deleted tells the verb apply\n"),
        ("update dev", "note: update is about pools and tenants; name one with --resource\n"),
        *((line, "") for line in ("delete dev --resource pools", "drain r1", "apply acme/a", "get acme/a", "fly a")),
    ],
)
def test_can_i_says_where_it_answers_about_something_else_than_may_be_meant(cli, admin, line, told):
    """A yes for pools is none for the adapter that is to be deleted."""
    admin.answers["CheckAccess"] = [pb.CheckAccessResponse(allowed=True)]
    assert cli("auth", "can-i", *line.split()).err == told
    assert cli("-o", "json", "auth", "can-i", *line.split()).err == ""


def test_can_i_asks_what_is_said(cli, admin):
    admin.answers["CheckAccess"] = [pb.CheckAccessResponse(allowed=True)]
    cli("auth", "can-i", "apply")
    cli(*"auth can-i list a --resource changes --pool p --source s3://b/a --as ci:x --as-group g --as-group h".split())
    assert admin.asked("CheckAccess") == [
        pb.CheckAccessRequest(verb="apply", resource="adapters"),
        pb.CheckAccessRequest(
            verb="list", resource="changes", name="a", pool="p", source="s3://b/a", user="ci:x", groups=["g", "h"]
        ),
    ]


def test_a_verb_that_changes_one_resource_means_that():
    found = {verb: usual_resource(verb) for verb in Verb}
    assert found == {
        **dict.fromkeys(("apply", "retry", "rollback", "get", "list", "watch", "check", "update"), "adapters"),
        **dict.fromkeys(("create", "delete", "require", "confirm-removals"), "pools"),
        **dict.fromkeys(("drain", "forget"), "replicas"),
        **dict.fromkeys(("promote", "abort"), "rollouts"),
        "restore": "history",
        "repair": "tenants",
    }
    assert usual_resource("fly") == "adapters"


def test_the_table_has_each_role_and_asks_nobody(cli, admin):
    lines = cli("auth", "table").lines
    assert [line.split()[0] for line in lines[1:]] == [*AccessRole]
    assert next(line for line in lines if line.startswith("router")).endswith(
        "get residency; list residency; watch residency"
    )
    told = cli("auth", "table", "-o", "json").json["items"]
    assert {one["role"]: one["actions"] for one in told}["backup"] == {"get": ["backups"]}
    assert admin.requests == []


def test_a_token_is_shown_by_flag_variable_and_context(cli, capsys, admin, monkeypatch, tmp_path):
    """What a variable says does not go to the service of a context."""
    file, program = tmp_path / "token", tmp_path / "print it.py"
    file.write_text("secret\n")
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    program.write_text(f"print({json.dumps({**credential, 'status': {'token': 'secret'}})!r})")
    command = f"{sys.executable} '{program}'"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "etc"))
    cli("get", "pools", "--token-file", str(file))
    cli("get", "pools", "--token-command", command)
    with monkeypatch.context() as set_:
        set_.setenv("LORAPLANE_TOKEN_FILE", str(file))
        cli("get", "pools")
        assert cli("config", "set-context", "bare").code == 0
        assert run(["get", "pools", "--context", "bare"]) == 0
    with monkeypatch.context() as set_:
        set_.setenv("LORAPLANE_TOKEN_COMMAND", command)
        cli("get", "pools")
    monkeypatch.chdir(tmp_path)
    for flags in (("--token-command", command), ("--token-file", "token")):
        assert cli("config", "set-context", "prod", *flags).code == 0
        assert run(["get", "pools", "--context", "prod"]) == 0
    capsys.readouterr()
    told = cli("config", "get-contexts", "-o", "json").json["items"]
    assert {one["name"]: (one["token_file"], one["token_command"]) for one in told}["prod"] == (str(file), "")
    assert [one.metadata[0] for one in admin.channels] == [SHOWN, SHOWN, SHOWN, None, SHOWN, SHOWN, SHOWN]


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (["--token-file", "nosuch"], 4, "UNAUTHENTICATED: the token file nosuch cannot be read: No such file"),
        (["--token-command", "/nosuch"], 4, "the token command '/nosuch' cannot be run: No such file"),
        (["--token-command", "echo hello"], 4, "has to print an ExecCredential"),
        (["--token-command", "'"], 2, "--token-command: No closing quotation"),
        (["--token-command", " "], 2, "the token command is empty"),
        (["--token-command", "x", "--token-file", "y"], 2, "name one"),
        (["--token-file", "y", "--admin", "10.0.0.1:7600"], 2, "others could read it"),
    ],
)
def test_a_token_that_is_not_to_be_had_is_one_error(cli, admin, flags, code, told):
    ran = cli("get", "pools", *flags)
    assert (ran.code, told in ran.err, ran.err.count("\n"), "hello" in ran.err) == (code, True, 1, False)
    assert admin.requests == []


def test_a_context_keeps_no_command_line_that_is_none(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "etc"))
    assert cli("config", "set-context", "prod", "--token-command", "'").code == 2
    assert cli("config", "get-contexts", "-o", "name").out == ""
