"""Questions and answers as lines."""

from __future__ import annotations

import json

import pytest

from sidecar.lazy.wire import MAX_QUESTION_BYTES, Found, No, read_question, write_answer
from sidecar.vllm_plugin.question import question, read_answer


def test_a_question_of_the_plugin_is_understood_and_so_is_its_answer():
    assert read_question(question("acme/sql", "/models/tiny").rstrip()) == "acme/sql"
    assert read_answer(write_answer(Found("/store/a"))) == "/store/a"
    assert read_answer(write_answer(No("no_room"))) is None
    assert json.loads(write_answer(No("no_room"))) == {"schema": 1, "path": None, "reason": "no_room"}


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
