"""What an engine may be told."""

from __future__ import annotations

from dataclasses import replace

from sidecar.artifacts.types import Staged
from sidecar.plan.backoff import Failure
from sidecar.plan.limits import limits_of
from sidecar.resolver.policy import Fetch, Reject, Serve, ServingLimits, decide, find
from sidecar.vllm_plugin.protocol import Unresolved
from tests.support.records import kv
from tests.support.worlds import desired, observed, owns, path_of, pool, wants

ADAPTER = wants({"a": "v1"}).adapters["a"]
STAGED = Staged("v1", path_of("v1"), "", 8, frozenset({"q_proj"}))


def terms(**limits) -> ServingLimits:
    return ServingLimits(limits_of(pool(), observed(**limits)), 4, owns)


def test_only_a_lazy_adapter_of_exactly_that_name_is_found():
    state = desired(kv("Acme/SQL", 1, load="lazy"), kv("eager", 2))
    assert find("Acme/SQL", state) == "acme%2Fsql"
    assert find("eager", state) == Unresolved("not_lazy")
    for name in ("acme/sql", "Eager", "no", "", "acme%2Fsql", "a\0b"):
        assert find(name, state) == Unresolved("unknown_adapter")


def test_what_is_staged_and_within_the_limits_is_served():
    assert decide(ADAPTER, STAGED, terms(), None, now=0.0) == Serve(STAGED)
    assert decide(ADAPTER, None, terms(), None, now=0.0) == Fetch()


def test_the_rules_are_those_of_eager_adapters():
    """R4, R5, R8, R22: rank, modules, what the engine said has no effect, and the names of the base."""

    def reason(adapter, staged, told) -> str:
        refused = decide(adapter, staged, told, None, now=0.0)
        assert isinstance(refused, Reject)
        assert refused.failure.retry_at is None
        return refused.failure.reason

    assert reason(ADAPTER, STAGED, terms(max_lora_rank=4)) == "rank_too_high"
    assert reason(ADAPTER, STAGED, terms(target_modules=("down_proj",))) == "target_modules_mismatch"
    without = replace(terms().rules, no_effect=frozenset({path_of("v1")}))
    assert reason(ADAPTER, STAGED, replace(terms(), rules=without)) == "no_effect"
    base = wants({"base": "v1"}).adapters["base"]
    assert reason(base, None, terms()) == "name_is_base_model"


def test_a_failed_staging_is_not_repeated_before_its_time():
    """R8 isolation."""
    failure = Failure(ADAPTER.ref, None, "not_found", "it is not there", 1, 5.0)
    assert decide(ADAPTER, None, terms(), failure, now=4.0) == Reject(failure)
    assert decide(ADAPTER, None, terms(), failure, now=5.0) == Fetch()
    assert decide(ADAPTER, STAGED, terms(), failure, now=4.0) == Serve(STAGED)


def test_what_is_not_proven_is_proven_before_it_is_told():
    """R21."""
    assert decide(ADAPTER, replace(STAGED, is_proven=False), terms(), None, now=0.0) == Fetch()
