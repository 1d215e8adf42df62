"""Interface of engine drivers, with deadlines and errors."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from registry.model.names import PROOF_PREFIX
from registry.runtime.engine_drivers import load_driver
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    DrainEvidence,
    EngineActivity,
    EngineLimits,
    Observed,
    Outcome,
    Unknown,
    Use,
)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest time of each kind of call, in seconds.

    Attributes:
        probe_seconds: for /metrics, /version and the check of the routes.
        list_seconds: for /v1/models, 65 ms at 2,000 adapters.
        load_seconds: for a load, which waits for the running step and for other loads.
        unload_seconds: for an unload, which waits for a load of the same name.
        turn_seconds: for one token; the first ever takes up to 16 s on a slow machine.
        pulse_seconds: the same where it is asked for only to see whether the engine still generates.
        lull_seconds: how long a swap that might end the engine waits for a moment without requests.
    """

    probe_seconds: float = 5.0
    list_seconds: float = 10.0
    load_seconds: float = 60.0
    unload_seconds: float = 30.0
    turn_seconds: float = 30.0
    pulse_seconds: float = 15.0
    lull_seconds: float = 5.0


USUAL = Deadlines()
UNTOLD = EngineLimits()


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Arguments that a driver is made with.

    Attributes:
        url: of the server, e.g. ``http://127.0.0.1:8000``.
        api_key_file: holds the key that the server was started with; read at each use, None: there is no key.
        control_token_file: the same of the token that our plugin in it was given.
        limits: what the server was started with and does not tell.
        state: directory of the replica's own state; None: what is to be remembered this process alone remembers.
        deadlines: of each kind of call.
        is_intact: True for a path whose files the engine may be given now; asked of those that a swap puts back.
    """

    url: str
    api_key_file: Path | None = None
    control_token_file: Path | None = None
    limits: EngineLimits = UNTOLD
    state: Path | None = None
    deadlines: Deadlines = USUAL
    is_intact: Callable[[str], bool] = bool


def check_name(path: str) -> str:
    """The name under which the weights in `path` are proven loadable; another for each path.

    It is in no record, though its weights are of our store, so the planner unloads whatever is left of them.
    """
    return PROOF_PREFIX + hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:12]


async def put_back(
    old: str, failed: Outcome, is_intact: Callable[[str], bool], load: Callable[[], Awaitable[Outcome]]
) -> Outcome:
    """Outcome of a swap that `failed` when `old` was away: that is loaded again, if its files may be given now."""
    if not is_intact(old):
        return Unknown(f"{failed}; and {old} is not put back: its files are not proven, or were touched")
    outcome = await load()
    return failed if isinstance(outcome, Done | AlreadyThere) else Unknown(f"{failed}; and putting back: {outcome}")


class EngineError(Exception):
    """The engine could not be observed in full, so nothing may be concluded from what was seen."""


class EngineUnreachable(EngineError):
    """No connection, or no answer in time: it starts, died, or hangs."""


class EngineAbsent(EngineUnreachable):
    """No connection could be made: nobody listens."""


class EngineUnusable(EngineError):
    """Something answers, but it cannot be driven; the message says what to change. `reason` is stable.

    Reasons: ``not_an_engine``, ``runtime_lora_disabled``, ``lora_disabled``, ``engine_unauthorized``,
    ``engine_unsupported``, ``rust_frontend``, ``several_api_servers``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Engine(Protocol):
    """An engine, seen from its sidecar. Every call has a deadline of its own; none is retried inside."""

    @property
    def kind(self) -> str:
        """Kind of engine, e.g. ``vllm``."""
        ...

    @property
    def url(self) -> str:
        """Base URL, without credentials."""
        ...

    @property
    def is_concurrent(self) -> bool:
        """True if calls for different names may be made at once, and the engine is looked at beside them."""
        ...

    @property
    def paused(self) -> str:
        """Why no call may be made now, as the newest look or probe saw it; empty: calls may be made."""
        ...

    @property
    def is_deciding(self) -> bool:
        """True while a call waits for a moment at which it may be sent: its plan must still hold then."""
        ...

    @property
    def swaps_alone(self) -> bool:
        """True if nothing that brings the engine an adapter may begin beside a swap."""
        ...

    async def observe(self) -> Observed:
        """Looks at the engine once, in full.

        The engine's identity is read before and after the listing and must be the same.

        Raises:
            EngineUnreachable: it could not be read, or it restarted meanwhile.
            EngineUnusable: it is no engine that can be driven.
        """
        ...

    async def incarnation(self) -> str:
        """Identity of the engine's process; cheap enough for once a second.

        Raises:
            EngineUnreachable: it did not answer in time.
            EngineUnusable: what answers is not an engine.
        """
        ...

    async def has_changed(self) -> bool:
        """True if it has other adapters than at the last `observe`, whoever did it. False where it does not tell.

        Raises:
            EngineUnreachable, EngineUnusable: see `incarnation`.
        """
        ...

    async def prove(self, path: str, expect: str = "", *, request_id: str) -> Outcome:
        """Asks whether the adapter in a directory changes what is answered; `Done` where that is not known.

        Called only where `EngineFacts.proves` says that the engine can be asked.

        Args:
            path: of the directory.
            expect: what it has to answer, as `sidecar.vllm_plugin.protocol.write_expected` gives it; empty: anything.
            request_id: of the change that it is for.
        """
        ...

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        """Loads the adapter whose files are in the directory `path` under `name`."""
        ...

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        """Makes the engine forget `name`. Requests in flight may still read the files."""
        ...

    async def swap(self, name: str, old: str, new: str, *, request_id: str) -> Outcome:
        """Replaces the weights behind `name`: of the directory `old` by those of `new`.

        `new` is proven loadable before `old` is touched; where the replacement fails all the same, `old` is put back,
        if `EngineOptions.is_intact` says that it may be.
        """
        ...

    async def is_busy(self) -> bool:
        """True if requests run or wait. False where the engine cannot be asked."""
        ...

    async def turns(self) -> bool | None:
        """True if the engine still generates: a one-token completion of the base model ends in time.

        None: it completes nothing, as one that embeds, so that it cannot be told.
        """
        ...

    async def pulse(self) -> bool | None:
        """True if the engine still generates; None: that cannot be told. Cheap enough for every few seconds.

        True if it made progress a moment ago. Else it is asked for a sign of life: by our plugin its core, between two
        steps; without it one token of the base model.
        """
        ...

    async def activity(self) -> EngineActivity:
        """Counts of the engine's requests, for people; asked for with a call of its own.

        Raises:
            EngineUnreachable, EngineUnusable: see `incarnation`.
        """
        ...

    async def drain_evidence(self) -> DrainEvidence:
        """Evidence of the engine's requests from after this call began; makes it generate.

        Raises:
            EngineUnreachable: it could not be asked, keeps no statistics, or generates nothing.
            EngineUnusable: it is no engine that can be driven.
        """
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


