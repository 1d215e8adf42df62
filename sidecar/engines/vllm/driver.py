"""Driver of vLLM from 0.10, over HTTP and through our plugin."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from registry.runtime.failpoints import Point, hit
from sidecar.engines.driver import (
    UNTOLD,
    USUAL,
    Deadlines,
    EngineError,
    EngineOptions,
    EngineUnreachable,
    EngineUnusable,
    check_name,
    put_back,
)
from sidecar.engines.load_ledger import PAST_FILE, LoadLedger
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    DrainEvidence,
    EngineActivity,
    EngineGone,
    EngineLimits,
    EnginePaused,
    NotThere,
    Observed,
    Outcome,
    Refused,
    Transient,
    Unknown,
    Use,
)
from sidecar.engines.transport import Lost, NotSent, PostRequest, Reply
from sidecar.engines.vllm import plugin_calls as plugin
from sidecar.engines.vllm import responses as answers
from sidecar.engines.vllm.http import VllmHttp, metric_lines
from sidecar.engines.vllm.process import (
    ToldVersions,
    VllmProcess,
    examine,
    hide,
    load_call,
    may_know_kv,
    says_paused,
    shown,
    unload_call,
    with_base,
    with_evidence,
)
from sidecar.engines.vllm.swap_risk import LastThere, Risk, reload_risk, swap_risk

LULL_POLL_SECONDS = 0.1
ALONE = "other weights are being put behind a name, beside which this vLLM may get no adapter; it is tried again"
# An engine that made progress so long ago is not asked for a sign of life.
PROGRESS_SECONDS = 5.0


def make_engine(options: EngineOptions) -> VllmEngine:
    """The driver of one engine. Implements `sidecar.engines.driver.MakeEngine`."""
    return VllmEngine(
        options.url,
        api_key_file=options.api_key_file,
        control_token_file=options.control_token_file,
        deadlines=options.deadlines,
        limits=options.limits,
        past=LoadLedger(options.state, PAST_FILE),
        is_intact=options.is_intact,
    )


class VllmEngine:
    """One vLLM server. Implements `sidecar.engines.driver.Engine`."""

    kind = "vllm"

    def __init__(
        self,
        url: str,
        *,
        api_key_file: Path | None = None,
        control_token_file: Path | None = None,
        deadlines: Deadlines = USUAL,
        limits: EngineLimits = UNTOLD,
        past: LoadLedger | None = None,
        is_intact: Callable[[str], bool] = bool,
    ) -> None:
        """Connects to nothing yet.

        Args:
            url: of the server, e.g. ``http://127.0.0.1:8000``.
            api_key_file: holds the key that the server was started with; read at each use, None: there is no key.
            control_token_file: the same of the token that our plugin in it was given.
            deadlines: of each kind of call.
            limits: what the server was started with and does not tell.
            past: keeps what a release that knows adapters by name only ever had under each name; None: forgets it.
            is_intact: see `EngineOptions`.
        """
        self._http = VllmHttp(url, api_key_file, control_token_file=control_token_file)
        self._deadlines, self._limits = deadlines, limits
        self._past, self._is_intact = past or LoadLedger(), is_intact
        self._process: VllmProcess | None = None
        self._base_model: str | None = None
        self._there = LastThere()
        self._versions = ToldVersions()
        self._changes: plugin.ChangeCount | None = None
        # Without our plugin, whether a call might end the engine depends on how many adapters it has. From the decision
        # to the end of such a call nothing else begins that brings it one; what began before is counted.
        self._deciding = asyncio.Lock()
        self._coming = 0
        self._undecided = 0
        self._progress: tuple[str, ...] = ()
        self._progress_at = -math.inf
        self._told_paused = self._said_paused = ""

    @property
    def url(self) -> str:
        """Base URL, without credentials."""
        return self._http.url

    @property
    def is_concurrent(self) -> bool:
        """See `Engine.is_concurrent`. Not where what each name ever had is recorded around a load."""
        return self._process is not None and self._process.past_of is None

    @property
    def paused(self) -> str:
        """See `Engine.paused`. Its metrics tell that it sleeps; that it is paused, only its development mode does."""
        return self._told_paused or self._said_paused

    @property
    def is_deciding(self) -> bool:
        return self._undecided > 0

    @property
    def swaps_alone(self) -> bool:
        return not self._has_plugin

    async def observe(self) -> Observed:
        seconds = self._deadlines.probe_seconds + self._deadlines.list_seconds
        # What was known of the process before; where it is another one by now, there may be no such page.
        uses = [plugin.USES_PATH] if self._process is not None and self._process.tells_uses else []
        # Before the listing: what changes between the two is seen twice, and not missed.
        paths = ["/metrics", *uses, "/v1/models", "/metrics"]
        first, *told, cards, last = await self._http.get(paths, seconds, optional=plugin.USES_PATH)
        before, after = await self._read_metrics(first), await self._read_metrics(last)
        self._told_paused = after.paused
        process = await self._examined(before)
        listing = answers.read_listing(cards)
        was_asked = after.limits.max_loras is not None  # it says it from the first request for an adapter on
        self._there.note(before.incarnation, listing.adapters, asyncio.get_running_loop().time(), was_asked=was_asked)
        if after.incarnation != before.incarnation:
            raise EngineUnreachable(f"{self.url} restarted while it was looked at")
        await self._look_whether_paused()
        self._base_model = listing.base_models[0]
        self._changes = plugin.read_changes(b"".join(told))
        facts = process.facts(self.url, self._limits, after.limits.max_loras, listing)
        past = {} if process.past_of is None else await self._past.seen(process.past_of, listing.adapters)
        page = b"".join(told)
        return Observed(
            facts,
            listing.base_models,
            listing.adapters,
            last_used=plugin.read_last_used(page) or {},
            past=past,
            paused=self.paused,
            no_effect=plugin.read_proven(page, "no_effect"),
            as_expected=plugin.read_proven(page, "as_expected"),
            unexpected=plugin.read_unexpected(page),
        )

    async def _look_whether_paused(self) -> str:
        process = self._process
        if process is not None and process.pause_pages:
            said = await says_paused(self._http, process)
            self._said_paused = self._said_paused if said is None else answers.PAUSED if said else ""
        return self.paused

    async def incarnation(self) -> str:
        return (await self._metrics()).incarnation

    async def has_changed(self) -> bool:
        """See `Engine.has_changed`. The first look at a process did not know yet that it can be asked, so it is old."""
        if self._process is None or not self._process.tells_changes:
            return False
        body = await self._http.find(plugin.CHANGES_PATH, self._deadlines.probe_seconds)
        told, seen = plugin.read_changes(body or b""), self._changes
        return told is not None and (seen is None or told.is_later_than(seen))

    async def prove(self, path: str, expect: str = "", *, request_id: str) -> Outcome:
        """See `Engine.prove`. By the plugin; what it was asked once it remembers."""
        if why := await self._look_whether_paused():
            return EnginePaused(why)
        [answer] = await self._http.post([plugin.prove_call(path, expect)], request_id, self._deadlines.load_seconds)
        return plugin.proof_outcome(answer)

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        """See `Engine.load`. What had the name before may still be in a batch with it, as after a swap."""
        if why := await self._look_whether_paused():
            return EnginePaused(why)
        gone_seconds = self._there.seconds_since(name, asyncio.get_running_loop().time())
        if self._deciding.locked():
            return Transient(ALONE)
        if self._has_plugin or gone_seconds is None:
            self._coming += 1
            try:
                return await self._recorded_load(name, path, request_id)
            finally:
                self._coming -= 1
        async with self._deciding:
            danger = await self._danger(name, partial(reload_risk, name, gone_seconds=gone_seconds))
            return await self._recorded_load(name, path, request_id) if danger is None else danger

    async def _recorded_load(self, name: str, path: str, request_id: str) -> Outcome:
        process = self._process
        load = partial(self._load, name, path, request_id, Point.LOAD_SENT, Point.LOADED)
        if process is None or process.past_of is None:
            return await load()
        return await self._past.recording(process.past_of, name, path, load)

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        """See `Engine.unload`. By the plugin, so that it knows for whom the old weights are kept."""
        if why := await self._look_whether_paused():
            return EnginePaused(why)
        if self._process is not None:
            self._there.note(self._process.incarnation, [name], asyncio.get_running_loop().time())
        by_plugin = self._has_plugin
        call = plugin.unload_call(name) if by_plugin else unload_call(name)
        [answer] = await self._post(
            [call], request_id, self._deadlines.unload_seconds, Point.UNLOAD_SENT, Point.UNLOADED
        )
        if by_plugin:
            return plugin.plugin_outcome(answer)
        return answers.unload_outcome(answer)

    async def swap(self, name: str, old: str, new: str, *, request_id: str) -> Outcome:
        if self._process is not None and (why := self._process.no_swap):
            return Refused(why)
        if why := await self._look_whether_paused():
            return EnginePaused(why)
        if not self._has_plugin:
            if self._deciding.locked():
                return Transient(ALONE)
            async with self._deciding:
                return await self._swap_pipelined(name, old, new, request_id)
        seconds = self._deadlines.load_seconds
        call = plugin.swap_call(name, old, new)
        [answer] = await self._post([call], request_id, seconds, Point.REPLACEMENT_SENT, Point.REPLACED)
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
        proof = await self._load(check, new, request_id, Point.PROOF_SENT, Point.PROVEN)
        # The name says which path it was loaded from: one that is left over from an earlier swap proves the same.
        if not isinstance(proof, Done | AlreadyThere):
            return proof
        outcome = await self._replace(name, old, new, request_id)
        if not isinstance(outcome, EngineGone | Unknown):
            await self.unload(check, request_id=request_id)  # the planner unloads it where this fails
        return outcome

    async def _danger(self, name: str, risk: Risk) -> Outcome | None:
        """Waits a little for a moment at which `name` may get weights; None: now. Else why there was none."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._deadlines.lull_seconds
        self._undecided += 1
        try:
            while (why := await self._why_not(name, risk)) and loop.time() < end:  # noqa: ASYNC110 - the engine's
                await asyncio.sleep(LULL_POLL_SECONDS)
        except EngineUnreachable as error:
            return EngineGone(f"{error}")
        except EngineUnusable as error:
            return Transient(f"{error}")
        finally:
            self._undecided -= 1
        return Transient(why) if why else None

    async def _why_not(self, name: str, risk: Risk) -> str:
        seconds = self._deadlines.probe_seconds + self._deadlines.list_seconds
        metrics, cards = await self._http.get(["/metrics", "/v1/models"], seconds)
        try:
            evidence = await self._read_drain(metrics)
        except EngineUnreachable as error:
            return f"whether requests for {name} are under way cannot be told: {error}"
        max_loras = (await self._read_metrics(metrics)).limits.max_loras
        listed = len(answers.read_listing(cards).adapters)
        return risk(evidence, listed=listed + self._coming, max_loras=max_loras)

    async def _load(self, name: str, path: str, request_id: str, sent: Point, answered: Point) -> Outcome:
        [answer] = await self._post([load_call(name, path)], request_id, self._deadlines.load_seconds, sent, answered)
        if not isinstance(outcome := answers.load_outcome(answer), AlreadyThere):
            return outcome
        return await shown(self._http, self._process, (name, path), request_id, self._deadlines.load_seconds)

    async def _post(
        self, requests: Sequence[PostRequest], request_id: str, seconds: float, sent: Point, answered: Point
    ) -> Sequence[Reply | Lost | NotSent]:
        found = await self._http.post(requests, request_id, seconds, on_sent=lambda: hit(sent))
        hit(answered)
        return found

    async def _replace(self, name: str, old: str, new: str, request_id: str) -> Outcome:
        both = [unload_call(name), load_call(name, new)]
        unloaded, loaded = await self._post(
            both, request_id, self._deadlines.load_seconds, Point.REPLACEMENT_SENT, Point.REPLACED
        )
        was_unloaded, outcome = answers.unload_outcome(unloaded), answers.load_outcome(loaded)
        if isinstance(outcome, Done | EngineGone | Unknown):
            return outcome
        if not isinstance(was_unloaded, Done | NotThere):
            return was_unloaded
        if isinstance(outcome, AlreadyThere):
            return outcome
        back = partial(self._load, name, old, request_id, Point.LOAD_SENT, Point.LOADED)
        return await put_back(old, outcome, self._is_intact, back)

    async def is_busy(self) -> bool:
        try:
            return (await self._metrics()).is_busy
        except EngineError:
            return False

    async def turns(self) -> bool | None:
        """See `Engine.turns`. One that is paused is not asked: it would not answer before it goes on."""
        if self.paused:
            return False
        try:
            async with asyncio.timeout(self._deadlines.turn_seconds):
                model = self._base_model or (await self.observe()).base_models[0]
                return await self._http.completes(model)
        except (EngineError, TimeoutError):
            return False

    async def pulse(self) -> bool | None:
        """See `Engine.pulse`. What /metrics says of tokens was read by the probes of the engine's identity."""
        process, model = self._process, self._base_model
        if self._has_progressed and not self._said_paused:
            return True
        if await self._look_whether_paused():
            return None
        if process is None or model is None or not (self._progress or self._has_plugin):
            return None  # of a full engine without statistics nobody could say that it goes on
        try:
            async with asyncio.timeout(self._deadlines.pulse_seconds):
                answer = await self._asked_to_answer(model)
        except (EngineError, TimeoutError):
            answer = False
        if answer is not False:
            return answer
        try:
            is_same = (await self._metrics()).incarnation == process.incarnation
        except EngineError:
            return None  # out of reach is another matter
        return True if self._has_progressed else None if not is_same else False

    @property
    def _has_progressed(self) -> bool:
        return asyncio.get_running_loop().time() - self._progress_at < PROGRESS_SECONDS

    async def _asked_to_answer(self, model: str) -> bool | None:
        if not self._has_plugin:
            return await self._http.completes(model)
        await self._http.get([plugin.STATE_PATH], self._deadlines.pulse_seconds)
        return True

    async def activity(self) -> EngineActivity:
        """See `Engine.activity`. Our plugin in it knows when each adapter was last used, and how often."""
        tells = self._process is not None and self._process.tells_uses
        paths = ["/metrics", *([plugin.USES_PATH] if tells else [])]
        page, *told = await self._http.get(paths, self._deadlines.probe_seconds, optional=plugin.USES_PATH)
        activity = answers.read_activity(await metric_lines(page, answers.METRICS, self.url), self.url)
        if not tells:
            return activity
        return plugin.with_uses(activity, b"".join(told))

    async def drain_evidence(self) -> DrainEvidence:
        """See `Engine.drain_evidence`. vLLM writes its metrics when a step ends: so that they are new, one has to."""
        if self._has_plugin:
            return await self._exact_evidence()
        if not await self.turns():
            raise EngineUnreachable(f"{self.url} does not complete a request, so its metrics may be old")
        [body] = await self._http.get(["/metrics"], self._deadlines.probe_seconds)
        return await self._read_drain(body)

    async def _exact_evidence(self) -> DrainEvidence:
        """The plugin answers only once the engine has, between two steps: one that stands still gives no evidence."""
        seconds = self._deadlines.probe_seconds + self._deadlines.list_seconds
        first, state, last = await self._http.get(["/metrics", plugin.STATE_PATH, "/metrics"], seconds)
        told = await self._read_drain(last)
        if (await self._read_metrics(first)).incarnation != told.incarnation:
            raise EngineUnreachable(f"{self.url} restarted while it was asked")
        return replace(told, paths=plugin.read_paths_in_use(state))

    async def hide(self, seconds: float, kept: Collection[str] = ()) -> Outcome:
        """See `HidesNames.hide`."""
        return await hide(self._http, self._process, plugin.hide_call(seconds, kept), self._deadlines.probe_seconds)

    async def tell_versions(self, versions: Mapping[Use, str]) -> None:
        """See `ProvesAnswers.tell_versions`."""
        await self._versions.tell(self._http, self._process, versions, self._deadlines.probe_seconds)

    async def aclose(self) -> None:
        """See `Engine.aclose`. No connection outlives its call."""

    async def _metrics(self) -> answers.VllmMetrics:
        [body] = await self._http.get(["/metrics"], self._deadlines.probe_seconds)
        metrics = await self._read_metrics(body)
        self._told_paused = metrics.paused
        if metrics.progress != self._progress:
            self._progress, self._progress_at = metrics.progress, asyncio.get_running_loop().time()
        return metrics

    async def _read_metrics(self, body: bytes) -> answers.VllmMetrics:
        return answers.read_metrics(await metric_lines(body, answers.METRICS, self.url), self.url)

    async def _read_drain(self, body: bytes) -> DrainEvidence:
        return answers.read_drain(await metric_lines(body, answers.METRICS, self.url), self.url)

    async def _examined(self, metrics: answers.VllmMetrics) -> VllmProcess:
        """Once for each process, that it can be driven at all, and how."""
        process = self._process
        if process is None or process.incarnation != metrics.incarnation:
            process = await examine(self._http, metrics, self._deadlines.probe_seconds)
            self._said_paused = ""
        if (is_external := may_know_kv(metrics, self._past)) != process.has_external_kv:
            process = replace(process, has_external_kv=is_external)
        if process.may_tell_coverage(asyncio.get_running_loop().time()):
            process = await with_evidence(self._http, process, self._deadlines.probe_seconds)
        if process.may_tell_base:
            process = await with_base(self._http, process, self._deadlines.probe_seconds)
        if process is not self._process and (await self._metrics()).incarnation != metrics.incarnation:
            raise EngineUnreachable(f"{self.url} restarted while it was looked at")
        self._process = process
        return process
