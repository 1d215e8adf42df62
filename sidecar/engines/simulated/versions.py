"""In what earlier releases of vLLM differ from the one that is simulated, as far as a control plane meets it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Manners:
    """How a release behaves.

    Attributes:
        flat_errors: error replies have no ``error`` object around them.
        failed_load: status and type of the reply to a load that the worker refuses.
        remembers_names: the prefix cache knows an adapter by its name only.
    """

    flat_errors: bool
    failed_load: tuple[int, str]
    remembers_names: bool


def manners(version: str) -> Manners:
    """How the release of that number behaves."""
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    return Manners(
        flat_errors=found < (0, 10, 1),
        failed_load=(400, "BadRequestError") if found < (0, 23) else (500, "InternalServerError"),
        remembers_names=found < (0, 31),
    )
