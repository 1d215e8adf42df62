"""Reader of YAML: what it refuses, each with its place; tests of manifests have the rest."""

from __future__ import annotations

import pytest

from registry.formats.documents import read_documents
from registry.model.errors import InvalidArgument


def test_documents_are_numbered_and_know_their_lines():
    found = read_documents("a: on\n---\n---\nb: true\n", "f")
    assert [(one.number, one.place, one.content) for one in found] == [
        (1, "f: document 1 (line 1)", {"a": "on"}),
        (3, "f: document 3 (line 4)", {"b": True}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a: [", "not a YAML manifest"),
        ("a: 1\na: 2", "stands twice"),
        ("1: a", "a key must be text"),
        ("a: 2020-99-99", "is none; put text in quotes"),
        ("a: \t@", "indent with spaces|not a YAML"),
        ("[" * 60 + "]" * 60, "nested too deeply"),
        ("a: \x00", "not a YAML manifest"),
    ],
)
def test_what_is_no_document_is_refused(text, message):
    with pytest.raises(InvalidArgument, match=message) as caught:
        read_documents(text, "f")
    assert (caught.value.field or "").startswith("f")
