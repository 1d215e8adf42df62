"""The fuzzer finds what it is there to find, in readers that are broken on purpose."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
import zlib
from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest
import structlog

from tests.fuzz import fuzzer, mutation
from tests.fuzz.fuzzer import SECRET, Bounds, Search, Target, keep, kept, name_of, search
from tests.fuzz.mutation import (
    as_json,
    fields_of,
    hurt,
    journal,
    message_of,
    metrics,
    protobuf,
    raw,
    safetensors,
    snapshot,
    tar,
)
from tests.fuzz.targets import TARGETS

SEED = b'{"name": "a", "weight": 2, "tags": ["x", "y"]}'
_log = structlog.get_logger()


async def searched(tmp_path, read: Callable[[bytes], object], held_seconds: float = 60.0) -> Search:
    """What comes of a reader of one part of JSON."""

    @asynccontextmanager
    async def opened(_):
        async def play(case):
            found = read(case[0])
            if asyncio.iscoroutine(found):
                await found

        yield play

    target = Target("broken", (as_json,), lambda: [(SEED,)], opened, held_seconds=held_seconds)
    return await search(target, tmp_path, random.Random(1), Bounds(runs=600, findings=1))


def value(content: bytes) -> dict:
    """What the broken readers look at; all else is refused."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def does_not_foresee(content: bytes) -> None:
    """A number that no float holds is among what stands for numbers."""
    weight = value(content).get("weight")
    if isinstance(weight, int):
        float(weight)


def holds_the_loop(content: bytes) -> None:
    """As long on every machine."""
    end = time.thread_time() + (0.0 if isinstance(value(content).get("name", ""), str) else 0.4)
    while time.thread_time() < end:
        pass


def takes_memory(content: bytes) -> int:
    return len(b"x" * ((300 << 20) if len(str(value(content).get("tags"))) > 10_000 else 0))


def logs_a_secret(content: bytes) -> None:
    if not value(content):
        _log.warning("refused", sent={"authorization": SECRET})


def fails_and_goes_on(content: bytes) -> None:
    try:
        json.dumps(value(content)["weight"])
    except KeyError as error:
        _log.error("part_failed", part="x", exc_info=error)
    except ValueError:
        return


async def fails_in_the_loop(content: bytes) -> None:
    """An error that went to the loop and not to us."""
    if not value(content):
        asyncio.get_running_loop().call_soon(int, "x")
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("read", "place", "held_seconds"),
    [
        (does_not_foresee, "OverflowError", 60.0),
        (holds_the_loop, "held", 0.2),
        (takes_memory, "memory", 60.0),
        (logs_a_secret, "a secret in a log", 60.0),
        (fails_and_goes_on, "part_failed: KeyError", 60.0),
        (fails_in_the_loop, "asyncio: ValueError", 60.0),
    ],
)
async def test_what_no_case_may_bring_about_is_found(read, place, held_seconds, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzer, "_SMALLER_SECONDS", 0.2)
    (found,) = (await searched(tmp_path, read, held_seconds)).findings
    assert found.startswith(place)


async def test_a_finding_is_made_small_and_says_how_it_is_replayed(tmp_path):
    def read(content: bytes) -> None:
        assert b"65536" not in content, "that number"

    (finding,) = (await searched(tmp_path, read)).findings.values()
    assert len(finding.case[0]) < 100
    assert f"--replay {name_of(finding.case)}" in str(finding)


def test_what_is_kept_comes_back_and_is_of_targets_that_there_are(tmp_path):
    case = (b"a", bytes(range(256)), b'\n"')
    for _ in range(2):
        keep("x", case, tmp_path)
    assert kept("x", tmp_path) == [case]
    assert kept("y", tmp_path) == []
    assert {file.stem for file in fuzzer.CORPUS.glob("*.txt")} <= set(TARGETS)


def test_every_form_takes_any_bytes_and_the_same_seed_hurts_in_the_same_way():
    for form in (raw, as_json, safetensors, tar, protobuf, metrics, journal, snapshot):
        for content in (b"", b"\0", bytes(8), SEED, b"x" * 1000):
            assert all(isinstance(form(random.Random(seed), content), bytes) for seed in range(40))
    for target in TARGETS.values():
        pool = list(target.seeds())
        once, again = (
            [hurt(rng, pool[0], target.forms, pool) for _ in range(50)] for rng in (random.Random(3), random.Random(3))
        )
        assert once == again
        assert len(set(once)) > 5
        assert all(len(part) <= mutation.MAX_PART_BYTES for case in once for part in case)


def test_messages_and_checksums_stay_right():
    """What is hurt is refused by what it says, and not by its frame."""
    fields = [(1, b"p"), (2, message_of([(1, 7), (3, b"x" * 200)])), (3, 1 << 63)]
    assert fields_of(message_of(fields)) == fields
    body = b'{"r":1,"e":[]}\n'
    line = b"%08x %s" % (zlib.crc32(body), body)
    rng = random.Random(0)
    hurt_lines = [journal(rng, line) for _ in range(100)]
    right = [one for one in hurt_lines if re.match(rb"[0-9a-f]{8} ", one) and int(one[:8], 16) == zlib.crc32(one[9:])]
    assert len(right) > 50
