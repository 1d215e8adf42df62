"""A feed that runs, as one process of a sidecar has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from sidecar.chance import Chance
from sidecar.feed import Feed
from sidecar.inputs import Inputs
from sidecar.journal import Journal
from tests.support.fleet import POOL, Hand
from tests.support.waiting import eventually

Followed = TypeVar("Followed", bound=Inputs)


@asynccontextmanager
async def feeding(hand: Hand, state: Path, inputs: Followed) -> AsyncIterator[Followed]:
    """The feed of replica r1, which fills `inputs`; gives these. It is not ended before its first snapshot is there."""
    journal = Journal(state)
    feed = Feed(hand.client, hand.keys, POOL, "r1", inputs, journal, Chance())
    feed.restore()
    running = asyncio.create_task(feed.run())
    try:
        yield inputs
        await eventually(lambda: any(state.glob("snapshot-*")))
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        journal.close()
