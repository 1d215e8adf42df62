"""YAML files of operators, read strictly, with the line of what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from registry.lora.text import printable

Form = TypeVar("Form", bound=BaseModel)


class OperatorFileInvalid(Exception):
    """A file cannot be used; the message has its line, the field at fault, and what to write there."""


def read_operator_yaml(content: bytes, place: str, form: type[Form], max_bytes: int) -> Form:
    """The file in its form; `place` names it in messages.

    Raises:
        OperatorFileInvalid: it is too large, no YAML, or not of the form.
    """
    if len(content) > max_bytes:
        raise OperatorFileInvalid(f"{place}: {len(content)} bytes are more than the {max_bytes} that it may have")
    try:
        text = content.decode()
        node, plain = yaml.compose(text, _StrictLoader), yaml.load(text, _StrictLoader)  # noqa: S506 - of the safe loader
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:  # also of wrong !!tags
        raise OperatorFileInvalid(f"{place}{_mark(error)}: it is no YAML that can be read: {_why(error)}") from error
    try:
        return form.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        line = _line(node, first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise OperatorFileInvalid(printable(f"{place}, line {line}: {f'{where}: ' if where else ''}{said}")) from error


class _StrictLoader(yaml.SafeLoader):
    """Without aliases, by which a small file can be a huge value; and a key that is there twice is an error."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        keys = [key.value for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"{twice} is there twice", node.start_mark)
        made: dict[object, object] = super().construct_mapping(node, deep)
        return made


def _mark(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}" if mark else ""


def _why(error: Exception) -> str:
    return str(getattr(error, "problem", None) or error).partition("\n")[0]


def _line(node: yaml.Node | None, path: Sequence[int | str]) -> int:
    """Line of what a path leads to, or of the last part of the path that is there; 1 for an empty file."""
    line = node.start_mark.line if node else 0
    for part in path:
        node = next(_children(node, part), None)
        if node is None:
            break
        line = node.start_mark.line
    return line + 1


def _children(node: yaml.Node | None, part: int | str) -> Iterator[yaml.Node]:
    match node:
        case yaml.MappingNode():
            yield from (value for key, value in node.value if key.value == part)
        case yaml.SequenceNode() if isinstance(part, int) and part < len(node.value):
            yield node.value[part]
