"""Decodes vLLM's answers. Pure.

No decision rests on the wording of a text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from registry.lora.coverage.scales import ScaleSource
from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    DrainEvidence,
    EngineActivity,
    EngineGone,
    EngineLimits,
    NotThere,
    Outcome,
    PathMissing,
    Refused,
    Transient,
    Unknown,
    UnreadScale,
)
from sidecar.engines.transport import Lost, MetricLines, NotSent, Reply, fields_of, json_of
from sidecar.vllm_plugin.protocol import plain_path
from sidecar.vllm_plugin.server import Forbidden

MINIMUM_VERSION = (0, 10)
# Before, the prefix cache knew an adapter by its name only, and answered new weights from what it had of the old ones.
SWAPPABLE_VERSION = (0, 31)
# The first releases that read what scales follow from.
_SCALES_READ_SINCE: tuple[tuple[ScaleSource, str, tuple[int, int]], ...] = (
    ("patterns", "rank_pattern and alpha_pattern", (0, 32)),
    ("rslora_experts", "use_rslora of experts", (0, 30)),
)
ENABLE_HINT = "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment and with --enable-lora"
KEY_HINT = "name the file with its key with --engine-api-key-file"
MAX_MESSAGE_LENGTH = 500
_MOST_TOKENS = 2**31

_INCARNATION = re.compile(r"^process_start_time_seconds ([0-9.eE+-]+)$", re.MULTILINE)
_COUNTS = re.compile(r"^vllm:num_requests_(running|waiting)\{.*\} ([0-9.eE+-]+)$", re.MULTILINE)
_ACTIVITY = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|request_success_total|prompt_tokens_total|"
    r"generation_tokens_total)\{.*\} ([0-9.eE+-]+)$",
    re.MULTILINE,
)
# What rises with each step that computes something, also within a long prompt.
_PROGRESS = re.compile(
    r"^vllm:(?:(?:prompt|generation)_tokens_total|(?:kv|gpu)_cache_usage_perc)\{.*\} [0-9.eE+-]+$", re.MULTILINE
)
_LORA_SAMPLE = re.compile(r"^vllm:lora_requests_info\{(.*)\} ([0-9.eE+-]+)$", re.MULTILINE)
_NO_STATES = re.compile(r"^vllm:engine_sleep_state\{(.*)\} 0(?:\.0)?$", re.MULTILINE)
_AWAKE = re.compile(r'\bsleep_state="awake"')
_TRANSFERS = re.compile(r"^vllm:rl_weight_update_operations_in_flight\{.*\} ([0-9.eE+-]+)$", re.MULTILINE)
# Counted for each request as soon as there is a connector.
_EXTERNAL_KV = re.compile(r"^vllm:external_prefix_cache_queries_total\{.*\} ([0-9.eE+-]+)$", re.MULTILINE)
_PROMPTS = re.compile(r"^vllm:prompt_tokens_total\{.*\} ([0-9.eE+-]+)$", re.MULTILINE)
ASLEEP = "the engine sleeps: nothing is loaded or unloaded until it is woken (POST /wake_up)"
PAUSED = "the engine is paused or sleeps: nothing is loaded or unloaded until it goes on (POST /resume, POST /wake_up)"
TRANSFERRING = "the base model is getting new weights: nothing is loaded or unloaded until it has them"
_ADAPTERS = re.compile(r'\b(?:running|waiting)_lora_adapters="((?:[^"\\]|\\.)*)"')
# A number of thousands of digits is one that Python refuses to read.
_MAX_LORA = re.compile(r'^vllm:lora_requests_info\{.*\bmax_lora="(\d{1,9})"', re.MULTILINE)
_ANY_VLLM = "# TYPE vllm:num_requests_running "
_LORA = "# TYPE vllm:lora_requests_info "
# The end of OpenMetrics, in which only that frontend writes without being asked to.
_END_OF_RUSTS = "# EOF"
# Of vLLM's development mode, without which nobody can pause it; they are answered by its core.
PAUSE_PAGES = ("/is_sleeping", "/is_paused")
# All that is read here of /metrics.
METRICS = MetricLines(
    (
        b"process_start_time_seconds ",
        b"vllm:num_requests_running{",
        b"vllm:num_requests_waiting{",
        b"vllm:request_success_total{",
        b"vllm:prompt_tokens_total{",
        b"vllm:generation_tokens_total{",
        b"vllm:kv_cache_usage_perc{",
        b"vllm:gpu_cache_usage_perc{",
        b"vllm:engine_sleep_state{",
        b"vllm:rl_weight_update_operations_in_flight{",
        b"vllm:external_prefix_cache_queries_total{",
        _ANY_VLLM.encode(),
        _LORA.encode(),
        _END_OF_RUSTS.encode(),
    ),
    newest=b"vllm:lora_requests_info{",
)
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.|$|[^0-9])")


@dataclass(frozen=True, slots=True)
class VllmMetrics:
    """Content of /metrics about the process.

    `has_lora` None: it keeps no statistics, so that nothing is known of it. `progress`: what differs from page to page
    while the engine computes. `paused`: why no call may be made now, as far as it tells; empty: it may.
    `has_external_kv`: it asks something else than its own memory for what it computed; None: it had no request yet.
    """

    incarnation: str
    is_busy: bool
    has_lora: bool | None
    limits: EngineLimits
    progress: tuple[str, ...] = ()
    paused: str = ""
    has_external_kv: bool | None = False


@dataclass(frozen=True, slots=True)
class ModelsListing:
    """Content of /v1/models: base names, folder and longest context, adapters' paths (`plain_path`)."""

    base_models: tuple[str, ...]
    adapters: dict[str, str]
    base_path: str = ""
    max_model_len: int | None = None


