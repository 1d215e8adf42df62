"""The fuzzer finds what it is there to find, in readers that are broken on purpose."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
import types
import zlib
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import structlog

from tests.fuzz import fuzzer, mutation
from tests.fuzz.__main__ import main
from tests.fuzz.fuzzer import SECRET, Bounds, Target, keep, kept, name_of, search
from tests.fuzz.mutation import (
    as_json,
    choice,
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


@pytest.fixture(autouse=True)
def _few_attempts(monkeypatch) -> None:
    """To make a finding smaller; each test is about another thing."""
    monkeypatch.setattr(fuzzer, "_SMALLER_SECONDS", 0.5)


def target(read: Callable[[bytes], object]) -> Target:
    """A reader of one part of JSON."""

    @asynccontextmanager
    async def opened(_):
        async def play(case):
            found = read(case[0])
            if asyncio.iscoroutine(found):
                await found

        yield play

    return Target("broken", (as_json,), lambda: [(SEED,)], opened)


async def places(tmp_path, read: Callable[[bytes], object], *, patience: float = 60.0) -> list[str]:
    found = await search(target(read), tmp_path, random.Random(1), Bounds(runs=600, patience=patience))
    return sorted(found.findings)


def value(content: bytes) -> dict:
    """What the broken readers look at; all else is refused."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def test_an_error_that_nobody_foresaw(tmp_path):
    """A number that no float holds is among what stands for numbers."""

    def read(content: bytes) -> None:
        weight = value(content).get("weight")
        if isinstance(weight, int):
            float(weight)

    (place,) = await places(tmp_path, read)
    assert place.startswith("OverflowError")


async def test_a_loop_that_is_held(tmp_path):
    """As long on every machine."""
    held = []

    def read(content: bytes) -> None:
        if isinstance(value(content).get("name", ""), str) or len(held) == 3:
            return
        held.append(content)
        end = time.thread_time() + 1.5
        while time.thread_time() < end:
            pass

    assert await places(tmp_path, read, patience=1.0) == ["held"]


async def test_memory_that_one_case_takes(tmp_path):
    taken = []

    def read(content: bytes) -> None:
        if len(str(value(content).get("tags"))) > 10_000 and not taken:
            taken.append(b"x" * (300 << 20))

    found = await places(tmp_path, read)
    taken.clear()
    assert found == ["memory"]


async def test_a_secret_in_a_log(tmp_path):
    def read(content: bytes) -> None:
        if not value(content):
            _log.warning("refused", sent={"authorization": SECRET})

    assert await places(tmp_path, read) == ["a secret in a log"]


async def test_a_part_that_failed_and_was_kept_going(tmp_path):
    def read(content: bytes) -> None:
        try:
            json.dumps(value(content)["weight"])
        except KeyError as error:
            _log.error("part_failed", part="x", exc_info=error)
        except ValueError:
            return

    (place,) = await places(tmp_path, read)
    assert place.startswith("part_failed: KeyError")


async def test_what_a_library_logs_of_our_errors(tmp_path):
    """An error that went to the loop and not to us."""

    async def read(content: bytes) -> None:
        if not value(content):
            asyncio.get_running_loop().call_soon(int, "x")
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    (place,) = await places(tmp_path, read)
    assert place.startswith("asyncio: ValueError")


async def test_what_grpc_has_for_a_loop_that_was_closed_is_no_finding(tmp_path):
    """Its poller gives the events of one loop to another; any other use of a closed loop is told."""

    def uses(loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(int)

    async def read_as(name: str, content: bytes) -> None:
        closed = asyncio.new_event_loop()
        closed.close()
        use = types.FunctionType(uses.__code__.replace(co_name=name), {})
        if not value(content):
            asyncio.get_running_loop().call_soon(use, closed)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    (place,) = await places(tmp_path, partial(read_as, "ours"))
    assert place.startswith("asyncio: RuntimeError")
    assert not await places(tmp_path, partial(read_as, "grpc._cython.cygrpc.PollerCompletionQueue._handle_events"))


async def test_a_finding_is_made_small_and_says_how_it_is_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzer, "_SMALLER_SECONDS", 60.0)

    def read(content: bytes) -> None:
        assert b"65536" not in content, "that number"

    found = await search(target(read), tmp_path, random.Random(1), Bounds(runs=600, patience=60.0))
    (finding,) = found.findings.values()
    assert len(finding.case[0]) < 100
    assert f"--replay {name_of(finding.case)}" in str(finding)


def test_what_is_kept_comes_back(tmp_path):
    case = (b"a", bytes(range(256)), b'\n"')
    for _ in range(2):
        keep("x", case, tmp_path)
    assert kept("x", tmp_path) == [case]
    assert kept("y", tmp_path) == []


def test_cases_that_are_kept_are_of_targets_that_there_are():
    assert {file.stem for file in fuzzer.CORPUS.glob("*.txt")} <= set(TARGETS)


@pytest.mark.parametrize("form", [raw, as_json, safetensors, tar, protobuf, metrics, journal, snapshot])
@pytest.mark.parametrize("content", [b"", b"\0", bytes(8), SEED, b"x" * 1000])
def test_every_form_takes_any_bytes(form, content):
    rng = random.Random(0)
    for _ in range(200):
        assert isinstance(form(rng, content), bytes)


@pytest.mark.parametrize("name", TARGETS)
def test_the_same_seed_hurts_in_the_same_way(name):
    target = TARGETS[name]
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
    assert choice(rng, b"x") == b"x"


def test_the_command_tells_figures_and_refuses_a_name_that_there_is_not(monkeypatch, capfd):
    """By a guide, in a process of its own: this one's coverage may be somebody else's."""
    monkeypatch.setattr(sys, "argv", ["fuzz", "--target", "x"])
    assert main() == 2
    assert "no target x; there are watcher, " in capfd.readouterr().err
    for seconds in ("3", "30", "90"):  # a machine that stands still may come to no hurt case within the first
        monkeypatch.setattr(sys, "argv", ["fuzz", "--target", "archive", "--seconds", seconds, "--seed", "1"])
        assert main() == 0
        figures = json.loads(capfd.readouterr().out.splitlines()[0])
        assert (figures["target"], figures["findings"]) == ("archive", 0)
        if figures["new"]:
            return
    raise AssertionError("the guide saw no branch that was taken for the first time")
