"""The replay checker, for tests: every finding fails."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from registry.check.export import read_history as read_steps
from registry.check.fold import Fold
from registry.check.replay import replay
from registry.check.steps import Base, Revision
from registry.etcd3.client import Client
from registry.etcd3.ops import Event
from registry.keys import Keys

__all__ = ["Fold", "History", "check_history", "read_history"]
History = Iterable[tuple[int, tuple[Event, ...]]]


def check_history(keys: Keys, history: History, unaccounted: Collection[int] = ()) -> Fold:
    """Folds a whole history and checks every revision of it.

    Args:
        keys: of the store.
        history: all of it.
        unaccounted: revisions of removals under NOSPACE that it was too late to account for (W5 and W7).

    Raises:
        AssertionError: a guarantee does not hold; the message names it and the revision.
    """
    fold = replay(keys, (Revision(revision, events) for revision, events in history))
    known = {(guarantee, revision) for guarantee in ("W5", "W7") for revision in unaccounted}
    found = [one for one in fold.findings if (one.guarantee, one.revision) not in known]
    assert not found, "\n".join(map(str, found))
    return fold


async def read_history(client: Client, prefix: str, start_revision: int) -> list[tuple[int, tuple[Event, ...]]]:
    """All revisions of a prefix from `start_revision` on until now, by a watch of our own."""
    steps = await read_steps(client, prefix, from_revision=start_revision)
    assert not any(isinstance(step, Base) for step in steps), "the history is compacted"
    return [(step.revision, step.events) for step in steps if isinstance(step, Revision)]
