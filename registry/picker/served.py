"""Adapters of a pool, and the engines that serve them. Pure.

Residency says which replica serves what, and under which name (`registry.residency`). The picker adds what it saw
before: up to which revision a name had which generation, so that a request may ask for what was published at one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from registry.client.residency import AdapterResidency, PoolResidency
from registry.model.replica_reasons import LEAVING
from registry.model.source_uri import DEFAULT_PORTS

_SEEN_KEPT = 8


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Host and port of an engine; `host` is an address, or a name that has to be looked up."""

    host: str
    port: int

    @property
    def is_name(self) -> bool:
        """True for what has to be looked up."""
        try:
            ip_address(self.host)
        except ValueError:
            return True
        return False

    def at(self, address: str) -> str:
        """``IP:PORT`` as gateways take it."""
        return f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"


@lru_cache(maxsize=4096)
def engine_address(url: str) -> EngineAddress | None:
    """The host and port of an engine's URL; None: it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return EngineAddress(parts.hostname, port) if parts.hostname else None


@dataclass(frozen=True, slots=True)
class PickEndpoint:
    """An engine that a request may go to.

    Attributes:
        address: ``IP:PORT``.
        replica: its name.
        model: what the request has to ask it for; empty: what it asks for already.
        generation: that it answers from; 0: not known.
        is_loaded: nothing has to be loaded first.
        is_leaving: others are about to take over.
    """

    address: str
    replica: str
    model: str = ""
    generation: int = 0
    is_loaded: bool = True
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class SeenGeneration:
    """A generation that a name had up to a revision for certain."""

    generation: int
    last_revision: int


@dataclass(frozen=True, slots=True)
class ReadyReplica:
    """A replica that may answer for its base model, and the URL of its engine."""

    name: str
    url: str


@dataclass(frozen=True)
class PickPool:
    """A pool as the picker knows it.

    Attributes:
        name: of the pool.
        residency: its newest state.
        bases: names of its base model.
        ready: replicas that are ready, and do not leave.
        resolved: addresses of engines' host names.
        seen: earlier generations of names, the oldest first.
    """

    name: str
    residency: PoolResidency
    bases: frozenset[str] = frozenset()
    ready: tuple[ReadyReplica, ...] = ()
    resolved: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, tuple[SeenGeneration, ...]] = field(default_factory=dict)

    @property
    def revision(self) -> int:
        """The revision up to which the records are known."""
        return self.residency.revision

    def adapter(self, name: str) -> AdapterResidency | None:
        """An adapter by its name; case makes no difference."""
        return self.residency.adapters.get(name.lower())

    def endpoints(self, adapter: AdapterResidency) -> tuple[PickEndpoint, ...]:
        """The engines that serve an adapter."""
        key = adapter.name.lower()
        found = self._endpoints.get(key)
        if found is None:
            places = ((one, self._address(one.engine_url)) for one in adapter.serving)
            found = self._endpoints[key] = tuple(
                PickEndpoint(
                    address,
                    one.replica,
                    one.model,
                    one.generation,
                    is_loaded=one.loaded or adapter.load != "lazy",
                    is_leaving=one.reason == LEAVING,
                )
                for one, address in places
                if address
            )
        return found

    def keeping(self, adapter: AdapterResidency, generation: int) -> tuple[PickEndpoint, ...]:
        """The engines that serve an earlier generation of an adapter beside a later one."""
        places = ((one, self._address(one.engine_url)) for one in adapter.serving if generation in one.earlier)
        model = f"{adapter.name}@{generation}"
        return tuple(
            PickEndpoint(address, one.replica, model, generation, is_leaving=one.reason == LEAVING)
            for one, address in places
            if address
        )

    @cached_property
    def _endpoints(self) -> dict[str, tuple[PickEndpoint, ...]]:
        """Endpoints of adapters that were asked for; a cache that changes no answer."""
        return {}

    @cached_property
    def base_endpoints(self) -> tuple[PickEndpoint, ...]:
        """The engines that answer for the base model."""
        found = ((one, self._address(one.url)) for one in self.ready)
        return tuple(PickEndpoint(address, one.name) for one, address in found if address)

    def least_generation(self, adapter: AdapterResidency, revision: int) -> int:
        """The least generation that holds what was published at a revision."""
        earlier = self.seen.get(adapter.name.lower(), ())
        return next((one.generation for one in earlier if one.last_revision >= revision), adapter.generation)

    def _address(self, url: str) -> str:
        """``IP:PORT`` of an engine; empty: its name leads nowhere, or it has no URL."""
        found = engine_address(url)
        if found is None:
            return ""
        address = self.resolved.get(found.host, "") if found.is_name else found.host
        return found.at(address) if address else ""


def names_to_resolve(residency: PoolResidency, ready: Iterable[ReadyReplica]) -> frozenset[str]:
    """The hosts of engines that are names."""
    urls = {one.engine_url for adapter in residency.adapters.values() for one in adapter.replicas}
    found = (engine_address(url) for url in urls | {one.url for one in ready})
    return frozenset(one.host for one in found if one is not None and one.is_name)


def seen_since(
    seen: Mapping[str, tuple[SeenGeneration, ...]], before: PoolResidency, now: PoolResidency
) -> Mapping[str, tuple[SeenGeneration, ...]]:
    """Earlier generations with those that ended from one state to the next; names that are gone are forgotten.

    So is all of a store that was set back: its revisions come again, with other generations.
    """
    if now.revision < before.revision:
        return {}
    found = {name: kept for name, kept in seen.items() if name in now.adapters}
    for name, adapter in now.adapters.items():
        old = before.adapters.get(name)
        if old is None or old is adapter or old.generation >= adapter.generation:
            continue
        ended = SeenGeneration(old.generation, before.revision)
        found[name] = (*found.get(name, ()), ended)[-_SEEN_KEPT:]
    return found