# Of an engine that was not looked at.
NOTHING = ModelsListing((), {})


def read_metrics(text: str, url: str) -> VllmMetrics:
    """Reads /metrics.

    Raises:
        EngineUnreachable: a count in it is no number.
        EngineUnusable: these are no metrics of an engine's process.
    """
    started = _INCARNATION.search(text)
    if started is None:
        raise _of_no_process(text, url)
    max_loras = _MAX_LORA.search(text)
    return VllmMetrics(
        incarnation=started[1],
        is_busy=any(read_number(count, url) > 0 for _, count in _COUNTS.findall(text)),
        has_lora=_LORA in text if _ANY_VLLM in text else None,
        limits=EngineLimits(max_loras=int(max_loras[1]) if max_loras else None),
        progress=tuple(_PROGRESS.findall(text)),
        paused=ASLEEP if _sleeps(text) else TRANSFERRING if _any(_TRANSFERS, text, url) else "",
        has_external_kv=_any(_EXTERNAL_KV, text, url) or (False if _any(_PROMPTS, text, url) else None),
    )


def _sleeps(text: str) -> bool:
    return any(map(_AWAKE.search, _NO_STATES.findall(text)))


def _any(counts: re.Pattern[str], text: str, url: str) -> bool:
    return any(read_number(count, url) > 0 for count in counts.findall(text))


def _of_no_process(text: str, url: str) -> EngineUnusable:
    """Why metrics do not tell of which process they are: vLLM's are those of several, or of its Rust frontend."""
    if _ANY_VLLM not in text:
        return not_an_engine(url, "its /metrics has no process_start_time_seconds")
    if text.rstrip().endswith(_END_OF_RUSTS):
        why = (
            "has vLLM's Rust frontend, which does not say which process it is: start vLLM without "
            "VLLM_USE_RUST_FRONTEND"
        )
        return EngineUnusable("rust_frontend", f"{url} {why}")
    why = "has several API servers, of which each knows other adapters: start vLLM with --api-server-count 1"
    return EngineUnusable("several_api_servers", f"{url} {why}")


def read_pause(body: bytes) -> bool | None:
    """True if the answer of a page in `PAUSE_PAGES` says that the engine makes no steps; None: it does not say."""
    match json_of(body):
        case {"is_sleeping": bool(said)} | {"is_paused": bool(said)}:
            return said
        case _:
            return None


def has_rust_frontend(body: bytes) -> bool:
    """True if /version is answered by vLLM's Rust frontend."""
    return "rust_frontend_version" in fields_of(body)


