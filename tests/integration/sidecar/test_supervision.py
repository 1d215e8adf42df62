"""A sidecar one part of which fails: it says so, the others go on, and the part is run again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import httpx
import pytest

from sidecar.report.http import make_app
from tests.support.rig import Rig, running_rig
from tests.support.waiting import eventually

pytestmark = pytest.mark.breaks_parts


@contextmanager
def broken(target: str) -> Iterator[None]:
    """Nothing that this function is asked comes to an end, as with a value that nobody foresaw."""

    def fail(*_: Any, **__: Any) -> None:
        raise OverflowError("int too large to convert to float")

    with mock.patch(target, fail):
        yield


def warned(rig: Rig) -> set[str]:
    return {one.message.split("'")[1] for one in rig.sidecar.status.status.warnings if one.reason == "internal_error"}


async def failing(rig: Rig) -> list[str]:
    transport = httpx.ASGITransport(
        make_app(rig.sidecar.status, [], rig.sidecar.drain, rig.sidecar.events, rig.sidecar.activity)
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
        return (await client.get("/readyz")).json()["failing"]


async def test_a_round_that_fails_is_told_and_made_again(tmp_path, monkeypatch):
    """X2 unbreakable: no value ends the process or takes away what is served; rounds go on once it is gone."""
    monkeypatch.setattr("sidecar.report.cache.STALE_AFTER_SECONDS", 2.0)
    async with running_rig(tmp_path) as rig:
        rig.desire(1, a="v1")
        await rig.served(1, "a")
        with broken("sidecar.loop.reconciler.make_plan"):
            rig.desire(2, a="v1", b="v2")
            await eventually(lambda: warned(rig) == {"reconciler"})
            status = rig.sidecar.status.status
            assert (status.observed_revision, status.served.count, set(rig.engine.cards)) == (1, 1, {"a"})
            assert await failing(rig) == ["reconciler"]
            assert await rig.request("a") == 200
            await eventually(lambda: rig.sidecar.status.status.stale)
        await rig.served(2, "a", "b")
        await eventually(lambda: warned(rig) == set())
        assert await failing(rig) == []
        assert not rig.sidecar.status.status.stale
