"""Stream of one request of a gateway, from its headers to the end of its answer.

The stream stays open until the gateway ends it, so that an engine's requests on their way can be counted. Once the
engine is chosen nothing depends on the picker any more: when it stops, it ends such streams, and the gateway goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from registry.picker import answers
from registry.picker import ext_proc_pb2 as ext
from registry.picker.answers import LEAST_REVISION
from registry.picker.decide import NOT_KNOWN, Chosen, Decision, Denied, PickRequest, pick
from registry.picker.loads import Loads
from registry.picker.metrics import PickerMetrics
from registry.picker.request_body import RequestedModel, UnreadableBody, model_of
from registry.picker.served import PickEndpoint, PickPool

_MODES = ext.ProtocolConfiguration
_READABLE = {_MODES.BUFFERED, _MODES.BUFFERED_PARTIAL, _MODES.FULL_DUPLEX_STREAMED}
_POLL_SECONDS = 0.02
INVALID_REQUEST, TOO_LARGE, WRONG_MODE = "invalid_request", "request_too_large", "picker_misconfigured"
_BODYLESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})


class StreamContext(Protocol):
    """The side of gRPC's stream that the picker uses."""

    async def read(self) -> object: ...
    async def write(self, message: ext.ProcessingResponse, /) -> None: ...


@dataclass(frozen=True, slots=True)
class PickRules:
    """Settings of a picker that decide about requests.

    Attributes:
        max_body_bytes: of a request.
        separators: see `registry.picker.decide.pick`.
        fail_open: while the registry has never answered, requests go where the gateway's subset says.
        refuse_after_seconds: of a registry that is out of reach; 0: never.
        revision_wait_seconds: for a revision that a request asks for.
        scores: whether the gateway is told the scores of all endpoints.
    """

    max_body_bytes: int = 8 << 20
    separators: str = ":|"
    fail_open: bool = False
    refuse_after_seconds: float = 0.0
    revision_wait_seconds: float = 1.0
    scores: bool = False


@dataclass(slots=True)
class _Turn:
    """One request as far as it has come."""

    asked: PickRequest
    is_streamed: bool = False
    response_streamed: bool = False
    body: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    begun_at: float = 0.0
    address: str = ""
    is_settled: bool = False


