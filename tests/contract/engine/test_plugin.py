"""Our plugin, inside real vLLM and inside the simulated engine alike: swaps without a gap, and who uses which files."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from registry.lora.base_directory import read_base
from registry.lora.coverage.findings import evidence_finding
from sidecar.engines.driver import EngineUnusable
from sidecar.engines.observed import Done, NotThere, PathMissing, Refused, Transient
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.engines.vllm.http import VllmHttp
from sidecar.vllm_plugin.guard import CONTROL_HEADER, Guard
from sidecar.vllm_plugin.routes import Plugin
from tests.support.engines import BASE_MODEL, PATIENT, Asker, VllmFlags, while_it_runs
from tests.support.rig import Rig, running
from tests.support.waiting import eventually

PROMPT = "The quick brown fox jumps over the lazy dog. " * 6
LONG = 450


TOKEN = "the-control-token"  # noqa: S105 - of the test


@pytest.fixture(scope="module")
def token(tmp_path_factory) -> Path:
    """The file with the token that the plugin asks for."""
    file: Path = tmp_path_factory.mktemp("token") / "token"
    file.write_text(f"{TOKEN}\n")
    return file


def guarded(url: str) -> Asker:
    """Raw requests with the token."""
    asker = Asker(url)
    asker.client.headers[CONTROL_HEADER] = TOKEN
    return asker


@pytest.fixture
async def asker(url) -> AsyncIterator[Asker]:
    """Raw requests with the token, in place of those of all other suites."""
    asker = guarded(url)
    yield asker
    await asker.client.aclose()


@pytest.fixture(scope="module")
def guarded_flags(tiny, token) -> VllmFlags:
    """With the plugin, told whom to obey and which files may be named."""
    return VllmFlags(plugin=True, store=str(tiny.folder), control_token_file=str(token))


@pytest.fixture(params=["simulated", pytest.param("vllm", marks=pytest.mark.engine)])
async def url(request, tiny, token, guarded_flags) -> AsyncIterator[str]:
    """The URL of an engine with the plugin and without adapters, each kind in turn."""
    if request.param == "simulated":
        options = Options(
            served_model_name=BASE_MODEL,
            model=str(tiny.model),
            plugin=True,
            token_seconds=0.001,
            guard=Guard(str(tiny.folder), token),
        )
        async with serving(SimulatedVllm(options)) as url:
            yield url
        return
    real = request.getfixturevalue("real_vllm")
    await real.ensure(guarded_flags)
    asker = guarded(real.url)
    await asker.clear()
    await asker.client.aclose()
    yield real.url


@pytest.fixture
async def engine(url, token) -> AsyncIterator[VllmEngine]:
    """The driver, which has looked at the engine."""
    engine = VllmEngine(url, deadlines=PATIENT, control_token_file=token)
    assert (await engine.observe()).facts.swap == "plugin"
    yield engine
    await engine.aclose()


async def state(asker: Asker) -> dict[str, dict[str, object]]:
    """What the plugin says of each path."""
    reply = await asker.client.get("/v1/loraplane/state")
    assert reply.status_code == 200, reply.text
    return {row["path"]: row for row in reply.json()["adapters"]}


async def swap(asker: Asker, name: object, new: object, old: object) -> tuple[int, str]:
    """Status and reason of a raw swap."""
    body = {"lora_name": name, "lora_path": new, "expected_path": old}
    reply = await asker.client.post("/v1/loraplane/swap", json=body)
    return reply.status_code, reply.json()["error"]["type"] if reply.status_code != 200 else ""


async def long_text(asker: Asker, model: str) -> str:
    """A greedy answer that takes its time."""
    body = {"model": model, "prompt": "x", "max_tokens": LONG, "temperature": 0, "ignore_eos": True}
    reply = await asker.client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


async def test_the_plugin_tells_what_it_can(asker):
    """A sidecar asks once for each process."""
    about = (await asker.client.get("/v1/loraplane/plugin")).json()
    assert about["schema"] == 1
    asked = set(about["capabilities"]) - {"coverage", "proof", "expect"}
    assert asked == {"swap", "unload", "state", "uses", "changes", "base"}
    assert about["limits"] == {"max_loras": 4, "max_cpu_loras": 16, "max_lora_rank": 16}
    assert about["incarnation"] == (await asker.client.get("/v1/loraplane/state")).json()["incarnation"]


@pytest.mark.engine
async def test_real_vllm_says_what_it_applies(real_vllm, tiny, token, guarded_flags):
    """R22 applied-whole: all linear layers, embedding and head of a Llama, within 50 ms, and by name what is none."""
    await real_vllm.ensure(guarded_flags)
    engine = VllmEngine(real_vllm.url, deadlines=PATIENT, control_token_file=token)
    evidence = (await engine.observe()).facts.evidence
    await engine.aclose()
    assert evidence is not None
    assert (evidence.engine, evidence.architecture) == ("vllm 0.32.0", "LlamaForCausalLM")
    modules = read_base(tiny.model).served
    assert evidence_finding(tuple(modules), evidence) is None
    assert {"lm_head", "model.embed_tokens", "model.layers.0.self_attn.q_proj"} <= modules.keys()
    assert evidence_finding(("model.layers.0.mlp.gate",), evidence).reason == "not_taken_by_engine"
    assert evidence_finding(("model.layers.99.mlp.up_proj",), evidence).reason == "not_applied_by_engine"


async def test_swap_changes_the_weights_and_removes_the_old_ones(engine, asker, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await asker.load("x", a)
    await asker.load("y", b)
    old, new = await asker.text("x", PROMPT), await asker.text("y", PROMPT)
    before = (await state(asker))[a]["int_id"]
    assert await engine.swap("x", a, b, request_id="r") == Done()
    assert await asker.adapters() == {"x": b, "y": b}
    assert await asker.text("x", PROMPT) == new != old
    await eventually(lambda: forgotten(asker, a))
    assert before not in (await asker.client.get("/v1/loraplane/state")).json()["resident"]


async def forgotten(asker: Asker, path: str) -> bool:
    """True once nobody uses it and the engine has removed it."""
    return path not in await state(asker)


async def test_what_anybody_changes_is_told_until_it_was_looked_at(engine, asker, tiny):
    """R3 converge: by vLLM's own routes too, so that a sidecar need not look again and again."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    assert await engine.has_changed()  # the first look did not know that it could ask
    await engine.observe()
    assert not await engine.has_changed()
    await asker.load("x", a)
    assert await engine.has_changed()
    await engine.observe()
    assert not await engine.has_changed()
    await asker.text("x", PROMPT)
    assert not await engine.has_changed()
    assert await swap(asker, "x", b, a) == (200, "")
    assert await engine.has_changed()
    await engine.observe()
    await asker.unload("x")
    assert await engine.has_changed()


