"""Bodies of replies, whatever was sent."""

from __future__ import annotations

import pytest

from sidecar.engines.bodies import fields_of, json_of


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"a": ', b"\xff", b"[" * 100_000], ids=["empty", "html", "cut", "no text", "deep"]
)
def test_what_is_no_json_is_nothing(body):
    assert json_of(body) is None
    assert fields_of(body) == {}


def test_only_an_object_has_fields():
    assert fields_of(b'{"a": 1}') == {"a": 1}
    assert fields_of(b"[1]") == {}
    assert json_of(b"[1]") == [1]
