"""What no adapter may break on a replica, whether it is loaded at once or when it is asked for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.lora.policy import is_served
from registry.model.records import EngineNames, PoolSpec
from sidecar.artifacts.types import Staged
from sidecar.desired import DesiredAdapter
from sidecar.engine_names import engine_name, names_of
from sidecar.observed import Observed
from sidecar.plan import FailedAdapter


@dataclass(frozen=True, slots=True)
class Rules:
    """Names in lower case that are taken, the highest rank, the modules that are served; None: no limit.

    `names`: what the engine calls an adapter.
    """

    base_names: frozenset[str]
    max_rank: int | None
    target_modules: tuple[str, ...] | None
    names: EngineNames = "plain"


def rules_of(pool: PoolSpec | None, observed: Observed) -> Rules:
    """The rules of this engine in this pool."""
    bounds = [observed.facts.limits.max_lora_rank, pool.limits.max_rank if pool else None]
    pools = tuple(pool.limits.target_modules) if pool and pool.limits.target_modules else None
    return Rules(
        base_names=frozenset(base.lower() for base in observed.base_models),
        max_rank=min((bound for bound in bounds if bound is not None), default=None),
        target_modules=observed.facts.limits.target_modules or pools,
        names=names_of(pool),
    )


def obstacle_of(
    adapter: DesiredAdapter,
    rules: Rules,
    observed: Observed | None,
    staged: Staged | None,
    owns: Callable[[str], str | None],
) -> FailedAdapter | None:
    """Why the adapter cannot be served here, however often it is tried; `observed` None: whatever the engine lists."""
    name = engine_name(adapter, rules.names)
    current = observed.adapters.get(name) if observed else None
    if name.lower() in rules.base_names:
        return _hopeless(adapter, "name_is_base_model", f"{name!r} is a name of the engine's base model")
    if current is not None and owns(current) is None:
        return _hopeless(
            adapter, "name_conflict", f"the engine has {name!r} from {current}, which is not ours; unload it"
        )
    if staged is None:
        return None
    return _unservable(adapter, rules, staged) or (_remembered(adapter, name, observed, staged) if observed else None)


def _remembered(adapter: DesiredAdapter, name: str, observed: Observed, staged: Staged) -> FailedAdapter | None:
    """Why the engine would answer from what it remembers of other weights that it had under this name."""
    before = observed.adapters.get(name) if observed.facts.swap == "refused" else None
    before = before or observed.past.get(name)
    if before is None or before == staged.path:
        return None
    message = (
        f"the engine had other weights as {name!r}, and {observed.facts.kind} {observed.facts.version} would answer "
        "from what it remembers of those: give the pool --engine-names versioned, or restart or upgrade the engine"
    )
    return _hopeless(adapter, "name_remembered", message)


def _unservable(adapter: DesiredAdapter, rules: Rules, staged: Staged) -> FailedAdapter | None:
    """Why an adapter that is right in itself is not for this replica's limits."""
    limit = rules.max_rank
    if limit is not None and staged.rank > limit:
        return _hopeless(adapter, "rank_too_high", f"rank {staged.rank} is above the replica's limit of {limit}")
    left_out = sorted(name for name in staged.targets if not is_served(name, rules.target_modules))
    if left_out:
        message = f"the engine leaves out {', '.join(left_out)}: start it with --lora-target-modules that name them"
        return _hopeless(adapter, "target_modules_mismatch", message)
    return None


def _hopeless(adapter: DesiredAdapter, reason: str, message: str) -> FailedAdapter:
    return FailedAdapter(
        adapter.name, adapter.generation, reason, message, 1, None, adapter.request_id, is_settled=True
    )
