"""Strict reader of YAML documents. Pure.

No key may stand twice, and no word becomes a boolean by surprise. Every complaint names the file and the document.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import yaml

from registry.model.errors import InvalidArgument, Reason

# The parser written in C is ten times faster, but not in every build of PyYAML.
_Base: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: `number` counts from 1, `line` is where it starts."""

    file: str
    number: int
    line: int
    content: object

    @property
    def place(self) -> str:
        return f"{self.file}: document {self.number} (line {self.line})"


_TEXT = "tag:yaml.org,2002:str"


class _TooDeep(Exception):
    """Something is nested so deeply that the parser, which recurses in C, would crash further on."""


class _Loader(_Base):  # type: ignore[misc, valid-type]
    """Safe, refuses a key that stands twice, and reads only true and false as booleans: `remap: off` is text."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in _Base.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    # The parser calls these two for tags that hang on where a node stands, of which there are none here.
    def descend_resolver(self, _parent: yaml.Node | None, _index: object) -> None:
        """Counts how deep the parser is, as it goes into a node. Raises _TooDeep."""
        self._depth += 1
        if self._depth > _MAX_DEPTH + 1:  # the innermost is a value
            raise _TooDeep

    def ascend_resolver(self) -> None:
        """Counts the same, as the parser leaves a node."""
        self._depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """A value. What looks like a date or a number, and is none, is refused with its place."""
        if node.tag == _TEXT and isinstance(node, yaml.ScalarNode):
            return node.value  # most of a manifest is text, and the way through all constructors is long
        try:
            value: object = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            what = node.tag.rpartition(":")[2]
            problem = f"this is written as a {what}, and is none; put text in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error
        return value


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Hashable, object]:
    _check_keys(node)
    return {key.value: loader.construct_object(value, deep=True) for key, value in node.value}


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT:
            raise yaml.MarkedYAMLError(problem="a key must be text; put it in quotes", problem_mark=key.start_mark)
        if key.value in seen:
            raise yaml.MarkedYAMLError(
                problem=f"the key {key.value!r} stands twice; remove one", problem_mark=key.start_mark
            )
        seen.add(key.value)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")


def read_documents(text: str, file: str) -> list[Document]:
    """All documents of `text` that hold something. `file` names it in messages.

    Raises:
        InvalidArgument: it is not YAML, a key stands twice, or there is no document in it.
    """
    documents = [one for one in _documents(text, file) if one.content is not None]
    if not documents:
        raise InvalidArgument(
            Reason.INVALID_MANIFEST,
            "is empty; write at least one document with apiVersion, kind, metadata and spec",
            field=file,
        )
    return documents


def _documents(text: str, file: str) -> Iterator[Document]:
    number = 1
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            yield Document(file, number, node.start_mark.line + 1, loader.construct_document(node))
            number += 1
    except yaml.YAMLError as error:
        raise InvalidArgument(Reason.INVALID_MANIFEST, _problem(error), field=_place(file, number, error)) from error
    except _TooDeep as error:
        message = "is nested too deeply; make it flatter"
        raise InvalidArgument(Reason.INVALID_MANIFEST, message, field=file) from error


def _place(file: str, number: int, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{file}: document {number}{where}"


def _problem(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
    remedy = "; indent with spaces, and put text that begins with a sign in quotes" if "any token" in problem else ""
    return " ".join(f"not a YAML manifest: {problem}{remedy}".split())
