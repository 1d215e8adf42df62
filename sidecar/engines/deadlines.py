"""How long an engine may take for each kind of call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each kind of call may take.

    Attributes:
        probe_seconds: for /metrics, /version and the check of the routes.
        list_seconds: for /v1/models, 65 ms at 2,000 adapters.
        load_seconds: for a load, which waits for the running step and for other loads.
        unload_seconds: for an unload, which waits for a load of the same name.
        turn_seconds: for one token; the first ever takes up to 16 s on a slow machine.
        lull_seconds: how long a swap that might end the engine waits for a moment without requests.
    """

    probe_seconds: float = 5.0
    list_seconds: float = 10.0
    load_seconds: float = 60.0
    unload_seconds: float = 30.0
    turn_seconds: float = 30.0
    lull_seconds: float = 5.0


USUAL = Deadlines()
