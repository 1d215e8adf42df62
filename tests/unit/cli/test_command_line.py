"""The command line: its flags and variables, what it says of itself, and what was probably meant."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.cli import completion
from registry.cli.failure import CliError
from registry.cli.main import make_command, run
from registry.cli.options import (
    GLOBAL_OPTIONS,
    form_asked,
    global_options_first,
    long_name,
    pairs,
    relabel,
    set_given,
    variable_from,
)
from registry.runtime.program import variable_of
from registry.v1 import registry_pb2 as pb
from tests.support import cli_page, man_page
from tests.support.cli_examples import STORY
from tests.support.cli_page import commands

# Of all that the command line may say, what the environment may say too: nothing of it is written into a record.
WHERE_AND_WHO = (
    "--context --admin --tls-ca --tls-cert --tls-key --token-file --token-command --pool --output --timeout "
    "--sidecar-token-file --look-seconds --credentials "
    "--hf-endpoint --etcd --etcd-tls-ca --etcd-tls-cert --etcd-tls-key --etcd-user --etcd-password-file"
).split()


def test_only_what_says_where_things_are_has_a_variable_and_only_the_root_what_may_stand_anywhere(capsys):
    """All else of flags, their helps and bounds too, is on the page of the commands."""
    of_root = {name for flag in make_command().params for name in flag.opts}
    assert of_root - {"--version"} == GLOBAL_OPTIONS
    for path, command in commands().items():
        flags = {flag.opts[-1]: flag for flag in command.params if flag.param_type_name == "option"}
        assert not {name for flag in flags.values() for name in flag.opts} & GLOBAL_OPTIONS or (
            path == "config set-context"
        )
        for long, flag in flags.items():
            # Contexts and signatures are written: what they name is said, not found in the environment.
            is_asked = long in WHERE_AND_WHO and path != "config set-context" and (path, long) != ("sign", "--pool")
            assert (flag.envvar, bool(flag.help)) == (variable_of(long) if is_asked else None, True), (path, long)
    assert (run(["--version"]), capsys.readouterr().out.startswith("loraplane ")) == (0, True)
    spec = pb.AdapterSpec(priority=3, load="lazy")
    set_given(spec, priority=0, load=None, base_model="b")
    assert spec == pb.AdapterSpec(load="lazy", base_model="b")
    assert (long_name(("-o", "--output")), long_name(("--require/--no-require",))) == ("--output", "--require")
    assert (variable_from("--pool"), variable_from("--priority")) == ("LORAPLANE_POOL", None)


@given(st.lists(st.sampled_from(["-o", "json", "--admin", "a:1", "--", "get", "-f", "x", "-oyaml", "--output=name"])))
def test_nothing_is_lost_or_made_up(arguments):
    first, rest = global_options_first(arguments)
    assert sorted([*first, *rest]) == sorted(arguments)


@pytest.mark.parametrize(
    ("line", "first", "rest", "form"),
    [
        ("get pools", "", "get pools", "other"),
        ("-o json get pools", "-o json", "get pools", "json"),
        ("get -ojson pools --admin=a:1", "-ojson --admin=a:1", "get pools", "json"),
        ("get --output yaml pools --admin a:1 -w", "--output yaml --admin a:1", "get pools -w", "yaml"),
        ("get --tls-ca ca --tls-cert c --tls-key k", "--tls-ca ca --tls-cert c --tls-key k", "get", "other"),
        ("get -- -o json", "", "get -- -o json", "other"),
        ("get --other=1 -o", "-o", "get --other=1", ""),
        ("get pools --other", "", "get pools --other", "other"),
        ("get --context prod pools", "--context prod", "get pools", "other"),
        ("get --output=json --admin json", "--output=json --admin json", "get", "json"),
        ("-o json get -o=yaml", "-o json -o=yaml", "get", "yaml"),
    ],
)
def test_global_options_are_found_wherever_they_stand_and_the_last_says_the_form_of_an_error(line, first, rest, form):
    assert global_options_first(line.split()) == (first.split(), rest.split())
    assert form_asked(first.split(), "other") == form


@pytest.mark.parametrize(
    ("words", "labels", "relabelled"),
    [
        ("", {}, {"a": "1", "b": "2"}),
        ("a-", None, {"b": "2"}),
        ("c-", None, {"a": "1", "b": "2"}),
        ("a=3 c=", {"a": "3", "c": ""}, {"a": "3", "b": "2", "c": ""}),
        ("a=x-=b", {"a": "x-=b"}, {"a": "x-=b", "b": "2"}),
        ("a- a=5", None, {"a": "5", "b": "2"}),
        ("a=5 a-", None, {"b": "2"}),
        ("a=5 a=6", {"a": "6"}, {"a": "6", "b": "2"}),
    ],
)
def test_labels_are_said_set_and_taken_away(words, labels, relabelled):
    found = {"a": "1", "b": "2"}
    relabel("", found, words.split())
    assert found == relabelled
    if labels is not None:
        assert pairs("--label ", words.split()) == labels
    else:
        with pytest.raises(CliError, match=r": --label [ac]-: write KEY=VALUE$"):
            pairs("--label ", words.split())
    for word in ("-", "a", "=1", "=-"):
        with pytest.raises(CliError, match="KEY=VALUE to set it, KEY- to take it away"):
            relabel("", found, [word])
    assert found == relabelled


ROOT = Path(__file__).parents[3]


def listed(request: pb.ListAdaptersRequest) -> pb.ListAdaptersResponse:
    prefix = request.filter.removeprefix("name=").removesuffix("*")
    names = [f"{request.pool}-sql", f"{request.pool}-legal"]
    return pb.ListAdaptersResponse(adapters=[pb.Adapter(name=one) for one in names if one.startswith(prefix)])


@pytest.fixture
def tab(admin, address, capsys, monkeypatch):
    """What Tab offers at the end of a line, in bash."""
    pools = [pb.Pool(name="dev"), pb.Pool(name="ops")]
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=pools)]
    admin.answers["ListAdapters"] = [listed]
    admin.answers["ListReplicas"] = [
        lambda asked: pb.ListReplicasResponse(replicas=[pb.Replica(name=f"{asked.pool}-r1")])
    ]
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=[pb.Tenant(name="acme")])]
    monkeypatch.setattr(completion, "SECONDS", 60.0)
    monkeypatch.setenv("LORAPLANE_ADMIN", address)
    monkeypatch.setenv("_LORAPLANE_COMPLETE", "bash_complete")

    def press(line: str) -> list[str]:
        words = f"loraplane {line}"
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - (not words.endswith(" "))))
        with pytest.raises(SystemExit):
            run([])
        return [one.removeprefix("plain,") for one in capsys.readouterr().out.split()]

    return press


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        *(("expl", ["explain"]), ("describe ", ["adapter", "pool", "replica"]), ("retry ", ["adapter"])),
        ("get ", ["adapters", "replicas", "pools", "tenants"]),
        ("get adapters ", ["dev-sql", "dev-legal", "ops-sql", "ops-legal"]),
        *(("get adapters DEV-S", []), ("get adapters dev-s", ["dev-sql"])),
        ("get adapters --pool ops ops-", ["ops-sql", "ops-legal"]),
        *(("get replicas ", ["dev-r1", "ops-r1"]), ("get pools o", ["ops"]), ("get tenants ", ["acme"])),
        *((f"{line} dev-l", ["dev-legal"]) for line in ("delete", "rollout", "events")),
        *((f"{line} dev-l", ["dev-legal"]) for line in ("disable", "enable", "why", "diff", "audit", "label", "set")),
        ("diff dev-legal ", []),
        *((f"{line} --pool dev ", ["dev-r1"]) for line in ("describe replica", "drain")),
        *((f"{line} --replica ops", ["ops-r1"]) for line in ("events", "retry adapter x")),
        *((line, ["dev", "ops"]) for line in ("history --pool ", "pool delete ")),
        *(("pool create ", []), ("add ", []), ("get nonsense ", []), ("dev u", ["up"]), ("apply --pru", ["--prune"])),
        ("get adapters -o js", ["json"]),
        ("get adapters -o ", ["table", "wide", "json", "yaml", "name", "manifest", "custom-columns="]),
        ("get -o json adapters dev-s", ["dev-sql"]),
    ],
)
def test_tab_offers_what_exists(tab, line, offered):
    assert tab(line) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(tab, monkeypatch, shell, capsys):
    """Where there is no service, Tab says nothing."""
    monkeypatch.setattr(completion, "SECONDS", 0.2)
    monkeypatch.setenv("LORAPLANE_ADMIN", "127.0.0.1:1")
    assert (tab("get adapters "), capsys.readouterr().err) == ([], "")
    monkeypatch.delenv("_LORAPLANE_COMPLETE")
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_LORAPLANE_COMPLETE={shell}_complete" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_pages_and_the_schema_are_those_of_the_code(capsys):
    """What the commands show is compared by tests/integration/devstack/test_cli_page.py; each has an example."""
    assert cli_page.without_examples(cli_page.PAGE.read_text()) == cli_page.page({}), "run: make docs"
    assert man_page.PAGE.read_text() == man_page.page(), "run: make docs"
    alone = {path for path, command in cli_page.commands().items() if not getattr(command, "commands", None)}
    assert {step.command for step in STORY if "loraplane" in step.line} == alone
    requests = {line.split()[0] for line in man_page.page().splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".B", ".PP", ".TP"}, "a request of troff that is none is left out"
    printed = capsys.readouterr().out if run(["schema"]) == 0 else ""
    assert (ROOT / "docs/manifest.schema.json").read_text() == printed, "run: make docs"
    schema = json.loads(printed)
    assert schema["required"] == ["apiVersion", "kind", "metadata", "spec"]
    assert "labels" not in schema["$defs"]["ManifestSpec"]["properties"]


# What stands there, and (behind a dash) what does not.
EXPLAINED = {
    "": ["Usage: loraplane"],
    "explain": ["required, loraplane/v1", "metadata", "TAKES: mapping One adapter as a file describes it."],
    "explain adapter.spec.placement": ['DEFAULT: {"replicas": "all"', "all or number from 1 to 10000"],
    "explain adapters.spec.load": ["FIELD: adapter.spec.load", "TAKES: eager, lazy", "DEFAULT: eager", "- MEANING"],
    "explain adapter.spec.priority": ["FIELD: adapter.spec.priority", "DEFAULT: 0"],
    "explain adapter.spec.strategy -R": ["canary.replicas", "required, number from 1 to 10000 or text"],
    "explain adapter.spec.source": ["FIELD ", "uri required,", "- digest required"],
    "explain adapter.spec.source.digest": ["TAKES: text", "64 lower-case hex digits", "- DEFAULT"],
    "explain adapter.spec.credentials": ["FIELD: adapter.spec.credentials", "TAKES: text", "- DEFAULT"],
    "explain adapter.spec": ["source", "- source.uri"],
    "explain adapter.spec -R": ["source.uri", "placement.replicas", "expect.answers.prompt"],
    "-o name explain adapter.spec.placement": ["replicas selector"],
    "-o name explain ADAPTERS": ["apiVersion kind metadata spec"],
    "-o json explain adapter.spec.placement.replicas": ['"default": "all"', '"$defs"'],
    "-o json explain": ['"apiVersion"', '"properties"'],
}


@pytest.mark.parametrize("line", EXPLAINED)
def test_explain(line, capsys):
    assert run(line.split()) == 0
    printed = capsys.readouterr().out
    words = " ".join(printed.split())
    assert ("\n\nFIELD" in printed) is ("FIELD TAKES MEANING" in words)
    absent = [one for one in EXPLAINED[line] if one.startswith("- ") == (one.removeprefix("- ") in words)]
    assert (absent, printed.endswith("\n\n")) == ([], False)
