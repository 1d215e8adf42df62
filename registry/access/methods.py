"""Verb and resource of each method of the .proto, and of each page. Pure.

Whoever decides about a call decides by these. The .proto has those of a method as its option `access`: one without, or
with a word that is no verb or resource, keeps the service from starting, and so does a page that the table lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from google.protobuf.descriptor import MethodDescriptor

from registry.access.questions import Resource, Verb
from registry.access.roles import Action
from registry.v1 import registry_pb2 as pb


def actions_of(methods: Iterable[MethodDescriptor]) -> Mapping[str, Action]:
    """Verb and resource of each method, by its name.

    Raises:
        ValueError: a method has none, or one that there is not.
    """
    return MappingProxyType({one.name: _action_of(one) for one in methods})


def _action_of(method: MethodDescriptor) -> Action:
    rule: pb.AccessRule = method.GetOptions().Extensions[pb.access]  # type: ignore[index] # stubs know no extensions
    try:
        return Verb(rule.verb), Resource(rule.resource)
    except ValueError as error:
        raise ValueError(f"the method {method.name} needs the option (access), with a verb and a resource") from error


METHODS = actions_of(pb.DESCRIPTOR.services_by_name["AdapterRegistry"].methods)
# Pages of the HTTP port.
PAGES: Mapping[str, Action] = MappingProxyType(
    {
        "/livez": (Verb.GET, Resource.HEALTH),
        "/readyz": (Verb.GET, Resource.HEALTH),
        "/metrics": (Verb.GET, Resource.METRICS),
        "/v1/models": (Verb.GET, Resource.RESIDENCY),
        "/v1/residency": (Verb.GET, Resource.RESIDENCY),
        "/": (Verb.WATCH, Resource.RESIDENCY),
        "/page/stream": (Verb.WATCH, Resource.RESIDENCY),
        "/page/adapter": (Verb.GET, Resource.ADAPTERS),
        "/page/replica": (Verb.GET, Resource.REPLICAS),
    }
)
