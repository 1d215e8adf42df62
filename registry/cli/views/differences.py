"""Fields of an adapter's spec, and how two specs differ. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from google.protobuf.message import Message

from registry.cli.views.replica_view import cell
from registry.model.messages import Plain, spec_dict
from registry.v1 import registry_pb2 as pb

# Of a value in a cell. A digest is told from another one by its beginning.
_SHOWN_CHARACTERS, _SHOWN_OF_DIGEST = 60, len("sha256:") + 12


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A generation, and the one before it as far as it is known; None: it is the first, or that is gone."""

    record: pb.Adapter
    before: pb.Adapter | None = None

    def changed(self) -> str:
        """Old and new value of each field that differs."""
        if self.before is None:
            return "-"
        return "; ".join(changed_fields(self.before, self.record, short)) or "-"


def generation_rows(generations: list[pb.Adapter]) -> list[GenerationRow]:
    """The generations, the newest first, each beside the one before it."""
    by_number = {one.generation: one for one in generations}
    return [GenerationRow(one, by_number.get(one.generation - 1)) for one in generations]


def changed_fields(before: pb.Adapter, after: pb.Adapter, shown: Callable[[str], str] = str) -> list[str]:
    """A line for each field that differs, e.g. ``priority: 0 → 3``, with its values as they are `shown`."""
    old, new = flat(spec_dict(before.spec)), flat(spec_dict(after.spec))
    pairs = ((path, old.get(path, "-"), new.get(path, "-")) for path in sorted({*old, *new}))
    return [f"{path}: {shown(was)} → {shown(now)}" for path, was, now in pairs if was != now]


def left_out(asked: pb.AdapterSpec, made: pb.AdapterSpec) -> list[str]:
    """Fields that were asked for, and of which nothing was made."""
    if {*_said(asked)} <= {*_said(made)}:
        return []  # nearly always, and quickly: very many are made at once
    wanted, there, usual = (flat(spec_dict(one)) for one in (asked, made, pb.AdapterSpec()))
    unsaid = {path for path in wanted if there.get(path) == usual.get(path)}
    return [path for path, value in wanted.items() if path in unsaid and value != usual.get(path)]


def _said(part: Message, prefix: str = "") -> Iterator[str]:
    for field, value in part.ListFields():
        yield f"{prefix}{field.name}"
        if isinstance(value, Message):
            yield from _said(value, f"{prefix}{field.name}.")


def short(text: str) -> str:
    """A value as a cell of a table has it."""
    most = _SHOWN_OF_DIGEST if text.startswith("sha256:") else _SHOWN_CHARACTERS
    return f"{text[:most]}…" if most < len(text) else text


def flat(value: Plain, prefix: str = "") -> dict[str, str]:
    """Nested values by their path: ``source.uri``."""
    found: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            found.update(flat(inner, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = cell(inner)
    return found
