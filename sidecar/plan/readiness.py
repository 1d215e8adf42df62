"""Readiness of a replica whose engine refuses adapters. Pure.

Files that no engine can use are the adapters' fault, and a replica is ready without them. An engine that is out of
memory, or warms up, refuses what is fit: a replica that serves nothing for that reason is of no use to a router.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sidecar.plan.backoff import Failure

# What a replica that was ready goes on being ready for: all but a share of what it should serve, or any of it.
ReadyWhen = Literal["served", "any"]
DEGRADED_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class EngineRefusals:
    """The eager adapters that the engine would not load, after a few tries of each.

    Attributes:
        desired: how many eager adapters it is to hold.
        count: how many of these are refused.
        unexplained: how many of them since no other has been loaded, so that the fault may well be the engine's.
        serves: it lists something that is asked for under the name that it has, be it of an earlier generation.
        message: what it said of one of them.
    """

    desired: int = 0
    count: int = 0
    unexplained: int = 0
    serves: bool = False
    message: str = ""


NO_REFUSALS = EngineRefusals()


def refusals_among(desired: int, failures: Iterable[Failure], *, serves: bool) -> EngineRefusals:
    """Counts those of the failures that are the engine's."""
    refused = [one for one in failures if one.is_engines and one.is_settled()]
    unexplained = sum(not one.others_succeed for one in refused)
    message = refused[0].message if refused else ""
    return EngineRefusals(desired, len(refused), unexplained, serves, message)


@dataclass(frozen=True, slots=True)
class ReadyRule:
    """The operator's choice.

    Attributes:
        when: ``any``: once ready, it stays so while it serves any adapter: that of all replicas refuse the same upload,
            is no reason to lose what they serve. ``served``: it is not ready while it is degraded.
        share: of what is desired; if more is refused, it is degraded.
    """

    when: ReadyWhen = "any"
    share: float = DEGRADED_SHARE

    def degraded(self, refusals: EngineRefusals) -> str:
        """Why the replica is degraded; empty: it is not."""
        if refusals.count <= self.share * refusals.desired:
            return ""
        many = f"{refusals.count} of {refusals.desired} adapters"
        return f"the engine refuses {many}, or does not list them: {refusals.message}"

    def may_begin(self, refusals: EngineRefusals, *, was_serving: bool) -> bool:
        """True if a replica may become ready. `was_serving`: before this sidecar began, so that it was ready then."""
        if was_serving:
            return True
        is_engines_fault = refusals.unexplained > self.share * refusals.desired
        return not is_engines_fault and (refusals.serves or not refusals.count)

    def may_stay(self, refusals: EngineRefusals) -> bool:
        """True if one that became ready still is."""
        if self.when == "served":
            return not self.degraded(refusals)
        return refusals.serves or not refusals.count


USUAL_RULE = ReadyRule()
