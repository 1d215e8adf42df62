"""The list of models that the plugin writes in place of the server's, and what it leaves out of it."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.guard import CONTROL_HEADER
from sidecar.vllm_plugin.listing import PublicListing, hide_seconds_of
from sidecar.vllm_plugin.server import Busy, EngineAdapter, EngineRefused, NameConflict, NotLoaded
from tests.simulation.loop import virtual
from tests.support.waiting import eventually
from tests.unit.vllm_plugin.played import Asking


class Lists:
    """Writes lists as a server does. `made`: for which adapters it was asked."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def __call__(self, adapters: Mapping[str, EngineAdapter]) -> dict[str, Any]:
        self.made += adapters
        cards = [{"id": name, "root": one.lora_path} for name, one in adapters.items()]
        return {"object": "list", "data": [{"id": "base"}, {"id": "süß"}, *cards], "more": []}


@pytest.fixture
def lists(server) -> Lists:
    server.lister = Lists()
    return server.lister


def names(page: bytes) -> list[str]:
    return [card["id"] for card in json.loads(page)["data"]][2:]


async def seen(adapters: Adapters, *, whole: bool = False) -> list[str]:
    return names(await adapters.listing.page(whole=whole))


async def test_the_list_is_the_servers_own_byte_for_byte(server, lists):
    server.load("y", "/y")
    page = await PublicListing(server).page(whole=False)
    own = await lists(server.registered)
    assert page == json.dumps(own, ensure_ascii=False, separators=(",", ":")).encode()


async def test_a_card_is_made_once_for_each_load(server, lists):
    listing = PublicListing(server)
    for _ in range(2):
        assert names(await listing.page(whole=False)) == ["x"]
    server.load("y", "/y")
    assert names(await listing.page(whole=True)) == ["x", "y"]
    del server.registered["x"]
    assert names(await listing.page(whole=False)) == ["y"]
    server.load("x", "/new/x")
    page = await listing.page(whole=False)
    assert (names(page), json.loads(page)["data"][-1]["root"]) == (["y", "x"], "/new/x")
    assert lists.made == ["x", "y", "x"]


async def test_the_list_is_no_use_of_an_adapter(server, lists):
    """R7 files-pinned: what refers to an adapter keeps its files."""
    listing, adapters = PublicListing(server), server.registered
    before = sys.getrefcount(adapters.get("x"))
    await listing.page(whole=False)
    listing.leave(adapters.get("x"))
    await listing.page(whole=True)
    gc.collect()
    after = sys.getrefcount(adapters.get("x"))  # not beside `assert`, which holds what it compares
    assert after == before


@virtual
async def test_a_name_leaves_the_list_before_it_stops_to_answer(server, lists):
    """For everybody: what the sidecar says, and its routers, must not lead anybody there either."""
    adapters = Adapters(server, hide_seconds=5.0)
    changes = adapters.changes
    await adapters.unload("x")
    assert await seen(adapters) == await seen(adapters, whole=True) == []
    assert adapters.changes > changes
    assert [row["path"] for row in (await adapters.state())["adapters"]] == ["/old/x"], "R7: its files are in use"
    await adapters.unload("x")
    await asyncio.sleep(4.99)
    assert server.paths() == {"x": "/old/x"}
    await asyncio.sleep(0.02)
    assert server.paths() == {}
    with pytest.raises(NotLoaded):
        await adapters.unload("x")
    assert (adapters._departures, adapters._departing) == ({}, set())


@virtual
async def test_what_is_loaded_again_in_between_stays(server, lists):
    adapters = Adapters(server, hide_seconds=5.0)
    await adapters.unload("x")
    await asyncio.sleep(3)
    assert await seen(adapters) == []
    await adapters.show("x", "/old/x/")
    assert await seen(adapters) == ["x"]
    await asyncio.sleep(10)
    assert server.paths() == {"x": "/old/x"}
    with pytest.raises(NameConflict):
        await adapters.show("x", "/old/x")
    with pytest.raises(NotLoaded):
        await adapters.show("y", "/old/x")