def read_drain(text: str, url: str) -> DrainEvidence:
    """Reads from /metrics which requests there are.

    Raises:
        EngineUnreachable: it does not say.
        EngineUnusable: these are no metrics of an engine's process.
    """
    incarnation = read_metrics(text, url).incarnation
    counts = [(kind, int(read_number(count, url))) for kind, count in _COUNTS.findall(text)]
    engines = [count for kind, count in counts if kind == "running"]
    if not engines or len(counts) != 2 * len(engines) or _LORA not in text:
        raise EngineUnreachable(f"{url} keeps no statistics of requests: start vLLM without --disable-log-stats")
    waiting = sum(count for kind, count in counts if kind == "waiting")
    # Several engines behind one server overwrite each other's sample.
    adapters = _newest_adapters(text, url) if len(engines) == 1 else None
    return DrainEvidence(incarnation, waiting, sum(engines), adapters)


def read_activity(text: str, url: str) -> EngineActivity:
    """Reads from /metrics what there is to do, and what was done; of several engines behind one server together.

    Raises:
        EngineUnreachable: a count in it is no number.
    """
    sums: dict[str, float] = {}
    for name, count in _ACTIVITY.findall(text):
        sums[name] = sums.get(name, 0) + read_number(count, url)
    found = {name: int(total) for name, total in sums.items()}
    return EngineActivity(
        found.get("num_requests_running"),
        found.get("num_requests_waiting"),
        found.get("request_success_total"),
        found.get("prompt_tokens_total"),
        found.get("generation_tokens_total"),
    )


def read_number(text: str, url: str) -> float:
    """The value of a sample.

    Raises:
        EngineUnreachable: it is no number, or has no end.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.inf
    if math.isinf(value):
        raise EngineUnreachable(f"{url}/metrics cannot be read in full: {text[:40]!r} is no number of requests or time")
    return value


def _newest_adapters(text: str, url: str) -> frozenset[str]:
    """Names in the newest sample, whose value is its time. A name with a comma, never ours, counts as several."""
    samples = [(read_number(at, url), labels) for labels, at in _LORA_SAMPLE.findall(text)]
    newest = max((at for at, _ in samples), default=0.0)
    lists = [names for at, labels in samples if at == newest for names in _ADAPTERS.findall(labels)]
    return frozenset(name for names in lists for name in names.split(",") if name)


def read_version(body: bytes, url: str) -> str:
    """Reads /version.

    Raises:
        EngineUnusable: it is no vLLM, or one that is too old.
    """
    version = fields_of(body).get("version")
    if not isinstance(version, str):
        raise not_an_engine(url, "its /version has no version")
    if _number(version) < MINIMUM_VERSION:
        wanted = ".".join(map(str, MINIMUM_VERSION))
        raise EngineUnusable(
            "engine_unsupported", f"{url} is vLLM {version[:64]!r}; {wanted} or later is needed, upgrade it"
        )
    return version


def remembers_names(version: str) -> bool:
    """True if other weights under a name that the process knows would be answered from its cache (facts: 0.31)."""
    return _number(version) < SWAPPABLE_VERSION


def unread_scales(version: str) -> tuple[UnreadScale, ...]:
    """Sources of adapters' scales that this vLLM does not read.

    As read in ``vllm/lora/peft_helper.py``, and of experts in ``pack_moe`` of ``vllm/lora/lora_weights.py``.
    """
    return tuple(
        UnreadScale(
            source, f"vLLM {version[:64]} takes lora_alpha / r and ignores {fields}: upgrade it to 0.{first[1]}"
        )
        for source, fields, first in _SCALES_READ_SINCE
        if _number(version) < first
    )


def _number(version: str) -> tuple[int, int]:
    """The first two parts of a version's number; what has none is older than anything."""
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def read_listing(body: bytes) -> ModelsListing:
    """Reads /v1/models, strictly: one card that cannot be understood makes all of it worthless.

    Raises:
        EngineUnreachable: it cannot be read in full.
    """
    cards = fields_of(body).get("data")
    if not isinstance(cards, list):
        raise _unreadable("it is no list of models")
    bases: dict[str, str] = {}  # in order; one may stand twice, as vLLM's flag takes it twice
    adapters: dict[str, str] = {}
    longest: int | None = None
    for card in cards:
        match card:
            case {"id": str(name), "parent": None, "root": base}:
                bases[name] = base if isinstance(base, str) else ""
                longest = longest or _length(card.get("max_model_len"))
            case {"id": str(name), "parent": str(), "root": str(root)} if root and name not in adapters:
                adapters[name] = plain_path(root)
            case _:
                raise _unreadable(f"a card is not understood, or stands twice: {str(card)[:200]}")
    if not bases or bases.keys() & adapters.keys():
        raise _unreadable("it names no base model, or an adapter by the same name")
    return ModelsListing(tuple(bases), adapters, next(iter(bases.values())), longest)


