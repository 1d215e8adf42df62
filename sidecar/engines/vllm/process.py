"""Properties of one vLLM process, read once, and versions that it was told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from registry.lora.coverage.findings import EngineEvidence
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase
from sidecar.engines.driver import EngineError, EngineUnreachable, EngineUnusable
from sidecar.engines.load_ledger import LoadLedger
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    EngineFacts,
    EngineHazard,
    EngineLimits,
    NotThere,
    Outcome,
    SwapStrategy,
    Transient,
    Use,
)
from sidecar.engines.transport import PostRequest, Reply
from sidecar.engines.vllm import plugin_calls as plugin
from sidecar.engines.vllm import responses as answers
from sidecar.engines.vllm.http import VllmHttp
from sidecar.engines.vllm.plugin_calls import is_being_read, read_base_files, read_shapes
from sidecar.engines.vllm.responses import NOTHING, ModelsListing

LOAD_PATH = "/v1/load_lora_adapter"
UNLOAD_PATH = "/v1/unload_lora_adapter"
# An engine within a long step may miss the first deadlines; what then did not say it is asked seldom.
ASKED_AT_ONCE, ASK_AGAIN_SECONDS = 3, 60.0
# Its files are read when it starts, which takes long on a slow disk; it is asked every two seconds.
MOST_ASKED_OF_BASE = 60
BASE_AWAITED = "the engine has not said yet what its base model is; it is asked again"
# What tells whether it is paused waits for a step to end; whoever asks goes on without an answer.
PAUSE_SECONDS = 1.0
# What a connector keeps may outlive the process, and other processes may have brought it there.
ANY_PROCESS = "external KV cache"
# As read in vLLM 0.32: these keep what was computed by vLLM's own key, which has an adapter's name and path. All others
# have keys of their own, or hand it to another engine, which may have other weights under the name.
_KEYED_BY_PATH = frozenset({"OffloadingConnector", "SimpleCPUOffloadConnector", "MooncakeStoreConnector"})
# Of these what does not end with the process. Before vLLM's own key had the path, it had the name alone.
_SHARED = frozenset({"MooncakeStoreConnector"})
# These keep it by tokens alone (vllm #44250, LMCache #2961).
_KEYED_BY_TOKENS = frozenset({"LMCacheConnectorV1", "LMCacheMPConnector", "HF3FSKVConnector", "ExampleConnector"})
_UNNAMED = "a KV connector that it does not name"


@dataclass(frozen=True, slots=True)
class VllmProcess:
    """A process that can be driven. `about` is what our plugin inside it says; None: it has none.

    `evidence`: what it says that it applies of adapters; None: it did not say it, however often it was `asked`, last at
    `asked_at` in seconds of the event loop.
    `base`: what it says of its base model; `base_asked`: how often it was asked in vain.
    `pause_pages`: what it can be asked whether it is paused. `is_rust`: its frontend is the one without plugins.
    `has_external_kv`: its metrics say so, or, until it had a request, those of a process before it did.
    """

    incarnation: str
    version: str
    about: plugin.About | None
    evidence: EngineEvidence | None = None
    asked: int = 0
    asked_at: float = 0.0
    pause_pages: tuple[str, ...] = ()
    is_rust: bool = False
    has_external_kv: bool = False
    base: EngineBase = UNKNOWN_BASE
    base_asked: int = 0

    @property
    def may_tell_base(self) -> bool:
        """True if it should be asked (again) what its base model is."""
        can_tell = self.about is not None and self.about.tells_base
        return can_tell and self.base.files is None and self.base_asked < MOST_ASKED_OF_BASE

    def may_tell_coverage(self, now: float) -> bool:
        """True if it should be asked (again) what it applies."""
        can_tell = self.about is not None and self.about.tells_coverage
        is_due = self.asked < ASKED_AT_ONCE or now - self.asked_at >= ASK_AGAIN_SECONDS
        return can_tell and self.evidence is None and is_due

    @property
    def tells_uses(self) -> bool:
        """True if it can be asked when each adapter was last used."""
        return self.about is not None and self.about.tells_uses

    @property
    def tells_changes(self) -> bool:
        """True if it can be asked whether what is loaded changed."""
        return self.tells_uses and self.about is not None and self.about.tells_changes

    def facts(
        self, url: str, configured: EngineLimits, max_loras: int | None, listing: ModelsListing = NOTHING
    ) -> EngineFacts:
        """Facts of this process; `max_loras` is known once it has served an adapter."""
        about = self.about or plugin.About()
        limits = joined(configured, about.limits)
        return EngineFacts(
            "vllm",
            self.version,
            url,
            self.incarnation,
            limits=replace(limits, max_loras=max_loras or limits.max_loras),
            swap=self._swap,
            resolves=about.resolves,
            evidence=self.evidence,
            hazards=tuple(self._hazards()),
            proves=about.proves,
            expects=about.expects,
            base=self.base,
            base_path=listing.base_path,
            max_model_len=listing.max_model_len,
            proves_answers=about.proves_answers,
            unread_scales=answers.unread_scales(self.version),
        )

    @property
    def hides_names(self) -> bool:
        """True if what is unloaded answers on for a while, and its list for strangers can be without adapters."""
        return self.about is not None and self.about.lists

    @property
    def proves_answers(self) -> bool:
        """True if its answers can say which version made them."""
        return self.about is not None and self.about.proves_answers

    @property
    def remembers_names(self) -> bool:
        """True if it answers from what it remembers of other weights that had the same name."""
        return answers.remembers_names(self.version)

    @property
    def past_of(self) -> str | None:
        """Process whose past decides what a name may get; None: it does not matter."""
        return ANY_PROCESS if self._unsafe_connectors else self.incarnation if self.remembers_names else None

    @property
    def no_swap(self) -> str:
        """Why no name gets other weights; empty: it may."""
        if self.remembers_names:
            return f"vLLM {self.version} would answer from what it remembers of the old weights"
        return next((one.message for one in self._hazards()), "")

    @property
    def _swap(self) -> SwapStrategy:
        if self.no_swap:
            return "refused"
        return "plugin" if self.about else "pipelined"

    @property
    def _unsafe_connectors(self) -> tuple[str, ...]:
        """Those that may answer new weights under a name from what they keep of the old ones."""
        told = self.about.kv_connectors if self.about else None
        if told is None:
            return (_UNNAMED,) if self.has_external_kv else ()
        safe = _KEYED_BY_PATH - _SHARED if self.remembers_names else _KEYED_BY_PATH
        return tuple(name for name in told if name not in safe)

    def _hazards(self) -> Iterator[EngineHazard]:
        """Hazards of a swap; with any of them, names keep the weights that they have."""
        if self.is_rust:
            message = (
                "vLLM's Rust frontend takes no plugins: nothing can replace weights without mixing requests, and there "
                f"are no lazy adapters; {_VERSIONED}, or start vLLM without VLLM_USE_RUST_FRONTEND"
            )
            yield EngineHazard("rust_frontend", message)
        if unsafe := self._unsafe_connectors:
            message = (
                f"{', '.join(unsafe)} may answer new weights under a name from what it keeps of the old ones, "
                f"also after a restart: {_VERSIONED}"
            )
            yield EngineHazard("kv_connector", message)
        if mixing := [name for name in unsafe if name in _KEYED_BY_TOKENS]:
            message = (
                f"{', '.join(mixing)} knows what it keeps by its tokens alone, so that one adapter may be answered "
                "with what another computed, whatever their names: start vLLM without it, or have each request say a "
                "cache_salt of its adapter"
            )
            yield EngineHazard("kv_shared", message)


_VERSIONED = "give the pool --engine-names versioned"


def joined(configured: EngineLimits, told: EngineLimits) -> EngineLimits:
    """Configured limits with those that the engine tells; of two ranks the lower one."""
    ranks = [rank for rank in (configured.max_lora_rank, told.max_lora_rank) if rank is not None]
    return EngineLimits(
        max_loras=configured.max_loras or told.max_loras,
        max_cpu_loras=configured.max_cpu_loras or told.max_cpu_loras,
        max_lora_rank=min(ranks, default=None),
        target_modules=configured.target_modules,
    )


async def examine(http: VllmHttp, metrics: answers.VllmMetrics, seconds: float) -> VllmProcess:
    """Asks the process that `metrics` are of; each question may take `seconds`.

    Raises:
        EngineUnreachable: it did not answer in time.
        EngineUnusable: it cannot be driven.
    """
    [body] = await http.get(["/version"], seconds)
    version = answers.read_version(body, http.url)
    if metrics.has_lora is False:
        raise EngineUnusable("lora_disabled", f"{http.url} serves no adapters: {answers.ENABLE_HINT}")
    for path in (LOAD_PATH, UNLOAD_PATH):
        if not await http.has_route(path, seconds):
            reason = f"{http.url} has no route {path}: {answers.ENABLE_HINT}"
            raise EngineUnusable("runtime_lora_disabled", reason)
    about = await http.find(plugin.ABOUT_PATH, seconds)
    return VllmProcess(
        metrics.incarnation,
        version,
        plugin.read_about(about) if about is not None else None,
        pause_pages=tuple([path for path in answers.PAUSE_PAGES if await _is_there(http, path)]),
        is_rust=answers.has_rust_frontend(body),
    )


def may_know_kv(metrics: answers.VllmMetrics, past: LoadLedger) -> bool:
    """True if a process may know what one before it computed; before its first request it says so if that one did.

    Raises:
        EngineUnreachable: it cannot be read what that one said.
    """
    if metrics.has_external_kv is not None:
        return metrics.has_external_kv
    try:
        return bool(past.of(ANY_PROCESS))
    except OSError as error:
        raise EngineUnreachable(f"what the engine had cannot be read: {error}") from error


async def _is_there(http: VllmHttp, path: str) -> bool:
    """True if there is such a page, also if it is slow to answer."""
    try:
        return await http.find(path, PAUSE_SECONDS) is not None
    except EngineError:
        return True


async def says_paused(http: VllmHttp, process: VllmProcess) -> bool | None:
    """True if a process says that it is paused; None: it does not say it at once, as within a long step."""
    try:
        bodies = await http.get(process.pause_pages, PAUSE_SECONDS)
    except EngineError:
        return None
    said = [answers.read_pause(body) for body in bodies]
    return True if True in said else None if None in said else False


async def with_evidence(http: VllmHttp, process: VllmProcess, seconds: float) -> VllmProcess:
    """The process, asked what it applies of adapters; that it does not say it is no reason not to drive it."""
    try:
        body = await http.find(plugin.COVERAGE_PATH, seconds)
    except EngineError:
        body = None
    evidence, base = None, process.base
    if body is not None and (evidence := plugin.read_coverage(body, process.version)) is not None:
        base = replace(base, shapes=await asyncio.to_thread(read_shapes, body), evidence=evidence)
    asked_at = asyncio.get_running_loop().time()
    return replace(process, evidence=evidence, asked=process.asked + 1, asked_at=asked_at, base=base)


async def with_base(http: VllmHttp, process: VllmProcess, seconds: float) -> VllmProcess:
    """The process, asked what its base model is. While it reads that yet it has to be asked again."""
    asked = process.base_asked + 1
    try:
        body = await http.find(plugin.BASE_PATH, seconds) or b""
    except EngineError:
        body = None
    if asked < MOST_ASKED_OF_BASE and (body is None or is_being_read(body)):
        return replace(process, base_asked=asked, base=replace(process.base, awaited=BASE_AWAITED))
    files = await asyncio.to_thread(read_base_files, body or b"")
    return replace(process, base_asked=MOST_ASKED_OF_BASE, base=replace(process.base, files=files, awaited=""))


def load_call(name: str, path: str) -> PostRequest:
    """Loads an adapter by vLLM's own route."""
    return PostRequest(LOAD_PATH, {"lora_name": name, "lora_path": path})


