"""Filters of listings: terms "field=value" joined by " AND ". Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from registry.errors import InvalidArgument, Reason
from registry.model.records import AdapterRecord

_TERM = re.compile(r"(name|tenant|load|label\.[A-Za-z0-9][A-Za-z0-9._/-]*)=(.*)", re.ASCII | re.DOTALL)
_MAX_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class Filter:
    """What an adapter must fulfil."""

    terms: tuple[Callable[[AdapterRecord], bool], ...]

    def takes(self, record: AdapterRecord) -> bool:
        """Whether the adapter fulfils every term."""
        return all(term(record) for term in self.terms)


def parse_filter(text: str) -> Filter:
    """Reads a filter; an empty one takes everything.

    Raises:
        InvalidArgument: it cannot be read.
    """
    if len(text) > _MAX_CHARACTERS:
        raise InvalidArgument(
            Reason.INVALID_FILTER, f"a filter has at most {_MAX_CHARACTERS} characters", field="filter"
        )
    return Filter(tuple(_term(term.strip()) for term in text.split(" AND ")) if text.strip() else ())


def _term(term: str) -> Callable[[AdapterRecord], bool]:
    match = _TERM.fullmatch(term)
    if match is None:
        raise InvalidArgument(
            Reason.INVALID_FILTER,
            f"{term[:100]!r} is not a term: write field=value with name (a trailing * for a prefix), tenant, load or "
            'label.KEY, joined by " AND "',
            field="filter",
        )
    field, value = match.groups()
    return _test(field, value)


def _test(field: str, value: str) -> Callable[[AdapterRecord], bool]:
    match field:
        case "name" if value.endswith("*"):
            prefix = value[:-1].lower()
            return lambda record: record.name.lower().startswith(prefix)
        case "name":
            return lambda record: record.name.lower() == value.lower()
        case "tenant":
            return lambda record: record.tenant == value.lower()
        case "load":
            return lambda record: record.spec.load == value
        case _:
            key = field.removeprefix("label.")
            return lambda record: record.spec.labels.get(key) == value