def _length(told: object) -> int | None:
    """Tokens of a context; None: it is no number of any."""
    return told if type(told) is int and 0 < told <= _MOST_TOKENS else None


def _unreadable(why: str) -> EngineUnreachable:
    return EngineUnreachable(f"the listing /v1/models cannot be read in full: {why}")


def not_an_engine(url: str, why: str, kind: str = "vLLM") -> EngineUnusable:
    """Error for a server at `url` that is no engine of that kind; `why`: the evidence."""
    return EngineUnusable("not_an_engine", f"{url} is not a {kind} server: {why}; check --engine and --engine-kind")


def unauthorized(url: str, body: bytes = b"") -> EngineUnusable:
    """The engine wants a key, or another one; where our plugin in it refuses us, it says itself why."""
    error = _error(body)
    if error is not None and error.get("type") == Forbidden.reason:
        return EngineUnusable("engine_unauthorized", f"{url}: the plugin refuses us: {said(body)}")
    return EngineUnusable("engine_unauthorized", f"{url} refuses our key, or wants one: {KEY_HINT}")


def outcome_of(answer: Reply | Lost | NotSent, read: Callable[[Reply], Outcome]) -> Outcome:
    """Outcome of a call. `read` is asked of a reply that is not about our key."""
    match answer:
        case NotSent(message):
            return EngineGone(message)
        case Lost(message):
            return Unknown(message)
        case Reply(401 | 403, _):
            return Transient(f"the engine refuses our key, or wants one: {KEY_HINT}")
        case reply:
            return read(reply)


def load_outcome(answer: Reply | Lost | NotSent) -> Outcome:
    """Outcome of a load."""
    match answer:
        case Reply(400, body) if _param(body) is None and not _is_failed_load(body):
            # The name is loaded, or is the base model's: only a listing can tell with which path.
            return AlreadyThere()
        case Reply(404, body) if _error(body) is not None:
            return PathMissing(said(body))
        case _:
            return outcome_of(answer, _reply_outcome)


def unload_outcome(answer: Reply | Lost | NotSent) -> Outcome:
    """Outcome of an unload."""
    match answer:
        case Reply(404, body) if _error(body) is not None:
            return NotThere()
        case _:
            return outcome_of(answer, _reply_outcome)


def _reply_outcome(reply: Reply) -> Outcome:
    message = said(reply.body)
    match reply.status:
        case 200:
            return Done()
        case 404 | 405:
            return Transient(f"the engine has no such route: {ENABLE_HINT}")
        case 408 | 425 | 429:
            return Transient(message)
        case status if 400 <= status <= 500:
            return Refused(message)
        case status:
            return Unknown(f"HTTP {status}: {message}")


def _error(body: bytes) -> dict[str, object] | None:
    """The error object of vLLM's own replies, which before 0.10.1 was the body; None where something else replied."""
    fields = fields_of(body)
    error = fields if fields.get("object") == "error" else fields.get("error")
    return error if isinstance(error, dict) else None


def is_vllms_error(body: bytes) -> bool:
    """True for an error in vLLM's own form; where it has no route, its framework answers in another."""
    return _error(body) is not None


def _is_failed_load(body: bytes) -> bool:
    """True if the worker refused the files, as it is answered before 0.23; since then with 500."""
    error = _error(body)
    return error is not None and error.get("type") == "BadRequestError"


def _param(body: bytes) -> object:
    """The field at fault; None where the request was well formed. "?" where it is no reply of vLLM's."""
    error = _error(body)
    return "?" if error is None else error.get("param")


def said(body: bytes) -> str:
    """The reply's own sentence, in one line and not too long: for people only."""
    error = _error(body)
    message = error.get("message") if error else None
    text = message if isinstance(message, str) else body.decode(errors="replace")
    return " ".join(text.split())[:MAX_MESSAGE_LENGTH] or "no text"
