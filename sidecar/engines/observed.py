"""Observations of an engine and outcomes of calls to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from registry.lora.coverage.findings import EngineEvidence
from registry.lora.coverage.scales import ScaleSource
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase

# How the weights behind a name are replaced: at once by our plugin inside the engine, by unload and load together, not
# at all, since the engine would answer from what it remembers of the old ones, or at once by a call that proves
# nothing, since the engine lists nothing and reads files when requests need them.
SwapStrategy = Literal["plugin", "pipelined", "refused", "unproven"]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits as the engine reports them; None: not reported."""

    max_loras: int | None = None
    max_cpu_loras: int | None = None
    max_lora_rank: int | None = None
    target_modules: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class EngineHazard:
    """A promise that an engine breaks by the way in which it was started. `reason` is stable."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class UnreadScale:
    """Source of adapters' scales that an engine does not read; a sentence that says so, and what to do."""

    source: ScaleSource
    message: str


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts that stay the same for the life of one engine process.

    `resolves`: it asks the sidecar for names that are not loaded, so that lazy adapters can be served.
    `evidence`: what it says that it applies of adapters; None: it does not say.
    `proves`: it can be asked whether an adapter has an effect before its name is bound. `expects`: and whether it
    answers as expected.
    `hazards`: what it breaks; with `swap` refused the first one says why, unless its release is the reason.
    `base`: what it says of its base model. `base_path`: the folder that it was given; empty: it does not say.
    `max_model_len`: tokens of the longest context; None: it does not say.
    `proves_answers`: its answers can say which version made them.
    `unread_scales`: what it does not read of the scales of adapters, so that it would serve them wrongly.
    """

    kind: str
    version: str
    url: str
    incarnation: str
    limits: EngineLimits = EngineLimits()
    swap: SwapStrategy = "pipelined"
    resolves: bool = False
    evidence: EngineEvidence | None = None
    hazards: tuple[EngineHazard, ...] = ()
    proves: bool = False
    expects: bool = False
    base: EngineBase = UNKNOWN_BASE
    base_path: str = ""
    max_model_len: int | None = None
    proves_answers: bool = False
    unread_scales: tuple[UnreadScale, ...] = ()


@dataclass(frozen=True, slots=True)
class Observed:
    """One whole look at an engine, all of it in one incarnation.

    Attributes:
        facts: which process it was.
        base_models: names under which it serves the base model.
        adapters: name to path, as the engine lists them, but for slashes and dots that mean nothing.
        last_used: name to seconds since a request for it came in or was seen to run; without what was never used, and
            empty where the engine does not say.
        past: name to the path that this process ever had under it, where other weights under it would be answered with
            what the engine remembers of those; empty for other engines.
        paused: why no call may be made to it now, as while it sleeps; empty: calls may be made.
        no_effect: paths of adapters with which it answers as its base, or what is no number, as far as it was asked.
        as_expected: by `sidecar.vllm_plugin.protocol.expected_key`, the adapters that answered as expected.
        unexpected: by the same, where the answers of others deviate, in a sentence.
        ours: paths of these adapters that are directories of the replica's store; its observer says so, no engine.
    """

    facts: EngineFacts
    base_models: tuple[str, ...]
    adapters: Mapping[str, str] = field(default_factory=dict)
    last_used: Mapping[str, float] = field(default_factory=dict)
    past: Mapping[str, str] = field(default_factory=dict)
    paused: str = ""
    no_effect: AbstractSet[str] = frozenset()
    as_expected: AbstractSet[str] = frozenset()
    unexpected: Mapping[str, str] = field(default_factory=dict)
    ours: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EngineActivity:
    """Counts of an engine's requests, now and since its start; None: not reported.

    Attributes:
        running: requests that run now.
        waiting: requests that are queued now.
        requests: requests that ended.
        prompt_tokens: read from their prompts.
        generation_tokens: generated.
        last_used: name to seconds since a request for it came in or was seen to run; without what was never used.
        adapter_requests: name to requests for it that ended since it was loaded; without what had none.
        adapter_in_flight: name to requests for it that are with the engine now, running or waiting; without what has
            none.
    """

    running: int | None = None
    waiting: int | None = None
    requests: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    last_used: Mapping[str, float] | None = None
    adapter_requests: Mapping[str, int] | None = None
    adapter_in_flight: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class DrainEvidence:
    """Evidence of an engine's requests, by which an unloaded adapter's files may go.

    It is of a moment after it was asked for: an engine that stands still gives none.

    Attributes:
        incarnation: which process says it.
        waiting: requests that are queued; of which adapters is not known.
        running: requests that run.
        adapters: names of the adapters with requests that run; None: not known.
        paths: every path whose files may still be read, exactly; None: the engine cannot say, so names have to do.
    """

    incarnation: str
    waiting: int
    running: int
    adapters: frozenset[str] | None
    paths: frozenset[str] | None = None

    def is_clear_of(self, names: AbstractSet[str] | None) -> bool:
        """True if no request of an adapter waits or runs.

        Args:
            names: every name that the adapter had in this engine; None: not all of them are known.
        """
        if self.waiting or (self.running and self.adapters is None):
            return False
        if not self.running or not self.adapters:
            return True
        return names is not None and not names & self.adapters


@dataclass(frozen=True, slots=True)
class Done:
    """The engine did it."""


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """The engine says that the name is loaded already; only a listing tells with which path."""


@dataclass(frozen=True, slots=True)
class NotThere:
    """The engine says that it knows no such name, so there was nothing to unload."""


@dataclass(frozen=True, slots=True)
class PathMissing:
    """The engine does not see the files: the store is not mounted at the same path there."""

    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine refused it; whether for good cannot be told from its answer."""

    message: str


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The engine would take it, and answers with it as its base, or what is no number."""

    message: str


@dataclass(frozen=True, slots=True)
class NotAsExpected:
    """The engine would take it, and answers with it otherwise than its record expects."""

    message: str


@dataclass(frozen=True, slots=True)
class Transient:
    """Certainly not done, worth repeating (e.g. 429)."""

    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer, or one that makes no sense. It may yet complete: only a listing settles it."""

    message: str


@dataclass(frozen=True, slots=True)
class EngineGone:
    """No connection could be made: certainly not done, and the engine is out of reach."""

    message: str


@dataclass(frozen=True, slots=True)
class EnginePaused:
    """The call was not made, since the engine takes none now."""

    message: str


Outcome = (
    Done
    | AlreadyThere
    | NotThere
    | PathMissing
    | Refused
    | NoEffect
    | NotAsExpected
    | Transient
    | Unknown
    | EngineGone
    | EnginePaused
)


# An adapter's name in the engine, and the path that it has or may get.
Use = tuple[str, str]
