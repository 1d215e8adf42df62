"""The gauges of a sidecar: what each shows of a status, and that nothing stays of the one before."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from registry.model.status import Failed, ReplicaStatus
from sidecar.metrics import ENGINE_CALL_SECONDS, done_calls, show_status


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"loraplane_{name}", labels)


def adapter(name: str) -> float | None:
    """By the name that the former sidecar had for it."""
    return REGISTRY.get_sample_value("lora_syncer_adapter_status", {"adapter_name": name})


def failed(name: str, reason: str) -> Failed:
    return Failed(name=name, generation=1, reason=reason, message="m", attempts=1, retry_at=None)


def status(count: int, *broken: Failed, swap: str = "", **fields: object) -> ReplicaStatus:
    engine = {
        "kind": "vllm",
        "url": "http://e",
        "version": "1",
        "base_models": ["base"],
        "incarnation": "i",
        "swap": swap,
    }
    known = {"replica": "r", "pool": "p", "observed_revision": 1, "ready": False, "stale": False, "pending": []}
    known |= {"updated_at": "2030-01-01T00:00:00Z"}
    served = {"count": count, "hash": ""}
    return ReplicaStatus.model_validate(known | {"engine": engine, "served": served, "failed": [*broken]} | fields)


GAUGES = ("list_held", "stale", "ready", "degraded")


def test_a_status_is_shown_whole_and_nothing_of_the_one_before():
    """R9: an alert that rests on a gauge goes as its reason goes."""
    broken = [failed("x", "refused_by_engine"), failed("y", "refused_by_engine"), failed("z", "unknown_source")]
    told = {"held": "a list", "stale": True, "ready": True, "degraded": "why", "swap": "plugin"}
    show_status(status(2, *broken, **told), 5, ["a", "b"], 3)
    assert [value(f"{name}_adapters") for name in ("desired", "served")] == [5, 2]
    assert [value(name) for name in (*GAUGES, "lazy_resident")] == [1, 1, 1, 1, 3]
    assert value("failed_adapters", reason="refused_by_engine") == 2
    assert value("failed_adapters", reason="unknown_source") == 1
    assert value("engine_swap", strategy="plugin") == 1
    assert [adapter(name) for name in "abxyz"] == [1, 1, 0, 0, 0]
    show_status(status(1, failed("a", "unknown_source"), swap="refused"), 2, ["z"], 0)
    assert [value(f"{name}_adapters") for name in ("desired", "served")] == [2, 1]
    assert [value(name) for name in (*GAUGES, "lazy_resident")] == [0, 0, 0, 0, 0]
    assert value("failed_adapters", reason="refused_by_engine") is None
    assert value("failed_adapters", reason="unknown_source") == 1
    assert (value("engine_swap", strategy="plugin"), value("engine_swap", strategy="refused")) == (None, 1)
    assert [adapter(name) for name in "abxyz"] == [0, None, None, None, 1]
    show_status(status(0), 0, [], 0)
    assert value("engine_swap", strategy="refused") is None
    assert value("engine_swap", strategy="") is None, "of an engine that nobody has seen yet"


@pytest.mark.parametrize("kind", ["a kind", "another kind"])
def test_only_calls_that_succeeded_are_counted(kind):
    """By their kinds, with the time that they took."""
    assert kind not in done_calls()
    ENGINE_CALL_SECONDS.labels(kind, "refused").observe(100.0)
    assert done_calls().get(kind, (0, 0.0)) == (0, 0.0)
    for seconds in (1.5, 2.5):
        ENGINE_CALL_SECONDS.labels(kind, "done").observe(seconds)
    ENGINE_CALL_SECONDS.labels(kind, "unknown").observe(100.0)
    assert done_calls()[kind] == (2, 4.0)
