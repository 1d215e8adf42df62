"""What one process of vLLM breaks, and what is refused for it."""

from __future__ import annotations

import pytest

from sidecar.engines.observed import EngineLimits
from sidecar.engines.vllm.plugin_calls import About
from sidecar.engines.vllm.process import ANY_PROCESS, VllmProcess


def process(about: About | None = None, version: str = "0.32.0", **more: bool) -> VllmProcess:
    return VllmProcess("e1", version, about, **more)


def told(one: VllmProcess) -> tuple[str, list[str]]:
    """How it replaces weights, and the reasons of what it breaks."""
    facts = one.facts("http://e", EngineLimits(), None)
    return facts.swap, [hazard.reason for hazard in facts.hazards]


@pytest.mark.parametrize(
    ("connectors", "swap", "reasons"),
    [
        ((), "plugin", []),
        (("OffloadingConnector", "SimpleCPUOffloadConnector", "MooncakeStoreConnector"), "plugin", []),
        (("NixlConnector",), "refused", ["kv_connector"]),
        (("OffloadingConnector", "mine.Own"), "refused", ["kv_connector"]),
        (("LMCacheConnectorV1",), "refused", ["kv_connector", "kv_shared"]),
    ],
)
def test_connectors_that_may_know_names_alone_forbid_swaps(connectors, swap, reasons):
    """R4, R5: new weights would be answered with what was computed by the old ones."""
    assert told(process(About(kv_connectors=connectors))) == (swap, reasons)


def test_the_rust_frontend_takes_no_swaps():
    assert told(process(is_rust=True)) == ("refused", ["rust_frontend"])


def test_what_a_connector_keeps_outlives_the_process():
    """So that a restart does not make a name free for other weights; elsewhere it does."""
    assert process(has_external_kv=True).past_of == ANY_PROCESS
    assert process(version="0.30.0", has_external_kv=True).past_of == "e1"
    assert process().past_of is None
    assert process(is_rust=True).past_of is None


def test_why_no_name_gets_other_weights():
    assert "0.30.0" in process(version="0.30.0").no_swap
    assert "--engine-names versioned" in process(has_external_kv=True).no_swap
    assert process().no_swap == ""