@runtime_checkable
class HidesNames(Protocol):
    """An engine whose list for strangers can be without adapters to which it answers. Not every kind can do that."""

    async def hide(self, seconds: float, kept: Collection[str] = ()) -> Outcome:
        """Leaves all adapters but the `kept` out of that list for so long, then or with 0 lists them again.

        `observe` sees all of them.

        `Done` also where the engine has nothing that could do it.
        """
        ...


@runtime_checkable
class ProvesAnswers(Protocol):
    """An engine whose answers can say which version made them. Not every kind can do that."""

    async def tell_versions(self, versions: Mapping[Use, str]) -> None:
        """Tells what proves each name with each path: ``name@generation sha256:…``, before it is loaded.

        Does nothing where the engine has nothing that could do it. What does not arrive is told at the next call.
        """
        ...


class MakeEngine(Protocol):
    """Factory that an entry point of ``loraplane.engines`` refers to."""

    def __call__(self, options: EngineOptions) -> Engine:
        """The driver of one engine. It connects to nothing and reads nothing yet: another sidecar may be there."""
        ...


def make_engine(kind: str, options: EngineOptions) -> Engine:
    """The driver of an engine.

    Raises:
        NoDriver: see `registry.runtime.engine_drivers.load_driver`.
    """
    return cast("MakeEngine", load_driver(kind))(options)


class SerialEngine:
    """Base of kinds that take one call at a time and tell nothing between two looks."""

    is_concurrent = False
    paused = ""
    is_deciding = False
    swaps_alone = True

    async def has_changed(self) -> bool:
        """See `Engine.has_changed`. It does not tell."""
        return False

    async def prove(self, path: str, expect: str = "", *, request_id: str) -> Outcome:  # noqa: ARG002 - of the interface
        """See `Engine.prove`. It cannot be asked."""
        return Done()

    async def activity(self) -> EngineActivity:
        """See `Engine.activity`. It says nothing that is read."""
        return EngineActivity()

    async def pulse(self) -> bool | None:
        """See `Engine.pulse`. It says nothing of its progress, and a full one would be held to stand still."""
        return None