async def test_what_somebody_does_to_our_names_is_mended_at_once(url, asker, tiny, token, tmp_path, monkeypatch):
    """R3, R4, R11: without any look that comes because time has passed."""
    for room in ("observer", "reconciler"):
        monkeypatch.setattr(f"sidecar.loop.{room}.RESYNC_SECONDS", 3600.0)
    monkeypatch.setattr("tests.support.rig.VllmEngine", partial(VllmEngine, control_token_file=token))
    rig = Rig(tmp_path, SimulatedVllm(), url)  # it only plays the tune: the engine is at the URL
    for name in ("a", "b"):
        shutil.copytree(tiny.adapter(name), rig.sources / name)
    async with running(rig):
        rig.desire(1, a="a", b="b")
        await eventually(lambda: bool(rig.statuses) and rig.status.served.count == 2)
        ours, theirs = await asker.adapters(), tiny.adapter("c")
        expected = await asker.text("a", PROMPT)
        began = time.monotonic()
        await asker.unload("a")
        await eventually(lambda: lists(asker, ours))
        print(f"unloaded by somebody else, back after {time.monotonic() - began:.2f} s")
        await asker.unload("a")
        await asker.load("a", theirs)
        await eventually(lambda: lists(asker, ours))
        assert await asker.text("a", PROMPT) == expected
        assert await swap(asker, "a", theirs, ours["a"]) == (200, "")  # this one is below the folder that is allowed
        await eventually(lambda: lists(asker, ours))
        assert await asker.text("a", PROMPT) == expected


