"""The replay checker, for tests: every finding fails."""

from __future__ import annotations

from collections.abc import Iterable

from registry.etcd3.client import Client
from registry.etcd3.ops import Event
from registry.model.keys import Keys
from registry.tools.verify.export import read_history as read_steps
from registry.tools.verify.fold import Fold
from registry.tools.verify.history import HistoryBase, Revision

__all__ = ["Fold", "History", "check_history", "read_history"]
History = Iterable[tuple[int, tuple[Event, ...]]]


def check_history(keys: Keys, history: History) -> Fold:
    """Folds a whole history and checks every revision of it.

    Raises:
        AssertionError: a guarantee does not hold; the message names it and the revision.
    """
    fold = Fold(keys).replay((Revision(revision, events) for revision, events in history))
    found = fold.findings
    assert not found, "\n".join(map(str, found))
    return fold


async def read_history(client: Client, prefix: str, start_revision: int) -> list[tuple[int, tuple[Event, ...]]]:
    """All revisions of a prefix from `start_revision` on until now, by a watch of our own."""
    steps = await read_steps(client, prefix, from_revision=start_revision)
    assert not any(isinstance(step, HistoryBase) for step in steps), "the history is compacted"
    return [(step.revision, step.events) for step in steps if isinstance(step, Revision)]
