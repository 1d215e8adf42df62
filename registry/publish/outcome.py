"""What became of each module of a published adapter, and whether that is near enough. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isnan


class CannotPublish(Exception):
    """An adapter cannot be published as is wanted; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class ModuleOutcome:
    """One module.

    Attributes:
        module: its name in the base.
        kind: ``dora``, ``init``, ``rank``, ``cast`` or ``kept``: what was computed.
        trained_rank: its rank before.
        rank: its rank now.
        alpha: its alpha now.
        error: of what it adds to the weights, relative to what the trained one adds, in the Frobenius norm.
        enough: the lowest rank whose error is within the bound; None where no rank was lost.
    """

    module: str
    kind: str
    trained_rank: int
    rank: int
    alpha: float
    error: float
    enough: int | None = None

    def as_dict(self) -> dict[str, object]:
        """The outcome for programs."""
        return asdict(self)


def check_errors(outcomes: Sequence[ModuleOutcome], max_error: float) -> None:
    """Raises CannotPublish if an error is larger than it may be, with the rank that would do."""
    above = [one for one in outcomes if one.error > max_error or isnan(one.error)]
    if not above:
        return
    worst = max(above, key=lambda one: (isnan(one.error), one.error))
    ranks = [one.enough for one in outcomes if one.enough is not None]
    remedy = f"rank {max(ranks)} would do (--rank), or allow" if ranks else "take another --dtype, or allow"
    share = f"{len(above)} of {len(outcomes)} modules are above"
    raise CannotPublish(
        f"{worst.module}: found a relative error of {worst.error:.3g} ({share}), "
        f"expected at most {max_error:g}; {remedy} more with --max-error"
    )
