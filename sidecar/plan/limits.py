"""Limits of a replica, why an adapter is refused by them, and declines. Pure.

A decline is an adapter that a replica refuses by its own limits. Others go by what a replica says that it declines, and
take it (`registry.model.placement`). So a decline stands until there is a reason to think otherwise: the record has
another generation or is gone, another try of it was asked for, or the limit is another one. It stands although the
adapter is not this replica's any more, and after a restart: else it would come back with each, to be refused again.

Until others are known to have heard of it, a refusal is no answer to whoever waits for the adapter: the next replica
has not been asked yet.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from registry.lora.coverage.findings import evidence_finding
from registry.lora.policy import is_served, target_of
from registry.model.names import matches, name_key
from registry.model.placement import DECLINABLE, Declined, Member, decline_id
from registry.model.records import PoolLimits, PoolSpec
from sidecar.artifacts.types import Staged
from sidecar.desired.informer import DesiredAdapter, DesiredState
from sidecar.engines.observed import Observed
from sidecar.plan.backoff import EXPECT_HINT, NO_EFFECT, NOT_AS_EXPECTED, Decline, Declines, Failure
from sidecar.plan.names import engine_name, names_of
from sidecar.plan.types import FailedAdapter, PlanContext, ReplicaLimits, Selection
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
        unread_scales=observed.facts.unread_scales,
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
    left_out = sorted({target_of(name) for name in staged.modules if not is_served(name, limits.target_modules)})
    if left_out:
        message = f"the engine leaves out {', '.join(left_out)}: start it with --lora-target-modules that name them"
        return _hopeless(adapter, "target_modules_mismatch", message, is_own=limits.names_targets)
    finding = evidence_finding(staged.modules, limits.evidence) if limits.evidence else None
    if finding:
        return _hopeless(adapter, finding.reason, finding.sentence(), is_own=True)
    unread = next((one.message for one in limits.unread_scales if one.source in staged.scales), "")
    if unread:
        return _hopeless(adapter, "not_applied_by_engine", unread, is_own=True)
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


# As many fit into a presence, which is to stay small: every sidecar of the pool gets it. What is beyond them stays
# placed here, and refused.
MAX_DECLINED = 2048
# By then others have heard of it, unless etcd is away: the status promises news then.
HEARD_SECONDS = 10.0
_DIGEST_DIGITS = 16
# Of the reasons those for which the files are not even read.
_BY_READING = frozenset(DECLINABLE) - {
    "rank_too_high",
    "target_modules_mismatch",
    "not_applied_by_engine",
    "not_taken_by_engine",
}


def is_own(failure: Failure) -> bool:
    """True if files were refused for good by what this replica may read, and not for what is in them."""
    return failure.retry_at is None and failure.incarnation is None and failure.reason in _BY_READING


def decline(
    desired: DesiredState, chosen: Selection, failed: Iterable[FailedAdapter], known: PlanContext, now: float
) -> Declines:
    """Present declines: earlier ones that still stand, and new refusals. `now`: monotonic seconds."""
    replica = known.share.replica if known.share is not None else ""
    before, news = known.declined, [(name_key(one.name), one) for one in failed if one.is_own]
    if not before and not news:
        return before
    reasons = {one.reason for one in before.values()} | {one.reason for _, one in news}
    by = {reason: limit_digest(reason, chosen.limits, known.reads) for reason in reasons}
    found = {
        at: replace(one, asked=_asked(desired.adapters[at[0]], replica) or one.asked or "")
        for at, one in before.items()
        if one.by == by[one.reason] and _is_desired(at, one, desired, replica)
    }
    for key, one in news:
        adapter = desired.adapters.get(key)
        if adapter is not None and _is_counted(adapter) and len(found) < MAX_DECLINED:
            found.setdefault((key, one.generation), Decline(one.reason, by[one.reason], _asked(adapter, replica), now))
    return before if found == before else found


def passed_on(desired: DesiredState, failed: FailedAdapter, declined: Declines, known: PlanContext) -> FailedAdapter:
    """A refusal as it is told: no answer yet, if others take the adapter once they hear that it is declined here."""
    adapter, share = desired.adapters.get(name_key(failed.name)), known.share
    if not failed.is_own or adapter is None or share is None or share.members is None:
        return failed
    found = declined.get((adapter.key, failed.generation))
    if found is None or not _is_news(adapter, failed.generation, share.replica, share.members):
        return failed
    return replace(failed, retry_at=found.since + HEARD_SECONDS, final_at=math.inf)


def _is_news(adapter: DesiredAdapter, generation: int, replica: str, members: Mapping[str, Member]) -> bool:
    """True if others do not know yet that this replica declines it, and one of them may take it."""
    own, terms = members.get(replica), adapter.terms
    if own is None or terms is None or any(one.declines is None for one in members.values()):
        return False
    if terms.declinable(adapter.generation) != generation:
        return False  # canaries pass nothing on
    at = decline_id(adapter.key, generation)
    others = (one for one in members.values() if one is not own and matches(terms.placement.selector, one.labels))
    return not own.why_declined(at) and any(not one.why_declined(at) for one in others)


def _is_desired(at: tuple[str, int], one: Decline, desired: DesiredState, replica: str) -> bool:
    """True while that generation is desired by number, and nobody has asked this replica for another try of it."""
    adapter = desired.adapters.get(at[0])
    if adapter is None or not _is_counted(adapter):
        return False
    asked = _asked(adapter, replica)
    return at[1] in {number for number, _ in adapter.versions} and (one.asked is None or asked in {"", one.asked})


def _is_counted(adapter: DesiredAdapter) -> bool:
    return adapter.terms is not None and adapter.terms.is_counted


def _asked(adapter: DesiredAdapter, replica: str) -> str:
    """The request by which a replica was asked for another try; empty: none, or another replica was."""
    retry = adapter.retry
    return retry.request_id if retry is not None and retry.replica in {"", replica} else ""


def limit_digest(reason: str, limits: ReplicaLimits, reads: str) -> str:
    """Digest of the limits behind a refusal for this reason; equal while they are."""
    said: object = reads
    if reason == "rank_too_high":
        said = limits.max_rank
    elif reason == "target_modules_mismatch":
        said = limits.target_modules
    elif reason not in _BY_READING:
        said = (limits.evidence, limits.unread_scales) if limits.unread_scales else limits.evidence
    return hashlib.sha256(f"{said!r}".encode()).hexdigest()[:_DIGEST_DIGITS]


def announced(declined: Declines) -> dict[str, Declined]:
    """The same, as a presence tells it."""
    found: dict[tuple[str, str], set[str]] = {}
    for (key, generation), one in declined.items():
        found.setdefault((one.reason, one.by), set()).add(decline_id(key, generation))
    return {reason: Declined(by, frozenset(ids)) for (reason, by), ids in sorted(found.items())}


def restored(declines: Mapping[str, Declined], desired: DesiredState) -> Declines:
    """Declines from before a restart, as far as the adapters are still desired."""
    reasons = {one: (reason, group.by) for reason, group in declines.items() for one in group.adapters}
    if not reasons:
        return {}
    counted = (one for one in desired.adapters.values() if _is_counted(one))
    versions = ((adapter.key, number) for adapter in counted for number, _ in adapter.versions)
    found = ((at, reasons[one]) for at in versions if (one := decline_id(*at)) in reasons)
    return {at: Decline(reason, by, None) for at, (reason, by) in islice(found, MAX_DECLINED)}
