"""The whole check: a history folded, and everything that is held against it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from registry.check.fold import Fold
from registry.check.removals import claimed_before
from registry.check.steps import Base, Revision, Step
from registry.keys import Keys


def replay(keys: Keys, steps: Iterable[Step]) -> Fold:
    """Folds a whole history; its `findings` say what does not hold."""
    fold, steps = Fold(keys), list(steps)
    for step in steps:
        match step:
            case Base(revision, kvs):
                fold.begin(revision, kvs, claimed_before(steps, step))
            case Revision(revision, events):
                fold.take(revision, events)
    return fold
