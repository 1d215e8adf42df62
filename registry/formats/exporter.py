"""Exporters: places of adapters, as configuration of routers. Pure.

Each format is what one router reads, and holds exactly what that router can act on:

- ``llm-d-endpoints``: the endpoints of llm-d's ``file-discovery``. IPv4 alone, as it asks; which adapters one has it
  finds out from the engine's list.
- ``ipp-configmap``: base model of each adapter, as llm-d's inference payload processor reads it from ConfigMaps.
- ``inferencemodelrewrite``: from an adapter's name to the versioned names that serve it, by how many replicas do; it is
  how a canary of a pool with versioned names gets its share.
- ``production-stack-json``: the static back ends of vLLM's production-stack router, once for each model of each.
- ``litellm``: the ``model_list`` of a LiteLLM proxy, a wildcard for each replica, and its base; our callback chooses
  among the wildcards.

What a format has no room for is told as a note and left out; nothing is guessed. The text of equal states is the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address
from types import MappingProxyType
from urllib.parse import urlsplit

import yaml

# As llm-d reads them: a ConfigMap, and a file of endpoints.
MAX_CONFIG_BYTES = 1 << 20
_IPP_LABEL = "inference.llm-d.ai/ipp-managed"


class ExportFormat(StrEnum):
    """Format of a router."""

    LLM_D_ENDPOINTS = "llm-d-endpoints"
    IPP_CONFIGMAP = "ipp-configmap"
    INFERENCE_MODEL_REWRITE = "inferencemodelrewrite"
    PRODUCTION_STACK = "production-stack-json"
    LITELLM = "litellm"


@dataclass(frozen=True, slots=True)
class ExportedReplica:
    """A replica to which requests may go: its engine's URL for routers and its labels."""

    name: str
    url: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportedAdapter:
    """An adapter that is served: by replica, what requests call it there."""

    name: str
    models: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExportedPool:
    """A pool as routers see it; all sorted by name."""

    name: str
    base_models: tuple[str, ...]
    replicas: tuple[ExportedReplica, ...]
    adapters: tuple[ExportedAdapter, ...]


@dataclass(frozen=True, slots=True)
class ExportedConfig:
    """A configuration; `notes` tell what it has no room for."""

    text: str
    notes: tuple[str, ...] = ()


Pools = Sequence[ExportedPool]


def export_as(form: ExportFormat, pools: Pools) -> ExportedConfig:
    """The configuration of a router."""
    return _WRITERS[form](pools)


def _llm_d_endpoints(pools: Pools) -> ExportedConfig:
    endpoints, notes = list[dict[str, object]](), list[str]()
    for pool in pools:
        for replica in pool.replicas:
            address = _ipv4(replica.url)
            if address is None:
                notes.append(
                    f"{pool.name}/{replica.name}: {replica.url} has no IPv4 address; set --advertise-url to one"
                )
                continue
            labels = {**replica.labels, "loraplane.pool": pool.name}
            endpoint = {"name": replica.name, "namespace": pool.name, "address": address[0], "port": address[1]}
            endpoints.append({**endpoint, "labels": labels})
    return ExportedConfig(_yaml({"endpoints": endpoints}), tuple(notes))


def _ipv4(url: str) -> tuple[str, str] | None:
    """Address and port as texts; None: it names no IPv4 address."""
    split = urlsplit(url)
    try:
        address = IPv4Address(split.hostname or "")
    except ValueError:
        return None
    return str(address), str(split.port or (443 if split.scheme == "https" else 80))


def _ipp_configmap(pools: Pools) -> ExportedConfig:
    documents, notes = list[str](), list[str]()
    for pool in pools:
        names = sorted({model for one in pool.adapters for model in one.models.values()})
        data = {"baseModel": pool.base_models[0], "adapters": _yaml(names) if names else "[]\n"}
        metadata = {"name": _object_name(pool), "labels": {_IPP_LABEL: "true"}}
        text = _yaml({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        if len(text.encode()) > MAX_CONFIG_BYTES:
            notes.append(f"{pool.name}: more than the {MAX_CONFIG_BYTES} bytes of a ConfigMap; it is left out")
            continue
        documents.append(text)
    return ExportedConfig("---\n".join(documents), tuple(notes))


def _model_rewrite(pools: Pools) -> ExportedConfig:
    documents = list[str]()
    for pool in pools:
        rules = list(_rewrites(pool))
        metadata = {"name": _object_name(pool)}
        reference = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool.name}
        spec = {"poolRef": reference, "rules": rules}
        kind = {"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceModelRewrite"}
        documents += [_yaml({**kind, "metadata": metadata, "spec": spec})] if rules else []
    return ExportedConfig("---\n".join(documents))


def _object_name(pool: ExportedPool) -> str:
    """The name of a pool's object in Kubernetes, which knows no capitals and no underscores."""
    return f"loraplane-{pool.name}".lower().replace("_", "-")


def _rewrites(pool: ExportedPool) -> Iterator[dict[str, object]]:
    """One for each adapter whose replicas call it otherwise than requests do; a plain name needs none."""
    for one in pool.adapters:
        counts = Counter(one.models.values())
        if set(counts) != {one.name}:
            targets = [{"modelRewrite": model, "weight": count} for model, count in sorted(counts.items())]
            yield {"matches": [{"model": {"type": "Exact", "value": one.name}}], "targets": targets}


def _production_stack(pools: Pools) -> ExportedConfig:
    backends = list[tuple[str, str]]()
    for pool in pools:
        for replica in pool.replicas:
            served = sorted(one.models[replica.name] for one in pool.adapters if replica.name in one.models)
            backends += [(replica.url, model) for model in (*pool.base_models, *served)]
    config = {
        "service_discovery": "static",
        "routing_logic": "roundrobin",
        "static_backends": ",".join(url for url, _ in backends),
        "static_models": ",".join(model for _, model in backends),
    }
    return ExportedConfig(json.dumps(config, indent=2) + "\n")


def _litellm(pools: Pools) -> ExportedConfig:
    deployments = [
        {
            "model_name": model,
            "litellm_params": {"model": f"hosted_vllm/{model}", "api_base": f"{replica.url.rstrip('/')}/v1"},
            "model_info": {"id": "/".join((pool.name, replica.name, *([] if model == "*" else [model])))},
        }
        for pool in pools
        for replica in pool.replicas
        for model in ("*", *pool.base_models)  # a wildcard would take those to replicas of other pools
    ]
    return ExportedConfig(_yaml({"model_list": deployments}))


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


_WRITERS: Mapping[ExportFormat, Callable[[Pools], ExportedConfig]] = MappingProxyType(
    {
        ExportFormat.LLM_D_ENDPOINTS: _llm_d_endpoints,
        ExportFormat.IPP_CONFIGMAP: _ipp_configmap,
        ExportFormat.INFERENCE_MODEL_REWRITE: _model_rewrite,
        ExportFormat.PRODUCTION_STACK: _production_stack,
        ExportFormat.LITELLM: _litellm,
    }
)