async def test_what_is_loaded_while_the_list_is_written_is_in_the_next_one(server, lists):
    async def writing(adapters: Mapping[str, EngineAdapter]) -> dict[str, Any]:
        if "x" in adapters:
            server.load("y", "/y")
        return await lists(adapters)

    server.lister = writing
    listing = PublicListing(server)
    assert [names(await listing.page(whole=False)) for _ in range(2)] == [["x"], ["x", "y"]]


@pytest.mark.parametrize("is_left", [False, True], ids=["refused", "nobody waits"])
@virtual
async def test_weights_that_the_engine_does_not_get_do_not_keep_the_name(server, lists, files, is_left):
    """R6 unload-eventual: it refuses them, or whoever wanted them has gone meanwhile."""
    adapters = Adapters(server, hide_seconds=5.0)
    await adapters.unload("x")
    if is_left:
        server.gate = asyncio.Event()
    else:
        server.fails = RuntimeError("no")
    show = asyncio.create_task(adapters.show("x", files))
    await eventually(lambda: server.calls)
    if is_left:
        show.cancel()
    with pytest.raises(asyncio.CancelledError if is_left else EngineRefused):
        await show
    assert await seen(adapters) == []
    await asyncio.sleep(5.01)
    assert server.paths() == {}


@virtual
async def test_while_an_unload_is_taken_back_nobody_else_is_told_that_it_is_done(server, lists, files):
    """The sidecar that began it may have died, and the next one wants something else."""
    adapters = Adapters(server, hide_seconds=5.0)
    await adapters.unload("x")
    server.gate = asyncio.Event()
    first = asyncio.create_task(adapters.show("x", files))
    await eventually(lambda: server.calls)
    for call in (adapters.unload("x"), adapters.show("x", files)):
        with pytest.raises(Busy, match="is being listed again"):
            await call
    server.gate.set()
    await first
    await asyncio.sleep(10)
    assert server.paths() == {"x": files}
    await adapters.unload("x")
    await adapters.unload("x")
    await asyncio.sleep(5.01)
    assert server.paths() == {}


@virtual
async def test_a_name_that_is_just_going_is_not_said_to_stay(server, lists):
    """R9 no-false-report: its time is up, and only somebody who holds its lock keeps it for a moment."""
    adapters = Adapters(server, hide_seconds=5.0)
    await adapters.unload("x")
    async with server.lock("x"):
        await asyncio.sleep(6)
        with pytest.raises(Busy):
            await adapters.show("x", "/old/x")
    await asyncio.sleep(1)
    assert server.paths() == {}


@virtual
async def test_a_name_that_somebody_else_gave_other_weights_stays(server, lists):
    """R11 foreign-safe; and one that somebody else took away does not come back."""
    adapters = Adapters(server, hide_seconds=5.0)
    server.load("gone", "/gone")
    for name in ("x", "gone"):
        await adapters.unload(name)
    server.load("x", "/theirs")
    del server.registered["gone"]
    assert await seen(adapters) == ["x"]
    await asyncio.sleep(6)
    assert (server.paths(), await seen(adapters)) == ({"x": "/theirs"}, ["x"])


@virtual
async def test_weights_that_came_meanwhile_answer_for_their_own_time(server, lists):
    adapters = Adapters(server, hide_seconds=5.0)
    await adapters.unload("x")
    await asyncio.sleep(3)
    server.load("x", "/new")
    await adapters.unload("x")
    await asyncio.sleep(4.99)
    assert server.paths() == {"x": "/new"}
    await asyncio.sleep(0.02)
    assert (server.paths(), adapters._departures) == ({}, {})


@pytest.mark.parametrize(("seconds", "changes_hands"), [(12, False), (6, True)])
@virtual
async def test_a_name_that_is_held_when_its_time_is_up_goes_a_little_later(server, lists, seconds, changes_hands):
    """R11 foreign-safe: unless it got other weights while its lock was waited for."""
    adapters = Adapters(server, hide_seconds=5.0)
    await adapters.unload("x")
    async with server.lock("x"):
        await asyncio.sleep(seconds)
        assert server.paths() == {"x": "/old/x"}
        if changes_hands:
            server.load("x", "/theirs")
    await asyncio.sleep(6)
    left = {"x": "/theirs"} if changes_hands else {}
    assert (server.paths(), await seen(adapters)) == (left, [*left])


