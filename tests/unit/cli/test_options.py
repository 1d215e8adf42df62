"""The command line itself: its flags and variables, where global options stand, and how labels are said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests.support.cli_page import commands

TYPERS_OWN = {"--version", "--install-completion", "--show-completion"}
# Of all that the command line may say, what the environment may say too: nothing of it is written into a record.
WHERE_AND_WHO = (
    "--context --admin --tls-ca --tls-cert --tls-key --pool --output --timeout --look-seconds --credentials "
    "--hf-endpoint --etcd --etcd-tls-ca --etcd-tls-cert --etcd-tls-key --etcd-user --etcd-password-file"
).split()


def test_only_what_says_where_things_are_has_a_variable_and_only_the_root_what_may_stand_anywhere(capsys):
    """All else of flags, their helps and bounds too, is on the page of the commands (test_help.py)."""
    of_root = {name for flag in make_command().params for name in flag.opts}
    assert of_root - TYPERS_OWN == GLOBAL_OPTIONS
    for path, command in commands().items():
        flags = {flag.opts[-1]: flag for flag in command.params if flag.param_type_name == "option"}
        assert not {name for flag in flags.values() for name in flag.opts} & (GLOBAL_OPTIONS - TYPERS_OWN) or (
            path == "config set-context"
        )
        for long, flag in flags.items():
            is_asked = long in WHERE_AND_WHO and path != "config set-context"
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
