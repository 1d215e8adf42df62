"""What a driver for an engine must be able to do, and how it says that it cannot."""

from __future__ import annotations

import hashlib
from typing import Protocol

from registry.model.names import PROOF_PREFIX
from sidecar.observed import DrainEvidence, Observed, Outcome


def check_name(path: str) -> str:
    """The name under which the weights in `path` are proven loadable; another for each path.

    It is in no record, though its weights are of our store, so the planner unloads whatever is left of them.
    """
    return PROOF_PREFIX + hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:12]


class EngineError(Exception):
    """The engine could not be observed in full, so nothing may be concluded from what was seen."""


class EngineUnreachable(EngineError):
    """No connection, or no answer in time: it starts, died, or hangs."""


class EngineUnusable(EngineError):
    """Something answers, but it cannot be driven; the message says what to change. `reason` is stable.

    Reasons: ``not_an_engine``, ``runtime_lora_disabled``, ``lora_disabled``, ``engine_unauthorized``,
    ``engine_unsupported``.
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

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        """Loads the adapter whose files are in the directory `path` under `name`."""
        ...

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        """Makes the engine forget `name`. Requests in flight may still read the files."""
        ...

    async def swap(self, name: str, old: str, new: str, *, request_id: str) -> Outcome:
        """Replaces the weights behind `name`: of the directory `old` by those of `new`.

        `new` is proven loadable before `old` is touched; where the replacement fails all the same, `old` is put back.
        """
        ...

    async def is_busy(self) -> bool:
        """True if requests run or wait. False where the engine cannot be asked."""
        ...

    async def turns(self) -> bool:
        """True if the engine still generates: a one-token completion of the base model ends in time."""
        ...

    async def drain_evidence(self) -> DrainEvidence:
        """What the engine says of its requests, at a moment after this call began. It makes the engine generate.

        Raises:
            EngineUnreachable: it could not be asked, keeps no statistics, or generates nothing.
            EngineUnusable: it is no engine that can be driven.
        """
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...
