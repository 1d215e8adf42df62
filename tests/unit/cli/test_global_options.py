"""Global options may stand anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.cli.options import form_asked, global_options_first


@pytest.mark.parametrize(
    ("line", "first", "rest"),
    [
        ("get adapters", "", "get adapters"),
        ("get adapters -o json", "-o json", "get adapters"),
        ("-o json get adapters", "-o json", "get adapters"),
        ("get -ojson adapters --admin=a:1", "-ojson --admin=a:1", "get adapters"),
        ("get --output yaml adapters --admin a:1 -w", "--output yaml --admin a:1", "get adapters -w"),
        ("get adapters --tls-ca ca --tls-cert c --tls-key k", "--tls-ca ca --tls-cert c --tls-key k", "get adapters"),
        ("get adapters -- -o json", "", "get adapters -- -o json"),
        ("get adapters -o", "-o", "get adapters"),
        ("get adapters --other", "", "get adapters --other"),
    ],
)
def test_global_options_come_first(line, first, rest):
    assert global_options_first(line.split()) == (first.split(), rest.split())


@given(st.lists(st.sampled_from(["-o", "json", "--admin", "a:1", "--", "get", "-f", "x", "-oyaml", "--output=name"])))
def test_nothing_is_lost_or_made_up(arguments):
    first, rest = global_options_first(arguments)
    assert sorted([*first, *rest]) == sorted(arguments)


@pytest.mark.parametrize(
    ("first", "form"),
    [
        ([], "yaml"),
        (["-o", "json"], "json"),
        (["-ojson"], "json"),
        (["-o=json"], "json"),
        (["--output=json", "--admin", "a:1"], "json"),
        (["--output", "json", "-o", "table"], "table"),
        (["--admin", "json"], "yaml"),
        (["-o"], ""),
    ],
)
def test_the_form_of_an_error_is_that_of_the_last_word_about_it(first, form):
    assert form_asked(first, "yaml") == form
