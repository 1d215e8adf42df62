"""Limits of a replica, and why an adapter is not served within them. Pure."""

from __future__ import annotations

from registry.lora.coverage.findings import evidence_finding
from registry.lora.policy import is_served
from registry.model.records import PoolLimits, PoolSpec
from sidecar.artifacts.types import Staged
from sidecar.desired.informer import DesiredAdapter
from sidecar.engines.observed import Observed
from sidecar.plan.backoff import EXPECT_HINT, NO_EFFECT, NOT_AS_EXPECTED
from sidecar.plan.names import engine_name, names_of
from sidecar.plan.types import FailedAdapter, ReplicaLimits
from sidecar.vllm_plugin.protocol import expected_key

_WITHOUT_EFFECT = (
    "with it the engine answers a short prompt as its base, to the last bit, or with what is no number, so that it "
    "does not apply what was trained: look at what vLLM says of its modules, or give the pool --prove off"
)


def limits_of(pool: PoolSpec | None, observed: Observed) -> ReplicaLimits:
    """The limits of this engine in this pool."""
    engine, of_pool = observed.facts.limits, pool.limits if pool else PoolLimits()
    proves = observed.facts.proves and of_pool.prove == "effect"
    return ReplicaLimits(
        base_names=frozenset(base.lower() for base in observed.base_models),
        max_rank=_lower(engine.max_lora_rank, of_pool.max_rank),
        target_modules=engine.target_modules or tuple(of_pool.target_modules or ()) or None,
        names=names_of(pool),
        capacity=_lower(engine.max_cpu_loras, of_pool.max_adapters),
        evidence=observed.facts.evidence,
        proves=proves,
        no_effect=observed.no_effect if proves else frozenset(),
        expects=proves and observed.facts.expects,
        unexpected=observed.unexpected if proves else {},
        pool_rank=of_pool.max_rank,
        names_targets=bool(engine.target_modules),
    )


def _lower(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def rejection_of(
    adapter: DesiredAdapter, limits: ReplicaLimits, observed: Observed | None, staged: Staged | None
) -> FailedAdapter | None:
    """Why the adapter cannot be served here, however often it is tried; `observed` None: whatever the engine lists."""
    name = engine_name(adapter, limits.names)
    current = observed.adapters.get(name) if observed else None
    if name.lower() in limits.base_names:
        return _hopeless(adapter, "name_is_base_model", f"{name!r} is a name of the engine's base model")
    if observed and current is not None and current not in observed.ours:
        return _hopeless(
            adapter, "name_conflict", f"the engine has {name!r} from {current}, which is not ours; unload it"
        )
    if staged is None:
        return None
    if unservable := _unservable(adapter, limits, staged):
        return unservable
    return None if observed is None else _remembered(adapter, name, observed, staged)


def _remembered(adapter: DesiredAdapter, name: str, observed: Observed, staged: Staged) -> FailedAdapter | None:
    """Why the engine would answer from what it remembers of other weights that it had under this name."""
    before = observed.adapters.get(name) if observed.facts.swap == "refused" else None
    before = before or observed.past.get(name)
    if before is None or before == staged.path:
        return None
    hazard = next(iter(observed.facts.hazards), None)
    why = (
        f"{observed.facts.kind} {observed.facts.version} would answer from what it remembers of those: give the pool "
        "--engine-names versioned, or restart or upgrade the engine"
    )
    message = f"the engine had other weights as {name!r}, and {hazard.message if hazard else why}"
    return _hopeless(adapter, "name_remembered", message)


def _unservable(adapter: DesiredAdapter, limits: ReplicaLimits, staged: Staged) -> FailedAdapter | None:
    """Why an adapter that is right in itself is not for this replica's limits."""
    limit = limits.max_rank
    if limit is not None and staged.rank > limit:
        message = f"rank {staged.rank} is above the replica's limit of {limit}"
        is_own = limits.pool_rank is None or staged.rank <= limits.pool_rank
        return _hopeless(adapter, "rank_too_high", message, is_own=is_own)
    left_out = sorted(name for name in staged.targets if not is_served(name, limits.target_modules))
    if left_out:
        message = f"the engine leaves out {', '.join(left_out)}: start it with --lora-target-modules that name them"
        return _hopeless(adapter, "target_modules_mismatch", message, is_own=limits.names_targets)
    finding = evidence_finding(staged.modules, limits.evidence) if limits.evidence else None
    if finding:
        return _hopeless(adapter, finding.reason, finding.sentence(), is_own=True)
    if staged.path in limits.no_effect:
        return _hopeless(adapter, NO_EFFECT, _WITHOUT_EFFECT)
    said = deviation_of(adapter, limits, staged)
    return _hopeless(adapter, NOT_AS_EXPECTED, f"{said}{EXPECT_HINT}") if said else None


def deviation_of(adapter: DesiredAdapter, limits: ReplicaLimits, staged: Staged) -> str:
    """Deviation of the engine's answers from spec.expect; empty: none that counts."""
    expect = adapter.ref.expect
    return limits.unexpected.get(expected_key(staged.path, expect), "") if expect and limits.unexpected else ""


def _hopeless(adapter: DesiredAdapter, reason: str, message: str, *, is_own: bool = False) -> FailedAdapter:
    return FailedAdapter(
        adapter.name, adapter.generation, reason, message, 1, None, adapter.request_id, is_settled=True, is_own=is_own
    )
