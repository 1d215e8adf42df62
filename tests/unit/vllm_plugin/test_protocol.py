"""Questions and answers as lines."""

from __future__ import annotations

import json
import math
from unittest.mock import Mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from registry.model.names import MAX_NAME_LENGTH as MAX_RECORD_NAME
from registry.model.records import AdapterSpec
from sidecar.desired.placement import ref_of
from sidecar.vllm_plugin.protocol import (
    MAX_ANSWER_BYTES,
    MAX_QUESTION_BYTES,
    BadAnswer,
    ExpectedAnswers,
    PromptedAnswer,
    Resolved,
    Step,
    Unresolved,
    beyond,
    deviation,
    is_askable,
    read_answer,
    read_expected,
    read_question,
    write_answer,
    write_question,
)
from sidecar.vllm_plugin.resolver import socket_problem


def test_a_question_of_the_plugin_is_understood_and_so_is_its_answer():
    line = write_question("acme/sql", "/models/base")
    assert line.endswith(b"\n")
    assert json.loads(line) == {"schema": 1, "name": "acme/sql", "base_model": "/models/base"}
    assert read_question(line.rstrip()) == "acme/sql"
    for told in (
        Resolved("/store/a"),
        Resolved("/store/a", prove=True),
        Resolved("/a", prove=True, expect="{}"),
        Resolved("/a", version="a@1 sha256:0"),
    ):
        assert read_answer(write_answer(told)) == told
    assert read_answer(write_answer(Unresolved("no_room"))) is None
    assert json.loads(write_answer(Unresolved("no_room"))) == {"schema": 1, "path": None, "reason": "no_room"}
    # A sidecar of an earlier release says nothing of proofs.
    assert read_answer(b'{"schema":1,"path":"/a/b"}\n') == Resolved("/a/b")
    assert read_answer(b'{"schema":1,"path":null,"reason":"not_lazy"}\n') is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 4000,
        b'{"schema":2,"name":"a","base_model":"b"}',
        b'{"schema":1,"name":7,"base_model":"b"}',
        b'{"schema":1,"name":"a"}',
        b'{"schema":1,"name":"a","base_model":"' + b"b" * MAX_QUESTION_BYTES + b'"}',
    ],
)
def test_anything_else_is_no_question(line):
    assert read_question(line) is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"schema":1,"path":"/a"}',
        b"",
        b"\n",
        b"nonsense\n",
        b"[" * 5000 + b"\n",
        b'{"schema":2,"path":"/a"}\n',
        b'{"schema":1,"path":"a"}\n',
        b'{"schema":1,"path":3}\n',
        b'{"schema":1,"path":null}\n',
        b'{"schema":1,"path":"/' + b"p" * 5000 + b'"}\n',
    ],
)
def test_what_is_no_answer_is_not_taken_for_one(line):
    with pytest.raises(BadAnswer):
        read_answer(line)


def test_a_fault_of_our_own_is_no_damaged_line(monkeypatch):
    """R12: it is told, and no question or answer is made of it."""
    monkeypatch.setattr(json, "loads", Mock(side_effect=ZeroDivisionError))
    for read, line in ((read_question, b"{}"), (read_answer, b"{}\n"), (read_expected, "{}")):
        with pytest.raises(ZeroDivisionError):
            read(line)  # type: ignore[operator]


def test_the_longest_name_of_a_record_is_asked_for_and_the_longest_path_is_understood():
    """R16 bounded: at the bounds of both sides."""
    longest = "a" * MAX_RECORD_NAME
    assert is_askable(longest)
    assert is_askable("n" * 200)
    assert not is_askable("n" * 201)
    paths = {
        "/run/x.sock": True,
        "run/x.sock": False,
        "/" + "p" * 106: True,
        "/" + "p" * 107: False,
        "/" + "ü" * 54: False,
    }
    assert {path: socket_problem(path) is None for path in paths} == paths
    assert MAX_QUESTION_BYTES == 4096
    around = len(write_question("x", ""))
    assert read_question(write_question("x", "b" * (4096 - around))) == "x"
    assert read_question(write_question("x", "b" * (4097 - around))) is None
    assert len(write_answer(Resolved("/" + "p" * 4095, prove=True, expect="e" * 8192))) < MAX_ANSWER_BYTES <= 16_384
    for length, is_taken in ((4096, True), (4097, False)):
        line = write_answer(Resolved("/" + "p" * (length - 1)))
        if is_taken:
            assert read_answer(line) == Resolved("/" + "p" * (length - 1))
        else:
            with pytest.raises(BadAnswer):
                read_answer(line)


