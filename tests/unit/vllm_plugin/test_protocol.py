"""Questions and answers as lines."""

from __future__ import annotations

import json

import pytest

from sidecar.vllm_plugin.protocol import (
    MAX_QUESTION_BYTES,
    BadAnswer,
    Resolved,
    Unresolved,
    read_answer,
    read_question,
    write_answer,
    write_question,
)


def test_a_question_is_one_line_of_json():
    line = write_question("acme/sql", "/models/base")
    assert line.endswith(b"\n")
    assert json.loads(line) == {"schema": 1, "name": "acme/sql", "base_model": "/models/base"}


def test_a_question_of_the_plugin_is_understood_and_so_is_its_answer():
    assert read_question(write_question("acme/sql", "/models/tiny").rstrip()) == "acme/sql"
    for told in (Resolved("/store/a"), Resolved("/store/a", prove=True)):
        assert read_answer(write_answer(told)) == told
    assert read_answer(write_answer(Unresolved("no_room"))) is None
    assert json.loads(write_answer(Unresolved("no_room"))) == {"schema": 1, "path": None, "reason": "no_room"}


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


def test_an_answer_names_a_path_or_says_that_there_is_none():
    """A sidecar of an earlier release says nothing of proofs."""
    assert read_answer(b'{"schema":1,"path":"/a/b"}\n') == Resolved("/a/b")
    assert read_answer(b'{"schema":1,"path":null,"reason":"not_lazy"}\n') is None
