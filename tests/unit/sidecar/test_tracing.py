"""Whose a deletion was is looked up in etcd, on virtual time; it must never hold up what is followed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import closing
from typing import Any, cast

from registry.etcd3.client import Client
from registry.etcd3.errors import Timeout
from registry.etcd3.ops import KeyValue, Range, RangeResult
from registry.model.records import RetiredRecord
from sidecar.inputs import Inputs
from sidecar.tracing import TRACE_MOST_SECONDS, TRACE_SHARE, TRACE_TIMEOUT_SECONDS, Tracer
from tests.support.records import KEYS, POOL, deletion, put, record
from tests.support.sim.loop import VirtualLoop

# As many as come in the six seconds until a frozen member is noticed.
DELETIONS = 120


class Etcd:
    """Answers after `seconds` whose the deletion of the newest revision was, or not in time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = 0

    async def range(self, op: Range, *, timeout_seconds: float) -> RangeResult:
        self.asked += 1
        await asyncio.sleep(min(self.seconds, timeout_seconds))
        if self.seconds > timeout_seconds:
            raise Timeout("no answer in time", maybe_applied=False)
        name = op.key.decode().rpartition("/")[0].rpartition("/")[2]
        revision = int(name.removeprefix("n"))
        old = RetiredRecord(**record(name).model_dump(), retired_by_request=f"req-{revision}", deleted=True)
        return RangeResult(revision, (KeyValue(op.key + b"1", old.to_bytes(), 1, revision, 1),), more=False, count=1)


def played(work: Coroutine[Any, Any, None]) -> float:
    """Runs it; virtual seconds that it took."""
    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(work)
        return loop.time()


async def note_deletions(etcd: Etcd, inputs: Inputs, *, pause_seconds: float = 0.0) -> None:
    """A deletion in each of so many revisions."""
    loop = asyncio.get_running_loop()
    tracer = Tracer(cast("Client", etcd), KEYS, POOL, inputs, monotonic=loop.time)
    for number in range(1, DELETIONS + 1):
        await tracer.note(number, [deletion(f"n{number}", number)], [f"n{number}"])
        await asyncio.sleep(pause_seconds)


def test_deletions_are_traced_to_their_requests():
    etcd, inputs = Etcd(0.002), Inputs()
    played(note_deletions(etcd, inputs))
    assert [inputs.deleted_by(f"n{number}") for number in (1, 60, DELETIONS)] == ["req-1", "req-60", f"req-{DELETIONS}"]
    assert inputs.last_request_id == f"req-{DELETIONS}"


def test_an_etcd_that_is_slow_after_a_fault_holds_up_no_deletion():
    """R3 converge: the replica follows what came during the fault at once, and says of no deletion whose it was."""
    etcd, inputs = Etcd(1.0), Inputs()
    seconds = played(note_deletions(etcd, inputs))
    assert seconds <= TRACE_MOST_SECONDS + TRACE_TIMEOUT_SECONDS
    inputs.last_request_id = "req-later"
    assert inputs.deleted_by("n1") == inputs.deleted_by(f"n{DELETIONS}") == ""
    assert inputs.deleted_by("never deleted by an event") == "req-later"


def test_an_etcd_that_stays_slow_costs_a_share_of_the_time():
    """R3 converge: deletions that go on do not fall behind; what is begun at the end may end late."""
    etcd = Etcd(0.2)
    seconds = played(note_deletions(etcd, Inputs(), pause_seconds=0.05))
    assert etcd.asked > 3
    assert seconds <= (DELETIONS * 0.05 + TRACE_MOST_SECONDS) / (1 - TRACE_SHARE) + TRACE_TIMEOUT_SECONDS


def test_a_record_tells_whose_its_revision_was_and_nothing_is_asked():
    etcd, inputs = Etcd(1.0), Inputs()

    async def work() -> None:
        tracer = Tracer(cast("Client", etcd), KEYS, POOL, inputs, monotonic=asyncio.get_running_loop().time)
        await tracer.note(5, [put("a", 5), deletion("b", 5)], ["b"])
        await tracer.note(6, [], [])

    assert played(work()) == 0.0
    assert inputs.deleted_by("b") == inputs.last_request_id == "req-a-1"
    assert not etcd.asked
