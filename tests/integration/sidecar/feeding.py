"""A feed that runs, as one process of a sidecar has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from registry.runtime.clock import Clock
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.watcher import Watcher
from tests.support.fleet import POOL, Hand
from tests.support.waiting import eventually

Followed = TypeVar("Followed", bound=Mailbox)


@asynccontextmanager
async def feeding(hand: Hand, state: Path, mailbox: Followed) -> AsyncIterator[Followed]:
    """Runs the watcher of replica r1, which fills `mailbox`, until its first snapshot is there at least."""
    journal = Journal(state)
    feed = Watcher(hand.client, hand.keys, POOL, "r1", mailbox, journal, Clock())
    feed.restore()
    running = asyncio.create_task(feed.run())
    try:
        yield mailbox
        await eventually(lambda: any(state.glob("snapshot-*")))
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        journal.close()
