"""What vLLM's answers mean. Pure: every answer goes in as it came, and no decision rests on the wording of a text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sidecar.engines.bodies import json_of
from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.exchange import Lost, NotSent, Reply
from sidecar.observed import (
    AlreadyThere,
    Done,
    DrainEvidence,
    EngineLimits,
    Gone,
    NotThere,
    Outcome,
    PathMissing,
    Refused,
    Transient,
    Unknown,
)

MINIMUM_VERSION = (0, 10)
# Before, the prefix cache knew an adapter by its name only, and answered new weights from what it had of the old ones.
SWAPPABLE_VERSION = (0, 31)
ENABLE_HINT = "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment and with --enable-lora"
KEY_HINT = "name the file with its key with --engine-api-key-file"
MAX_MESSAGE_LENGTH = 500

_INCARNATION = re.compile(r"^process_start_time_seconds ([0-9.eE+-]+)$", re.MULTILINE)
_REQUESTS = re.compile(r"^vllm:num_requests_(?:running|waiting)\{.*\} ([0-9.eE+-]+)$", re.MULTILINE)
_COUNTS = re.compile(r"^vllm:num_requests_(running|waiting)\{.*\} ([0-9.eE+-]+)$", re.MULTILINE)
_LORA_SAMPLE = re.compile(r"^vllm:lora_requests_info\{(.*)\} ([0-9.eE+-]+)$", re.MULTILINE)
_ADAPTERS = re.compile(r'\b(?:running|waiting)_lora_adapters="((?:[^"\\]|\\.)*)"')
_MAX_LORA = re.compile(r'^vllm:lora_requests_info\{.*\bmax_lora="(\d+)"', re.MULTILINE)
_ANY_VLLM = "# TYPE vllm:num_requests_running "
_LORA = "# TYPE vllm:lora_requests_info "
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.|$|[^0-9])")


@dataclass(frozen=True, slots=True)
class Metrics:
    """What /metrics says of the process.

    `has_lora` None: it keeps no statistics, so that nothing is known of it.
    """

    incarnation: str
    is_busy: bool
    has_lora: bool | None
    limits: EngineLimits


@dataclass(frozen=True, slots=True)
class Listing:
    """What /v1/models lists: names of the base model, and each adapter's path."""

    base_models: tuple[str, ...]
    adapters: dict[str, str]


def read_metrics(text: str, url: str) -> Metrics:
    """Reads /metrics.

    Raises:
        EngineUnusable: these are no metrics of an engine's process.
    """
    started = _INCARNATION.search(text)
    if started is None:
        raise not_an_engine(url, "its /metrics has no process_start_time_seconds")
    max_loras = _MAX_LORA.search(text)
    return Metrics(
        incarnation=started[1],
        is_busy=any(float(count) > 0 for count in _REQUESTS.findall(text)),
        has_lora=_LORA in text if _ANY_VLLM in text else None,
        limits=EngineLimits(max_loras=int(max_loras[1]) if max_loras else None),
    )


def read_drain(text: str, url: str) -> DrainEvidence:
    """Reads from /metrics which requests there are.

    Raises:
        EngineUnreachable: it does not say.
        EngineUnusable: these are no metrics of an engine's process.
    """
    incarnation = read_metrics(text, url).incarnation
    counts = [(kind, int(float(count))) for kind, count in _COUNTS.findall(text)]
    engines = [count for kind, count in counts if kind == "running"]
    if not engines or len(counts) != 2 * len(engines) or _LORA not in text:
        raise EngineUnreachable(f"{url} keeps no statistics of requests: start vLLM without --disable-log-stats")
    waiting = sum(count for kind, count in counts if kind == "waiting")
    # Several engines behind one server overwrite each other's sample.
    adapters = _newest_adapters(text) if len(engines) == 1 else None
    return DrainEvidence(incarnation, waiting, sum(engines), adapters)


