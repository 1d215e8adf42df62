"""Explanations of each replica's part in an adapter, in one sentence. Pure.

Residency names the replicas that have a part in an adapter. An engine that has none answers 404, and that may be as it
is meant: this module says so of each of them, by what the record's placement says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from registry.cli.views.messages import placed_on, state_text
from registry.cli.views.output import OutputView
from registry.cli.views.replica_view import ReplicaView
from registry.model.messages import Plain
from registry.model.names import label_text
from registry.model.replica_reasons import told_commands
from registry.residency.health import AdapterRow, is_disabled
from registry.v1 import registry_pb2 as pb

# So many names of replicas stand in a line.
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Explanation:
    """Standing of one replica to an adapter.

    Attributes:
        answers: requests there get the adapter.
        meant: all is as the record says.
        sentence: why it is so.
    """

    replica: str
    answers: bool
    meant: bool
    sentence: str

    def as_dict(self) -> Plain:
        """The same for programs."""
        return {"replica": self.replica, "answers": self.answers, "meant": self.meant, "why": self.sentence}


WHY: OutputView[Explanation] = OutputView(
    name=lambda one: one.replica,
    plain=Explanation.as_dict,
    columns={
        "REPLICA": lambda one: one.replica,
        "ANSWERS": lambda one: "yes" if one.answers else "no",
        "WHY": lambda one: one.sentence,
    },
)


def explanations(
    record: pb.Adapter, where: pb.AdapterResidency, replicas: Sequence[ReplicaView], now: datetime
) -> list[Explanation]:
    """One for each replica of the pool, in the order of their names; `replicas` also those that do not live."""
    parts = {one.replica: one for one in where.replicas}
    return [
        _of_part(record, replica, parts[replica.name])
        if replica.name in parts
        else Explanation(replica.name, answers=False, meant=not replica.missing, sentence=_absent(record, replica, now))
        for replica in sorted(replicas, key=lambda one: one.name)
    ]


def not_placed(row: AdapterRow, replicas: Iterable[ReplicaView]) -> str:
    """Living replicas that are not to serve an adapter, and by which field of its record; empty: none is known."""
    if row.residency is None or not _placement(row.record):
        return ""
    parts = {one.replica for one in row.residency.replicas}
    names = [one.name for one in replicas if not (one.name in parts or one.missing or one.leaving)]
    return f"{several(names)} ({_placement(row.record)})" if names else ""


def several(names: Sequence[str]) -> str:
    """The first of many names, and how many there are."""
    return ", ".join(names) if len(names) <= _NAMED else f"{', '.join(names[:_NAMED])}, … ({len(names)})"


def _of_part(record: pb.Adapter, replica: ReplicaView, part: pb.Residence) -> Explanation:
    wanted = part.wanted_state
    if part.state == pb.RolloutReplica.SERVING:
        behind = f"; {_state_there(record, replica, wanted, part.wanted_reason)}" if wanted else ""
        served = f"it answers with generation {part.generation or '?'} to the name {part.model}{behind}"
        lazily = "" if part.loaded else ", and loads it at the first request"
        return Explanation(replica.name, answers=True, meant=not wanted, sentence=served + lazily)
    sentence = f"it does not serve it: {_state_there(record, replica, part.state, part.reason)}"
    return Explanation(replica.name, answers=False, meant=False, sentence=sentence)


def _state_there(record: pb.Adapter, replica: ReplicaView, state: pb.RolloutReplica.State, reason: str) -> str:
    """State of what it is to serve, with the replica's own words and what helps."""
    said = [one for key in ("failed", "pending") for one in replica.items(key) if one.get("name") == record.name]
    message = next((str(one["message"]) for one in said if one.get("message")), "")
    told = ": ".join(
        part for part in (f"generation {record.generation} is {state_text(state)}", reason, message) if part
    )
    if state != pb.RolloutReplica.FAILED:
        return told
    return f"{told}; {told_commands({reason: replica.name}, record.name, record.pool)}"


def _absent(record: pb.Adapter, replica: ReplicaView, now: datetime) -> str:
    """Reason for which a replica has no part in it."""
    if replica.missing:
        return f"it does not live, {replica.seen_ago(now)}; start it, or loraplane replica forget {replica.name}"
    if is_disabled(record):
        return f"the adapter is disabled; loraplane enable {record.name} --pool {record.pool} serves it again"
    if replica.leaving:
        return f"it drains; loraplane undrain {replica.name} --pool {replica.pool} ends that"
    return f"it is not placed there ({_placement(record) or 'its sidecar has not said what it serves'})"


def _placement(record: pb.Adapter) -> str:
    """The fields of its record by which not every replica serves it, as they are written in a manifest."""
    placement = record.spec.placement
    told = [f"placement.replicas: {placed_on(record)}"] if placement.replicas else []
    told += [f"placement.selector: {label_text(placement.selector)}"] if placement.selector else []
    return ", ".join(told)
