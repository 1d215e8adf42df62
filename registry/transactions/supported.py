"""What this release's sidecars cannot do yet, in one table. A later release lifts a line by deleting it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.errors import InvalidArgument, Reason
from registry.model.records import AdapterSpec, Placement
from registry.transactions.source_check import check_source


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field of the spec, when it asks for too much, and what to write instead."""

    field: str
    asked: Callable[[AdapterSpec], bool]
    remedy: str


UNSUPPORTED = (
    Unsupported(
        "placement",
        lambda spec: spec.load == "lazy" and spec.placement != Placement(),
        "a lazy adapter is loaded wherever it is asked for; leave it out, or use load: eager",
    ),
    Unsupported(
        "strategy",
        lambda spec: spec.load == "lazy" and spec.strategy is not None,
        "this release loads the newest weights of a lazy adapter wherever it is asked for; leave it out, or use eager",
    ),
)


def check_supported(spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument if the spec asks for what no sidecar of this release does."""
    check_source(spec, field=field)
    for entry in UNSUPPORTED:
        if entry.asked(spec):
            raise InvalidArgument(Reason.UNSUPPORTED, entry.remedy, field=f"{field}.{entry.field}")
