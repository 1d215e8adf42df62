"""Texts of others, as they are shown and as records may take them."""

from __future__ import annotations

import json

import pytest

from registry.lora.text import escaped, first_unfit, printable, some_of

HOSTILE = "a\nb\r\t\x1b[2J\x7f\x85\x9b31m\u202egnp.exe\u2066\u200f\u2028\u2029\ud800\U000e0001"
PLAIN = "Größe, 模型, עברית, नमस्ते, 😀, x/y_z-1 {}"


def test_nothing_printable_is_changed():
    assert printable(PLAIN) == PLAIN
    for text in (PLAIN, "plain"):
        assert escaped(f'{{\n  "a": "{text}"\n}}') == f'{{\n  "a": "{text}"\n}}'


def test_what_has_power_over_a_terminal_is_shown_as_its_escape():
    """X2: in one line, whatever it is."""
    assert printable(HOSTILE).isprintable()
    assert printable("a\nb\x1b\u202e\ud800") == r"a\nb\x1b\u202e\ud800"
    assert printable("ä\\b\n") == "ä\\b\\n", "only what has power is changed"


def test_of_many_names_the_first_are_told_and_how_many_more_there_are():
    assert [some_of("abc", most) for most in (2, 3)] == ["a, b and 1 more", "a, b, c"]


@pytest.mark.parametrize("indent", [None, 2])
def test_json_means_the_same_and_is_printable_but_for_its_lines(indent):
    """X2: programs get what was written, a terminal does not."""
    value = {HOSTILE: [HOSTILE, {"x": PLAIN}], "plain": PLAIN}
    document = escaped(json.dumps(value, ensure_ascii=False, indent=indent))
    assert json.loads(document) == value
    assert all(line.isprintable() for line in document.split("\n"))
    assert document.count("\n") == (0 if indent is None else 8)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (PLAIN, None),
        ("\u0645\u06cc\u200c\u062e", None),  # a joiner that Persian needs
        ("\u00a0", None),
        ({"a": [1, None, True, 2.5, PLAIN]}, None),
        ("a\nb", ""),
        ("\x7f", ""),
        ("\x9b", ""),
        ("\u202e", ""),
        ("\u2067", ""),
        ("\u061c", ""),
        ("\u2028", ""),
        ("\ud800", ""),
        ({"source": {"uri": "file:///a\u202e"}}, "source.uri"),
        ({"labels": {"team": "a\tb"}}, "labels.team"),
        ({"names": ["a", "b\x00"]}, "names[1]"),
        ({"modules": {"a\u200e": [1, 2]}}, "modules"),
        ({"a\x00": 1}, "it"),
    ],
)
def test_records_take_no_controls_and_no_marks_of_direction(value, where):
    assert first_unfit(value) == where
