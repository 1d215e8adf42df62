"""Patterns of names."""

from __future__ import annotations

import time

import pytest

from registry.model.names import NamePatterns


@pytest.mark.parametrize(
    ("pattern", "name", "is_one"),
    [
        ("acme", "acme", True),
        ("acme", "ACME", False),
        ("Acme", "acme", False),
        ("acme", "acme2", False),
        ("*", "", True),
        ("*", "acme\n", True),
        ("team-*", "team-", True),
        ("team-*", "tea", False),
        ("*-prod", "a-prod", True),
        ("*-prod", "a-prod2", False),
        ("ab*ba", "aba", False),
        ("ab*ba", "abba", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b-c", True),
        ("a*b*c", "ac", False),
        ("a*bc*c", "abc", False),
        ("a**c", "ac", True),
        ("a.c", "abc", False),
    ],
)
def test_a_pattern_stands_for_names_with_anything_where_its_stars_are(pattern, name, is_one):
    assert NamePatterns((pattern,)).match(name) is is_one


@pytest.mark.parametrize("pattern", ["*a*b", "*-a-*", "*a*a*a*a*a*a*a*a*b"])
def test_a_long_name_that_a_caller_made_up_holds_nobody_up(pattern):
    """A2 deny-by-default: patterns are asked about before names are checked, which may have megabytes."""
    started = time.monotonic()
    NamePatterns((pattern,)).match("a-" * 500_000 + "\n")
    assert time.monotonic() - started < 1
