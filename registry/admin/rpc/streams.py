"""Handlers of the streaming methods, and the residency page for gateways."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from registry.access.methods import PAGES
from registry.admin.rpc import encode_residency as wire
from registry.admin.rpc.calls import CallContext
from registry.admin.rpc.encode_residency import STATES
from registry.admin.rpc.visible import seen_adapters
from registry.etcd3.ops import Event
from registry.model.errors import InvalidArgument, NotFound, Reason, RegistryError, Unavailable
from registry.model.keys import last_part
from registry.model.messages import adapter_message, canary_message
from registry.model.names import name_key, name_of_key
from registry.residency.hub import ResidencyHub, ResidencyUpdate, Subscription
from registry.rollout.status import Question, Rollout
from registry.rollout.watching import AdapterStreams, WatchBatch
from registry.store.pages import everything
from registry.store.reader import Reader
from registry.transactions.decode import read_adapter
from registry.v1 import registry_pb2 as pb

_EVENTS_AT_ONCE = 500


class Streams:
    """Handlers: each takes a request and its call, and raises RegistryError where it refuses."""

    def __init__(self, watcher: AdapterStreams, residency: Residency) -> None:
        self._watcher = watcher
        self.residency = residency

    async def watch_adapters(
        self, request: pb.WatchAdaptersRequest, call: CallContext
    ) -> AsyncGenerator[pb.WatchAdaptersResponse, None]:
        start, is_seen = not_negative(request.start_revision, "start_revision"), seen_adapters(call, request.pool)
        async with aclosing(self._watcher.adapters(request.pool, start, call.deadline)) as batches:
            async for batch in batches:
                responses = _responses(request.pool, await _seen_of_batch(batch, is_seen))
                del batch  # the next may not come for days, and it may be a whole pool
                for response in responses:
                    yield response

    async def watch_rollout(
        self, request: pb.WatchRolloutRequest, call: CallContext
    ) -> AsyncGenerator[pb.Rollout, None]:
        question = Question(request.pool, request.name, not_negative(request.generation, "generation"))
        async with aclosing(self._watcher.rollout(question, call.deadline)) as rollouts:
            async for rollout in rollouts:
                yield _rollout(rollout)


def not_negative(number: int, field: str) -> int:
    """The number of a field. Raises InvalidArgument: it is negative."""
    if number < 0:
        raise InvalidArgument(Reason.INVALID_FIELD, "use 0 or a positive number", field=field)
    return number


async def _seen_of_batch(batch: WatchBatch, is_seen: Callable[[str], bool]) -> WatchBatch:
    """The events of adapters that are seen. It may be a whole pool, so it holds up no other call."""
    if is_seen is everything:
        return batch

    def seen() -> tuple[Event, ...]:
        return tuple(event for event in batch.events if is_seen(name_of_key(last_part(event.key))))

    return replace(batch, events=await asyncio.to_thread(seen))


def _responses(pool: str, batch: WatchBatch) -> Iterator[pb.WatchAdaptersResponse]:
    """A batch in messages that are small enough; one that is empty, too."""
    for start in range(0, max(1, len(batch.events)), _EVENTS_AT_ONCE):
        events = batch.events[start : start + _EVENTS_AT_ONCE]
        yield pb.WatchAdaptersResponse(
            revision=batch.revision,
            events=[_event(pool, event) for event in events],
            snapshot=batch.snapshot,
            more=start + _EVENTS_AT_ONCE < len(batch.events),
        )


def _event(pool: str, event: Event) -> pb.AdapterEvent:
    name = name_of_key(last_part(event.key))
    if event.kv is None:
        return pb.AdapterEvent(deleted=name)
    try:
        record = read_adapter(pool, event.kv)
    except RegistryError:
        return pb.AdapterEvent(unreadable=name)
    return pb.AdapterEvent(put=adapter_message(record, event.kv.mod_revision))


def _rollout(rollout: Rollout) -> pb.Rollout:
    replicas = [
        pb.RolloutReplica(
            replica=one.replica,
            state=STATES[one.state],
            reason=one.reason,
            message=one.message,
            canary=one.canary,
            generation=one.generation,
            serving_generation=one.kept,
        )
        for one in rollout.replicas
    ]
    return pb.Rollout(
        name=rollout.name,
        generation=rollout.generation,
        replicas=replicas,
        done=rollout.done,
        failure=rollout.failure.value if rollout.failure else "",
        waiting=rollout.waiting,
        canary=canary_message(rollout.canary) if rollout.canary else None,
        note=rollout.note,
    )


_PAGE_SECONDS = 5.0


class Residency:
    """Serves both from the same hub."""

    def __init__(self, hub: ResidencyHub, reader: Reader) -> None:
        self._hub = hub
        self._reader = reader

    async def watch_residency(
        self, request: pb.WatchResidencyRequest, call: CallContext
    ) -> AsyncGenerator[pb.WatchResidencyResponse, None]:
        if request.name:
            await self._reader.adapter(request.pool, request.name, call.deadline)
        await self._reader.pool(request.pool, call.deadline)
        is_seen = seen_adapters(call, request.pool)
        async with self._hub.look(request.pool) as subscription, aclosing(subscription.follow()) as updates:
            async for update in updates:
                if request.detail == pb.WatchResidencyRequest.COUNTS_BY_REPLICA:
                    update = _all_of(update)  # noqa: PLW2901 - each answer is whole
                wanted = _only(update, name_key(request.name)) if request.name else await _seen(update, is_seen)
                for start in wire.starts(wanted, request.detail) if wanted.keys or wanted.snapshot else ():
                    yield await asyncio.to_thread(wire.response, wanted, start, request.detail)

    async def page(self, request: Request, call: CallContext) -> Response:
        """``GET /v1/residency?pool=P[&name=N]``. Raises RegistryError where it refuses."""
        pool, name = request.query_params.get("pool"), request.query_params.get("name")
        if not pool:
            raise InvalidArgument(Reason.INVALID_FIELD, "say which pool: /v1/residency?pool=POOL", field="pool")
        await self._reader.pool(pool, call.deadline)
        async with self._hub.look(pool) as subscription:
            await all_in_time([subscription])
            update = await subscription.look()
        sight = "" if call.grant is None else f".{hash(call.grant):x}"
        headers = {"ETag": f'"{subscription.epoch}.{update.version}{sight}"', "Cache-Control": "no-cache"}
        if headers["ETag"] in etags(request):
            return Response(status_code=304, headers=headers)
        keys: Sequence[str] = () if name is None else (name_key(name),)
        if name is None:
            keys = (await _seen(update, seen_adapters(call, pool, PAGES[call.method]))).keys
        if name is not None and update.view.adapter(keys[0]) is None:
            raise NotFound(
                Reason.ADAPTER_NOT_FOUND,
                f"there is no adapter {name!r} in pool {pool!r}, or none that can be read",
                field="name",
            )
        return StreamingResponse(_json(pool, update, keys), headers=headers, media_type="application/json")


def _only(update: ResidencyUpdate, key: str) -> ResidencyUpdate:
    """The update of one adapter alone."""
    return replace(update, keys=(key,) if key in update.keys else ())


def _all_of(update: ResidencyUpdate) -> ResidencyUpdate:
    """The update of all adapters there are."""
    return update if update.snapshot else replace(update, keys=tuple(sorted(update.view.records)), snapshot=True)


async def _seen(update: ResidencyUpdate, is_seen: Callable[[str], bool]) -> ResidencyUpdate:
    """The update of the adapters that are seen. It may be of a whole pool, so it holds up no other call."""
    if is_seen is everything:
        return update

    def seen() -> tuple[str, ...]:
        return tuple(key for key in update.keys if is_seen(name_of_key(key)))

    return replace(update, keys=await asyncio.to_thread(seen))


def etags(request: Request) -> list[str]:
    """The tags that a poll already has."""
    given = request.headers.get("if-none-match", "")
    return [one.strip().removeprefix("W/") for one in given.split(",")]


async def all_in_time(looked: Sequence[Subscription]) -> None:
    """Waits until each is known. Raises Unavailable: not all are in time."""
    try:
        async with asyncio.timeout(_PAGE_SECONDS):
            for one in looked:
                await one.look()
    except TimeoutError as error:
        raise Unavailable(Reason.ETCD_UNAVAILABLE, "the pool could not be read in time; ask again") from error


async def _json(pool: str, update: ResidencyUpdate, keys: Sequence[str]) -> AsyncIterator[str]:
    """One JSON document, written as far as it is derived."""
    yield f'{{"pool": {json.dumps(pool)}, "revision": {update.view.revision}, "adapters": ['
    parts, separator = map(_dumped, wire.documents(update.view, keys)), ""
    while part := await asyncio.to_thread(next, parts, None):
        yield separator + part
        separator = ", "
    yield "]}"


def _dumped(part: Sequence[wire.Document]) -> str:
    return ", ".join(map(json.dumps, part))
