"""Decides whether a swap or a reload might end the engine. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from sidecar.engines.observed import DrainEvidence

# Nothing that waits for longer is taken to be for a name that was unloaded before; what runs tells its name.
QUEUE_SECONDS = 120.0
# Of so many names is remembered when they were there; those that were there last.
MAX_NAMES = 10_000


class Risk(Protocol):
    """Why a name may not get weights while the engine is so; empty: it may."""

    def __call__(self, evidence: DrainEvidence, /, *, listed: int, max_loras: int | None) -> str: ...


class LastThere:
    """Times at which one engine process last had each name.

    What was unloaded just before the first look, by a sidecar that has ended since, may still be asked for: any name
    may be one of those, for as long as requests wait.
    """

    def __init__(self) -> None:
        self._incarnation = ""
        self._at: dict[str, float] = {}
        self._unseen_until = -math.inf

    def note(self, incarnation: str, names: Iterable[str], now: float, *, was_asked: bool = False) -> None:
        """Takes in names that the process has, or just had, at `now` in monotonic seconds.

        `was_asked`: it had a request for an adapter by then.
        """
        if incarnation != self._incarnation:
            self._unseen_until = now + QUEUE_SECONDS if was_asked and not self._incarnation else -math.inf
            self._incarnation, self._at = incarnation, {}
        for name in names:
            self._at.pop(name, None)
            self._at[name] = now
        for name in list(self._at)[: max(0, len(self._at) - MAX_NAMES)]:
            del self._at[name]

    def seconds_since(self, name: str, now: float) -> float | None:
        """Seconds since the process had the name, or may have had it; None: never, as far as is known."""
        if (at := self._at.get(name)) is not None:
            return now - at
        return now - self._unseen_until + QUEUE_SECONDS if now < self._unseen_until else None


def reload_risk(name: str, evidence: DrainEvidence, *, listed: int, max_loras: int | None, gone_seconds: float) -> str:
    """Why the load of a name that the engine does not list might end it at this moment; empty: it does not.

    Requests of what had the name before may still be there, and then it is as with a swap.

    Args:
        name: which is to be loaded.
        evidence: which requests there are.
        listed: how many adapters the engine lists.
        max_loras: see `swap_risk`.
        gone_seconds: how long ago it had the name.
    """
    if gone_seconds >= QUEUE_SECONDS:
        evidence = replace(evidence, waiting=0, adapters=evidence.adapters or frozenset())
    return swap_risk(name, evidence, listed=listed, max_loras=max_loras)


def swap_risk(name: str, evidence: DrainEvidence, *, listed: int, max_loras: int | None) -> str:
    """Why a swap of `name` by unload and load might end the engine at this moment; empty: it does not.

    vLLM takes two versions of a name for one adapter where requests of both are in a batch, and gives a slot to one of
    them only (decision 15). So either there is a slot for everything, or no request of the old version may be left.

    Args:
        name: whose weights are to be replaced.
        evidence: which requests there are.
        listed: how many adapters the engine lists.
        max_loras: its slots; None: it does not say, which it does from the first request for an adapter on.
    """
    # The old version beside the new one, and the name under which the new one is proven.
    needed = listed + 2
    if max_loras is None or needed <= max_loras or evidence.is_clear_of({name}):
        return ""
    return (
        f"requests for {name} may be under way, and the engine has {max_loras} slots for {listed} adapters: other "
        "weights under this name could end it now. It is tried again when none is; to replace it at once, give vLLM "
        f"LoraPlane's plugin or --max-loras {needed}"
    )
