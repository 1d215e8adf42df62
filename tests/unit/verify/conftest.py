"""A history to be checked, and what is found in one."""

from __future__ import annotations

import pytest

from registry.tools.verify.fold import Fold
from registry.tools.verify.history import Revision, Step
from registry.transactions.changes import Remove, SetTenant
from tests.support.changes import KEYS, Author, applying, creating, upsert
from tests.support.memory_etcd import MemoryEtcd


@pytest.fixture
def author() -> Author:
    """A pool; a at revisions 2 and 3, b at 4, deleted at 5; a quota at 6."""
    made = Author(MemoryEtcd(revision=0))
    made.change(creating(), "q1")
    made.change(applying(upsert("acme/a")), "q2")
    made.change(applying(upsert("acme/a", "v2")), "q3")
    made.change(applying(upsert("acme/b")), "q4")
    made.change(applying(Remove("acme/b")), "q5")
    made.change(SetTenant("acme", 5), "q6")
    return made


def steps_of(author: Author) -> list[Step]:
    return [Revision(revision, events) for revision, events in author.etcd.history]


def found(steps: list[Step]) -> set[tuple[str, int]]:
    return {(one.guarantee, one.revision) for one in Fold(KEYS).replay(steps).findings}
