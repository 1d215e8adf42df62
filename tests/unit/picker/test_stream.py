"""A request of a gateway, message by message, in each of the forms in which gateways send bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from registry.picker import answers, stream
from registry.picker import ext_proc_pb2 as ext
from registry.picker.loads import Loads
from registry.picker.metrics import PickerMetrics
from registry.picker.served import PickPool
from registry.picker.stream import Picker, PickRules
from tests.support.waiting import eventually
from tests.unit.picker.worlds import adapter, place, pool

MODES = ext.ProtocolConfiguration
BUFFERED, STREAMED, DUPLEX = MODES.BUFFERED, MODES.STREAMED, MODES.FULL_DUPLEX_STREAMED
VERSIONED = pool(adapter(place(1, model="sql@1")))


@dataclass
class Wire:
    """The side of gRPC that a picker sees; after the messages it waits as a gateway does whose request runs."""

    messages: list[ext.ProcessingRequest]
    is_held: bool = False
    written: list[ext.ProcessingResponse] = field(default_factory=list)

    async def read(self) -> object:
        if self.messages:
            return self.messages.pop(0)
        if self.is_held:
            await asyncio.Event().wait()
        return grpc.aio.EOF

    async def write(self, message: ext.ProcessingResponse, /) -> None:
        self.written.append(message)


@dataclass
class World:
    pools: Sequence[PickPool] = (VERSIONED,)
    rules: PickRules = field(default_factory=PickRules)
    away_seconds: float = 0.0
    away_pool: str | None = None
    loads: Loads = field(default_factory=Loads)
    metrics: PickerMetrics = field(default_factory=PickerMetrics)

    def __post_init__(self) -> None:
        self.picker = Picker(self.rules, lambda: self.pools, self.away, self.loads, self.metrics)

    def away(self, of: str | None) -> float:
        return self.away_seconds if self.away_pool is None or of in {None, self.away_pool} else 0.0

    async def answered(self, *messages: ext.ProcessingRequest) -> list[ext.ProcessingResponse]:
        wire = Wire(list(messages))
        await self.picker.process(_nothing(), wire)
        assert self.loads.in_flight == 0
        return wire.written

    async def error(self, *messages: ext.ProcessingRequest) -> tuple[int, str]:
        """Status and code of the refusal that ends it."""
        refusal = (await self.answered(*messages))[-1].immediate_response
        return refusal.status.code, json.loads(refusal.body)["error"]["code"]


async def _nothing() -> Any:
    """Messages are read from the context."""
    return
    yield


def head(mode: int = BUFFERED, *, ends: bool = False, subset: object = None, **headers: str) -> ext.ProcessingRequest:
    message = ext.ProcessingRequest(protocol_config=MODES(request_body_mode=mode))  # type: ignore[arg-type]
    message.request_headers.end_of_stream = ends
    for key, value in {":method": "POST", **headers}.items():
        message.request_headers.headers.headers.add(key=key.replace("_", "-"), raw_value=value.encode())
    if subset is not None:
        message.metadata_context.filter_metadata[answers.SUBSET_NAMESPACE][answers.SUBSET] = subset  # type: ignore[assignment]
    return message


def body(content: object, *, ends: bool = True) -> ext.ProcessingRequest:
    sent = content if isinstance(content, bytes) else json.dumps(content).encode()
    return ext.ProcessingRequest(request_body=ext.HttpBody(body=sent, end_of_stream=ends))


async def test_a_body_that_is_kept_back(monkeypatch):
    """R16 bounded: only until it goes on, however long the answer takes then."""
    turns: list[stream._Turn] = []
    made = stream._Turn
    monkeypatch.setattr(stream, "_Turn", lambda *told, **more: turns.append(made(*told, **more)) or turns[-1])
    first, second = await World().answered(head(), body({"model": "sql"}))
    assert [one.body for one in turns] == [[]]
    assert first == answers.CONTINUE
    assert second.request_body.response.body_mutation.body == b'{"model": "sql@1"}'


@pytest.mark.parametrize(("known", "model"), [(VERSIONED, b'"sql@1"'), (pool(adapter(place(1))), b'"sql"')])
async def test_a_body_that_is_streamed_comes_back_after_its_end(known, model):
    whole = json.dumps({"model": "sql", "prompt": "x" * 100_000}).encode()
    parts = [body(whole[:10], ends=False), body(whole[10:], ends=False)]
    trailers = ext.ProcessingRequest()
    trailers.request_trailers.SetInParent()
    for end in (body(b""), trailers):
        first, *rest = await World(pools=(known,)).answered(head(DUPLEX), *parts, end)
        assert first.request_headers.response.HasField("header_mutation")
        sent = b"".join(one.request_body.response.body_mutation.streamed_response.body for one in rest)
        assert sent == whole.replace(b'"sql"', model)


async def test_a_request_without_a_body_goes_to_any_ready_replica():
    (answer,) = await World().answered(head(ends=True, **{":method": "GET"}))
    assert answer.request_headers.response.HasField("header_mutation")


async def test_later_messages_go_on_as_they_are():
    later = ext.ProcessingRequest()
    later.response_headers.SetInParent()
    for before in ((head(), body({"model": "sql"})), ()):
        assert (await World().answered(*before, later))[-1].WhichOneof("response") == "response_headers"
    part = ext.ProcessingRequest(response_body=ext.HttpBody(body=b"x"))
    start = head(DUPLEX)
    start.protocol_config.response_body_mode = DUPLEX
    answer = (await World().answered(start, body({"model": "sql"}), part))[-1]
    assert answer.response_body.response.body_mutation.streamed_response.body == b"x"
    answer = (await World().answered(head(DUPLEX), body({"model": "sql"}), part))[-1]
    assert answer == ext.ProcessingResponse(response_body=ext.BodyResponse()), "what is not streamed goes on by itself"
    late = (await World().answered(head(DUPLEX), body({}), body(b"y")))[-1]
    assert late.request_body.response.body_mutation.streamed_response.body == b"y"
    for before in ((head(), body({})), ()):
        kept = (await World().answered(*before, body({"model": "sql"})))[-1]
        assert kept == ext.ProcessingResponse(request_body=ext.BodyResponse()), "what is not streamed goes on by itself"


PART = body(b"x" * 15, ends=False)


@pytest.mark.parametrize(
    ("messages", "status", "code"),
    [
        ([head(), body({})], 400, "invalid_request"),
        ([head(), body({"model": 3})], 400, "invalid_request"),
        ([head(ends=True)], 400, "invalid_request"),
        ([head(x_loraplane_min_revision="x")], 400, "invalid_request"),
        ([head(x_loraplane_min_revision="1" * 19)], 400, "invalid_request"),
        ([head(), body({"model": "nope"})], 404, "model_not_found"),
        ([head(content_length="21")], 413, "request_too_large"),
        ([head(content_length="many"), body({})], 400, "invalid_request"),
        ([head(content_length="9" * 5000)], 413, "request_too_large"),
        ([head(content_length="20"), body(b"x" * 20)], 400, "invalid_request"),
        ([head(content_length="20"), body(b"x" * 21)], 413, "request_too_large"),
        ([head(DUPLEX), PART, PART], 413, "request_too_large"),
        ([head(MODES.BUFFERED_PARTIAL), body(b"{", ends=False)], 413, "request_too_large"),
        ([head(MODES.NONE)], 500, "picker_misconfigured"),
        ([head(STREAMED)], 500, "picker_misconfigured"),
    ],
)
async def test_what_cannot_be_sent_on_is_one_clear_error(messages, status, code):
    """X2 unbreakable: what is too large is refused as soon as it is known, by what it says of itself or what came."""
    assert await World(rules=PickRules(max_body_bytes=20)).error(*messages) == (status, code)


async def test_a_gateway_that_does_not_say_how_it_sends_bodies_keeps_them_back():
    old = head(MODES.NONE)
    old.ClearField("protocol_config")
    _, answer = await World().answered(old, body({"model": "sql"}))
    assert answer.request_body.response.body_mutation.body == b'{"model": "sql@1"}'


async def test_the_registry_is_away():
    """R13 static-stable: what was known is gone by, unless the operator wants it refused."""
    ask = (head(), body({"model": "sql"}))
    assert await World(pools=()).error(head(subset=["a:1"]), ask[1]) == (503, "registry_not_known")
    assert (await World(away_seconds=900).answered(*ask))[1].HasField("request_body")
    closed = World(away_seconds=900, rules=PickRules(refuse_after_seconds=60))
    assert await closed.error(*ask) == (503, "registry_not_known")
    fail_open = World(pools=(), rules=PickRules(fail_open=True))
    assert await fail_open.error(*ask) == (503, "registry_not_known")
    _, answer = await fail_open.answered(head(subset=["b:1", "a:1"]), body({"model": "sql"}))
    assert answer.dynamic_metadata["envoy.lb"][answers.DESTINATION] == "a:1"  # type: ignore[index]
    known = World(rules=PickRules(fail_open=True))
    _, answer = await known.answered(head(subset=["10.0.0.1:8000", "10.0.0.0:1"]), body({"model": "sql"}))
    assert answer.dynamic_metadata["envoy.lb"][answers.DESTINATION] == "10.0.0.1:8000"  # type: ignore[index]


async def test_a_pool_of_which_nothing_is_told_takes_no_other_one_with_it():
    """R13 static-stable: as one that was deleted. Who asks for a name that nobody has may mean a new one of it."""
    pools = (pool(adapter(place(1)), name="p"), pool(adapter(place(2, model="legal"), name="legal"), name="q"))
    world = World(pools, PickRules(refuse_after_seconds=60), away_seconds=900, away_pool="q")
    assert (await world.answered(head(), body({"model": "sql"})))[1].HasField("request_body")
    assert await world.error(head(), body({"model": "legal"})) == (503, "registry_not_known")
    assert await world.error(head(), body({"model": "new"})) == (503, "registry_not_known")


async def test_a_revision_that_is_not_known_yet_is_waited_for():
    world = World(rules=PickRules(revision_wait_seconds=30))

    async def learn() -> None:
        await asyncio.sleep(0.05)
        world.pools = (pool(adapter(place(1)), revision=20),)

    ask = head(x_loraplane_min_revision="20"), body({"model": "sql"})
    answered, _ = await asyncio.gather(world.answered(*ask), learn())
    assert answered[1].HasField("request_body")
    late = World(rules=PickRules(revision_wait_seconds=0))
    assert await late.error(*ask) == (503, "not_served_yet")


async def test_a_pool_that_is_behind_is_waited_for_though_another_is_not():
    ahead = pool(adapter(place(3), name="law"), name="q", revision=30)
    world = World(pools=(pool(revision=10), ahead), rules=PickRules(revision_wait_seconds=30))

    async def learn() -> None:
        await asyncio.sleep(0.05)
        world.pools = (pool(adapter(place(1)), revision=20), ahead)

    answered, _ = await asyncio.gather(
        world.answered(head(x_loraplane_min_revision="20"), body({"model": "sql"})), learn()
    )
    assert answered[1].HasField("request_body")


async def test_a_stream_has_one_request_whatever_comes_on_it():
    """X3 given-back: of the second headers nothing is made, so that what the first took is given back."""
    get = head(ends=True, **{":method": "GET"})
    assert [one.WhichOneof("response") for one in await World().answered(get, get)] == ["request_headers"] * 2


async def test_scores_are_told_where_they_are_asked_for():
    world = World(pools=(pool(adapter(place(1), place(2))),), rules=PickRules(scores=True))
    world.loads.queues = {"10.0.0.2:8000": 1.0}
    answer = (await world.answered(head(), body({"model": "sql"})))[1]
    scores = answer.dynamic_metadata["envoy.lb"][answers.SCORES]  # type: ignore[index]
    assert dict(scores) == {"10.0.0.1:8000": 1.0, "10.0.0.2:8000": 0.5}  # type: ignore[call-overload]


async def test_a_request_counts_until_its_stream_ends_and_a_picker_that_stops_ends_it():
    """X3 given-back: also where the gateway goes away; and a request whose engine is chosen goes on without it."""
    world = World()
    wires = [Wire([head(), body({"model": "sql"})], is_held=True) for _ in range(2)]
    undecided = Wire([head()], is_held=True)
    tasks = [asyncio.create_task(world.picker.process(_nothing(), one)) for one in (*wires, undecided)]
    await eventually(lambda: world.loads.in_flight == 2 and len(undecided.written) == 1)
    assert world.loads["10.0.0.1:8000"] == 2
    tasks[0].cancel()
    await eventually(lambda: world.loads.in_flight == 1)
    world.picker.stop()
    await tasks[1]
    assert (world.loads.in_flight, tasks[0].cancelled(), tasks[2].done()) == (0, True, False)
    assert (tasks[1].cancelling(), world.picker._waiting) == (0, set())
    tasks[2].cancel()
    await asyncio.wait(tasks)
    after = Wire([head(), body({"model": "sql"})], is_held=True)
    await world.picker.process(_nothing(), after)
    assert (len(after.written), world.loads.in_flight) == (2, 0)
