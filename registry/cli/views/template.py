"""Templates of custom-columns: titles and paths through JSON. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from registry.cli.failure import usage
from registry.lora.text import escaped, printable

# What kubectl writes where there is nothing.
NOTHING = "<none>"
_STEP = re.compile(r"\.?\[(?P<index>-?[0-9]{1,9})\]|\.?\[\*\]|\.\*|\.?\['(?P<quoted>[^']+)'\]|\.(?P<name>[\w/-]+)")

# A key, a place in a list, or (None) all that there are.
Path = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class TemplateColumn:
    """A column of custom-columns."""

    title: str
    path: Path

    def cell(self, value: object) -> str:
        """Text of one item's cell."""
        return ",".join(map(shown, found(value, self.path))) or NOTHING


def columns_of(template: str) -> tuple[TemplateColumn, ...]:
    """The columns of ``NAME:.name,SOURCE:.spec.source.uri``.

    Raises:
        CliError: it is not of that form.
    """
    columns = []
    for word in template.split(","):
        title, _, path = word.partition(":")
        if not title or not path:
            raise usage(
                f"-o custom-columns={template}: write TITLE:.path,…, such as NAME:.name,SOURCE:.spec.source.uri"
            )
        columns.append(TemplateColumn(title, _path(path.removeprefix("{").removesuffix("}"))))
    return tuple(columns)


def found(value: object, path: Path) -> list[object]:
    """The values that a path leads to; of what is not there none."""
    values = [value]
    for step in path:
        values = [inner for one in values for inner in _step(one, step)]
    return values


def shown(value: object) -> str:
    """A value in one line: a text as it is, and else as JSON, with nothing that has power over a terminal."""
    if value is None:
        return NOTHING
    return printable(value) if isinstance(value, str) else escaped(json.dumps(value, ensure_ascii=False))


def _step(value: object, step: str | int | None) -> list[object]:
    match value, step:
        case Mapping(), None:
            return list(value.values())
        case list(), None:
            return value
        case Mapping(), str() if step in value:
            return [value[step]]
        case list(), int() if -len(value) <= step < len(value):
            return [value[step]]
        case _:
            return []


def _path(text: str) -> Path:
    text = text.strip().removeprefix("$").removeprefix("@")
    text = text if text[:1] in {".", "[", ""} else f".{text}"
    steps: list[str | int | None] = []
    at = 0
    while at < len(text) and text != ".":
        match = _STEP.match(text, at)
        if match is None:
            raise usage(
                f"-o custom-columns: {text!r} is no path; write .name, .spec.labels['team'], .items[0] or "
                ".items[*].name"
            )
        index, name = match["index"], match["quoted"] or match["name"]
        steps.append(int(index) if index else name)
        at = match.end()
    return tuple(steps)
