"""Calls to our plugin inside vLLM, and their answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from registry.lora.base import BaseModules, Shape, check_patterns, expand
from registry.lora.base_directory import UnknownArchitecture, base_of_files
from registry.lora.coverage.findings import EngineEvidence
from registry.lora.safetensors import MAX_TENSORS, Tensor
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import (
    Done,
    EngineActivity,
    EngineGone,
    EngineLimits,
    NoEffect,
    NotAsExpected,
    NotThere,
    Outcome,
    PathMissing,
    Refused,
    Transient,
    Unknown,
)
from sidecar.engines.transport import Lost, NotSent, PostRequest, Reply, fields_of, json_of
from sidecar.engines.vllm.responses import said
from sidecar.vllm_plugin.protocol import plain_path

ABOUT_PATH = "/v1/loraplane/plugin"
STATE_PATH = "/v1/loraplane/state"
USES_PATH = "/v1/loraplane/uses"
COVERAGE_PATH = "/v1/loraplane/coverage"
BASE_PATH = "/v1/loraplane/base"
CHANGES_PATH = "/v1/loraplane/changes"
_UNTOLD = EngineLimits()
# As `registry.model.status.ReportedEvidence` takes them, and half of what a pool's record may have.
_MOST_CHARACTERS, _MOST_TEXTS, _MOST_RENAMES, _MOST_EVIDENCE_CHARACTERS = 512, 4096, 64, 32_768
_MOST_CONNECTORS = 16
# Thirty years: a use before that is none, and its time may be none that a calendar has.
_MOST_SECONDS = 1e9
_MOST_REQUESTS = 2**53
_NEEDED = {"swap", "unload", "state"}


def swap_call(name: str, old: str, new: str) -> PostRequest:
    """Replaces the weights behind `name` atomically, unless it has others than those of `old`."""
    return PostRequest("/v1/loraplane/swap", {"lora_name": name, "lora_path": new, "expected_path": old})


def prove_call(path: str, expect: str) -> PostRequest:
    """Asks whether an adapter has an effect and answers as expected; an earlier plugin asks for the effect alone."""
    return PostRequest("/v1/loraplane/prove", {"lora_path": path} | ({"expect": expect} if expect else {}))


def proof_outcome(answer: Reply | Lost | NotSent) -> Outcome:
    """Outcome of a proof; one that did not come about does not speak against a load."""
    match answer:
        case Reply(200, body):
            match json_of(body):
                case {"schema": 1, "proof": "no_effect" | "not_finite", "message": str(message)}:
                    return NoEffect(message[:_MOST_CHARACTERS])
                case {"schema": 1, "proof": "not_as_expected", "message": str(message)}:
                    return NotAsExpected(message[:_MOST_CHARACTERS])
    return Done()


def unload_call(name: str) -> PostRequest:
    """Unloads `name`, and removes its weights once nobody uses them."""
    return PostRequest("/v1/loraplane/unload", {"lora_name": name})


def show_call(name: str, path: str) -> PostRequest:
    """Takes back an unload of `name` whose time is not up; from now on it has the weights in `path`."""
    return PostRequest("/v1/loraplane/show", {"lora_name": name, "lora_path": path})


def hide_call(seconds: float, kept: Iterable[str]) -> PostRequest:
    """Leaves all adapters but the `kept` out of the list for strangers for so long; an earlier plugin keeps none."""
    return PostRequest("/v1/loraplane/hide", {"hide_seconds": seconds, "kept": sorted(kept)})


@dataclass(frozen=True, slots=True)
class About:
    """Self-description of a plugin that can be called.

    Attributes:
        resolves: names that are not loaded are asked for through the sidecar's socket.
        tells_uses: it knows when each adapter was last used.
        tells_changes: it counts how often what is loaded changed.
        tells_coverage: it knows which modules the engine applies adapters to.
        limits: what the engine was started with, as far as the plugin tells.
        proves: it can say whether an adapter has an effect.
        expects: it can say whether an adapter answers as expected.
        tells_base: it knows what the files of the base model said when the engine started.
        kv_connectors: through what the engine shares what it computed; None: the plugin does not tell.
        lists: it makes the engine's list of models, and leaves out what is on its way out.
        proves_answers: it takes versions, and puts them on answers.
    """

    resolves: bool = False
    tells_uses: bool = False
    tells_changes: bool = False
    limits: EngineLimits = _UNTOLD
    tells_coverage: bool = False
    kv_connectors: tuple[str, ...] | None = None
    proves: bool = False
    expects: bool = False
    tells_base: bool = False
    lists: bool = False
    proves_answers: bool = False


def _told(body: bytes, name: str) -> object:
    """A field of a page of the plugin's; None: it has none, or means something else by a later schema."""
    fields = fields_of(body)
    return fields.get(name) if fields.get("schema") == 1 else None