def unload_call(name: str) -> PostRequest:
    """Unloads an adapter by vLLM's own route."""
    return PostRequest(UNLOAD_PATH, {"lora_name": name})


async def shown(
    http: VllmHttp, process: VllmProcess | None, adapter: tuple[str, str], request_id: str, seconds: float
) -> Outcome:
    """Outcome of a load to which vLLM said that the name is there: it may be one on its way out, which stays then."""
    if process is None or not process.hides_names:
        return AlreadyThere()
    [answer] = await http.post([plugin.show_call(*adapter)], request_id, seconds)
    outcome = plugin.plugin_outcome(answer)
    return AlreadyThere() if isinstance(outcome, NotThere | Transient) else outcome


async def hide(http: VllmHttp, process: VllmProcess | None, call: PostRequest, timeout_seconds: float) -> Outcome:
    """See `HidesNames.hide`."""
    if process is None:
        return Transient("the engine was not looked at yet")
    if not process.hides_names:
        return Done()
    [answer] = await http.post([call], "", timeout_seconds)
    return plugin.plugin_outcome(answer)


VERSIONS_PATH = "/v1/loraplane/versions"
# The plugin takes bodies of 64 KiB.
MOST_BYTES = 32 * 1024


class ToldVersions:
    """Versions that our plugin in one engine process was told, by name and path, so that answers can prove them.

    Only what is new is told. The plugin keeps it while it lives. After a restart of the sidecar all is told again,
    which changes nothing.
    """

    def __init__(self) -> None:
        self._incarnation = ""
        self._told: dict[Use, str] = {}

    async def tell(
        self, http: VllmHttp, process: VllmProcess | None, versions: Mapping[Use, str], seconds: float
    ) -> None:
        """Tells what is new to a process whose plugin takes it; each call may take so long.

        What does not arrive is told at the next call of this.
        """
        if process is None or not process.proves_answers:
            return
        if process.incarnation != self._incarnation:
            self._incarnation, self._told = process.incarnation, {}
        # What is gone and comes back, as with a roll-back, may have another generation in between.
        self._told = {use: version for use, version in self._told.items() if versions.get(use) == version}
        news = {use: version for use, version in versions.items() if use not in self._told}
        for part in parts(news):
            rows = [_row(use, version) for use, version in part.items()]
            [answer] = await http.post([PostRequest(VERSIONS_PATH, {"versions": rows})], "", seconds)
            if not isinstance(answer, Reply) or answer.status != 200:
                return
            self._told |= part


def parts(versions: Mapping[Use, str]) -> Iterator[dict[Use, str]]:
    """The versions in portions for each of which the plugin has room."""
    part, size = dict[Use, str](), 0
    for use, version in versions.items():
        more = len(json.dumps(_row(use, version)))
        if part and size + more > MOST_BYTES:
            yield part
            part, size = {}, 0
        part[use] = version
        size += more
    if part:
        yield part


def _row(use: Use, version: str) -> dict[str, str]:
    name, path = use
    return {"lora_name": name, "lora_path": path, "version": version}
