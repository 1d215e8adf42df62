"""W9 dry-run: at the same state a dry run is answered as the change would be, and adds nothing to etcd."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import Message

from registry.etcd3.ops import Event
from registry.model.errors import Reason, RegistryError, Unavailable
from registry.v1 import registry_pb2 as pb
from tests.simulation.world import KEYS

# What a change is judged by stands below these.
_KINDS = ("adapters", "history", "pools", "tenants", "replicas", "drains")
_JUDGED_BY = tuple(f"{KEYS.prefix}/{kind}/".encode() for kind in _KINDS)
Told = Message | RegistryError


@dataclass
class DryRuns:
    """Compares each dry run with the change that follows it; `compared`: how many could be, by what they came to."""

    violated: Callable[[str], None]
    compared: dict[str, int] = field(default_factory=lambda: {"taken": 0, "refused": 0})
    _revisions: list[int] = field(default_factory=list)

    def on_commit(self, revision: int, events: tuple[Event, ...]) -> None:
        """Each revision of etcd."""
        if any(event.key.startswith(_JUDGED_BY) for event in events):
            self._revisions.append(revision)

    def on_restore(self) -> None:
        """Another store: nothing of before can be compared."""
        self._revisions.clear()

    def check_alike(self, dry: Told, told: Told, since: int, until: int) -> None:
        """W9 dry-run: it gives the same answer, where nothing that the change is judged by was changed between.

        `since` and `until` are the revisions before the dry run and at the answer; of an answer that changed something
        it is the one before.
        """
        if bisect_right(self._revisions, since) != bisect_right(self._revisions, until) or _is_of_the_moment(dry, told):
            return
        if _verdict(dry) != _verdict(told):
            self.violated(f"W9 a dry run comes to {_verdict(dry)}, and the change to {_verdict(told)}")
        self.compared["refused" if isinstance(told, RegistryError) else "taken"] += 1


def _is_of_the_moment(*told: Told) -> bool:
    """Whether one of them tells of the connection, of etcd or of a race, and not of the change."""
    reasons = {one.reason for one in told if isinstance(one, RegistryError)}
    return any(isinstance(one, Unavailable) for one in told) or not reasons.isdisjoint(_MOMENTARY)


# A store that is full refuses whatever would be written, and answers what is only read.
_MOMENTARY = {Reason.ETCD_NO_SPACE, Reason.LOST_RACE, Reason.TOO_MANY_CALLS}


def _verdict(told: Told) -> object:
    """What both have to agree on."""
    if isinstance(told, RegistryError):
        return type(told).__name__, told.reason, told.field, told.message
    if isinstance(told, pb.ApplyAdaptersResponse):
        return [(one.outcome, one.adapter.name, one.adapter.generation) for one in told.results]
    return type(told).__name__
