"""The telling of what a replica declines: gathered, paced, and known to the next process."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from registry.model.placement import Declined, decline_id
from registry.model.status import ReportedDeclines
from sidecar.plan.backoff import Decline, Declines
from sidecar.plan.types import RoundReport
from sidecar.report.announcement import FILE, GATHER_SECONDS, PACE_SECONDS, DeclineTeller
from tests.simulation.loop import virtual
from tests.unit.report.test_events import PLAN
from tests.unit.report.test_status import situation


class Writer:
    """Notes what a presence is to say, and when."""

    def __init__(self) -> None:
        self.told: list[tuple[float, dict[str, ReportedDeclines]]] = []

    def decline(self, declines: dict[str, ReportedDeclines]) -> None:
        self.told.append((asyncio.get_running_loop().time(), declines))

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.told]


def report(declined: Declines | None) -> RoundReport:
    return RoundReport(situation(None if declined is None else replace(PLAN, declined=declined)), 0)


def declined(*keys: str) -> Declines:
    return {(key, 1): Decline("rank_too_high", "8", "") for key in keys}


def ids(*keys: str) -> list[str]:
    return sorted(decline_id(key, 1) for key in keys)


@virtual
async def test_what_is_new_is_gathered_for_a_moment_and_told_only_now_and_then(tmp_path):
    """R16: each write has all sidecars of the pool find their shares anew."""
    writer = Writer()
    teller, begin = DeclineTeller(writer, tmp_path), asyncio.get_running_loop().time()
    teller.take(report(None))
    teller.take(report(declined("a")))
    teller.take(report(declined("a", "b")))
    await asyncio.sleep(GATHER_SECONDS + 0.1)
    for number in range(8):
        teller.take(report(declined("a", "b", str(number))))
        await asyncio.sleep(1.0)
    teller.take(report(declined("a", "b", "7")))
    await asyncio.sleep(3 * PACE_SECONDS)
    assert [one["rank_too_high"].adapters for _, one in writer.told][:1] == [ids("a", "b")]
    assert writer.told[-1][1] == {"rank_too_high": ReportedDeclines(by="8", adapters=ids("a", "b", "7"))}
    first, *others = writer.times
    assert first == pytest.approx(begin + GATHER_SECONDS)
    assert all(after - before >= PACE_SECONDS for before, after in zip(writer.times, others, strict=False))
    assert len(writer.told) == 3


@virtual
async def test_the_next_process_tells_the_same_at_once(tmp_path):
    """No flapping: an adapter does not come back with each restart, only to be refused again."""
    before = DeclineTeller(Writer(), tmp_path)
    before.take(report(declined("a")))
    await asyncio.sleep(1.0)
    writer = Writer()
    teller = DeclineTeller(writer, tmp_path)
    teller.restore()
    assert teller.told == {"rank_too_high": Declined("8", frozenset(ids("a")))}
    assert [one for _, one in writer.told] == [{"rank_too_high": ReportedDeclines(by="8", adapters=ids("a"))}]
    teller.take(report(declined("a")))
    await asyncio.sleep(PACE_SECONDS)
    assert len(writer.told) == 1
    teller.take(report({}))
    await asyncio.sleep(PACE_SECONDS)
    assert writer.told[-1][1] == {}


@pytest.mark.parametrize("damage", ["nothing", "half", "a folder", "no store"])
@virtual
async def test_no_file_prevents_a_start(tmp_path, damage):
    """R12 crash-only: a store that cannot be written costs only the memory."""
    writer, folder = Writer(), tmp_path / "gone" if damage == "no store" else tmp_path
    if damage == "half":
        (folder / FILE).write_bytes(b'{"schema":1,"declines":{"rank')
    elif damage == "a folder":
        (folder / FILE).mkdir()
    teller = DeclineTeller(writer, folder)
    teller.restore()
    assert (teller.told, writer.told) == ({}, [])
    teller.take(report(declined("a")))
    await asyncio.sleep(1.0)
    assert len(writer.told) == 1
    again = DeclineTeller(writer, folder)
    again.restore()
    assert again.told == ({} if damage == "no store" else teller.told)
    assert teller.told
