"""Names that a draining replica has to list, since nobody else serves them. Pure.

A router that polls engines sends a name's requests where the name is listed. So a replica that drains takes out of its
list what others serve, and leaves in what they do not (R20), as residency does: such a router could else send requests
nowhere, though this engine would answer them.

- What is placed by number is handed over: it stays until one of those who are to serve it proves that it does. Before
  this replica has left the live ones in its own reckoning, all of that stays.
- What all replicas serve that match is handed over by nobody: it stays while none of these that are ready serves it.
- What nothing desires here leaves the list at once: others do not serve that either.
- What is not known counts as not served.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from registry.model.placement import Selector
from sidecar.desired.informer import DesiredAdapter
from sidecar.plan.handoff import Handoff, HandoffVerdict, Need, OtherReplica, Taken, Waiting, need_of_common
from sidecar.plan.names import key_of
from sidecar.plan.types import Plan

EVERYWHERE: Selector = frozenset()


def has_placed(plan: Plan) -> bool:
    """True if the replica serves what only some replicas do."""
    return bool(plan.leaving) or any(one.terms is not None and one.terms.is_counted for one in plan.chosen.adapters)


def common_selectors(plan: Plan) -> frozenset[Selector]:
    """The selectors of what is served by all that match."""
    common = {one.terms.selector if one.terms is not None else EVERYWHERE for one in plan.chosen.adapters}
    return frozenset({*common, EVERYWHERE} if plan.residents else common)


def needed_names(
    plan: Plan, listed: Iterable[str], verdicts: Mapping[Handoff, HandoffVerdict], others: Collection[OtherReplica]
) -> frozenset[str]:
    """Those of the names that an engine lists which no other replica serves yet.

    Args:
        plan: the newest one of the replica that drains.
        listed: the names.
        verdicts: on what is handed over.
        others: the live replicas that do not leave.
    """
    leaving = {one.name: one for one in plan.leaving}
    common = {one.key: _selector(one) for one in plan.chosen.wanted}
    selectors = {selector for selector in common.values() if selector is not None}
    served = {selector for selector in selectors if need_of_common([selector], others) is Need.NOTHING}
    undecided = {key for _, key in plan.chosen.undecided}

    def is_needed(name: str) -> bool:
        if (handoff := leaving.get(name)) is not None:
            verdict = verdicts.get(handoff, Waiting())
            return not (isinstance(verdict, Taken) or verdict.elsewhere)
        key = key_of(name)
        return key in undecided or (key in common and common[key] not in served)

    return frozenset(name for name in listed if is_needed(name))


def _selector(adapter: DesiredAdapter) -> Selector | None:
    """The selector of what all that match serve; None: only some of them do."""
    if adapter.terms is None:
        return EVERYWHERE
    return None if adapter.terms.is_counted else adapter.terms.selector