async def lists(asker: Asker, adapters: dict[str, str]) -> bool:
    """Whether these are loaded, and nothing else."""
    return await asker.adapters() == adapters


async def test_swap_back_answers_as_before(engine, asker, tiny):
    """Fault 23: no stale prefix cache after a rollback."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await asker.load("x", a)
    first = await asker.text("x", PROMPT)
    assert await engine.swap("x", a, b, request_id="r") == Done()
    second = await asker.text("x", PROMPT)
    assert await engine.swap("x", b, a, request_id="r") == Done()
    assert await asker.text("x", PROMPT) == first != second


@asynccontextmanager
async def in_flight(asker: Asker, name: str, path: str) -> AsyncIterator[None]:
    """A long request for a name runs as the body begins; it ends on `path`, whatever the body does to the name."""
    assert (await asker.load(name, path)).status_code == 200
    expected = await long_text(asker, name)
    running = asyncio.create_task(long_text(asker, name))
    while not (await counted(asker, path) or running.done()):
        pass
    yield
    assert await running == expected
    await eventually(lambda: forgotten(asker, path))


async def counted(asker: Asker, path: str) -> bool:
    """Whether a request is bound to it. How long one takes is up to the machine: it may have ended by now."""
    return bool((await state(asker)).get(path, {}).get("requests"))


async def test_a_request_in_flight_ends_on_its_version_and_shows_until_then(engine, asker, tiny):
    """R7 files-pinned: what a request is bound to is known exactly, from before the swap until it is removed."""
    a, b = tiny.adapter("a"), tiny.adapter("b")

    async def shows(name: str) -> bool:
        async with in_flight(asker, name, a):
            assert await engine.swap(name, a, b, request_id="r") == Done()
            row = (await state(asker)).get(a, {"requests": 0})
            if row["requests"]:
                assert (row["registered"], row["resident"], row["requests"]) == (False, True, 1)
        return bool(row["requests"])

    await while_it_runs(shows)


async def test_evidence_is_by_path_where_the_plugin_is(engine, asker, tiny):
    """R7 files-pinned, fault 24: the old version shows while it is read, though its name has the new one; then not."""
    a, b = tiny.adapter("a"), tiny.adapter("b")

    async def shows(name: str) -> bool:
        async with in_flight(asker, name, a):
            assert await engine.swap(name, a, b, request_id="r") == Done()
            evidence = await engine.drain_evidence()
            did_run = await counted(asker, a)
            if did_run:
                assert evidence.paths == {a, b}
            assert evidence.incarnation == await engine.incarnation()
        assert (await engine.drain_evidence()).paths == {b}
        return did_run

    await while_it_runs(shows)


async def test_two_versions_run_beside_others_in_more_slots_than_there_are(engine, asker, tiny):
    """Without the plugin vLLM takes two versions of a name for one, leaves one out of its slots, and dies of it."""
    a, names = tiny.adapter("a"), ["b", "c", "d", "e"]
    for name in names:
        await asker.load(name, tiny.adapter(name))
    expected = {name: await asker.text(name, PROMPT) for name in names}

    async def run_beside(name: str) -> bool:
        async with in_flight(asker, name, a):
            assert await engine.swap(name, a, tiny.adapter("b"), request_id="r") == Done()
            others = [await asker.text(other, PROMPT) for other in ("c", "d", "e")]
            assert others == [expected[other] for other in ("c", "d", "e")]
            did_run = await counted(asker, a)
            assert await asker.text(name, PROMPT) == expected["b"]
        return did_run

    await while_it_runs(run_beside)
    assert (await asker.client.get("/health")).status_code == 200


async def test_swap_to_bad_files_leaves_the_old_version_serving(engine, asker, tiny, tmp_path):
    """R8 isolation: a bad new version costs its own name nothing."""
    a = tiny.adapter("a")
    await asker.load("x", a)
    before, rows = await asker.text("x", PROMPT), await state(asker)
    outside = await engine.swap("x", a, str(tmp_path / "missing"), request_id="r")
    assert isinstance(outside, Refused)
    assert "LORAPLANE_STORE" in outside.message
    assert isinstance(await engine.swap("x", a, f"{a}-missing", request_id="r"), PathMissing)
    worse = tiny.changed("worse", rank=32)
    assert isinstance(await engine.swap("x", a, worse, request_id="r"), Refused)
    assert await asker.adapters() == {"x": a}
    assert await asker.text("x", PROMPT) == before
    await eventually(lambda: forgotten(asker, worse))
    assert (await state(asker))[a]["int_id"] == rows[a]["int_id"]


async def test_a_name_that_is_not_loaded_is_not_swapped(engine, asker, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    assert await swap(asker, "nobody", b, a) == (404, "not_loaded")
    assert isinstance(await engine.swap("nobody", a, b, request_id="r"), Transient)
    assert await engine.unload("nobody", request_id="r") == NotThere()
    assert await asker.adapters() == {}


async def test_a_swap_that_is_done_already_succeeds_and_one_from_another_path_is_refused(engine, asker, tiny):
    """A call whose answer was lost may be repeated."""
    a, b, c = (tiny.adapter(name) for name in "abc")
    await asker.load("x", a)
    assert await engine.swap("x", a, b, request_id="r") == Done()
    assert await engine.swap("x", a, b, request_id="r") == Done()
    assert await swap(asker, "x", c, a) == (409, "conflict")
    assert await asker.adapters() == {"x": b}


async def test_of_two_swaps_at_once_one_wins_whole(engine, asker, tiny):
    a, b, c = (tiny.adapter(name) for name in "abc")
    await asker.load("x", a)
    results = await asyncio.gather(swap(asker, "x", b, a), swap(asker, "x", c, a))
    assert sorted(results) == [(200, ""), (409, "conflict")]
    winner = b if results[0] == (200, "") else c
    assert await asker.adapters() == {"x": winner}
    await eventually(lambda: forgotten(asker, a))
    await eventually(lambda: forgotten(asker, c if winner == b else b))


async def test_a_client_that_gives_up_leaves_one_version_or_the_other(asker, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await asker.load("x", a)
    answers = {await asker.text("x", PROMPT)}
    for number in range(12):
        attempt = asyncio.create_task(swap(asker, "x", b, a))
        for _ in range(2 * number):
            await asyncio.sleep(0)
        attempt.cancel()
        await asyncio.gather(attempt, return_exceptions=True)
    await eventually(lambda: is_swapped(asker, "x", b, a))
    answers.add(await asker.text("x", PROMPT))
    assert await asker.adapters() == {"x": b}
    assert len(answers) == 2
    await eventually(lambda: forgotten(asker, a))


async def is_swapped(asker: Asker, name: str, new: str, old: str) -> bool:
    """False as long as an attempt that nobody waits for is under way: of two at once, one wins."""
    answer = await swap(asker, name, new, old)
    assert answer in {(200, ""), (409, "conflict")}
    return answer == (200, "")


async def test_unload_fails_new_requests_and_lets_old_ones_end(engine, asker, tiny):
    """R5 no-silent-base, R7 files-pinned."""
    a = tiny.adapter("a")

    async def fails(name: str) -> bool:
        async with in_flight(asker, name, a):
            assert await engine.unload(name, request_id="r") == Done()
            assert (await asker.complete(name, PROMPT)).status_code == 404
            return await counted(asker, a)

    await while_it_runs(fails)


FORM = {"Content-Type": "text/plain"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({CONTROL_HEADER: None}, 404),
        ({CONTROL_HEADER: None, "Origin": "https://evil.example"} | FORM, 404),
        ({CONTROL_HEADER: "another"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        (FORM, 415),
    ],
)
async def test_a_web_page_unloads_nothing(asker, tiny, headers, status):
    """X2 unbreakable: vLLM itself lets every origin and every kind of body through."""
    await asker.load("x", tiny.adapter("a"))
    sent = {**asker.client.headers, "content-type": "application/json"} | {k.lower(): v for k, v in headers.items()}
    request = httpx.Request(
        "POST",
        f"{asker.url}/v1/loraplane/unload",
        content=b'{"lora_name": "x"}',
        headers={name: value for name, value in sent.items() if value is not None},
    )
    assert (await asker.client.send(request)).status_code == status
    assert await asker.adapters() == {"x": tiny.adapter("a")}


async def test_a_driver_without_the_token_says_what_is_missing(url, tmp_path):
    """The engine serves on; a file that cannot be read is told as itself."""
    for file, said in ((None, "--control-token-file"), (tmp_path / "none", f"--control-token-file {tmp_path}/none")):
        engine = VllmEngine(url, deadlines=PATIENT, control_token_file=file)
        with pytest.raises(EngineUnusable, match=said) as caught:
            await engine.observe()
        assert caught.value.reason == "engine_unauthorized"


@pytest.fixture
async def unguarded(tiny) -> AsyncIterator[str]:
    """The URL of a simulated engine whose plugin asks for no token."""
    async with serving(SimulatedVllm(Options(served_model_name=BASE_MODEL, model=str(tiny.model), plugin=True))) as url:
        yield url


async def test_a_sidecar_of_the_release_before_does_without_a_plugin_that_is_newer(unguarded, tiny, monkeypatch):
    """It does not send the header, finds no plugin, and calls vLLM's own routes, which go on as they did."""
    monkeypatch.setattr(VllmHttp, "_headers", lambda _: {})
    older, (a, b) = VllmEngine(unguarded, deadlines=PATIENT), (tiny.adapter("a"), tiny.adapter("b"))
    assert (await older.observe()).facts.swap == "pipelined"
    assert await older.load("x", a, request_id="r") == Done()
    assert await older.swap("x", a, b, request_id="r") == Done()
    assert (await older.observe()).adapters == {"x": b}
    assert await older.unload("x", request_id="r") == Done()
    assert (await older.drain_evidence()).paths is None


