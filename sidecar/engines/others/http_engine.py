"""Driver of engines that are called over HTTP, and the contract of each kind.

An `HttpContract` has the pages, requests and replies of one kind of engine; its functions are pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sidecar.engines.driver import (
    UNTOLD,
    EngineError,
    EngineOptions,
    EngineUnreachable,
    SerialEngine,
    check_name,
    put_back,
)
from sidecar.engines.listeners import ListenerProcess
from sidecar.engines.load_ledger import FILE, PAST_FILE, LoadLedger
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    DrainEvidence,
    EngineFacts,
    EngineGone,
    EngineLimits,
    Observed,
    Outcome,
    Refused,
    SwapStrategy,
    Unknown,
    UnreadScale,
)
from sidecar.engines.transport import Lost, MetricLines, NotSent, PostRequest, Reply, json_of
from sidecar.engines.vllm.http import VllmHttp, metric_lines
from sidecar.engines.vllm.responses import outcome_of


@dataclass(frozen=True, slots=True)
class EnginePages:
    """What an engine's pages say.

    Attributes:
        version: of the engine; empty: it does not say.
        base_models: names of the base model, and of whatever cannot be told from it.
        adapters: name to path.
        limits: what it was started with, as far as it says.
    """

    version: str
    base_models: tuple[str, ...]
    adapters: Mapping[str, str]
    limits: EngineLimits = UNTOLD


@dataclass(frozen=True, slots=True)
class EngineRequests:
    """How many requests wait and run."""

    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """The page that tells which requests an engine has.

    `read` gets its `lines` and the engine's URL, and raises EngineUnreachable where it does not say.
    """

    page: str
    lines: MetricLines
    read: Callable[[str, str], EngineRequests]


def _nothing(_body: bytes) -> Container[str]:
    return ()


@dataclass(frozen=True, slots=True)
class HttpContract:
    """The contract of one kind of engine.

    Attributes:
        kind: as records of pools name it.
        pages: what a look reads, all at once; the last one alone tells that it is there.
        load_path: of the request that loads, with ``lora_name`` and ``lora_path``.
        unload_path: of the request that unloads, with ``lora_name``.
        read: reads the pages' bodies, with the names that we loaded into this process and their paths, and the URL.
            It raises EngineUnreachable where they cannot be read in full, and EngineUnusable where it is no engine of
            this kind, or one that cannot be driven.
        outcome: of either request, by a reply that is not about our key.
        loaded: names that are loaded, as the body of a refusal says.
        swap: what becomes of a name that is unloaded and loaded with other weights.
        statistics: where it tells which requests there are; None: nowhere, so that files are never let go of.
        optional_page: one of the pages, whose body is empty where it is not to be had.
        unread_scales: see `EngineFacts`.
    """

    kind: str
    pages: tuple[str, ...]
    load_path: str
    unload_path: str
    read: Callable[[Sequence[bytes], Mapping[str, str], str], EnginePages]
    outcome: Callable[[Reply], Outcome]
    loaded: Callable[[bytes], Container[str]] = _nothing
    swap: SwapStrategy = "refused"
    statistics: Statistics | None = None
    optional_page: str = ""
    unread_scales: tuple[UnreadScale, ...] = ()

    def load_outcome(self, name: str, answer: Reply | Lost | NotSent) -> Outcome:
        """Outcome of a load."""
        outcome = self.unload_outcome(answer)
        is_there = isinstance(outcome, Refused) and isinstance(answer, Reply) and name in self.loaded(answer.body)
        return AlreadyThere() if is_there else outcome

    def unload_outcome(self, answer: Reply | Lost | NotSent) -> Outcome:
        """Outcome of an unload."""
        return outcome_of(answer, self.outcome)


def listed_names(body: bytes, name_of: Callable[[object], str | None]) -> list[str] | None:
    """Names on the cards of a listing; None where it is none, or `name_of` finds no name on one of its cards."""
    match json_of(body):
        case {"object": "list", "data": [*cards]}:
            names = [name for card in cards if (name := name_of(card)) is not None]
            return names if len(names) == len(cards) else None
        case _:
            return None


class HttpEngine(SerialEngine):
    """One server on this host. Implements `sidecar.engines.driver.Engine`.

    It does not say which process it is, so the socket that it listens with does (`sidecar.engines.listeners`). What is
    loaded and unloaded is recorded for contracts that do not list it, and for those that may not give a name other
    weights.
    """

    def __init__(self, contract: HttpContract, options: EngineOptions) -> None:
        """Connects to nothing yet."""
        self._contract = contract
        self._http = VllmHttp(options.url, options.api_key_file, contract.kind)
        self._process = ListenerProcess(self._http.url)
        self._deadlines = options.deadlines
        self._limits = options.limits
        self._is_intact = options.is_intact
        self._loaded = LoadLedger(options.state, FILE)
        self._past = LoadLedger(options.state, PAST_FILE)
        self._base_model: str | None = None
        self._keeps_record = contract.swap == "refused"

    @property
    def kind(self) -> str:
        return self._contract.kind

    @property
    def url(self) -> str:
        """Base URL, without credentials."""
        return self._http.url

    async def observe(self) -> Observed:
        before = self._process.identity()
        seconds = self._deadlines.probe_seconds + self._deadlines.list_seconds
        bodies = await self._http.get(self._contract.pages, seconds, optional=self._contract.optional_page)
        incarnation = self._process.known(before)
        seen = self._contract.read(bodies, self._told(incarnation), self.url)
        self._base_model = next(iter(seen.base_models), None)
        told = seen.limits
        limits = replace(
            told,
            max_cpu_loras=told.max_cpu_loras or self._limits.max_cpu_loras,
            max_lora_rank=told.max_lora_rank or self._limits.max_lora_rank,
            target_modules=self._limits.target_modules,
        )
        swap, unread = self._contract.swap, self._contract.unread_scales
        facts = EngineFacts(self.kind, seen.version, self.url, incarnation, limits, swap, unread_scales=unread)
        past = await self._past.seen(incarnation, seen.adapters) if self._keeps_record else {}
        return Observed(facts, seen.base_models, seen.adapters, past=past)

    def _told(self, incarnation: str) -> Mapping[str, str]:
        try:
            return self._loaded.of(incarnation)
        except OSError as error:
            raise EngineUnreachable(f"what the engine was told cannot be read: {error}") from error

    async def incarnation(self) -> str:
        before = self._process.identity()
        await self._http.get(self._contract.pages[-1:], self._deadlines.probe_seconds)
        return self._process.known(before)

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        """See `Engine.load`. It is recorded before: a sidecar that dies meanwhile knows what may be there."""
        call = partial(self._load, name, path, request_id)
        if not self._keeps_record:
            return await call()
        incarnation = self._process.identity()
        if not incarnation:
            return self._unseen()
        record = partial(self._loaded.recording, incarnation, name, path, call)
        return await self._past.recording(incarnation, name, path, record)

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        incarnation = self._process.identity()
        if not incarnation:
            return self._unseen()
        request = PostRequest(self._contract.unload_path, {"lora_name": name})
        answer = await self._post(request, request_id, self._deadlines.unload_seconds)
        outcome = self._contract.unload_outcome(answer)
        if isinstance(outcome, Done) and self._keeps_record:
            await self._loaded.forget(incarnation, name)
        return outcome

    def _unseen(self) -> EngineGone:
        """Outcome of a call that is not made, since it could not be recorded of which process it is."""
        return EngineGone(f"nothing is seen to listen at {self.url}")

    async def swap(self, name: str, old: str, new: str, *, request_id: str) -> Outcome:
        """See `Engine.swap`. Between the unload, which may wait for requests, and the load there is no `name`."""
        if self._keeps_record:
            return Refused(f"{self.kind} gives a name no other weights")
        check = check_name(new)
        proof = await self.load(check, new, request_id=request_id)
        if not isinstance(proof, Done | AlreadyThere):
            return proof
        outcome = await self._replace(name, old, new, request_id)
        if not isinstance(outcome, EngineGone | Unknown):
            await self.unload(check, request_id=request_id)  # the planner unloads it where this fails
        return outcome

    async def _replace(self, name: str, old: str, new: str, request_id: str) -> Outcome:
        unloaded = await self.unload(name, request_id=request_id)
        if not isinstance(unloaded, Done):
            return unloaded
        outcome = await self.load(name, new, request_id=request_id)
        if isinstance(outcome, Done | AlreadyThere | EngineGone | Unknown):
            return outcome
        return await put_back(old, outcome, self._is_intact, partial(self.load, name, old, request_id=request_id))

    async def is_busy(self) -> bool:
        if self._contract.statistics is None:
            return False
        try:
            found = await self._requests(self._contract.statistics)
        except EngineError:
            return False
        return found.running + found.waiting > 0

    async def turns(self) -> bool | None:
        try:
            async with asyncio.timeout(self._deadlines.turn_seconds):
                model = self._base_model or (await self.observe()).base_models[0]
                return await self._http.completes(model)
        except (EngineError, TimeoutError):
            return False

    async def drain_evidence(self) -> DrainEvidence:
        """See `Engine.drain_evidence`. Which adapters have requests is not said: none may be there at all."""
        if self._contract.statistics is None:
            raise EngineUnreachable(f"{self.url} does not say which requests it has, so files stay")
        before = self._process.identity()
        if not await self.turns():
            raise EngineUnreachable(f"{self.url} does not complete a request, so its metrics may be old")
        found = await self._requests(self._contract.statistics)
        return DrainEvidence(self._process.known(before), found.waiting, found.running, None)

    async def aclose(self) -> None:
        """See `Engine.aclose`. No connection outlives its call."""

    async def _requests(self, statistics: Statistics) -> EngineRequests:
        [body] = await self._http.get([statistics.page], self._deadlines.probe_seconds)
        return statistics.read(await metric_lines(body, statistics.lines, self.url), self.url)

    async def _load(self, name: str, path: str, request_id: str) -> Outcome:
        request = PostRequest(self._contract.load_path, {"lora_name": name, "lora_path": path})
        answer = await self._post(request, request_id, self._deadlines.load_seconds)
        return self._contract.load_outcome(name, answer)

    async def _post(self, request: PostRequest, request_id: str, seconds: float) -> Reply | Lost | NotSent:
        [answer] = await self._http.post([request], request_id, seconds)
        return answer
