"""Drives several kinds of engine over HTTP in one way; what each is asked and answers, its dialect says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

from sidecar.engines.deadlines import USUAL, Deadlines
from sidecar.engines.dialect import UNTOLD, Dialect, Requests, Seen, Statistics
from sidecar.engines.driver import EngineError, EngineUnreachable, EngineUnusable, check_name
from sidecar.engines.exchange import Change, Lost, NotSent, Reply
from sidecar.engines.listeners import Process
from sidecar.engines.loaded import FILE, PAST_FILE, LoadedNames
from sidecar.engines.vllm_http import VllmHttp
from sidecar.observed import (
    AlreadyThere,
    Done,
    DrainEvidence,
    EngineFacts,
    EngineLimits,
    Gone,
    NotThere,
    Observed,
    Outcome,
    Refused,
    SwapStrategy,
    Transient,
    Unknown,
)


class HttpEngine:
    """One server on this host. Implements `sidecar.engines.driver.Engine`.

    It does not say which process it is, so the socket that it listens with does (`sidecar.engines.listeners`). What is
    loaded and unloaded is recorded for dialects that do not list it, and for those that may not give a name other
    weights.
    """

    def __init__(
        self,
        dialect: Dialect,
        url: str,
        *,
        api_key_file: Path | None = None,
        deadlines: Deadlines = USUAL,
        limits: EngineLimits = UNTOLD,
        state: Path | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
            dialect: of this kind of engine.
            url: of the server, e.g. ``http://127.0.0.1:8000``.
            api_key_file: holds the key that the server was started with; read at each use, None: there is no key.
            deadlines: of each kind of call.
            limits: what the server was started with and does not tell.
            state: directory of the replica's own state; None: what is loaded is remembered by this process only.
        """
        self._dialect = dialect
        self._http = VllmHttp(url, api_key_file, dialect.kind)
        self._process = Process(self._http.url)
        self._deadlines = deadlines
        self._limits = limits
        self._loaded = LoadedNames(state, FILE)
        self._past = LoadedNames(state, PAST_FILE)
        self._base_model: str | None = None

    @property
    def kind(self) -> str:
        """See `Engine.kind`."""
        return self._dialect.kind

    @property
    def url(self) -> str:
        """Base URL, without credentials."""
        return self._http.url

    async def observe(self) -> Observed:
        """See `Engine.observe`."""
        incarnation, seen = await self._look()
        self._base_model = next(iter(seen.base_models), None)
        told = seen.limits
        limits = replace(
            told,
            max_cpu_loras=told.max_cpu_loras or self._limits.max_cpu_loras,
            max_lora_rank=told.max_lora_rank or self._limits.max_lora_rank,
            target_modules=self._limits.target_modules,
        )
        swap: SwapStrategy = "pipelined" if self._dialect.can_swap else "refused"
        facts = EngineFacts(self.kind, seen.version, self.url, incarnation, limits, swap)
        past = {} if self._dialect.can_swap else await self._past.seen(incarnation, seen.adapters)
        return Observed(facts, seen.base_models, seen.adapters, past=past)

    async def _look(self) -> tuple[str, Seen]:
        before = self._process.identity()
        seconds = self._deadlines.probe_seconds + self._deadlines.list_seconds
        bodies = await self._http.get(self._dialect.pages, seconds)
        incarnation = self._process.known(before)
        return incarnation, self._dialect.read(bodies, self._loaded.of(incarnation), self.url)

    async def incarnation(self) -> str:
        """See `Engine.incarnation`."""
        before = self._process.identity()
        await self._http.get(self._dialect.pages[-1:], self._deadlines.probe_seconds)
        return self._process.known(before)

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        """See `Engine.load`. It is recorded before: a sidecar that dies meanwhile knows what may be there."""
        call = partial(self._load, name, path, request_id)
        if self._dialect.can_swap:
            return await call()
        incarnation = self._process.identity()
        if not self._dialect.tells_taken and (taken := await self._taken(incarnation, name, path)) is not None:
            return taken
        record = partial(self._loaded.recording, incarnation, name, path, call)
        return await self._past.recording(incarnation, name, path, record)

    async def _taken(self, incarnation: str, name: str, path: str) -> Outcome | None:
        """Why a load is not sent, whose success would say nothing of the path; None: it may be sent."""
        had = self._past.of(incarnation).get(name, path)
        if had != path:
            return Refused(f"{self.kind} had {had} under this name, and gives it no other weights")
        try:
            _, seen = await self._look()
        except EngineUnreachable as error:
            return Gone(str(error))
        except EngineUnusable as error:
            return Transient(str(error))
        return AlreadyThere() if name in {*seen.adapters, *seen.base_models} else None

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        """See `Engine.unload`."""
        incarnation = self._process.identity()
        answer = await self._post(self._dialect.unload(name), request_id, self._deadlines.unload_seconds)
        outcome = self._dialect.unload_outcome(name, answer)
        if isinstance(outcome, Done | NotThere) and not self._dialect.can_swap:
            await self._loaded.forget(incarnation, name)
        return outcome

    async def swap(self, name: str, old: str, new: str, *, request_id: str) -> Outcome:
        """See `Engine.swap`. Between the unload, which may wait for requests, and the load there is no `name`."""
        if not self._dialect.can_swap:
            return Refused(f"{self.kind} gives a name no other weights")
        check = check_name(new)
        proof = await self.load(check, new, request_id=request_id)
        if not isinstance(proof, Done | AlreadyThere):
            return proof
        outcome = await self._replace(name, old, new, request_id)
        if not isinstance(outcome, Gone | Unknown):
            await self.unload(check, request_id=request_id)  # the planner unloads it where this fails
        return outcome

    async def _replace(self, name: str, old: str, new: str, request_id: str) -> Outcome:
        unloaded = await self.unload(name, request_id=request_id)
        if not isinstance(unloaded, Done | NotThere):
            return unloaded
        outcome = await self.load(name, new, request_id=request_id)
        if isinstance(outcome, Done | AlreadyThere | Gone | Unknown):
            return outcome
        back = await self.load(name, old, request_id=request_id)
        return outcome if isinstance(back, Done | AlreadyThere) else Unknown(f"{outcome}; and putting back: {back}")

    async def is_busy(self) -> bool:
        """See `Engine.is_busy`."""
        if self._dialect.statistics is None:
            return False
        try:
            found = await self._requests(self._dialect.statistics)
        except EngineError:
            return False
        return found.running + found.waiting > 0

    async def turns(self) -> bool:
        """See `Engine.turns`."""
        try:
            async with asyncio.timeout(self._deadlines.turn_seconds):
                if self._dialect.health is not None:
                    return await self._http.find(self._dialect.health, self._deadlines.probe_seconds) is not None
                model = self._base_model or (await self.observe()).base_models[0]
                return await self._http.completes(model)
        except (EngineError, TimeoutError):
            return False

    async def drain_evidence(self) -> DrainEvidence:
        """See `Engine.drain_evidence`. Which adapters have requests is not said: none may be there at all."""
        if self._dialect.statistics is None:
            raise EngineUnreachable(f"{self.url} does not say which requests it has, so files stay")
        before = self._process.identity()
        if not await self.turns():
            raise EngineUnreachable(f"{self.url} generates nothing, so its metrics may be old")
        found = await self._requests(self._dialect.statistics)
        return DrainEvidence(self._process.known(before), found.waiting, found.running, None)

    async def aclose(self) -> None:
        """See `Engine.aclose`. No connection outlives its call."""

    async def _requests(self, statistics: Statistics) -> Requests:
        [body] = await self._http.get([statistics.page], self._deadlines.probe_seconds)
        return statistics.read(body.decode(errors="replace"), self.url)

    async def _load(self, name: str, path: str, request_id: str) -> Outcome:
        answer = await self._post(self._dialect.load(name, path), request_id, self._deadlines.load_seconds)
        return self._dialect.load_outcome(name, answer)

    async def _post(self, request: Change, request_id: str, seconds: float) -> Reply | Lost | NotSent:
        [answer] = await self._http.post([request], request_id, seconds)
        return answer
