"""Comparison of the base an engine has with the one it should have. Pure.

Names alone do not tell: another model of the same name is served all the same, and an adapter of the old one may even
be loaded into it, padded with zeros. So each start of an engine is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from registry.lora.base import BaseModules, Shape, compress
from registry.lora.coverage.findings import EngineEvidence

_REMEDY = "start the engine with the pool's base model, or say that it has another now: loraplane pool update --from"
_HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class EngineBase:
    """The base model of one process of an engine, as far as it is known.

    Attributes:
        files: what its files said when it started; None: nobody sees them.
        shapes: modules in its memory, by its own names.
        evidence: what else it says of these, and how it renames them; None: it does not say.
        own: what the sidecar's own folder of the base model said then; None: it has none.
        awaited: why nothing is known yet that soon will be; empty: what is known is all.
    """

    files: BaseModules | None = None
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    evidence: EngineEvidence | None = None
    own: BaseModules | None = None
    awaited: str = ""

    @property
    def is_known(self) -> bool:
        """True if there is anything to compare a base model with."""
        return self.files is not None or self.own is not None or bool(self.shapes and self.evidence)


UNKNOWN_BASE = EngineBase()


def difference(expected: BaseModules | None, engine: EngineBase) -> str:
    """Difference of the engine's base model from the expected one, and the remedy; empty: it is not known to be."""
    if expected is None:
        return ""
    how = differs(expected, engine.files) if engine.files is not None else _of_shapes(expected, engine)
    return f"the engine's base model is not the one that adapters are checked against: {how}; {_REMEDY}" if how else ""


def differs(expected: BaseModules, found: BaseModules) -> str:
    """Difference of a base model from the expected one, by what was read of both; empty: it is not known to be."""
    if expected.fingerprint != found.fingerprint and (how := _of_modules(expected, found)):
        return f"{how} (fingerprint {_short(found.fingerprint)}, expected {_short(expected.fingerprint)})"
    # Another layout is the same model saved otherwise, as with other types: its numbers say nothing.
    if expected.layout != found.layout or None in {expected.weights, found.weights}:
        return ""
    if expected.weights == found.weights:
        return ""
    return f"it has other weights ({_short(found.weights)}, expected {_short(expected.weights)})"


def _of_modules(expected: BaseModules, found: BaseModules) -> str:
    """A tied head may be in the one's files and not in the other's."""
    ours, theirs = expected.modules, found.modules
    if how := _first_other({name: (theirs[name], shape) for name, shape in ours.items() if name in theirs}):
        return how
    for missing, told in ((ours.keys() - theirs.keys(), "lacks"), (theirs.keys() - ours.keys(), "has")):
        names = {name: (1, 1) for name in missing if not name.endswith(_HEAD)}
        if names:
            return f"it {told} {next(iter(compress(names)))}"
    return ""


def _of_shapes(expected: BaseModules, engine: EngineBase) -> str:
    """By what is in its memory, where some classes keep what others have transposed."""
    if engine.evidence is None:
        return ""
    pairs: dict[str, tuple[Shape, Shape]] = {}
    for name, shape in expected.modules.items():
        found = engine.shapes.get(engine.evidence.engine_name(name))
        if found is not None:
            pairs[name] = found, shape
    return _first_other(pairs)


def _first_other(pairs: Mapping[str, tuple[Shape, Shape]]) -> str:
    """The first modules whose found shape is not the expected one, in words; empty: there are none."""
    others = {name: pair for name, pair in pairs.items() if sorted(pair[0]) != sorted(pair[1])}
    for name, (found, wanted) in compress(others).items():
        return f"its {name} is {_by(found)}, expected {_by(wanted)}"
    return ""


def _by(shape: Shape) -> str:
    return f"{shape[0]} by {shape[1]}"


def _short(digest: str | None) -> str:
    return f"{digest}"[:19]
