"""The least and the most that each flag takes, and in which sets of words it stands; before anybody is asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from registry.cli.failure import CliError
from registry.cli.main import run
from registry.cli.options import (
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
from registry.tools.devstack.stack_file import StackError
from registry.v1 import registry_pb2 as pb

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


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], {}),
        (["a=1", "b="], {"a": "1", "b": ""}),
        (["a=b=c"], {"a": "b=c"}),
        (["a=1", "a=2"], {"a": "2"}),
    ],
)
def test_pairs(words, found):
    assert pairs("--label ", words) == found


@pytest.mark.parametrize("word", ["a", "=1", "", "="])
def test_what_is_no_pair_is_named_with_its_flag(word):
    with pytest.raises(CliError) as raised:
        pairs("--label ", ["a=1", word])
    assert raised.value.failure.message == f"--label {word}: write KEY=VALUE"


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (["a-"], {"b": "2"}),
        (["c-"], {"a": "1", "b": "2"}),
        (["a=3", "c=4"], {"a": "3", "b": "2", "c": "4"}),
        (["a=x-"], {"a": "x-", "b": "2"}),
        (["a-", "a=5"], {"a": "5", "b": "2"}),
        (["a=5", "a-"], {"b": "2"}),
    ],
)
def test_labels_are_set_and_taken_away(words, labels):
    found = {"a": "1", "b": "2"}
    relabel("", found, words)
    assert found == labels


@pytest.mark.parametrize("word", ["-", "a", "=1", "=-"])
def test_what_neither_sets_nor_takes_away_is_refused(word):
    found = {"a": "1"}
    with pytest.raises(CliError, match="KEY=VALUE to set it, KEY- to take it away"):
        relabel("", found, [word])
    assert found == {"a": "1"}


@pytest.mark.parametrize(
    ("first", "form"),
    [
        ([], "other"),
        (["-o", "json"], "json"),
        (["--output", "json"], "json"),
        (["--output=json"], "json"),
        (["-ojson"], "json"),
        (["-o=json"], "json"),
        (["-o", "json", "-oyaml"], "yaml"),
        (["--admin", "a:1"], "other"),
        (["-o"], ""),
    ],
)
def test_the_form_that_is_asked_for(first, form):
    assert form_asked(first, "other") == form


@pytest.mark.parametrize(
    ("line", "first", "rest"),
    [
        ("get pools -o json", "-o json", "get pools"),
        ("get pools -ojson --admin=a:1", "-ojson --admin=a:1", "get pools"),
        ("get -- -o json", "", "get -- -o json"),
        ("get --other=1 -o", "-o", "get --other=1"),
        ("get --context prod pools", "--context prod", "get pools"),
    ],
)
def test_global_options_are_found_wherever_they_stand(line, first, rest):
    assert global_options_first(line.split()) == (first.split(), rest.split())


def test_a_flag_is_called_by_its_long_name():
    assert long_name(("-o", "--output")) == "--output"
    assert long_name(("--require/--no-require",)) == "--require"
    assert (variable_from("--pool"), variable_from("--priority")) == ("LORAPLANE_POOL", None)


def test_only_what_is_given_is_set():
    spec = pb.AdapterSpec(priority=3, load="lazy")
    set_given(spec, priority=0, load=None, base_model="b")
    assert spec == pb.AdapterSpec(load="lazy", base_model="b")


def test_the_largest_numbers_are_those_of_the_messages():
    assert (MOST_UINT32, MOST_INT64) == (UINT32, INT64)
    assert pb.PoolLimits(max_rank=MOST_UINT32).max_rank == UINT32
    assert pb.RollbackAdapterRequest(to_generation=MOST_INT64).to_generation == INT64