def test_what_is_expected_is_told_only_to_who_is_to_prove_it():
    assert write_answer(Resolved("/a", expect="{}")) == b'{"schema":1,"path":"/a"}\n'
    assert write_answer(Resolved("/a", prove=True)) == b'{"schema":1,"path":"/a","prove":true}\n'
    told = write_answer(Resolved("/a", prove=True, expect="{}"))
    assert told == b'{"schema":1,"path":"/a","prove":true,"expect":"{}"}\n'
    assert read_answer(b'{"schema":1,"path":"/a","prove":true,"expect":3}\n') == Resolved("/a", prove=True)


NUMBERS = st.integers(0, 2**31 - 1)
LOGPROBS = st.floats(-1000, 0)


def answers_of(count: int) -> st.SearchStrategy[PromptedAnswer]:
    """Answers of so many tokens."""
    logprobs = st.just(()) | st.lists(LOGPROBS, min_size=count, max_size=count).map(tuple)
    tokens = st.lists(NUMBERS, min_size=count, max_size=count).map(tuple)
    return st.builds(PromptedAnswer, st.lists(NUMBERS, min_size=1, max_size=64).map(tuple), tokens, logprobs)


ANSWERS = st.integers(1, 16).flatmap(answers_of)


def test_what_a_later_record_says_beside_it_changes_nothing():
    """Two sidecars of other releases mean the same."""
    answer = {"prompt": [1], "tokens": [2], "logprobs": [-1.0]}
    specs = [
        AdapterSpec.model_validate({"source": {"uri": "file:///a"}, "expect": {"answers": [answer | more], **more}})
        for more in ({}, {"newer": True})
    ]
    first, second = (ref_of("p", "a", 1, spec).expect for spec in specs)
    assert first == second
    assert read_expected(first) == ExpectedAnswers((PromptedAnswer((1,), (2,), (-1.0,)),), 0.2)


ONE = {"prompt": [1], "tokens": [2], "logprobs": []}


@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ({"prompt": [1] * 64}, True),
        ({"prompt": [1] * 65}, False),
        ({"prompt": [0]}, True),
        ({"prompt": [2**31 - 1], "tokens": [2**31 - 1]}, True),
        ({"prompt": [2**31]}, False),
        *(({"prompt": odd}, False) for odd in ([], [-1], [1.0], [True], 1)),
        ({"tokens": [0] * 16}, True),
        ({"tokens": [1] * 17}, False),
        ({"tokens": [10**400]}, False),
        ({"tokens": []}, False),
        ({"tokens": [1, 2], "logprobs": [-1, -2.5]}, True),
        ({"tokens": [1, 2], "logprobs": [-1]}, False),
        *(({"logprobs": odd}, False) for odd in ([-1, -1], [True], [math.nan], [-math.inf], ["-1"])),
    ],
    ids=lambda value: f"{value}"[:40],
)
def test_what_may_be_expected_at_most(change, is_taken):
    """R16 bounded: an engine is asked for no more."""
    for tolerance, count in ((10, 4), (0.0001, 1)):
        text = json.dumps({"answers": [ONE | change] * count, "tolerance": tolerance})
        assert (read_expected(text) is not None) is is_taken


PADDED = json.dumps({"answers": [ONE], "tolerance": 1}).ljust(8192)


@pytest.mark.parametrize(
    "told",
    [
        "",
        "{",
        "[" * 5000,
        f"{PADDED} ",
        "[]",
        json.dumps({"answers": [], "tolerance": 0.1}),
        json.dumps({"answers": [ONE, 7], "tolerance": 1}),
        json.dumps({"answers": [ONE] * 5, "tolerance": 0.1}),
        json.dumps({"answers": [ONE]}),
        *(json.dumps({"answers": [ONE], "tolerance": tolerance}) for tolerance in (0, -1, 11, math.nan, "1")),
    ],
    ids=lambda value: value[:60],
)
def test_anything_else_expects_nothing(told):
    assert read_expected(PADDED) is not None
    assert read_expected(told) is None


@pytest.mark.parametrize(
    ("vocabulary", "told"),
    [
        (None, ""),
        (10, ""),
        (9, "token 9 in the tokens of answer 2 is none of the 9 that the base model knows"),
        (2, "token 2 in the prompt of answer 1 is none of the 2 that the base model knows"),
    ],
)
def test_which_token_the_base_does_not_know(vocabulary, told):
    """X2 unbreakable: the first of them is named."""
    answers = (PromptedAnswer((1, 2), (1,)), PromptedAnswer((1,), (9, 1)))
    assert beyond(ExpectedAnswers(answers, 0.1), vocabulary) == told