def _newest_adapters(text: str) -> frozenset[str]:
    """Names in the newest sample, whose value is its time. A name with a comma, never ours, counts as several."""
    samples = [(float(at), labels) for labels, at in _LORA_SAMPLE.findall(text)]
    newest = max((at for at, _ in samples), default=0.0)
    lists = [names for at, labels in samples if at == newest for names in _ADAPTERS.findall(labels)]
    return frozenset(name for names in lists for name in names.split(",") if name)


def read_version(body: bytes, url: str) -> str:
    """Reads /version.

    Raises:
        EngineUnusable: it is no vLLM, or one that is too old.
    """
    fields = json_of(body)
    version = fields.get("version") if isinstance(fields, dict) else None
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


def _number(version: str) -> tuple[int, int]:
    """The first two parts of a version's number; what has none is older than anything."""
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def read_listing(body: bytes) -> Listing:
    """Reads /v1/models, strictly: one card that cannot be understood makes all of it worthless.

    Raises:
        EngineUnreachable: it cannot be read in full.
    """
    fields = json_of(body)
    cards = fields.get("data") if isinstance(fields, dict) else None
    if not isinstance(cards, list):
        raise _unreadable("it is no list of models")
    bases: dict[str, None] = {}  # in order; one may stand twice, as vLLM's flag takes it twice
    adapters: dict[str, str] = {}
    for card in cards:
        match card:
            case {"id": str(name), "parent": None, "root": _}:
                bases[name] = None
            case {"id": str(name), "parent": str(), "root": str(root)} if root and name not in adapters:
                adapters[name] = root
            case _:
                raise _unreadable(f"a card is not understood, or stands twice: {str(card)[:200]}")
    if not bases or bases.keys() & adapters.keys():
        raise _unreadable("it names no base model, or an adapter by the same name")
    return Listing(tuple(bases), adapters)


def _unreadable(why: str) -> EngineUnreachable:
    return EngineUnreachable(f"the listing /v1/models cannot be read in full: {why}")


def not_an_engine(url: str, why: str, kind: str = "vLLM") -> EngineUnusable:
    """What answers at `url` is no engine of that kind; `why` says how that is seen."""
    return EngineUnusable("not_an_engine", f"{url} is not a {kind} server: {why}; check --engine and --engine-kind")


def unauthorized(url: str) -> EngineUnusable:
    """The engine wants a key, or another one."""
    return EngineUnusable("engine_unauthorized", f"{url} refuses our key, or wants one: {KEY_HINT}")


def load_outcome(answer: Reply | Lost | NotSent) -> Outcome:
    """What a load came to."""
    match answer:
        case Reply(400, body) if _param(body) is None and not _is_failed_load(body):
            # The name is loaded, or is the base model's: only a listing can tell with which path.
            return AlreadyThere()
        case Reply(404, body) if _error(body) is not None:
            return PathMissing(said(body))
        case _:
            return _outcome(answer)


def unload_outcome(answer: Reply | Lost | NotSent) -> Outcome:
    """What an unload came to."""
    match answer:
        case Reply(404, body) if _error(body) is not None:
            return NotThere()
        case _:
            return _outcome(answer)


def _outcome(answer: Reply | Lost | NotSent) -> Outcome:
    match answer:
        case NotSent(message):
            return Gone(message)
        case Lost(message):
            return Unknown(message)
        case Reply(status, body):
            return _reply_outcome(status, said(body))


def _reply_outcome(status: int, message: str) -> Outcome:
    match status:
        case 200:
            return Done()
        case 401 | 403:
            return Transient(f"the engine refuses our key, or wants one: {KEY_HINT}")
        case 404 | 405:
            return Transient(f"the engine has no such route: {ENABLE_HINT}")
        case 408 | 425 | 429:
            return Transient(message)
        case _ if 400 <= status <= 500:
            return Refused(message)
        case _:
            return Unknown(f"HTTP {status}: {message}")


def _error(body: bytes) -> dict[str, object] | None:
    """The error object of vLLM's own replies, which before 0.10.1 was the body; None where something else replied."""
    fields = json_of(body)
    if not isinstance(fields, dict):
        return None
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
