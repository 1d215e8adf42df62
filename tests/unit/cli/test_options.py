"""The command line itself: its flags, their bounds, help and variables, and where global options stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.cli.command_tree import LazyCommand
from registry.cli.failure import CliError
from registry.cli.main import make_command, run
from registry.cli.options import (
    GLOBAL_OPTIONS,
    MOST_INT64,
    MOST_UINT32,
    form_asked,
    global_options_first,
    long_name,
    pairs,
    relabel,
    set_given,
    variable_from,
)
from registry.runtime.program import variable_of
from registry.tools.devstack.stack_file import StackError
from registry.v1 import registry_pb2 as pb

ROOT = make_command()

ROOT.commands = {name: child.load() for name, child in ROOT.commands.items() if isinstance(child, LazyCommand)}


def _commands(command: Any, path: str = "loraplane") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{path} {name}")


TYPERS_OWN = {"--version", "--install-completion", "--show-completion"}

COMMANDS = dict(_commands(ROOT))

FLAGS = [
    pytest.param(flag, id=f"{path} {flag.opts[0]}")
    for path, command in COMMANDS.items()
    for flag in command.params
    if flag.param_type_name == "option" and flag.opts[0] not in TYPERS_OWN
]

# Of all that the command line may say, what the environment may say too: nothing of it is written into a record.
WHERE_AND_WHO = (
    "--context --admin --tls-ca --tls-cert --tls-key --pool --output --timeout --look-seconds --credentials "
    "--hf-endpoint --etcd --etcd-tls-ca --etcd-tls-cert --etcd-tls-key --etcd-user --etcd-password-file"
).split()


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_has_its_help_and_only_what_says_where_things_are_a_variable(flag, request):
    long = next(name for name in flag.opts if name.startswith("--"))
    is_asked = long in WHERE_AND_WHO and "set-context" not in request.node.name
    assert flag.envvar == (variable_of(long) if is_asked else None)
    assert flag.help


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_says_what_it_does(path, capsys):
    assert run([*path.split()[1:], "--help"]) == 0
    assert COMMANDS[path].help.splitlines()[0] in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_commands_are_those_of_the_interface():
    expected = (
        "apply add set get describe events delete retry history rollback rollout diff check digest publish sign doctor"
        " expect"
    )
    more = "top export edit label explain schema completion config backup restore drain undrain pool replica tenant dev"
    assert set(ROOT.commands) == {*expected.split(), *more.split()}
    contexts = {f"{verb}-context" for verb in ("set", "use", "delete")}
    assert set(ROOT.commands["config"].commands) == contexts | {"get-contexts"}
    assert set(ROOT.commands["pool"].commands) >= {"create", "delete"}
    assert set(ROOT.commands["dev"].commands) == {"up", "status", "down"}


UINT32, INT64 = 4294967295, 9223372036854775807

# By command and flag: the least and the most; None: there is none.
BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "add --min-ready": (0, UINT32),
    "add --replicas": (0, None),
    "add --timeout": (0.1, None),
    "add --look-seconds": (0, None),
    "set --replicas": (0, None),
    "apply --min-ready": (0, UINT32),
    "apply --delete-limit": (1, None),
    "delete --delete-limit": (1, None),
    "restore --delete-limit": (1, None),
    "rollback --to": (0, INT64),
    "rollout --generation": (0, INT64),
    "rollout --min-ready": (0, UINT32),
    "pool create --max-rank": (0, UINT32),
    "pool create --max-adapters": (0, UINT32),
    "pool create --expect": (0, UINT32),
    "pool update --max-rank": (0, UINT32),
    "pool update --max-adapters": (0, UINT32),
    "pool update --expect": (0, UINT32),
    "pool confirm-removals --revision": (1, INT64),
    "tenant set --max-adapters": (0, UINT32),
    "check --max-rank": (1, None),
    "publish --max-rank": (1, None),
    "publish --rank": (1, None),
    "publish --max-error": (0, None),
    "publish --timeout": (0.1, None),
    "expect --tokens": (1, 16),
    "expect --tolerance": (0.0001, 10),
    "dev up --replicas": (1, 64),
}

STEP = {"--timeout": 0.01, "--tolerance": 0.00001, "--max-error": 0.01, "--look-seconds": 0.01}


@pytest.fixture
def takes(capsys, monkeypatch, tmp_path) -> Callable[[str, float], bool]:
    """Whether a flag takes a value: if it does, the next that is wrong is told, or what the command lacks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LORAPLANE_ADMIN", "127.0.0.1:1")
    monkeypatch.setattr("registry.cli.commands.dev.bring_up", lambda *_: (_ for _ in ()).throw(StackError("no")))

    def ask(flag: str, value: float) -> bool:
        path, _, name = flag.rpartition(" ")
        code = run([*path.split(), f"{name}={value}"])
        told = capsys.readouterr().err
        assert code
        return f"Invalid value for '{name}'" not in told

    return ask


