"""An engine whose listing cannot be had for a while: what a replica says of itself meanwhile, and when it is back."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.loop.retries import UNTOLD_SECONDS
from tests.simulation.test_refusals import WORK_SECONDS, Stage, names, now, play

COUNT = 5
TOLD_SECONDS = 10.0


async def served(stage: Stage) -> None:
    stage.apply(*names(COUNT))
    stage.start()
    await stage.served(COUNT, WORK_SECONDS)


def test_an_engine_that_runs_is_not_started_a_second_time():
    """The world's own: two faults may each start it, and what the first process has bound would be forgotten (R7)."""

    async def scene(stage: Stage) -> None:
        await served(stage)
        process = stage.engine.process
        stage.engine.start()
        assert stage.engine.process is process
        assert len(stage.engine.listing) == COUNT

    play(scene)


@pytest.mark.parametrize("seconds", [0.1, 1.0, 2.5])
def test_a_short_run_of_failed_looks_takes_no_replica_out(seconds):
    """R18 readiness-follows: as long as its process answers; and the change is made right afterwards."""

    async def scene(stage: Stage) -> None:
        await served(stage)
        stage.engine.broken["/v1/models"] = 500
        stage.apply("new")
        begun = now()
        while stage.status is not None and stage.status.served.count <= COUNT:
            if now() - begun > seconds:
                stage.engine.heal()
            assert now() - begun < seconds + 5.0
            await asyncio.sleep(0.05)
            assert stage.status.ready
            assert stage.status.served.count >= COUNT

    play(scene)


def test_a_listing_that_stays_away_is_told_and_what_was_served_is_told_as_last_seen():
    """R18, R9: with its age, and of no process, so that nobody takes it for proof."""

    async def scene(stage: Stage) -> None:
        await served(stage)
        stage.engine.broken["/v1/models"] = 500
        stage.apply("new")
        begun = now()
        while stage.status is not None and stage.status.ready:
            assert now() - begun < TOLD_SECONDS
            await asyncio.sleep(0.1)
        assert stage.status is not None
        said = stage.status
        assert (said.served.count, said.engine.incarnation) == (COUNT, "")
        assert said.served.seen_at < said.updated_at
        assert "HTTP 500" in said.note
        await asyncio.sleep(60.0)
        stage.engine.heal()
        await stage.served(COUNT + 1, 2 * WORK_SECONDS)
        assert stage.status.served.seen_at == ""

    play(scene)


def test_an_engine_that_is_gone_is_told_at_once():
    """R18: its process does not answer, so no look is waited for."""

    async def scene(stage: Stage) -> None:
        await served(stage)
        stage.engine.kill()
        begun = now()
        while stage.status is not None and stage.status.ready:
            assert now() - begun < 3.0
            await asyncio.sleep(0.1)

    play(scene)


@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize("odd", ["lost request", "lost reply"])
def test_an_engine_that_completes_nothing_is_not_said_to_hang(status, odd):
    """R17, R18: whether it turns cannot be told, so time and its listing settle what became of a lost answer."""

    async def scene(stage: Stage) -> None:
        stage.engine.broken["/v1/completions"] = status
        await served(stage)
        stage.engine.odd.append(odd)
        stage.apply("new")
        begun = now()
        while stage.status is not None and stage.status.served.count <= COUNT:
            assert now() - begun < UNTOLD_SECONDS + WORK_SECONDS
            await asyncio.sleep(0.1)
            assert stage.status.ready
            assert stage.status.note == ""

    play(scene)


@pytest.mark.parametrize("sleeps", [True, False])
@pytest.mark.parametrize("seconds", [0.5, 5.0, 60.0])
def test_an_engine_that_is_paused_gets_no_call_and_all_of_them_once_it_goes_on(sleeps, seconds):
    """R18, R17: the status says why, within the time in which anybody is told."""

    async def scene(stage: Stage) -> None:
        await served(stage)
        engine = stage.engine.engine
        assert engine is not None
        engine.pause(is_paused=True, sleeps=sleeps)
        loaded = dict(stage.engine.listing)
        stage.apply("new")
        begun = now()
        while now() - begun < seconds:
            await asyncio.sleep(0.1)
            assert stage.engine.listing == loaded
            if now() - begun > TOLD_SECONDS:
                assert stage.status is not None
                assert not stage.status.ready
                assert [one.reason for one in stage.status.pending] == ["engine_paused"]
                assert [one.reason for one in stage.status.warnings] == ["base_unproven", "engine_paused"]
                assert stage.status.served.count == COUNT
        engine.pause(is_paused=False, sleeps=False)
        await stage.served(COUNT + 1, WORK_SECONDS)
        assert stage.status is not None
        assert stage.status.ready

    play(scene)
