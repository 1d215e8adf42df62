"""A sidecar that gets no processor time while very much changes: bounded, coalesced, right in the end."""

from __future__ import annotations

import signal
from pathlib import Path

from registry.model.records import AdapterRecord
from tests.faults.test_links import events
from tests.support.adapters import digest_of
from tests.support.etcd import Cluster
from tests.support.fleet import Hand, Sidecar, SimulatedEngine, lists
from tests.support.processes import resident_bytes
from tests.support.waiting import eventually

CHANGES = 1500
# Names that are changed over and over; what they ask for is the same, so that only events and plans cost.
NAMES = [f"n{number}" for number in range(10)]
# What a flood may add to a process that keeps no more than the newest state of each name.
MOST_GROWTH_BYTES = 96 << 20


def records(hand: Hand) -> list[AdapterRecord]:
    """Pinned, so that a new generation with the same digest has nothing to fetch."""
    digest = digest_of(hand.source("v1"))
    return [hand.record(name, "v1", digest=digest) for name in NAMES]


async def flood(hand: Hand) -> int:
    """Changes every name again and again; returns the last revision."""
    revision = 0
    for generation in range(2, 2 + CHANGES // len(NAMES)):
        labels = {"pass": "x" * 200}
        for record in records(hand):
            spec = record.spec.model_copy(update={"labels": labels | {"n": str(generation)}})
            changed = record.model_copy(update={"generation": generation, "spec": spec})
            revision = await hand.put(changed)
    return revision


async def test_a_frozen_sidecar_catches_up_with_a_flood(one, hand: Hand, engine: SimulatedEngine, tmp_path):
    """Fault 13: R2, R3, R16 bounded; thousands of changes make fewer plans, and no call to the engine."""
    sidecar = await _serving(one, hand, engine, tmp_path)
    try:
        before, plans = resident_bytes(sidecar.program.pid), events(sidecar, "plan_made")
        sidecar.program.signal(signal.SIGSTOP)
        revision = await flood(hand)
        sidecar.program.signal(signal.SIGCONT)
        await eventually(lambda: _has_come(sidecar, revision), timeout_seconds=120)
        assert resident_bytes(sidecar.program.pid) - before < MOST_GROWTH_BYTES
        # Fewer rounds than changes: each takes whatever is newest.
        assert events(sidecar, "plan_made") - plans < CHANGES / 2
        assert events(sidecar, "listed") == 1
        assert len(_calls(sidecar)) == len(NAMES)
    finally:
        sidecar.program.kill()


async def _serving(one: Cluster, hand: Hand, engine: SimulatedEngine, folder: Path) -> Sidecar:
    sidecar = Sidecar(folder, one.endpoints, "/x", engine.url)
    await hand.pool()
    await hand.put(*records(hand))
    sidecar.program.start()
    await lists(engine, *NAMES)
    return sidecar


async def _has_come(sidecar: Sidecar, revision: int) -> bool:
    status = await sidecar.status()
    return bool(status.get("observed_revision", 0) >= revision and not status["pending"] and not status["failed"])


def _calls(sidecar: Sidecar) -> list[str]:
    return [line["name"] for line in sidecar.program.logged() if line["event"] == "engine_call"]
