"""Callback with which LiteLLM sends requests to replicas that serve their adapter.

    # callbacks.py, beside the proxy's config.yaml, which says  callbacks: callbacks.routing
    from loraplane.integrations.litellm import LoraPlaneRouting

    routing = LoraPlaneRouting("admin:7600", ["qwen-prod"])

A deployment is a wildcard for each replica (`loraplane export litellm` writes them). Before LiteLLM picks one, the
callback leaves those whose engine serves the model that is asked for, by the residency of the pools that it follows:

- An adapter of these pools goes to the replicas that serve it and nowhere else; if none does, no deployment is left,
  and LiteLLM says so. So it is with a name that was deleted: the engine's 404 would make LiteLLM pause a good replica.
- ``metadata: {"loraplane_generation": 3}`` in a request asks for one generation, and no other will do.
- Any other model, as the base, is LiteLLM's own matter: nothing is left out.
- While the registry is out of reach the last state counts. Before there is one of each pool, requests wait a moment,
  and a warning is logged; then for a name that is not known all deployments are left (`fail_open`), or none.

This module imports the client and LiteLLM, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from loraplane import AdapterResidency, AsyncRegistry, PoolResidency, RegistryError

_log = logging.getLogger(__name__)
# Requests wait so long for a first state, once.
FIRST_SECONDS = 5.0
# After a refusal the registry is asked again.
AGAIN_SECONDS = 5.0
# So many names are remembered that were adapters and are none any more.
GONE_KEPT = 10_000
GENERATION = "loraplane_generation"
# What is no number asks for one that there is not.
_NO_GENERATION = 0

Deployment = dict[str, Any]
Connect = Callable[[], AsyncRegistry]


@dataclass(slots=True)
class _Pool:
    """State of a pool.

    `models`: those of `adapters` by what requests call them, each with who serves it, as `_models_of` gives it.
    """

    adapters: Mapping[str, AdapterResidency] = field(default_factory=dict)
    models: dict[str, dict[str, int]] = field(default_factory=dict)
    known: asyncio.Event = field(default_factory=asyncio.Event)


class LoraPlaneRouting(CustomLogger):  # type: ignore[misc] # of a package that is not here
    """A callback of LiteLLM's router and proxy."""

    def __init__(
        self,
        registry: str | Connect,
        pools: Sequence[str],
        *,
        fail_open: bool = True,
        first_seconds: float = FIRST_SECONDS,
    ) -> None:
        """Connects to nothing yet: the first request does, in the event loop that it comes in.

        Args:
            registry: address of the admin service, or what makes a client of it, such as
                ``lambda: AsyncRegistry("admin:7600", tls=…, token=…)``.
            pools: whose adapters are routed.
            fail_open: whether all deployments are left for a name that is not known, as long as some pool is not.
            first_seconds: for how long a request waits until something is.

        Raises:
            ValueError: no pool is named.
        """
        super().__init__()
        if isinstance(pools, str) or not pools:
            raise ValueError(f"pools: name at least one pool, as in ['qwen-prod'], not {pools!r}")
        self._connect: Connect = registry if callable(registry) else lambda: AsyncRegistry(registry)
        self._names = tuple(pools)
        self._fail_open = fail_open
        self._first_seconds = first_seconds
        self._pools: dict[str, _Pool] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._following: asyncio.Task[None] | None = None
        self._has_waited = False

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[Any],
        messages: list[Any] | None,  # noqa: ARG002 - of LiteLLM's interface
        request_kwargs: dict[Any, Any] | None = None,
        parent_otel_span: Any = None,  # noqa: ANN401, ARG002 - of LiteLLM's interface
    ) -> list[Deployment]:
        """The deployments whose engine serves the model; see the module."""
        await self._known()
        asked = _plain(_asked(model, request_kwargs))
        found = [pool.models[asked] for pool in self._pools.values() if asked in pool.models]
        if not found and self._unknown():
            return healthy_deployments if self._fail_open else []
        if not found:
            return [] if asked in self._gone else healthy_deployments
        engines = {url: generation for one in found for url, generation in one.items()}
        wanted = _generation_asked(request_kwargs)
        return [one for one in healthy_deployments if _serves(one, engines, wanted)]

    async def aclose(self) -> None:
        """Ends what follows the registry."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
            self._following = None

    def _unknown(self) -> list[str]:
        """Pools of which there is no state yet."""
        return [name for name, pool in self._pools.items() if not pool.known.is_set()]

    async def _known(self) -> None:
        """Follows the registry in this event loop, and waits a moment for its first word."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._following is None or self._following.done():
            self._loop = loop
            self._pools = {name: _Pool() for name in self._names}
            self._following = loop.create_task(self._follow(), name="loraplane routing")
            self._has_waited = False
        if not self._has_waited:
            known = loop.create_task(_all_known(self._pools.values()))
            # Where it cannot even connect, as with files that are not there, nothing is waited for.
            ends = {known, self._following}
            try:
                await asyncio.wait(ends, timeout=self._first_seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                known.cancel()
            if (unknown := self._unknown()) and not self._has_waited:
                left = "no deployment is" if not self._fail_open else "all deployments are"
                _log.warning("LoraPlane: nothing is heard of %s; until then %s left", ", ".join(unknown), left)
            self._has_waited = True

    async def _follow(self) -> None:
        async with self._connect() as registry, asyncio.TaskGroup() as tasks:
            for name, pool in self._pools.items():
                tasks.create_task(self._follow_pool(registry, name, pool))

    async def _follow_pool(self, registry: AsyncRegistry, name: str, pool: _Pool) -> None:
        """One that is refused, as a pool that is not made yet, is asked for again; the last state counts meanwhile."""
        told = ""
        while True:
            try:
                async with aclosing(registry.residency(name)) as states:
                    async for state in states:
                        self._take(pool, state)
            except RegistryError as error:
                if told != (told := str(error)):
                    _log.warning("LoraPlane: cannot follow pool %s: %s", name, told)
                await asyncio.sleep(AGAIN_SECONDS)

    def _take(self, pool: _Pool, state: PoolResidency) -> None:
        """Takes what differs from before, since requests wait meanwhile and there may be very many adapters."""
        before, now = pool.adapters, state.adapters
        old = {name for key, one in before.items() if now.get(key) is not one for name in _models_of(one)}
        new = [_models_of(one) for key, one in now.items() if before.get(key) is not one]
        for name in old:
            pool.models.pop(name, None)
            self._gone[name] = None
        for models in new:
            pool.models |= models
            for name in models:
                self._gone.pop(name, None)
        while len(self._gone) > GONE_KEPT:
            self._gone.popitem(last=False)
        pool.adapters = now
        pool.known.set()


async def _all_known(pools: Iterable[_Pool]) -> None:
    for pool in pools:
        await pool.known.wait()


def _models_of(adapter: AdapterResidency) -> dict[str, dict[str, int]]:
    """By what requests call it, an adapter's engines by URL with the generation; by its name too, if none serves."""
    found: dict[str, dict[str, int]] = {adapter.name: {}}
    for one in adapter.serving:
        found.setdefault(one.model, {})[_root(one.engine_url)] = one.generation
        for earlier in one.earlier:
            found.setdefault(f"{adapter.name}@{earlier}", {})[_root(one.engine_url)] = earlier
    return found


def _asked(model: str, request: Mapping[Any, Any] | None) -> str:
    """The model that a request asks for; where a wildcard took it, `model` is that wildcard."""
    metadata = _metadata(request)
    found = (metadata.get("model_group"), (request or {}).get("model"))
    return next((one for one in found if isinstance(one, str) and one and "*" not in one), model)


def _metadata(request: Mapping[Any, Any] | None) -> Mapping[Any, Any]:
    """Metadata of LiteLLM and of the caller; the proxy has another place for it on some routes."""
    found = [(request or {}).get(place) for place in ("litellm_metadata", "metadata")]
    return {key: value for one in found if isinstance(one, Mapping) for key, value in one.items()}


def _plain(model: str) -> str:
    """The model as an engine is asked for it: without the provider that LiteLLM puts before it."""
    return model.removeprefix("hosted_vllm/").removeprefix("openai/")


def _root(url: str) -> str:
    """A URL without what differs between an engine's and a deployment's: the slash behind, and the API's version."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/").lower()


def _serves(deployment: Deployment, engines: Mapping[str, int], generation: int | None) -> bool:
    base = (deployment.get("litellm_params") or {}).get("api_base")
    served = engines.get(_root(base)) if isinstance(base, str) else None
    return served is not None and generation in (None, served)


def _generation_asked(request: Mapping[Any, Any] | None) -> int | None:
    """The generation in a request's metadata; None: any will do."""
    asked = _metadata(request).get(GENERATION)
    if asked is None:
        return None
    try:
        return int(str(asked))
    except ValueError:
        return _NO_GENERATION
