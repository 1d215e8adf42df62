"""Very many sidecars are restarted at once, as after a roll-out of a new release."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest
import structlog

from registry.model.keys import Keys
from tests.support.fleet import POOL, Hand
from tests.support.herd import Herd, lists_read, patient

SIDECARS = int(os.environ.get("SIDECARS", "30"))
RECORDS = 100
MOST_LISTS = 5
# Each sidecar has a connection, a journal and a lock, and many machines give 1,024 unless somebody asks for more.
DESCRIPTORS = 16 * SIDECARS


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """As many open files as this takes, if the machine allows them."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, allowed), most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.fixture
def quiet():
    """A thousand logs would say the same."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    yield
    structlog.configure(**before)


def _drop(_logger, _method, _event):
    raise structlog.DropEvent


async def test_very_many_sidecars_resume_from_their_snapshots(one, hand: Hand, quiet, tmp_path):
    """Fault 34: R2 replay-equal, R13; what changed meanwhile reaches all, and at most five read a whole list.

    `make soak` starts a thousand, and so does `make bench ONLY=herd`.
    """
    herd = Herd(one.endpoints[0], Keys("/x"), POOL, tmp_path)
    await hand.pool()
    kept = hand.record("n0", "v1")
    records = [kept.model_copy(update={"name": f"n{number}"}) for number in range(RECORDS)]
    revision = await hand.put(*records)
    try:
        await herd.start(1, revision, timeout_seconds=60)
        await herd.stop()
        herd.copy_snapshot(SIDECARS)
        changed = [one.model_copy(update={"generation": 2}) for one in records[:20]]
        await hand.put(*changed)
        revision = await hand.delete(f"n{RECORDS - 2}", f"n{RECORDS - 1}")
        before = lists_read()
        with patient():
            await herd.start(SIDECARS, revision, timeout_seconds=240)
        assert lists_read() - before <= MOST_LISTS
        assert {one.mailbox.snapshot.desired and one.mailbox.snapshot.desired.count for one in herd.members} == {
            RECORDS - 2
        }
    finally:
        await herd.stop()