@pytest.mark.parametrize("flag", BOUNDS)
def test_a_flag_takes_what_is_within_its_bounds_and_no_more(takes, flag):
    """Whatever else the command lacks: a number that no message takes, or that nobody can mean, is told as that."""
    least, most = BOUNDS[flag]
    step = STEP.get(flag.rpartition(" ")[2], 1)
    assert takes(flag, least)
    assert not takes(flag, least - step)
    if most is not None:
        assert takes(flag, most)
        assert not takes(flag, most + step)


def test_the_largest_numbers_are_those_of_the_messages():
    assert (MOST_UINT32, MOST_INT64) == (UINT32, INT64)
    assert pb.PoolLimits(max_rank=MOST_UINT32).max_rank == UINT32
    assert pb.RollbackAdapterRequest(to_generation=MOST_INT64).to_generation == INT64


@given(st.lists(st.sampled_from(["-o", "json", "--admin", "a:1", "--", "get", "-f", "x", "-oyaml", "--output=name"])))
def test_nothing_is_lost_or_made_up(arguments):
    first, rest = global_options_first(arguments)
    assert sorted([*first, *rest]) == sorted(arguments)


@pytest.mark.parametrize("arguments", [["get", "adapters", "\udcff"], ["add", "a\udcff", "--source", "s3://b/sql"]])
def test_an_argument_that_is_no_text(cli, arguments):
    ran = cli(*arguments)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "not text in UTF-8" in ran.err


def test_only_the_root_has_what_may_stand_anywhere(capsys):
    assert {name for flag in ROOT.params for name in flag.opts} - TYPERS_OWN == GLOBAL_OPTIONS
    for path, command in COMMANDS.items():
        names = {name for flag in command.params for name in flag.opts}
        assert path == "loraplane" or not names & GLOBAL_OPTIONS
    assert (run(["--version"]), capsys.readouterr().out.startswith("loraplane ")) == (0, True)


@pytest.mark.parametrize(
    ("line", "first", "rest"),
    [
        ("get pools", "", "get pools"),
        ("-o json get pools", "-o json", "get pools"),
        ("get pools -o json", "-o json", "get pools"),
        ("get -ojson pools --admin=a:1", "-ojson --admin=a:1", "get pools"),
        ("get --output yaml pools --admin a:1 -w", "--output yaml --admin a:1", "get pools -w"),
        ("get pools --tls-ca ca --tls-cert c --tls-key k", "--tls-ca ca --tls-cert c --tls-key k", "get pools"),
        ("get -- -o json", "", "get -- -o json"),
        ("get --other=1 -o", "-o", "get --other=1"),
        ("get pools --other", "", "get pools --other"),
        ("get --context prod pools", "--context prod", "get pools"),
    ],
)
def test_global_options_are_found_wherever_they_stand(line, first, rest):
    assert global_options_first(line.split()) == (first.split(), rest.split())


@pytest.mark.parametrize(
    ("first", "form"),
    [
        ("", "other"),
        ("-o json", "json"),
        ("--output json", "json"),
        ("--output=json --admin a:1", "json"),
        ("-ojson", "json"),
        ("-o=json", "json"),
        ("-o json -oyaml", "yaml"),
        ("--output json -o table", "table"),
        ("--admin json", "other"),
        ("-o", ""),
    ],
)
def test_the_form_of_an_error_is_that_of_the_last_word_about_it(first, form):
    assert form_asked(first.split(), "other") == form


@pytest.mark.parametrize(
    ("words", "found"),
    [("", {}), ("a=1 b=", {"a": "1", "b": ""}), ("a=b=c", {"a": "b=c"}), ("a=1 a=2", {"a": "2"})],
)
def test_pairs(words, found):
    assert pairs("--label ", words.split()) == found
    for word in ("a", "=1", "", "="):
        with pytest.raises(CliError) as raised:
            pairs("--label ", ["a=1", word])
        assert raised.value.failure.message == f"--label {word}: write KEY=VALUE"


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        ("a-", {"b": "2"}),
        ("c-", {"a": "1", "b": "2"}),
        ("a=3 c=4", {"a": "3", "b": "2", "c": "4"}),
        ("a=x-", {"a": "x-", "b": "2"}),
        ("a- a=5", {"a": "5", "b": "2"}),
        ("a=5 a-", {"b": "2"}),
    ],
)
def test_labels_are_set_and_taken_away(words, labels):
    found = {"a": "1", "b": "2"}
    relabel("", found, words.split())
    assert found == labels
    for word in ("-", "a", "=1", "=-"):
        with pytest.raises(CliError, match="KEY=VALUE to set it, KEY- to take it away"):
            relabel("", found, [word])
    assert found == labels


def test_only_what_is_given_is_set_and_a_flag_is_called_by_its_long_name():
    spec = pb.AdapterSpec(priority=3, load="lazy")
    set_given(spec, priority=0, load=None, base_model="b")
    assert spec == pb.AdapterSpec(load="lazy", base_model="b")
    assert (long_name(("-o", "--output")), long_name(("--require/--no-require",))) == ("--output", "--require")
    assert (variable_from("--pool"), variable_from("--priority")) == ("LORAPLANE_POOL", None)
