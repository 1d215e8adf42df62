"""Who may write what a replica says of itself: whoever has its id, and nobody else (R10). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from registry.check.values import document
from registry.etcd3.ops import KeyValue


def presence_faults(old: bytes | None, new: bytes) -> Iterator[str]:
    """What is wrong with a presence that was put: a living replica's id is taken by its own owner alone."""
    before, now = document(old) or {}, document(new) or {}
    if "owner" in before and before["owner"] != now.get("owner"):
        yield f"{now.get('owner')!r} took the id while {before['owner']!r} had it"


def status_faults(status: KeyValue, presence: KeyValue | None) -> Iterator[str]:
    """What is wrong with a status that was put, where `presence` stands: both have one lease, which one process has."""
    if presence is None:
        yield "it was written by one who does not have the id: there is no presence"
    elif presence.lease != status.lease:
        yield f"it was written by one who does not have the id: lease {status.lease:x}, presence {presence.lease:x}"
