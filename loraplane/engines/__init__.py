"""Names for those who bring a driver of an engine of their own.

A driver is what an entry point of the group ``loraplane.engines`` refers to: it takes `EngineOptions` and gives an
`Engine`. `loraplane.engines.contract` has the checks that ours are held to; hold yours to them.
"""

from sidecar.engines.driver import (
    Deadlines,
    Engine,
    EngineAbsent,
    EngineError,
    EngineOptions,
    EngineUnreachable,
    EngineUnusable,
    MakeEngine,
    SerialEngine,
    check_name,
)
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    DrainEvidence,
    EngineActivity,
    EngineFacts,
    EngineGone,
    EngineLimits,
    NotThere,
    Observed,
    Outcome,
    PathMissing,
    Refused,
    SwapStrategy,
    Transient,
    Unknown,
)

__all__ = [
    "AlreadyThere",
    "Deadlines",
    "Done",
    "DrainEvidence",
    "Engine",
    "EngineAbsent",
    "EngineActivity",
    "EngineError",
    "EngineFacts",
    "EngineGone",
    "EngineLimits",
    "EngineOptions",
    "EngineUnreachable",
    "EngineUnusable",
    "MakeEngine",
    "NotThere",
    "Observed",
    "Outcome",
    "PathMissing",
    "Refused",
    "SerialEngine",
    "SwapStrategy",
    "Transient",
    "Unknown",
    "check_name",
]
