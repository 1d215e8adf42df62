"""The wall clock of a replica is set: nothing happens but that its timestamps say so."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.faults.test_links import events
from tests.support.fleet import Sidecar, lists
from tests.support.waiting import eventually

PLACES = [
    Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib/faketime/libfaketimeMT.so.1"),
]
HOUR = timedelta(hours=1)


def libfaketime() -> Path | None:
    """Debian's libfaketime, or the file that FAKETIME_LIBRARY names."""
    named = os.environ.get("FAKETIME_LIBRARY")
    places = [Path(named)] if named else PLACES
    return next((place for place in places if place.exists()), None)


LIBRARY = libfaketime()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="fault 16 needs libfaketime (apt-get install libfaketime)")


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_steps_by_an_hour_changes_nothing(hours, one, hand, engine, tmp_path):
    """Fault 16: R3, R9, R13; the clock is right at first, is set while the sidecar runs, and is set back."""
    offset = tmp_path / "offset"
    offset.write_text("+0")
    sidecar = Sidecar(tmp_path, one.endpoints, "/x", engine.url)
    # So that it loses its connection for the clock or not at all.
    sidecar.change("patient")
    sidecar.program.environment = {
        **sidecar.program.environment,
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    try:
        await lists(engine, "a")
        offset.write_text(f"{hours * 3600:+d}")
        await hand.put(hand.record("b", "v2"))
        await lists(engine, "a", "b")
        await eventually(lambda: _is_off(sidecar, hours * HOUR))
        await eventually(sidecar.is_ready)
        offset.write_text("+0")
        await hand.delete("a")
        await lists(engine, "b")
        await eventually(lambda: _is_off(sidecar, timedelta()))
        assert (events(sidecar, "etcd_disconnected"), events(sidecar, "listed")) == (0, 1)
    finally:
        sidecar.program.kill()


async def _is_off(sidecar: Sidecar, expected: timedelta) -> bool:
    """Whether the newest status was written by a clock that is so far from ours."""
    told = (await sidecar.status()).get("updated_at", "1970-01-01T00:00:00Z")
    off = datetime.fromisoformat(told) - datetime.now(UTC)
    return abs(off - expected) < timedelta(minutes=10)
