"""What the engine lists and is not to hold any more, and what of that stays for now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from registry.model.names import name_key
from sidecar.chosen import Chosen
from sidecar.desired import DesiredState
from sidecar.engine_names import SEPARATOR, key_of
from sidecar.handover import Handover
from sidecar.known import Known
from sidecar.leaving import Leaving, Taken
from sidecar.observed import Observed
from sidecar.plan import FailedAdapter, ServedAdapter, Unload


def ours_leaving(chosen: Chosen, observed: Observed, known: Known) -> tuple[Leaving, ...]:
    """What is ours and is to be served elsewhere."""
    return tuple(one for one in chosen.leaving if known.owns(observed.adapters[one.name]) is not None)


def still_kept(leaving: Iterable[Leaving], known: Known) -> tuple[Leaving, ...]:
    """What of that is not taken over yet."""
    return tuple(one for one in leaving if not isinstance(known.handed.get(one), Taken))


def still_served(
    desired: DesiredState, kept: Iterable[Leaving], observed: Observed, known: Known
) -> Iterator[ServedAdapter]:
    """What of this the engine has as somebody is to serve it, and not as it was before."""
    for one in kept:
        adapter = desired.adapters[one.key]
        for generation, ref in adapter.versions:
            staged, names = known.staged.get(ref), {adapter.name, f"{adapter.name}{SEPARATOR}{generation}"}
            if staged is not None and staged.path == observed.adapters[one.name] and one.name in names:
                yield ServedAdapter(adapter.name, generation, staged.digest, ref.digest is not None)
                break


def superfluous(
    desired: DesiredState, chosen: Chosen, kept: Iterable[Leaving], handover: Handover, known: Known
) -> Iterator[Unload]:
    """What the engine has from us and is not to have."""
    keep = handover.keep | handover.held | {one.name for one in kept}
    waiting = {key for _, key in chosen.undecided} | known.lazy.asked
    for name, path in handover.ours.items():
        key = key_of(name)
        if name in keep or key in waiting:
            continue
        # A record that cannot be read says nothing about what should be served; what is loaded stays.
        if key in desired.refused and desired.of(key) is None:
            continue
        yield Unload(name, path)


def decide_unload(
    unload: Unload, observed: Observed, known: Known, now: float
) -> tuple[FailedAdapter | None, Unload | None]:
    """An unload is put off while an earlier one of the same name has failed."""
    failure = known.failures.get(name_key(unload.name))
    if failure is None or not failure.forbids(None, observed.facts.incarnation, now):
        return None, unload
    put_off = FailedAdapter(
        unload.name, 0, failure.reason, failure.message, failure.attempts, failure.retry_at, "", is_settled=True
    )
    return put_off, None
