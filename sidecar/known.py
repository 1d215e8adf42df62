"""What a plan is made from, beside what is desired and what was observed. Pure types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.failures import Failure
from sidecar.lazy.wanted import NOTHING_LAZY, Wanted
from sidecar.leaving import Leaving, Verdict
from sidecar.share import Share


@dataclass(frozen=True, slots=True)
class Known:
    """What this replica knows beside desired and observed state.

    Attributes:
        staged: what is in the store, by ref.
        staging: refs that are being brought in.
        failures: by name key.
        unsettled: name keys whose last load has an unknown outcome that no listing has settled yet.
        owns: artifact id of a path under our store, else None.
        base_problem: why adapters cannot be compared with the base model; empty: they can.
        base_known: False if there is nothing to compare them with.
        lazy: which lazy adapters stay loaded.
        share: what of the desired state this replica serves; None: all of it.
        handed: what was said of handing over.
    """

    staged: Mapping[ArtifactRef, Staged]
    staging: AbstractSet[ArtifactRef]
    failures: Mapping[str, Failure]
    unsettled: AbstractSet[str]
    owns: Callable[[str], str | None]
    base_problem: str = ""
    base_known: bool = True
    lazy: Wanted = NOTHING_LAZY
    share: Share | None = None
    handed: Mapping[Leaving, Verdict] = field(default_factory=dict)