@virtual
async def test_while_the_replica_drains_strangers_see_what_nobody_else_serves(server, lists):
    """R20 drain: the sidecar goes on to see all, and says it again and again; if it dies, they come back."""
    adapters = Adapters(server, hide_seconds=5.0)
    server.load("y", "/old/y")
    adapters.listing.hide_all(30.0)
    assert (await seen(adapters), await seen(adapters, whole=True)) == ([], ["x", "y"])
    adapters.listing.hide_all(30.0, frozenset({"y", "gone"}))
    assert (await seen(adapters), await seen(adapters, whole=True)) == (["y"], ["x", "y"])
    server.load("gone", "/old/gone")
    assert await seen(adapters) == ["y", "gone"]
    await adapters.unload("gone")
    assert await seen(adapters) == ["y"], "what is unloaded meanwhile leaves the list as ever"
    adapters.listing.hide_all(30.0, frozenset({"x"}))
    assert await seen(adapters) == ["x"]
    adapters.listing.hide_all(30.0)
    assert await seen(adapters) == []
    await asyncio.sleep(30.01)
    assert await seen(adapters) == ["x", "y"]
    adapters.listing.hide_all(30.0)
    adapters.listing.hide_all(0.0)
    assert await seen(adapters) == ["x", "y"]


async def test_without_a_list_of_ours_a_name_stops_at_once(server):
    adapters = Adapters(server, hide_seconds=5.0)
    assert not adapters.listing.is_there
    await adapters.unload("x")
    assert server.paths() == {}
    with pytest.raises(EngineRefused):
        await adapters.listing.page(whole=False)


async def test_the_routes_show_and_hide(server, lists):
    ask = Asking(Adapters(server, hide_seconds=600.0))
    assert "listing" in (await ask("GET", "plugin"))[1]["capabilities"]
    assert await ask("POST", "unload", {"lora_name": "x"}) == (200, {"lora_name": "x"})
    assert await ask("POST", "show", {"lora_name": "x", "lora_path": "/old/x"}) == (200, {"lora_name": "x"})
    assert await ask("POST", "hide", {"hide_seconds": 30}) == (200, {"hide_seconds": 30.0})
    assert await ask.models() == ["base", "süß"]
    assert await ask.models(**{CONTROL_HEADER: "sidecar"}) == ["base", "süß", "x"]
    assert await ask("POST", "hide", {"hide_seconds": 30, "kept": ["x"]}) == (200, {"hide_seconds": 30.0})
    assert await ask.models() == ["base", "süß", "x"]
    for names in ("x", [1], [""], ["x" * 257], {"x": 1}):
        status, body = await ask("POST", "hide", {"hide_seconds": 30, "kept": names})
        assert (status, body["error"]["param"]) == (400, "kept")
    many = [f"{number:0250}" for number in range(4000)]
    assert await ask("POST", "hide", {"hide_seconds": 30, "kept": many}) == (200, {"hide_seconds": 30.0})
    assert (await ask("POST", "hide", {"hide_seconds": 30, "kept": many * 2}))[0] == 400
    for wrong in (-1, 601, "5", None, True):
        status, body = await ask("POST", "hide", {"hide_seconds": wrong})
        assert (status, body["error"]["param"]) == (400, "hide_seconds")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 5.0), (" ", 5.0), ("0", 0.0), ("2.5", 2.5), *((odd, None) for odd in ("5s", "-1", "601", "nan"))],
)
def test_the_operator_says_how_long_a_name_answers_on(text, seconds):
    if seconds is not None:
        assert hide_seconds_of(text) == seconds
        return
    with pytest.raises(ValueError, match=r"."):
        hide_seconds_of(text)