async def test_a_sidecar_does_with_a_plugin_of_the_release_before_what_that_can(unguarded, tiny, monkeypatch):
    """It asks for no header and tells of no changes: those are found by looking, every 15 seconds."""
    monkeypatch.setattr(Guard, "admit", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr(Guard, "check_path", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr("sidecar.vllm_plugin.routes.CAPABILITIES", ("swap", "unload", "state", "uses"))
    monkeypatch.setattr(Plugin, "changes", lambda *_: asyncio.sleep(0, {"schema": 1, "incarnation": "p"}))
    newer, (a, b) = VllmEngine(unguarded, deadlines=PATIENT), (tiny.adapter("a"), tiny.adapter("b"))
    assert (await newer.observe()).facts.swap == "plugin"
    assert await newer.load("x", a, request_id="r") == Done()
    assert await newer.swap("x", a, b, request_id="r") == Done()
    assert (await newer.observe()).adapters == {"x": b}
    assert not await newer.has_changed()
    assert (await newer.drain_evidence()).paths == {a, b}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        (b" " * 70_000, "body"),
        (b'{"lora_path": "/a", "expected_path": "/b"}', "lora_name"),
        (b'{"lora_name": "", "lora_path": "/a", "expected_path": "/b"}', "lora_name"),
        (b'{"lora_name": 3, "lora_path": "/a", "expected_path": "/b"}', "lora_name"),
        (b'{"lora_name": "%s", "lora_path": "/a", "expected_path": "/b"}' % (b"n" * 257), "lora_name"),
        (b'{"lora_name": "x", "lora_path": "a", "expected_path": "/b"}', "lora_path"),
        (b'{"lora_name": "x", "lora_path": "/\\u0000", "expected_path": "/b"}', "lora_path"),
        (b'{"lora_name": "x", "lora_path": "/%s", "expected_path": "/b"}' % (b"p" * 4096), "lora_path"),
        (b'{"lora_name": "x", "lora_path": "/a"}', "expected_path"),
    ],
)
async def test_malformed_swaps_are_400_and_name_the_field(asker, body, field):
    """Names and bodies are bounded."""
    reply = await asker.client.post("/v1/loraplane/swap", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_argument", field, 400)
