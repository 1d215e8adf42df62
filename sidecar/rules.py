"""What no adapter may break on a replica, whether it is loaded at once or when it is asked for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.lora.policy import is_served
from registry.model.records import PoolSpec
from sidecar.artifacts.types import Staged
from sidecar.desired import DesiredAdapter
from sidecar.observed import Observed
from sidecar.plan import FailedAdapter


@dataclass(frozen=True, slots=True)
class Rules:
    """Names in lower case that are taken, the highest rank, the modules that are served; None: no limit."""

    base_names: frozenset[str]
    max_rank: int | None
    target_modules: tuple[str, ...] | None


def rules_of(pool: PoolSpec | None, observed: Observed) -> Rules:
    """The rules of this engine in this pool."""
    bounds = [observed.facts.limits.max_lora_rank, pool.limits.max_rank if pool else None]
    pools = tuple(pool.limits.target_modules) if pool and pool.limits.target_modules else None
    return Rules(
        base_names=frozenset(base.lower() for base in observed.base_models),
        max_rank=min((bound for bound in bounds if bound is not None), default=None),
        target_modules=observed.facts.limits.target_modules or pools,
    )


def obstacle_of(
    adapter: DesiredAdapter,
    rules: Rules,
    current: str | None,
    staged: Staged | None,
    owns: Callable[[str], str | None],
) -> FailedAdapter | None:
    """Why the adapter cannot be served here, however often it is tried."""
    name = adapter.name
    if name.lower() in rules.base_names:
        return _hopeless(adapter, "name_is_base_model", f"{name!r} is a name of the engine's base model")
    if current is not None and owns(current) is None:
        return _hopeless(
            adapter, "name_conflict", f"the engine has {name!r} from {current}, which is not ours; unload it"
        )
    return _unservable(adapter, rules, staged) if staged is not None else None


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