def read_about(body: bytes) -> About | None:
    """The plugin's self-description; None: it is none that we can call."""
    match json_of(body):
        case {"schema": 1, "capabilities": [*can], **more} if {one for one in can if isinstance(one, str)} >= _NEEDED:
            return About(
                resolves="resolve" in can,
                tells_uses="uses" in can,
                tells_changes="changes" in can,
                limits=_limits(more.get("limits")),
                tells_coverage="coverage" in can,
                kv_connectors=_connectors(more.get("kv_connectors")),
                proves="proof" in can,
                expects="expect" in can,
                tells_base="base" in can,
                lists="listing" in can,
                proves_answers="versions" in can,
            )
        case _:
            return None


def _connectors(told: object) -> tuple[str, ...] | None:
    if not isinstance(told, list) or len(told) > _MOST_CONNECTORS:
        return None
    return tuple(one[:_MOST_CHARACTERS] for one in told if isinstance(one, str))


def _limits(told: object) -> EngineLimits:
    """Numbers alone are believed; a plugin of an earlier version tells none."""
    numbers = {str(name): value for name, value in told.items() if type(value) is int} if isinstance(told, dict) else {}
    return EngineLimits(numbers.get("max_loras"), numbers.get("max_cpu_loras"), numbers.get("max_lora_rank"))


def read_coverage(body: bytes, version: str) -> EngineEvidence | None:
    """Modules that a vLLM of that version says it applies; None: it does not say."""
    match json_of(body):
        case {
            "schema": 1,
            "architecture": str(architecture),
            "applied": [*applied],
            "taken": [*taken],
            "renames": [dict(parts), dict(beginnings), dict(ends)],
        } if _are_few([architecture, *applied, *taken], parts, beginnings, ends):
            renames = [tuple(rule.items()) for rule in (parts, beginnings, ends)]
            evidence = EngineEvidence(f"vllm {version}", architecture, tuple(applied), tuple(taken), *renames)
        case _:
            return None
    try:
        check_patterns({*evidence.applied, *evidence.taken})
    except ValueError:
        return None
    return evidence


def _are_few(values: Sequence[object], *rules: Mapping[str, object]) -> bool:
    """True for texts that a status and a pool's record have room for."""
    texts = [*values, *(text for rule in rules for pair in rule.items() for text in pair)]
    lengths = [len(text) for text in texts if isinstance(text, str)]
    fits = max(lengths, default=0) <= _MOST_CHARACTERS and sum(lengths) <= _MOST_EVIDENCE_CHARACTERS
    counts_fit = len(texts) <= _MOST_TEXTS and all(len(rule) <= _MOST_RENAMES for rule in rules)
    return len(lengths) == len(texts) and fits and counts_fit


def read_last_used(body: bytes) -> dict[str, float] | None:
    """For each name that was used, how many seconds ago; None: that is not told, or not in full."""
    ages = _told(body, "last_used")
    if not isinstance(ages, dict) or not all(map(_is_age, ages.values())):
        return None
    return {str(name): float(age) for name, age in ages.items()}


def with_uses(activity: EngineActivity, body: bytes) -> EngineActivity:
    """The activity with what our plugin knows of each adapter: its last use, and its requests."""
    ended, in_flight = read_requests(body), read_requests(body, "in_flight")
    return replace(activity, last_used=read_last_used(body), adapter_requests=ended, adapter_in_flight=in_flight)


def read_requests(body: bytes, kind: str = "requests") -> dict[str, int] | None:
    """For each name with requests of a kind, how many; None: that is not told, or not in full.

    `kind`: ``requests``, which ended since it was loaded, or ``in_flight``, which are with the engine.
    """
    counts = _told(body, kind)
    if not isinstance(counts, dict) or not all(map(_is_count, counts.values())):
        return None
    return {str(name): int(count) for name, count in counts.items()}


def read_proven(body: bytes, kind: str) -> frozenset[str]:
    """Adapters of which something is proven; nothing, where that cannot be read.

    `kind`: ``no_effect``, which has their paths, or ``as_expected``, which has their keys.
    """
    found = _told(body, kind)
    return frozenset(one for one in found if isinstance(one, str)) if isinstance(found, list) else frozenset()


def read_unexpected(body: bytes) -> dict[str, str]:
    """By their keys, where adapters answered otherwise than expected; nothing, where that cannot be read."""
    found = _told(body, "unexpected")
    if not isinstance(found, dict):
        return {}
    return {f"{key}": said[:_MOST_CHARACTERS] for key, said in found.items() if isinstance(said, str)}


