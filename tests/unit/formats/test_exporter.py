"""What routers are told of a pool, each in its own format."""

from __future__ import annotations

import json

import pytest
import yaml

from registry.formats import exporter
from registry.formats.exporter import ExportedAdapter, ExportedPool, ExportedReplica, ExportFormat, export_as

POOL = ExportedPool(
    "qwen",
    ("qwen", "qwen-chat"),
    (
        ExportedReplica("r1", "http://10.0.0.1:8000", {"zone": "a"}),
        ExportedReplica("r2", "https://10.0.0.2/"),
        ExportedReplica("r3", "http://engine:8000"),
    ),
    (
        ExportedAdapter("acme/sql", {"r1": "acme/sql@2", "r2": "acme/sql@3", "r3": "acme/sql@3"}),
        ExportedAdapter("plain", {"r1": "plain"}),
    ),
)
EMPTY = ExportedPool("none", ("base",), (), ())


def test_endpoints_for_llm_d_are_addresses():
    """Its file-discovery takes IPv4 addresses alone, and ports as texts; whoever has none is told of."""
    made = export_as(ExportFormat.LLM_D_ENDPOINTS, [POOL, EMPTY])
    assert yaml.safe_load(made.text) == {
        "endpoints": [
            {
                "name": "r1",
                "namespace": "qwen",
                "address": "10.0.0.1",
                "port": "8000",
                "labels": {"zone": "a", "loraplane.pool": "qwen"},
            },
            {
                "name": "r2",
                "namespace": "qwen",
                "address": "10.0.0.2",
                "port": "443",
                "labels": {"loraplane.pool": "qwen"},
            },
        ]
    }
    [note] = made.notes
    assert "r3" in note
    assert "--advertise-url" in note


@pytest.mark.parametrize("form", [ExportFormat.IPP_CONFIGMAP, ExportFormat.INFERENCE_MODEL_REWRITE])
def test_an_object_has_a_name_that_kubernetes_takes(form):
    pool = ExportedPool("Qwen_2.5", ("b",), (), (ExportedAdapter("a", {"r": "a@1"}),))
    assert yaml.safe_load(export_as(form, [pool]).text)["metadata"]["name"] == "loraplane-qwen-2.5"


def test_the_port_of_plain_http_is_80():
    pool = ExportedPool("p", ("b",), (ExportedReplica("r", "http://10.0.0.1"),), ())
    [endpoint] = yaml.safe_load(export_as(ExportFormat.LLM_D_ENDPOINTS, [pool]).text)["endpoints"]
    assert endpoint["port"] == "80"


def test_the_payload_processor_reads_adapters_by_their_base(monkeypatch):
    made = export_as(ExportFormat.IPP_CONFIGMAP, [POOL, EMPTY])
    first, second = yaml.safe_load_all(made.text)
    assert first["metadata"] == {"name": "loraplane-qwen", "labels": {"inference.llm-d.ai/ipp-managed": "true"}}
    assert first["data"]["baseModel"] == "qwen"
    assert yaml.safe_load(first["data"]["adapters"]) == ["acme/sql@2", "acme/sql@3", "plain"]
    assert yaml.safe_load(second["data"]["adapters"]) == []
    monkeypatch.setattr(exporter, "MAX_CONFIG_BYTES", len(export_as(ExportFormat.IPP_CONFIGMAP, [EMPTY]).text))
    small = export_as(ExportFormat.IPP_CONFIGMAP, [POOL, EMPTY])
    assert ([one["metadata"]["name"] for one in yaml.safe_load_all(small.text)], len(small.notes)) == (
        ["loraplane-none"],
        1,
    )


def test_versioned_names_get_requests_by_how_many_replicas_serve_them():
    """As the schema of llm-d's resource has it; a plain name needs no rewrite."""
    [found] = yaml.safe_load_all(export_as(ExportFormat.INFERENCE_MODEL_REWRITE, [POOL, EMPTY]).text)
    targets = [{"modelRewrite": "acme/sql@2", "weight": 1}, {"modelRewrite": "acme/sql@3", "weight": 2}]
    assert found == {
        "apiVersion": "llm-d.ai/v1alpha2",
        "kind": "InferenceModelRewrite",
        "metadata": {"name": "loraplane-qwen"},
        "spec": {
            "poolRef": {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "qwen"},
            "rules": [{"matches": [{"model": {"type": "Exact", "value": "acme/sql"}}], "targets": targets}],
        },
    }
    one_name = ExportedPool("p", ("b",), (), (ExportedAdapter("a", {"r1": "a@2"}),))
    [found] = yaml.safe_load_all(export_as(ExportFormat.INFERENCE_MODEL_REWRITE, [one_name]).text)
    assert found["spec"]["rules"][0]["targets"] == [{"modelRewrite": "a@2", "weight": 1}]


def test_a_static_back_end_stands_there_once_for_each_of_its_models():
    """Both lists of vLLM's production-stack have equal lengths."""
    found = json.loads(export_as(ExportFormat.PRODUCTION_STACK, [POOL]).text)
    pairs = list(zip(found["static_backends"].split(","), found["static_models"].split(","), strict=True))
    assert [model for url, model in pairs if url == "http://10.0.0.1:8000"] == [
        "qwen",
        "qwen-chat",
        "acme/sql@2",
        "plain",
    ]
    assert len(pairs) == 10


def test_a_litellm_proxy_has_a_wildcard_for_each_replica_and_its_base():
    """LiteLLM asks any wildcard for a name that it does not know: for that of a base, replicas of other pools too."""
    found = yaml.safe_load(export_as(ExportFormat.LITELLM, [POOL, EMPTY]).text)["model_list"]
    places = ["http://10.0.0.1:8000/v1", "https://10.0.0.2/v1", "http://engine:8000/v1"]
    for name in ("*", "qwen", "qwen-chat"):
        of_name = [one["litellm_params"] for one in found if one["model_name"] == name]
        assert of_name == [{"model": f"hosted_vllm/{name}", "api_base": place} for place in places]
    ids = [one["model_info"]["id"] for one in found]
    assert (ids[:3], len(set(ids))) == (["qwen/r1", "qwen/r1/qwen", "qwen/r1/qwen-chat"], 9)
    assert found[0]["model_info"]["id"] == "qwen/r1"


@pytest.mark.parametrize("form", ExportFormat)
def test_an_empty_fleet_is_written_and_equal_states_are_equal_texts(form):
    assert export_as(form, []) == export_as(form, [])
    assert export_as(form, [POOL]).text == export_as(form, [POOL]).text != export_as(form, [EMPTY]).text
