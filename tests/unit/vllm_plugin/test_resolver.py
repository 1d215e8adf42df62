"""What becomes of a question to the sidecar, whatever the sidecar does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sidecar.vllm_plugin import resolver as module
from sidecar.vllm_plugin.adapters import Adapters, SidecarResolver
from sidecar.vllm_plugin.protocol import MAX_NAME_LENGTH, Resolved, is_askable
from sidecar.vllm_plugin.resolver import ResolverClient, TtlSet
from tests.simulation.loop import virtual
from tests.support.resolving import PlayedSidecar, found
from tests.support.waiting import eventually
from tests.unit.vllm_plugin.played import Clock, PlayedServer


@pytest.fixture
async def sidecar():
    """A sidecar that knows nothing yet."""
    async with PlayedSidecar() as sidecar:
        yield sidecar


@pytest.mark.parametrize("name", ["", "n" * (MAX_NAME_LENGTH + 1), "a\nb", "a\0", "\x7f", "a\u2028b", "\ud800"])
async def test_names_that_no_record_can_have_are_not_asked_for(sidecar, name):
    """R16 bounded: nor with a question that would be too long."""
    assert not is_askable(name)
    for asked, base in ((name, "/base"), ("x", "/" + "b" * 5000)):
        assert await ResolverClient(sidecar.path).find(asked, base) is None
    assert sidecar.asked == []


async def test_a_miss_is_remembered_for_a_second(sidecar, files):
    """Whoever asks for the same unknown name again and again asks the sidecar once a second."""
    clock = Clock()
    resolver = ResolverClient(sidecar.path, now=clock)
    for _ in range(3):
        assert await resolver.find("x", "/base") is None
    assert len(sidecar.asked) == 1
    sidecar.answers["x"] = found(files)
    clock.at += 0.99
    assert await resolver.find("x", "/base") is None
    assert len(sidecar.asked) == 1
    clock.at += 0.01
    assert await resolver.find("x", "/base") == Resolved(files)


def test_no_more_than_so_many_misses_are_remembered():
    """R16 bounded: those that came last."""
    misses = TtlSet(1.0, 2, Clock())
    for name in ("a", "b", "a", "c"):
        misses.add(name)
    assert [name in misses for name in "abc"] == [True, False, True]
    assert len(misses) == 2


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"garbage\n", "bad_answer"),
        (b"", "bad_answer"),
        (b'{"schema":1,"path":"/a"}', "bad_answer"),
        (b"x" * 20_000 + b"\n", "bad_answer"),
        (found("relative"), "bad_answer"),
        (found("/nowhere"), "path_missing"),
        (found("/" + "p" * 300), "unreachable"),
        (found("/a\0b"), "path_missing"),
    ],
)
async def test_whatever_comes_back_is_no_error(sidecar, caplog, answer, kind):
    """R8 isolation: a request for an unknown name gets 404, not 500."""
    sidecar.answers["x"] = answer
    assert await ResolverClient(sidecar.path).find("x", "/base") is None
    (record,) = caplog.records
    assert f"was not resolved, {kind}: " in record.message


async def test_files_outside_the_store_are_not_loaded(sidecar, files, caplog):
    """R4 digest-true: whoever answers on the socket decides which files the engine loads, but not beyond the store."""
    sidecar.answers["x"] = found(files)
    assert await ResolverClient(sidecar.path, store=f"{files}-store").find("x", "/base") is None
    assert "was not resolved, outside_store: " in caplog.text
    assert await ResolverClient(sidecar.path, store=str(Path(files).parent)).find("x", "/base") == Resolved(files)


async def test_no_sidecar_and_a_silent_one_are_no_error(sidecar, caplog):
    sidecar.answers["x"] = None
    assert await ResolverClient(sidecar.path, ask_seconds=0.05).find("x", "/base") is None
    assert await ResolverClient(sidecar.path + ".none").find("x", "/base") is None
    assert await ResolverClient("/" + "p" * 200).find("x", "/base") is None
    kinds = [record.message.split(", ")[1].split(":")[0] for record in caplog.records]
    assert kinds == ["deadline", "unreachable", "unreachable"]


@virtual
async def test_a_sidecar_has_half_a_minute_to_answer(monkeypatch, caplog):
    """R16: it may have to fetch what it is asked for; a request of a client waits meanwhile."""
    monkeypatch.setattr(asyncio, "open_unix_connection", lambda *_, **__: asyncio.Event().wait())
    assert await ResolverClient("/socket").find("x", "/base") is None
    assert "deadline: /socket: no answer within 30 s" in caplog.text
    assert asyncio.get_running_loop().time() == pytest.approx(30.0)


async def test_the_same_complaint_is_logged_once_a_minute(sidecar, caplog):
    clock = Clock()
    resolver = ResolverClient(sidecar.path + ".none", now=clock)
    for number in range(5):
        await resolver.find(f"n{number}", "/base")
    assert len(caplog.records) == 1
    clock.at += 59.9
    await resolver.find("not yet", "/base")
    assert len(caplog.records) == 1
    clock.at += 0.1
    await resolver.find("again", "/base")
    assert len(caplog.records) == 2


async def test_no_more_than_so_many_questions_are_open(sidecar, files, caplog):
    """R16 bounded: a sidecar that hangs holds so many requests, and no more; one that goes on is asked again."""
    resolver = ResolverClient(sidecar.path)
    names = [f"n{number}" for number in range(module.MAX_ASKING)]
    sidecar.answers |= {"over": found(files)} | dict.fromkeys(names)
    open_questions = [asyncio.create_task(resolver.find(name, "/base")) for name in names]
    await eventually(lambda: len(sidecar.asked) == module.MAX_ASKING)
    assert await resolver.find("over", "/base") is None
    assert "busy" in caplog.text
    for task in open_questions:  # their clients went away
        task.cancel()
    await asyncio.gather(*open_questions, return_exceptions=True)
    assert await resolver.find("over", "/base") == Resolved(files)


@pytest.mark.parametrize("is_registered", [True, False])
async def test_what_is_resolved_counts_as_in_use_until_it_is_registered(sidecar, files, is_registered):
    """R7 files-pinned: its files are read by a load that nobody else knows of.

    It is removed where the engine refused it or the client went away.
    """
    server = PlayedServer()
    sidecar.answers["x"] = found(files)
    asked = SidecarResolver()
    assert await asked.resolve_lora("/base", "x") is None
    adapters = asked.adapters = Adapters(server, ResolverClient(sidecar.path), sweep_seconds=0)
    resolved = await asked.resolve_lora("/base", "x")
    assert (resolved.lora_name, resolved.lora_path) == ("x", files)
    resolved.lora_int_id = 77  # as vLLM does, before anything else can run
    for _ in range(5):
        await asyncio.sleep(0)
        state = await adapters.state()
        assert [(row["int_id"], row["registered"]) for row in state["adapters"]] == [(77, False)]
    if is_registered:
        server.registered["x"] = resolved
    del resolved
    await eventually(lambda: len(adapters._drain) == 0)
    assert server.calls == ([] if is_registered else [("remove", 77)])


async def test_too_much_that_drains_resolves_no_more(sidecar, files, monkeypatch):
    """R16 bounded. R5: of what the sidecar does not know vLLM says itself that there is no such model."""
    monkeypatch.setattr("sidecar.vllm_plugin.adapters.MAX_RETIRED", 1)
    sidecar.answers |= {"x": found(files), "y": found(files)}
    adapters = Adapters(PlayedServer(), ResolverClient(sidecar.path), sweep_seconds=3600)
    assert await adapters.resolve("unknown", "/base") is None
    await asyncio.sleep(0)
    assert len(adapters._drain) == 0
    held = await adapters.resolve("x", "/base")
    await asyncio.sleep(0)
    assert held is not None
    assert await adapters.resolve("y", "/base") is None
    assert await Adapters(PlayedServer()).resolve("x", "/base") is None