@dataclass(frozen=True, slots=True)
class ChangeCount:
    """Number of changes of the loaded adapters, in one life of the plugin."""

    incarnation: str
    count: int

    def is_later_than(self, other: ChangeCount) -> bool:
        """True if something changed since; of another life nothing can be said."""
        return self.incarnation == other.incarnation and self.count > other.count


def read_changes(body: bytes) -> ChangeCount | None:
    """The count in an answer of `CHANGES_PATH` or `USES_PATH`; None: it has none."""
    match json_of(body):
        case {"schema": 1, "incarnation": str(incarnation), "changes": int(count)}:
            return ChangeCount(incarnation, count)
        case _:
            return None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_REQUESTS


def _is_age(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_SECONDS


def plugin_outcome(answer: Reply | Lost | NotSent) -> Outcome:
    """Outcome of a call to the plugin."""
    match answer:
        case NotSent(message):
            return EngineGone(message)
        case Lost(message):
            return Unknown(message)
        case Reply(200, _):
            return Done()
        case Reply(status, body):
            return _refusal(body, f"HTTP {status}: {said(body)}")


def _refusal(body: bytes, message: str) -> Outcome:
    match json_of(body):
        case {"error": {"type": "not_loaded"}}:
            return NotThere()
        case {"error": {"type": "path_missing"}}:
            return PathMissing(message)
        case {"error": {"type": "refused" | "forbidden"}}:
            return Refused(message)
        case {"error": {"type": "conflict" | "busy"}}:
            return Transient(message)
        case _:  # late, or not our plugin's answer: whether it did anything, a listing tells
            return Unknown(message)


def read_paths_in_use(body: bytes) -> frozenset[str]:
    """Every path whose files the engine may still read, by what the plugin says of its state.

    Raises:
        EngineUnreachable: it cannot be read in full.
    """
    match json_of(body):
        case {"schema": 1, "adapters": [*rows]}:
            return frozenset(_path(row) for row in rows)
        case _:
            raise EngineUnreachable(f"{STATE_PATH} cannot be read in full: it is no state of the plugin's")


def _path(row: object) -> str:
    match row:
        case {"path": str(path)}:
            return plain_path(path)
        case _:
            raise EngineUnreachable(f"{STATE_PATH} cannot be read in full: a row has no path")


_MOST_DIMENSIONS, _MOST_DIGITS = 8, 12


def read_shapes(body: bytes) -> dict[str, Shape]:
    """Outputs and inputs of modules by the engine's own names; nothing, where that cannot be read."""
    match json_of(body):
        case {"schema": 1, "shapes": dict(forms)}:
            try:
                named = list(_named(forms))
            except ValueError:
                return {}
            return {name: (sizes[0], sizes[1]) for name, sizes in named if len(sizes) == 2}
        case _:
            return {}


def is_being_read(body: bytes) -> bool:
    """True if the plugin reads the files of the base model yet."""
    return _told(body, "reading") is True


def read_base_files(body: bytes) -> BaseModules | None:
    """The base model whose files the plugin has read; None: it could not, or they do not tell its modules."""
    match json_of(body):
        case {"schema": 1, "config": dict(config), "tensors": dict(forms), **more}:
            weights = more.get("weights")
            try:
                return base_of_files(_tensors(forms), config, weights if isinstance(weights, str) else None)
            except (ValueError, UnknownArchitecture):
                return None
        case _:
            return None


def _tensors(forms: Mapping[object, object]) -> list[Tensor]:
    found: list[Tensor] = []
    for form, patterns in forms.items():
        dtype, _, sizes = f"{form}".partition(" ")
        found += (Tensor(name, dtype, shape, 0, 0) for name, shape in _named({sizes: patterns}))
        if len(found) > MAX_TENSORS:
            raise ValueError(f"more than {MAX_TENSORS} tensors")
    return found


def _named(forms: Mapping[object, object]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes; in `forms` are patterns of names by sizes, ``256 128``. Raises ValueError: they are none."""
    for form, patterns in forms.items():
        sizes = f"{form}".split()
        is_shape = all(one.isdecimal() and len(one) <= _MOST_DIGITS for one in sizes) and len(sizes) <= _MOST_DIMENSIONS
        if not is_shape or not isinstance(patterns, list) or not all(isinstance(one, str) for one in patterns):
            raise ValueError("it has other sizes or names than were agreed")
        shape = tuple(map(int, sizes))
        for name in expand(dict.fromkeys(patterns, (1, 1))):
            yield name, shape