class Picker:
    """Answers the streams of gateways.

    Args:
        rules: of decisions.
        pools: gives what is known, in the order in which names are looked up.
        away_seconds: gives how long the registry has told nothing of a pool; of None: of the one of which longest.
        loads: of engines.
        metrics: counts.
    """

    def __init__(
        self,
        rules: PickRules,
        pools: Callable[[], Sequence[PickPool]],
        away_seconds: Callable[[str | None], float],
        loads: Loads,
        metrics: PickerMetrics,
    ) -> None:
        self._rules = rules
        self._pools = pools
        self._away_seconds = away_seconds
        self._loads = loads
        self._metrics = metrics
        self._waiting: set[asyncio.Task[object]] = set()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends the streams of requests whose engine is chosen."""
        self._stopping.set()
        for task in self._waiting:
            task.cancel()

    async def process(self, _requests: AsyncIterator[ext.ProcessingRequest], context: StreamContext) -> None:
        """Answers each message of a request's stream."""
        turn: _Turn | None = None
        try:
            while True:
                with self._ending(turn):
                    message = await context.read()
                if not isinstance(message, ext.ProcessingRequest):
                    return
                if turn is None and message.WhichOneof("request") == "request_headers":
                    turn = _Turn(PickRequest(None), begun_at=perf_counter())
                for answer in await self._answers(turn, message):
                    await context.write(answer)
        except _EndedEarly:
            return
        finally:
            if turn is not None and turn.address:
                self._loads.leave(turn.address)

    @contextmanager
    def _ending(self, turn: _Turn | None) -> Iterator[None]:
        """A wait that ends with the picker, once the engine is chosen. Raises _EndedEarly."""
        if turn is None or not turn.is_settled:
            yield
            return
        task = asyncio.current_task()
        if self._stopping.is_set() or task is None:
            raise _EndedEarly
        self._waiting.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
            task.uncancel()
            raise _EndedEarly from None
        finally:
            self._waiting.discard(task)

    async def _answers(self, turn: _Turn | None, message: ext.ProcessingRequest) -> Sequence[ext.ProcessingResponse]:
        kind = message.WhichOneof("request")
        if turn is None or turn.is_settled or kind not in {"request_headers", "request_body", "request_trailers"}:
            return [_passed(turn, message)]
        if kind == "request_headers":
            return await self._headers(turn, message)
        if kind == "request_body":
            return await self._body(turn, message.request_body)
        return await self._whole(turn)

    async def _headers(self, turn: _Turn, message: ext.ProcessingRequest) -> Sequence[ext.ProcessingResponse]:
        headers, mode = answers.headers_of(message.request_headers), message.protocol_config.request_body_mode
        turn.is_streamed = mode == _MODES.FULL_DUPLEX_STREAMED
        turn.response_streamed = message.protocol_config.response_body_mode == _MODES.FULL_DUPLEX_STREAMED
        revision = headers.get(LEAST_REVISION, "0")
        if not (revision.isascii() and revision.isdecimal() and len(revision) < 19):
            return self._settle(turn, _bad(f"{LEAST_REVISION} is no revision; send the number that publish returned"))
        turn.asked = PickRequest(None, answers.subset_of(message), int(revision))
        if message.request_headers.end_of_stream:
            if headers.get(":method", "GET") not in _BODYLESS:
                return self._settle(turn, _bad('the request has no body; send a JSON object with "model": "NAME"'))
            return self._settle(turn, await self._decide(turn.asked))
        if message.HasField("protocol_config") and mode not in _READABLE:
            told = "the gateway sends no body: set request_body_mode of ext_proc to BUFFERED or FULL_DUPLEX_STREAMED"
            return self._settle(turn, Denied(500, WRONG_MODE, told))
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:19]) > self._rules.max_body_bytes:
            return self._settle(turn, self._too_large())
        return () if turn.is_streamed else [answers.CONTINUE]

    async def _body(self, turn: _Turn, part: ext.HttpBody) -> Sequence[ext.ProcessingResponse]:
        turn.body.append(part.body)
        turn.size_bytes += len(part.body)
        if turn.size_bytes > self._rules.max_body_bytes:
            return self._settle(turn, self._too_large())
        if not part.end_of_stream:
            return () if turn.is_streamed else self._settle(turn, self._too_large())
        return await self._whole(turn)

    async def _whole(self, turn: _Turn) -> Sequence[ext.ProcessingResponse]:
        body = b"".join(turn.body)
        try:
            asked = model_of(body)
        except UnreadableBody as error:
            return self._settle(turn, _bad(str(error)))
        request = PickRequest(asked.name, turn.asked.subset, turn.asked.least_revision)
        return self._settle(turn, await self._decide(request), asked, body)

    async def _decide(self, request: PickRequest) -> Decision:
        rules, pools = self._rules, self._pools()
        if not pools and rules.fail_open and request.subset:
            return Chosen(PickEndpoint(min(request.subset), ""), "")
        end = asyncio.get_running_loop().time() + rules.revision_wait_seconds
        while True:
            chance = random.random()  # noqa: S311 - no secret
            decision = pick(request, self._pools(), self._loads, chance, rules.separators)
            is_behind = isinstance(decision, Denied) and decision.is_behind
            if not is_behind or asyncio.get_running_loop().time() >= end:
                return self._in_time(decision)
            await asyncio.sleep(_POLL_SECONDS)

    def _in_time(self, decision: Decision) -> Decision:
        """The decision, unless what it goes by was heard too long ago: of its pool; where none has the name, of any."""
        pool = decision.pool if isinstance(decision, Chosen) else None
        away = self._away_seconds(pool) if self._pools() else 0.0
        if not 0 < self._rules.refuse_after_seconds < away:
            return decision
        told = f"the picker has not heard from the registry{f' of pool {pool}' if pool else ''} for {away:.0f} s"
        return Denied(503, NOT_KNOWN, f"{told}; repeat the request", 5)

    def _settle(
        self, turn: _Turn, decision: Decision, asked: RequestedModel | None = None, body: bytes = b""
    ) -> Sequence[ext.ProcessingResponse]:
        """The answers that a decision comes to."""
        turn.is_settled, turn.body = True, []
        self._metrics.count(decision, perf_counter() - turn.begun_at)
        if isinstance(decision, Denied):
            return [answers.denied(decision)]
        scores = self._scores(decision) if self._rules.scores else None
        turn.address = decision.endpoint.address
        self._loads.enter(turn.address)
        new = answers.new_body(decision, asked)
        if asked is None:
            return [answers.chosen_by_headers(decision, scores)]
        if turn.is_streamed:
            return list(answers.chosen_by_stream(decision, body if new is None else new, scores))
        return [answers.chosen_by_body(decision, new, scores)]

    def _scores(self, chosen: Chosen) -> dict[str, float]:
        """The score of each endpoint that might have been chosen: 1 for one without load."""
        return {one.address: 1.0 / (1.0 + self._loads.get(one.address)) for one in chosen.candidates}

    def _too_large(self) -> Denied:
        told = f"the body has more than {self._rules.max_body_bytes} bytes; send less, or raise --max-body-bytes"
        return Denied(413, TOO_LARGE, told)


class _EndedEarly(Exception):
    """The picker stops, and this stream may end."""


def _bad(message: str) -> Denied:
    return Denied(400, INVALID_REQUEST, message)


def _passed(turn: _Turn | None, message: ext.ProcessingRequest) -> ext.ProcessingResponse:
    """The answer to what comes when nothing is left to decide; what is streamed has to be sent back."""
    kind = message.WhichOneof("request")
    if kind == "response_body" and turn is not None and turn.response_streamed:
        part = message.response_body
        return answers.streamed(part.body, end_of_stream=part.end_of_stream, of_request=False)
    if kind == "request_body" and turn is not None and turn.is_streamed:
        part = message.request_body
        return answers.streamed(part.body, end_of_stream=part.end_of_stream, of_request=True)
    return answers.unchanged(message)
