"""What one process of vLLM breaks, and what is refused for it."""

from __future__ import annotations

import pytest

from sidecar.engines.observed import EngineLimits
from sidecar.engines.vllm.plugin_calls import About
from sidecar.engines.vllm.process import ANY_PROCESS, VllmProcess


def process(about: About | None = None, version: str = "0.32.0", **more: bool) -> VllmProcess:
    return VllmProcess("e1", version, about, **more)


@pytest.mark.parametrize(
    ("one", "swap", "reasons"),
    [
        (process(About()), "plugin", []),
        (process(About(kv_connectors=("OffloadingConnector", "SimpleCPUOffloadConnector"))), "plugin", []),
        (process(About(kv_connectors=("MooncakeStoreConnector",))), "plugin", []),
        (process(About(kv_connectors=("NixlConnector",))), "refused", ["kv_connector"]),
        (process(About(kv_connectors=("OffloadingConnector", "mine.Own"))), "refused", ["kv_connector"]),
        (process(About(kv_connectors=("LMCacheConnectorV1",))), "refused", ["kv_connector", "kv_shared"]),
        (process(is_rust=True), "refused", ["rust_frontend"]),
    ],
)
def test_connectors_that_may_know_names_alone_and_the_rust_frontend_forbid_swaps(one, swap, reasons):
    """R4, R5: new weights would be answered with what was computed by the old ones."""
    facts = one.facts("http://e", EngineLimits(), None)
    assert (facts.swap, [hazard.reason for hazard in facts.hazards]) == (swap, reasons)


def test_what_a_connector_keeps_outlives_the_process():
    """So that a restart does not make a name free for other weights; elsewhere it does."""
    assert process(has_external_kv=True).past_of == ANY_PROCESS
    assert process(version="0.30.0", has_external_kv=True).past_of == ANY_PROCESS, "whatever itself remembers"
    assert process().past_of is None
    assert process(version="0.30.0").past_of == "e1"
    in_memory, shared = (About(kv_connectors=(name,)) for name in ("OffloadingConnector", "MooncakeStoreConnector"))
    assert process(in_memory, "0.30.0").past_of == "e1"
    assert process(shared, "0.30.0").past_of == ANY_PROCESS, "by a key that has no path yet"
    assert process(shared).past_of is None
    assert process(is_rust=True).past_of is None


def test_why_no_name_gets_other_weights():
    assert "0.30.0" in process(version="0.30.0").no_swap
    assert "--engine-names versioned" in process(has_external_kv=True).no_swap
    assert process().no_swap == ""


@pytest.mark.parametrize(
    ("version", "unread"),
    [
        ("0.29.1", ["patterns", "rslora_experts"]),
        ("0.30.0", ["patterns"]),
        ("0.31.0", ["patterns"]),
        ("0.32.0", []),
        ("0.33.0+cpu", []),
        ("1.0.0", []),
    ],
)
def test_releases_say_what_they_do_not_read_of_the_scales_of_adapters(version, unread):
    """R22 applied-whole; as read in vLLM 0.10 to 0.33."""
    told = process(version=version).facts("http://e", EngineLimits(), None).unread_scales
    assert [one.source for one in told] == unread
    assert all(version in one.message for one in told)