TWO = PromptedAnswer((1, 2), (7, 8), (-0.5, -1.0))
WITHOUT = PromptedAnswer((1, 2), (7, 8))


@pytest.mark.parametrize(
    ("expected", "found", "said"),
    [
        (TWO, [(7, {7: -0.5}), (8, {8: -1.0})], ""),
        (TWO, [(7, {7: -0.6}), (8, {8: -1.1})], ""),
        (TWO, [(7, {7: -0.5}), (8, {8: -1.2})], "token 2 should be 8 (logprob -1.0000), found 8 (logprob -1.2000)"),
        (TWO, [(9, {9: -0.45, 7: -0.5}), (1, {1: 0.0})], ""),  # as likely, and what follows is another text
        (
            TWO,
            [(9, {9: -0.1, 7: -0.5}), (8, {8: -1.0})],
            "9 (logprob -0.1000), with 7 at -0.5000: a distance of 0.4",
        ),
        (TWO, [(9, {9: -0.1}), (8, {8: -1.0})], "with 7 among none of the likeliest: a distance of inf"),
        (WITHOUT, [(7, {7: -9.0}), (8, {8: -9.0})], ""),
        (WITHOUT, [(7, {7: -9.0}), (9, {9: -1.0, 8: -2.0})], "token 2 should be 8, found 9"),
        (TWO, [(7, {7: math.nan}), (8, {8: -1.0})], "token 1"),
        (TWO, [(7, {}), (8, {8: -1.0})], "found 7: a distance of inf"),
        (WITHOUT, [(7, {7: -math.inf})], "a distance of inf"),
        (TWO, [(9, {9: -0.39, 7: -0.5}), (8, {8: -1.0})], ""),
        (
            TWO,
            [(9, {9: -0.5, 7: -0.7}), (8, {8: -1.0})],
            "token 1 should be 7 (logprob -0.5000), found 9 (logprob -0.5000)",
        ),
        (TWO, [(9, {7: -0.5}), (8, {8: -1.0})], "found 9, with 7 at -0.5000: a distance of inf"),
        (TWO, [(7, {7: -0.5}), (8, {8: -1.0}), (3, {3: -9.0})], ""),
        (TWO, [(9, {9: math.nan, 7: -0.5}), (8, {8: -1.0})], "a distance of inf"),
        (TWO, [(7, {7: -0.5})], None),
        (TWO, [], None),
    ],
)
def test_where_an_answer_is_not_as_expected(expected, found, said):
    """R22 applied-whole: as near as the tolerance is right; nothing is proven by half an answer."""
    told = deviation(expected, found, 0.11)
    if not said:
        assert told == said
    else:
        assert said in (told or "")
        assert "above the tolerance of 0.11" in (told or "")


def test_a_long_prompt_is_shown_by_its_beginning():
    told = deviation(PromptedAnswer(tuple(range(20)), (7,)), [(9, {9: 0.0})], 0.1)
    assert "[0, 1, 2, 3, 4, 5, 6, 7, …] token 1 " in (told or "")
    told = deviation(PromptedAnswer(tuple(range(8)), (7,)), [(9, {9: 0.0})], 0.1)
    assert "[0, 1, 2, 3, 4, 5, 6, 7] token 1 " in (told or "")


@given(ANSWERS.filter(lambda one: one.logprobs), st.data())
def test_noise_within_the_tolerance_is_right_and_beyond_it_is_not(expected, data):
    """R22 applied-whole: whichever token it strikes."""
    tolerance = 0.125
    noise = st.floats(-tolerance, tolerance)
    steps: list[Step] = [
        (token, {token: logprob + data.draw(noise)})
        for token, logprob in zip(expected.tokens, expected.logprobs, strict=True)
    ]
    assume(all(abs(row[token] - old) <= tolerance for (token, row), old in zip(steps, expected.logprobs, strict=True)))
    assert deviation(expected, steps, tolerance) == ""
    place = data.draw(st.integers(0, len(steps) - 1))
    token = expected.tokens[place]
    steps[place] = token, {token: expected.logprobs[place] - data.draw(st.floats(0.1251, 50))}
    assert deviation(expected, steps, tolerance)
