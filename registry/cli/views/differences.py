"""Fields of an adapter's spec, and how two specs differ. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from registry.cli.views.replica_view import cell
from registry.model.messages import Plain, spec_dict
from registry.v1 import registry_pb2 as pb

# Of a value in a cell: a digest is told from another one by its beginning.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A generation, and the one before it as far as it is known; None: it is the first, or that is gone."""

    record: pb.Adapter
    before: pb.Adapter | None = None

    def changed(self) -> str:
        """Old and new value of each field that differs."""
        if self.before is None:
            return "-"
        return "; ".join(changed_fields(self.before, self.record, _SHOWN_CHARACTERS)) or "-"


def generation_rows(generations: list[pb.Adapter]) -> list[GenerationRow]:
    """The generations, the newest first, each beside the one before it."""
    by_number = {one.generation: one for one in generations}
    return [GenerationRow(one, by_number.get(one.generation - 1)) for one in generations]


def changed_fields(before: pb.Adapter, after: pb.Adapter, most: int = 0) -> list[str]:
    """A line for each field that differs, e.g. ``priority: 0 → 3``; `most` characters of a value, 0: all."""
    old, new = flat(spec_dict(before.spec)), flat(spec_dict(after.spec))
    return [
        f"{path}: {_cut(old.get(path, '-'), most)} → {_cut(new.get(path, '-'), most)}"
        for path in sorted({*old, *new})
        if old.get(path) != new.get(path)
    ]


def _cut(text: str, most: int) -> str:
    return f"{text[:most]}…" if 0 < most < len(text) else text


def flat(value: Plain, prefix: str = "") -> dict[str, str]:
    """Nested values by their path: ``source.uri``."""
    found: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            found.update(flat(inner, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = cell(inner)
    return found
