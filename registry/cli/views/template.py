"""Templates of custom-columns and jsonpath: their parts, and values by them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from registry.cli.failure import usage
from registry.lora.text import escaped, printable

# What kubectl writes where there is nothing.
NOTHING = "<none>"
_STEP = re.compile(r"\.?\[(?P<index>-?[0-9]{1,9})\]|\.?\[\*\]|\.\*|\.?\['(?P<quoted>[^']+)'\]|\.(?P<name>[\w/-]+)")
_PART = re.compile(r"\{(?P<expression>(?:\"(?:\\.|[^\"\\])*\"|'[^']*'|[^{}\"'])*)\}|(?P<text>[^{}]+)")
_RANGE = re.compile(r"range\s+(.+)")

# A key, a place in a list, or (None) all that there are.
Path = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class TemplateColumn:
    """A column of custom-columns."""

    title: str
    path: Path

    def cell(self, value: object) -> str:
        """What stands there of one item."""
        return ",".join(map(shown, found(value, self.path))) or NOTHING


@dataclass(frozen=True, slots=True)
class TemplateRange:
    """A part of a template that is written for each value of a path."""

    path: Path
    parts: tuple[Part, ...]


# A text, a value, or a range.
Part = str | Path | TemplateRange


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
        columns.append(TemplateColumn(title, _path(path.removeprefix("{").removesuffix("}"), "custom-columns")))
    return tuple(columns)


def parts_of(template: str) -> tuple[Part, ...]:
    """The parts of ``{range .items[*]}{.name}{"\\n"}{end}``, or of a path alone.

    Raises:
        CliError: it is not of that form.
    """
    if not template:
        _refuse(template, "it is empty")
    expressions = _expressions(template if "{" in template else f"{{{template}}}")
    parts, is_ended = _level(expressions, template)
    if is_ended:
        _refuse(template, "there is an {end} without {range …}")
    return parts


def _level(expressions: Iterator[tuple[str | None, str]], template: str) -> tuple[tuple[Part, ...], bool]:
    """The parts up to an {end}, and whether there is one."""
    parts: list[Part] = []
    for expression, text in expressions:
        if expression is None:
            parts.append(text)
        elif expression == "end":
            return tuple(parts), True
        elif begun := _RANGE.fullmatch(expression):
            inner, is_ended = _level(expressions, template)
            if not is_ended:
                _refuse(template, "a {range …} has no {end}")
            parts.append(TemplateRange(_path(begun[1], "jsonpath"), inner))
        else:
            parts.append(_value(expression, template))
    return tuple(parts), False


def written(parts: Sequence[Part], value: object) -> str:
    """What a template makes of a value."""
    texts: list[str] = []
    for part in parts:
        match part:
            case str():
                texts.append(part)
            case TemplateRange(path, inner):
                texts += [written(inner, one) for one in found(value, path)]
            case _:
                texts.append(" ".join(map(shown, found(value, part))))
    return "".join(texts)


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


def _path(text: str, form: str) -> Path:
    text = text.strip().removeprefix("$").removeprefix("@")
    text = text if text[:1] in {".", "[", ""} else f".{text}"
    steps: list[str | int | None] = []
    at = 0
    while at < len(text) and text != ".":
        match = _STEP.match(text, at)
        if match is None:
            raise usage(
                f"-o {form}: {text!r} is no path; write .name, .spec.labels['team'], .items[0] or .items[*].name"
            )
        index, name = match["index"], match["quoted"] or match["name"]
        steps.append(int(index) if index else name)
        at = match.end()
    return tuple(steps)


def _expressions(template: str) -> Iterator[tuple[str | None, str]]:
    """What stands in braces, stripped, or else (None) the text between."""
    at = 0
    while at < len(template):
        match = _PART.match(template, at)
        if match is None:
            _refuse(template, "a brace is not closed")
        expression = match["expression"]
        yield (None, match["text"]) if expression is None else (expression.strip(), "")
        at = match.end()


def _value(expression: str, template: str) -> str | Path:
    """A text in quotes, or else a path."""
    if expression[:1] not in {'"', "'"}:
        return _path(expression, "jsonpath")
    try:
        text = json.loads(f'"{expression[1:-1]}"' if expression[0] == "'" else expression)
    except ValueError:
        _refuse(template, f"{expression} is no text in quotes")
    return str(text)


def _refuse(template: str, why: str) -> NoReturn:
    raise usage(f'-o jsonpath={template}: {why}; write {{.path}}, or {{range .items[*]}}{{.name}}{{"\\n"}}{{end}}')
