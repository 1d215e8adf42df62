"""Drives vLLM from 0.10 over its HTTP interface, and through our plugin where the server has it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from sidecar.engines import plugin_calls as plugin
from sidecar.engines import vllm_answers as answers
from sidecar.engines.deadlines import USUAL, Deadlines
from sidecar.engines.driver import EngineError, EngineUnreachable, EngineUnusable, check_name
from sidecar.engines.exchange import JsonPost, Lost, NotSent, Reply
from sidecar.engines.loaded import LoadedNames
from sidecar.engines.swap_risk import LastThere, reload_risk, swap_risk
from sidecar.engines.vllm_http import VllmHttp
from sidecar.engines.vllm_process import LOAD_PATH, UNLOAD_PATH, VllmProcess, examine
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
    Transient,
    Unknown,
)
from sidecar.steps import OnStep, Step, ignore

UNTOLD = EngineLimits()
LULL_POLL_SECONDS = 0.1


class Risk(Protocol):
    """Why a name may not get weights while the engine is so; empty: it may."""

    def __call__(self, evidence: DrainEvidence, /, *, listed: int, max_loras: int | None) -> str: ...


class VllmEngine:
    """One vLLM server. Implements `sidecar.engines.driver.Engine`."""

    kind = "vllm"

    def __init__(
        self,
        url: str,
        *,
        api_key_file: Path | None = None,
        deadlines: Deadlines = USUAL,
        limits: EngineLimits = UNTOLD,
        on_step: OnStep = ignore,
        past: LoadedNames | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
            url: of the server, e.g. ``http://127.0.0.1:8000``.
            api_key_file: holds the key that the server was started with; read at each use, None: there is no key.
            deadlines: of each kind of call.
            limits: what the server was started with and does not tell.
            on_step: called at each step of a change, for tests.
            past: keeps what a release that knows adapters by name only ever had under each name; None: forgets it.
        """
        self._http = VllmHttp(url, api_key_file)
        self._deadlines = deadlines
        self._limits = limits
        self._on_step = on_step
        self._past = past or LoadedNames()
        self._process: VllmProcess | None = None
        self._base_model: str | None = None
        self._there = LastThere()

    @property
    def url(self) -> str:
        """Base URL, without credentials."""
        return self._http.url

    async def observe(self) -> Observed:
        """See `Engine.observe`."""
        seconds = self._deadlines.probe_seconds + self._deadlines.list_seconds
        # What was known of the process before; where it is another one by now, there may be no such page.
        uses = [plugin.USES_PATH] if self._process is not None and self._process.tells_uses else []
        paths = ["/metrics", "/v1/models", *uses, "/metrics"]
        first, cards, *told, last = await self._http.get(paths, seconds, optional=plugin.USES_PATH)
        before, after = self._read_metrics(first), self._read_metrics(last)
        process = await self._examined(before)
        listing = answers.read_listing(cards)
        self._there.note(before.incarnation, listing.adapters, asyncio.get_running_loop().time())
        if after.incarnation != before.incarnation:
            raise EngineUnreachable(f"{self.url} restarted while it was looked at")
        self._base_model = listing.base_models[0]
        facts = process.facts(self.url, self._limits, after.limits.max_loras)
        past = await self._had(facts, listing.adapters)
        return Observed(facts, listing.base_models, listing.adapters, plugin.read_last_used(b"".join(told)), past)

    async def _had(self, facts: EngineFacts, listed: Mapping[str, str]) -> Mapping[str, str]:
        return await self._past.seen(facts.incarnation, listed) if facts.swap == "refused" else {}

    async def incarnation(self) -> str:
        """See `Engine.incarnation`."""
        return (await self._metrics()).incarnation

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        """See `Engine.load`. What had the name before may still be in a batch with it, as after a swap."""
        process, gone_seconds = self._process, self._there.seconds_since(name, asyncio.get_running_loop().time())
        if not self._has_plugin and gone_seconds is not None:
            danger = await self._danger(name, partial(reload_risk, name, gone_seconds=gone_seconds))
            if danger is not None:
                return danger
        if process is None or not process.remembers_names:
            return await self._load(name, path, request_id, Step.LOAD_SENT, Step.LOADED)
        load = partial(self._load, name, path, request_id, Step.LOAD_SENT, Step.LOADED)
        return await self._past.recording(process.incarnation, name, path, load)

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        """See `Engine.unload`. By the plugin, so that it knows for whom the old weights are kept."""
        if self._process is not None:
            self._there.note(self._process.incarnation, [name], asyncio.get_running_loop().time())
        by_plugin = self._has_plugin
        call = plugin.unload_call(name) if by_plugin else _unload(name)
        [answer] = await self._post([call], request_id, self._deadlines.unload_seconds, Step.UNLOAD_SENT, Step.UNLOADED)
        if by_plugin:
            return plugin.plugin_outcome(answer)
        return answers.unload_outcome(answer)

    async def swap(self, name: str, old: str, new: str, *, request_id: str) -> Outcome:
        """See `Engine.swap`."""
        if self._process is not None and self._process.remembers_names:
            return Refused(f"vLLM {self._process.version} would answer from what it remembers of the old weights")
        if not self._has_plugin:
            return await self._swap_pipelined(name, old, new, request_id)
        seconds = self._deadlines.load_seconds
        call = plugin.swap_call(name, old, new)
        [answer] = await self._post([call], request_id, seconds, Step.REPLACEMENT_SENT, Step.REPLACED)
        outcome = plugin.plugin_outcome(answer)
        return Transient(f"the engine knows no {name!r} any more") if isinstance(outcome, NotThere) else outcome

    @property
    def _has_plugin(self) -> bool:
        return self._process is not None and self._process.about is not None

    async def _swap_pipelined(self, name: str, old: str, new: str, request_id: str) -> Outcome:
        """Between the unload and the load, which are sent together, the engine knows no `name`."""
        if (danger := await self._danger(name, partial(swap_risk, name))) is not None:
            return danger
        check = check_name(new)
        proof = await self._load(check, new, request_id, Step.PROOF_SENT, Step.PROVEN)
        # The name says which path it was loaded from: one that is left over from an earlier swap proves the same.
        if not isinstance(proof, Done | AlreadyThere):
            return proof
        outcome = await self._replace(name, old, new, request_id)
        if not isinstance(outcome, Gone | Unknown):
            await self.unload(check, request_id=request_id)  # the planner unloads it where this fails
        return outcome

    async def _danger(self, name: str, risk: Risk) -> Outcome | None:
        """Waits a little for a moment at which `name` may get weights; None: now. Else why there was none."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._deadlines.lull_seconds
        try:
            while (why := await self._why_not(name, risk)) and loop.time() < end:  # noqa: ASYNC110 - the engine's
                await asyncio.sleep(LULL_POLL_SECONDS)
        except EngineUnreachable as error:
            return Gone(f"{error}")
        except EngineUnusable as error:
            return Transient(f"{error}")
        return Transient(why) if why else None

    async def _why_not(self, name: str, risk: Risk) -> str:
        seconds = self._deadlines.probe_seconds + self._deadlines.list_seconds
        metrics, cards = await self._http.get(["/metrics", "/v1/models"], seconds)
        try:
            evidence = answers.read_drain(metrics.decode(errors="replace"), self.url)
        except EngineUnreachable as error:
            return f"whether requests for {name} are under way cannot be told: {error}"
        max_loras = self._read_metrics(metrics).limits.max_loras
        return risk(evidence, listed=len(answers.read_listing(cards).adapters), max_loras=max_loras)

    async def _load(self, name: str, path: str, request_id: str, sent: Step, answered: Step) -> Outcome:
        [answer] = await self._post([_load(name, path)], request_id, self._deadlines.load_seconds, sent, answered)
        return answers.load_outcome(answer)

    async def _post(
        self, requests: Sequence[JsonPost], request_id: str, seconds: float, sent: Step, answered: Step
    ) -> Sequence[Reply | Lost | NotSent]:
        found = await self._http.post(requests, request_id, seconds, on_sent=lambda: self._on_step(sent))
        self._on_step(answered)
        return found

    async def _replace(self, name: str, old: str, new: str, request_id: str) -> Outcome:
        both = [_unload(name), _load(name, new)]
        unloaded, loaded = await self._post(
            both, request_id, self._deadlines.load_seconds, Step.REPLACEMENT_SENT, Step.REPLACED
        )
        was_unloaded, outcome = answers.unload_outcome(unloaded), answers.load_outcome(loaded)
        if isinstance(outcome, Done | Gone | Unknown):
            return outcome
        if not isinstance(was_unloaded, Done | NotThere):
            return was_unloaded
        if isinstance(outcome, AlreadyThere):
            return outcome
        return await self._put_back(name, old, outcome, request_id)

    async def _put_back(self, name: str, old: str, failed: Outcome, request_id: str) -> Outcome:
        outcome = await self._load(name, old, request_id, Step.LOAD_SENT, Step.LOADED)
        return failed if isinstance(outcome, Done | AlreadyThere) else Unknown(f"{failed}; and putting back: {outcome}")

    async def is_busy(self) -> bool:
        """See `Engine.is_busy`."""
        try:
            return (await self._metrics()).is_busy
        except EngineError:
            return False

    async def turns(self) -> bool:
        """See `Engine.turns`."""
        try:
            async with asyncio.timeout(self._deadlines.turn_seconds):
                model = self._base_model or (await self.observe()).base_models[0]
                return await self._http.completes(model)
        except (EngineError, TimeoutError):
            return False

    async def drain_evidence(self) -> DrainEvidence:
        """See `Engine.drain_evidence`. vLLM writes its metrics when a step ends: so that they are new, one has to."""
        if self._has_plugin:
            return await self._exact_evidence()
        if not await self.turns():
            raise EngineUnreachable(f"{self.url} generates nothing, so its metrics may be old")
        [body] = await self._http.get(["/metrics"], self._deadlines.probe_seconds)
        return answers.read_drain(body.decode(errors="replace"), self.url)

    async def _exact_evidence(self) -> DrainEvidence:
        """The plugin answers only once the engine has, between two steps: one that stands still gives no evidence."""
        seconds = self._deadlines.probe_seconds + self._deadlines.list_seconds
        first, state, last = await self._http.get(["/metrics", plugin.STATE_PATH, "/metrics"], seconds)
        told = answers.read_drain(last.decode(errors="replace"), self.url)
        if self._read_metrics(first).incarnation != told.incarnation:
            raise EngineUnreachable(f"{self.url} restarted while it was asked")
        return replace(told, paths=plugin.read_paths_in_use(state))

    async def aclose(self) -> None:
        """See `Engine.aclose`. No connection outlives its call."""

    async def _metrics(self) -> answers.Metrics:
        [body] = await self._http.get(["/metrics"], self._deadlines.probe_seconds)
        return self._read_metrics(body)

    def _read_metrics(self, body: bytes) -> answers.Metrics:
        return answers.read_metrics(body.decode(errors="replace"), self.url)

    async def _examined(self, metrics: answers.Metrics) -> VllmProcess:
        """Once for each process, that it can be driven at all, and how."""
        if self._process is None or self._process.incarnation != metrics.incarnation:
            self._process = await examine(self._http, metrics, self._deadlines.probe_seconds)
        return self._process


def _load(name: str, path: str) -> JsonPost:
    return JsonPost(LOAD_PATH, {"lora_name": name, "lora_path": path})


def _unload(name: str) -> JsonPost:
    return JsonPost(UNLOAD_PATH, {"lora_name": name})
