"""Contract suite of engine drivers, for whoever brings one.

    @pytest.mark.parametrize("check", CHECKS)
    async def test_my_driver_keeps_the_contract(check, my_engine):
        await check(my_engine)

Each check takes an `EngineUnderTest` that is served and has no adapter, real or simulated, and raises AssertionError
where the driver breaks a promise. It needs no test framework, but Python without ``-O``. What an engine cannot do its
driver says: `EngineFacts.swap`, and EngineUnreachable where it has no evidence of its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from loraplane.engines import AlreadyThere, Done, Engine, EngineGone, EngineUnreachable, NotThere, PathMissing, Refused

MISSING = "/nonexistent/loraplane/adapter"
IDLE_SECONDS, POLL_SECONDS = 60.0, 0.02


class EngineUnderTest(Protocol):
    """One engine of the driver's kind, and what is true of it.

    Attributes:
        kind: name of the entry point.
        base_model: name under which it serves its base model.
        adapters: directories of two adapters that answer differently.
        unfit: directories of adapters that it refuses to load, e.g. of a rank above its limit.
    """

    kind: str
    base_model: str
    adapters: tuple[str, str]
    unfit: Sequence[str]

    def drive(self, state: Path | None = None) -> Engine:
        """A new driver of it; `state`: see `EngineOptions.state`."""
        ...

    def listed(self) -> Mapping[str, str]:
        """Name to directory of what it has in truth, not as its driver sees it."""
        ...

    async def text(self, name: str) -> str:
        """Its answer to the same request each time, for an adapter."""
        ...

    async def load_foreign(self, name: str, path: str) -> None:
        """Loads an adapter past the driver, as somebody else might."""
        ...

    async def stop(self) -> None:
        """Ends its process."""
        ...

    async def start(self) -> None:
        """Starts another process at the same URL."""
        ...


async def check_observed(host: EngineUnderTest) -> None:
    """R9 status-truth: kind, process, base model, and what was loaded."""
    path = host.adapters[0]
    async with _driving(host) as engine:
        assert await engine.load("x", path, request_id="r") == Done()
        observed = await engine.observe()
        assert (engine.kind, observed.facts.kind) == (host.kind, host.kind)
        assert host.base_model in observed.base_models
        assert dict(observed.adapters) == host.listed() == {"x": path}
        assert observed.facts.incarnation == await engine.incarnation()
        # Where a name is never given other weights, what each name ever had is known.
        assert dict(observed.past) == ({"x": path} if observed.facts.swap == "refused" else {})


async def check_load_and_unload(host: EngineUnderTest) -> None:
    """R4 digest-true, R6 unload-eventual: what is refused changes nothing, and what is unloaded is gone."""
    one, other = host.adapters
    async with _driving(host) as engine:
        assert await engine.load("x", one, request_id="r") == Done()
        assert isinstance(await engine.load("x", other, request_id="r"), AlreadyThere | Refused)
        for bad in (MISSING, *host.unfit):
            assert isinstance(await engine.load("y", bad, request_id="r"), PathMissing | Refused), bad
        assert dict((await engine.observe()).adapters) == host.listed() == {"x": one}
        assert await engine.unload("x", request_id="r") == Done()
        assert isinstance(await engine.unload("x", request_id="r"), NotThere | Refused)
        assert dict((await engine.observe()).adapters) == host.listed() == {}


async def check_swap(host: EngineUnderTest) -> None:
    """R4, R8 isolation: a swap changes the weights, or is refused and changes nothing."""
    one, other = host.adapters
    async with _driving(host) as engine:
        await engine.load("y", other, request_id="r")
        new = await host.text("y")
        await engine.unload("y", request_id="r")
        await engine.load("x", one, request_id="r")
        old = await host.text("x")
        assert old != new
        swap = (await engine.observe()).facts.swap
        # Nothing that is set unread can be refused; what does not fit is kept from such an engine before.
        for bad in (MISSING, *(() if swap == "unproven" else host.unfit)):
            assert isinstance(await engine.swap("x", one, bad, request_id="r"), PathMissing | Refused), bad
        assert host.listed() == {"x": one}
        outcome = await engine.swap("x", one, other, request_id="r")
        if swap == "refused":
            assert isinstance(outcome, Refused)
            assert (host.listed(), await host.text("x")) == ({"x": one}, old)
        else:
            assert (outcome, host.listed(), await host.text("x")) == (Done(), {"x": other}, new)


async def check_foreign(host: EngineUnderTest) -> None:
    """R11 foreign-safe: what others loaded is shown by its own path, or as a name that none of ours may have.

    Where nothing is proven (`unproven`) it is not seen at all, and never taken for ours.
    """
    one, other = host.adapters
    async with _driving(host) as engine:
        await host.load_foreign("foreign", other)
        observed = await engine.observe()
        assert host.listed() == {"foreign": other}
        if observed.facts.swap == "unproven":
            assert dict(observed.adapters) == {}
            return
        assert observed.adapters.get("foreign", other) == other
        assert "foreign" in {*observed.adapters, *observed.base_models}
        assert isinstance(await engine.load("foreign", one, request_id="r"), AlreadyThere | Refused)
        assert host.listed() == {"foreign": other}


async def check_restarts(host: EngineUnderTest) -> None:
    """R9, R12: what one process had says nothing of the next, also to a sidecar that starts meanwhile."""
    path = host.adapters[0]
    with TemporaryDirectory() as state:
        async with _driving(host, Path(state)) as engine:
            await engine.load("x", path, request_id="r")
            async with _driving(host, Path(state)) as again:
                before = await again.observe()
                assert dict(before.adapters) == {"x": path}
                await host.stop()
                await _refused(engine.observe())
                assert isinstance(await engine.load("y", path, request_id="r"), EngineGone)
                await host.start()
                after = await again.observe()
                assert after.facts.incarnation != before.facts.incarnation
                assert (dict(after.adapters), dict(after.past)) == ({}, {})


async def check_requests(host: EngineUnderTest) -> None:
    """R7 files-pinned: evidence of an idle engine is of its process and clear of all; or there is none at all."""
    async with _driving(host) as engine:
        assert await engine.turns() is not False
        assert not await engine.is_busy()
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                while (evidence := await engine.drain_evidence()).running or evidence.waiting:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(POLL_SECONDS)
        except EngineUnreachable:
            await _refused(engine.drain_evidence())
            return
        assert evidence.incarnation == await engine.incarnation()
        assert evidence.is_clear_of({"x"})


CHECKS = (check_observed, check_load_and_unload, check_swap, check_foreign, check_restarts, check_requests)


async def _refused(question: Awaitable[object]) -> None:
    try:
        found = await question
    except EngineUnreachable:
        return
    raise AssertionError(f"EngineUnreachable was to be raised, and not told: {found}")


@asynccontextmanager
async def _driving(host: EngineUnderTest, state: Path | None = None) -> AsyncIterator[Engine]:
    """A driver that has looked at the engine once, as each sidecar does first."""
    engine = host.drive(state)
    try:
        await engine.observe()
        yield engine
    finally:
        await engine.aclose()
