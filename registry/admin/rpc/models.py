"""Page ``GET /v1/models``: the models of the fleet, from cached bytes.

Cards are encoded once for each adapter, and anew only for those whose residency changed. The bytes of a whole answer
are kept too, with their digest as the ETag: all admin services give the same, and a poll that finds nothing new costs a
read of the pools' names.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from registry.access.decision import Grant
from registry.access.methods import PAGES
from registry.admin.rpc.calls import CallContext
from registry.admin.rpc.streams import all_in_time, etags
from registry.admin.rpc.visible import seen_adapters, seen_names
from registry.model.names import name_of_key
from registry.residency.hub import ResidencyHub, Subscription
from registry.residency.models import Heads, adapter_cards, base_cards, heads_of
from registry.store.pages import everything
from registry.store.reader import Reader

# Whole answers are kept for so many kinds of callers; each may have some megabytes.
_BODIES = 8
# Of one poll: pools beyond these are asked for by name.
_MOST_POOLS = 1000
_BEGIN, _END = b'{"object":"list","data":[', b"]}"


@dataclass(frozen=True, slots=True)
class PoolCards:
    """Cards of a pool at one version of its residency; those of adapters by name key, as far as there are any."""

    epoch: str
    version: int
    heads: Heads
    bases: tuple[bytes, ...]
    adapters: Mapping[str, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class _WholeAnswer:
    """An answer; `of`: what it was made from."""

    of: tuple[PoolCards, ...]
    body: bytes
    etag: str


class FleetModels:
    """The page, with what it keeps."""

    def __init__(self, hub: ResidencyHub, reader: Reader) -> None:
        self._hub = hub
        self._reader = reader
        self._cards: dict[str, PoolCards] = {}
        self._bodies: OrderedDict[tuple[str, Grant | None], _WholeAnswer] = OrderedDict()
        self._renewing = asyncio.Lock()

    async def page(self, request: Request, call: CallContext) -> Response:
        """``GET /v1/models[?pool=P]``. Raises RegistryError where it refuses."""
        wanted = request.query_params.get("pool", "")
        pools = await self._pools(wanted, call)
        async with AsyncExitStack() as stack:
            looked = [await stack.enter_async_context(self._hub.look(pool)) for pool in pools]
            await all_in_time(looked)
            async with self._renewing:
                whole = await self._whole(wanted, pools, looked, call)
        headers = {"ETag": whole.etag, "Cache-Control": "no-cache", "Vary": "Authorization"}
        if whole.etag in etags(request):
            return Response(status_code=304, headers=headers)
        return Response(whole.body, headers=headers, media_type="application/json")

    async def _pools(self, wanted: str, call: CallContext) -> Sequence[str]:
        """The names of the pools that are asked for and that the caller sees, sorted."""
        if wanted:
            await self._reader.pool(wanted, call.deadline)
            return [wanted]
        return await seen_names(self._reader, call, call.deadline, PAGES[call.method], _MOST_POOLS)

    async def _whole(
        self, wanted: str, pools: Sequence[str], looked: Sequence[Subscription], call: CallContext
    ) -> _WholeAnswer:
        for pool, subscription in zip(pools, looked, strict=True):
            self._cards[pool] = await _renewed(pool, self._cards.get(pool), subscription)
        if not wanted and call.grant is None:  # only then these are all
            self._cards = {pool: self._cards[pool] for pool in pools}
        cards, asked = tuple(self._cards[pool] for pool in pools), (wanted, call.grant)
        kept = self._bodies.get(asked)
        if kept is None or len(kept.of) != len(cards) or any(a is not b for a, b in zip(kept.of, cards, strict=True)):
            seen = [seen_adapters(call, pool, PAGES[call.method]) for pool in pools]
            kept = await asyncio.to_thread(_answer, cards, seen)
        self._bodies[asked] = kept
        self._bodies.move_to_end(asked)
        while len(self._bodies) > _BODIES:
            self._bodies.popitem(last=False)
        return kept


async def _renewed(pool: str, before: PoolCards | None, subscription: Subscription) -> PoolCards:
    """The cards of a pool as it stands; the same object if none is another one."""
    heads = heads_of(subscription.view)
    kept = dict[str, tuple[bytes, ...]]()
    if before is None or before.epoch != subscription.epoch or before.heads != heads:
        update = await subscription.look()
    elif before.version == subscription.version:
        return before
    else:
        update = await subscription.look(before.version)
        kept |= {} if update.snapshot else before.adapters

    def renew() -> PoolCards:
        for key, cards in adapter_cards(update.view, update.keys, heads):
            kept.pop(key, None)
            if cards:
                kept[key] = cards
        bases = tuple(base_cards(pool, heads))
        return PoolCards(subscription.epoch, update.version, heads, bases, dict(sorted(kept.items())))

    return await asyncio.to_thread(renew)


def _answer(cards: tuple[PoolCards, ...], seen: Sequence[Callable[[str], bool]]) -> _WholeAnswer:
    parts = list[bytes]()
    for one, is_seen in zip(cards, seen, strict=True):
        parts += one.bases
        for key, found in one.adapters.items():
            if is_seen is everything or is_seen(name_of_key(key)):
                parts += found
    body = _BEGIN + b",".join(parts) + _END
    return _WholeAnswer(cards, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
