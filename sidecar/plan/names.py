"""Engine names of adapters, and their overlap while one replaces another. Pure.

An adapter keeps its name, or has a name of its own for each generation. What an engine keeps under one name stays until
the adapter is served under another, so that there is no gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from registry.model.names import name_key
from registry.model.records import EngineNames, PoolSpec
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.desired.informer import DesiredAdapter
from sidecar.engines.observed import Observed
from sidecar.plan.types import Action, Load, Unload

# No adapter's name has it.
SEPARATOR = "@"


def names_of(pool: PoolSpec | None) -> EngineNames:
    """Naming of adapters in a pool's engines; without a record: plain names."""
    return pool.engine_names if pool is not None else "plain"


def engine_name(adapter: DesiredAdapter, names: EngineNames) -> str:
    """Name of an adapter in an engine, at its generation."""
    return f"{adapter.name}{SEPARATOR}{adapter.generation}" if names == "versioned" else adapter.name


def version_of(adapter: DesiredAdapter, staged: Staged) -> str:
    """Proof in an answer that an adapter's files made it, with the digest of their source."""
    return f"{adapter.name}{SEPARATOR}{adapter.generation} {staged.digest}"


def key_of(engine_name: str) -> str:
    """The name key of the adapter that an engine calls so, in whichever of the two ways."""
    return name_key(engine_name.partition(SEPARATOR)[0])


def listed_as(
    adapters: Iterable[DesiredAdapter], names: EngineNames, observed: Observed
) -> Iterator[tuple[DesiredAdapter, str]]:
    """Adapters whose names the engine lists, with the paths that it has them from."""
    for adapter in adapters:
        path = observed.adapters.get(engine_name(adapter, names))
        if path is not None:
            yield adapter, path


@dataclass(frozen=True, slots=True)
class NameOverlap:
    """Names of ours that the engine lists, and those of them that must stay.

    Attributes:
        ours: name to path.
        keep: names that the chosen adapters are to have.
        held: other names of chosen adapters, which are not served yet under those that they are to have.
    """

    ours: Mapping[str, str]
    keep: AbstractSet[str]
    held: AbstractSet[str]

    def within(self, actions: Sequence[Action], capacity: int | None, *, going: int) -> Sequence[Action]:
        """Puts off loads for which there is no room beside what is held, and what is `going` or coming already.

        Where there is just none, as after a change of the way to name adapters, one is made all the same: what it
        replaces goes next. What stays for another reason does not count: it may stay for ever.
        """
        if capacity is None or not self.held:
            return actions
        room = capacity - going - len(self.ours.keys() & (self.keep | self.held))
        if room == 0 and not any(isinstance(action, Unload) for action in actions):
            room = 1
        loads = [action for action in actions if isinstance(action, Load)]
        put_off = set(loads[max(room, 0) :])
        return [action for action in actions if action not in put_off]


def overlap_of(
    chosen: Iterable[DesiredAdapter],
    names: EngineNames,
    observed: Observed,
    staged: Mapping[ArtifactRef, Staged],
    kept: Iterable[DesiredAdapter] = (),
) -> NameOverlap:
    """Overlap of the engine's names with those of the chosen adapters.

    Args:
        chosen: what it is to hold.
        names: what it calls them.
        observed: what it lists.
        staged: what is in the store, by ref.
        kept: earlier generations that it is to hold beside these.
    """
    wanted = {adapter.key: adapter for adapter in chosen}
    awaited = {key for key, adapter in wanted.items() if not _is_served(adapter, names, observed, staged)}
    ours = {name: path for name, path in observed.adapters.items() if path in observed.ours}
    keep = {engine_name(adapter, names) for adapter in (*wanted.values(), *kept)}
    return NameOverlap(ours, keep, {name for name in ours if name not in keep and key_of(name) in awaited})


def _is_served(
    adapter: DesiredAdapter, names: EngineNames, observed: Observed, staged: Mapping[ArtifactRef, Staged]
) -> bool:
    found = staged.get(adapter.ref)
    return found is not None and observed.adapters.get(engine_name(adapter, names)) == found.path
