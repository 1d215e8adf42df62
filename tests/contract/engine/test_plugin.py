"""Our plugin, inside real vLLM and inside the simulated engine alike: swaps without a gap, and who uses which files."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import httpx
import pytest

from registry.lora.base_directory import read_base
from registry.lora.coverage.findings import evidence_finding
from registry.model.records import PoolSpec
from registry.tools.devstack.engine_environment import MAX_LORAS
from registry.tools.devstack.processes import free_ports
from sidecar.engines.driver import EngineUnusable
from sidecar.engines.observed import Done, NotThere, PathMissing, Refused, Transient
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.engines.vllm.http import VllmHttp
from sidecar.vllm_plugin.answers import HEADER
from sidecar.vllm_plugin.guard import CONTROL_HEADER, Guard
from sidecar.vllm_plugin.routes import Plugin
from tests.support.engines import BASE_MODEL, PATIENT, Asker, while_it_runs
from tests.support.records import POOL
from tests.support.rig import running
from tests.support.waiting import eventually

PROMPT = "The quick brown fox jumps over the lazy dog. " * 6
LONG = 250


@pytest.fixture
def flags(plugin_flags):
    return plugin_flags


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


async def lists(asker: Asker, adapters: dict[str, str]) -> bool:
    return await asker.adapters() == adapters


async def forgotten(asker: Asker, path: str) -> bool:
    """True once nobody uses it and the engine has removed it."""
    return path not in await state(asker)


async def test_the_plugin_tells_what_it_can(asker):
    """A sidecar asks once for each process."""
    about = (await asker.client.get("/v1/loraplane/plugin")).json()
    assert about["schema"] == 1
    assert {"swap", "unload", "state", "uses", "changes", "base", "proof", "expect"} <= set(about["capabilities"])
    assert about["limits"] == {"max_loras": 4, "max_cpu_loras": 16, "max_lora_rank": 16}
    assert about["incarnation"] == (await asker.client.get("/v1/loraplane/state")).json()["incarnation"]


@pytest.mark.engine
async def test_real_vllm_says_what_it_applies(real, tiny):
    """R22 applied-whole: all linear layers, embedding and head of a Llama, within 50 ms, and by name what is none."""
    engine = real.driver()
    evidence = (await engine.observe()).facts.evidence
    await engine.aclose()
    assert evidence is not None
    assert (evidence.engine, evidence.architecture) == ("vllm 0.32.0", "LlamaForCausalLM")
    modules = read_base(tiny.model).served
    assert evidence_finding(tuple(modules), evidence) is None
    assert {"lm_head", "model.embed_tokens", "model.layers.0.self_attn.q_proj"} <= modules.keys()
    assert evidence_finding(("model.layers.0.mlp.gate",), evidence).reason == "not_taken_by_engine"
    assert evidence_finding(("model.layers.99.mlp.up_proj",), evidence).reason == "not_applied_by_engine"


@pytest.mark.engine
async def test_real_vllm_tells_routers_where_the_weights_are(real, tiny):
    """In the form that vLLM's open changes have. Its slots hold what was loaded, or asked for, last."""
    asker, slots = real.asker(), "abcde"[-MAX_LORAS:]
    for name in "abcde":
        assert (await asker.load(name, tiny.adapter(name))).status_code == 200

    async def are(in_slots: str, count: int | None, others: str) -> bool:
        lines = (await asker.client.get("/metrics")).text.splitlines()
        rows = [line for line in lines if line.startswith("vllm:lora_adapter_loaded{")]
        labels = [dict(re.findall(r'(\w+)="([^"]*)"', row)) for row in rows]
        assert all(row.endswith(" 1.0") for row in rows)
        assert {(one["pinned"], one["model_name"]) for one in labels} <= {("false", BASE_MODEL)}
        told = f'vllm:num_gpu_loaded_lora_adapters{{model_name="{BASE_MODEL}"}} {count}.0'
        most = f'vllm:max_gpu_lora_adapters{{model_name="{BASE_MODEL}"}} {MAX_LORAS}.0'
        expected = dict.fromkeys(in_slots, "gpu") | dict.fromkeys(others, "cpu")
        is_counted = count is None or told in lines
        return {one["adapter_name"]: one["level"] for one in labels} == expected and is_counted and most in lines

    await eventually(partial(are, slots, MAX_LORAS, "a"))
    await asker.text("a", PROMPT)
    await eventually(partial(are, "a" + slots[1:], MAX_LORAS, slots[0]))
    await asker.unload("a")
    await eventually(partial(are, slots[1:], None, slots[0]))
    await asker.client.aclose()


async def test_swaps_forth_and_back_change_the_weights_and_remove_the_old_ones(engine, asker, tiny):
    """Fault 23: nor is anything of a stale prefix cache answered after a rollback. A call may be repeated."""
    a, b, c = (tiny.adapter(name) for name in "abc")
    await asker.load("x", a)
    await asker.load("y", b)
    old, new = await asker.text("x", PROMPT), await asker.text("y", PROMPT)
    before = (await state(asker))[a]["int_id"]
    for _ in range(2):
        assert await engine.swap("x", a, b, request_id="r") == Done()
    assert await swap(asker, "x", c, a) == (409, "conflict")
    assert await asker.adapters() == {"x": b, "y": b}
    assert await asker.text("x", PROMPT) == new != old
    await eventually(lambda: forgotten(asker, a))
    assert before not in (await asker.client.get("/v1/loraplane/state")).json()["resident"]
    assert await engine.swap("x", b, a, request_id="r") == Done()
    assert await asker.text("x", PROMPT) == old


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


async def test_what_somebody_does_to_our_names_is_mended_at_once(rig, asker, tiny, monkeypatch):
    """R3, R4, R11: without any look that comes because time has passed."""
    for room in ("observer", "reconciler"):
        monkeypatch.setattr(f"sidecar.loop.{room}.RESYNC_SECONDS", 3600.0)
    rig.set_pool(PoolSpec(name=POOL, base_models=[BASE_MODEL], prove="off"))
    for name in ("a", "b"):
        shutil.copytree(tiny.adapter(name), rig.sources / name)
    async with running(rig):
        rig.desire(1, a="a", b="b")
        await eventually(lambda: bool(rig.statuses) and rig.status.served.count == 2)
        ours, theirs = await asker.adapters(), tiny.adapter("c")
        expected = await asker.text("a", PROMPT)
        await asker.unload("a")
        await eventually(lambda: lists(asker, ours))
        await asker.unload("a")
        await asker.load("a", theirs)
        await eventually(lambda: lists(asker, ours))
        assert await asker.text("a", PROMPT) == expected
        assert await swap(asker, "a", theirs, ours["a"]) == (200, "")  # this one is below the folder that is allowed
        await eventually(lambda: lists(asker, ours))
        assert await asker.text("a", PROMPT) == expected


@asynccontextmanager
async def in_flight(asker: Asker, name: str, path: str, expected: str) -> AsyncIterator[None]:
    """A long request for a name runs as the body begins; it ends on `path`, whatever the body does to the name."""
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
    """R5, R7 files-pinned, fault 24: from before a swap, or an unload, until it ends; beside more than there are slots.

    Without the plugin vLLM takes two versions of a name for one, leaves one out of its slots, and dies of it.
    """
    a, b = tiny.adapter("a"), tiny.adapter("b")
    for name in "bcde":
        await asker.load(name, tiny.adapter(name))
    others = {name: await asker.text(name, PROMPT) for name in "bcde"}
    await asker.load("reference", a)
    expected = await long_text(asker, "reference")
    await asker.unload("reference")

    async def shows_after_a_swap(name: str) -> bool:
        await asker.load(name, a)
        async with in_flight(asker, name, a, expected):
            assert await engine.swap(name, a, b, request_id="r") == Done()
            row = (await state(asker)).get(a, {"requests": 0})
            if row["requests"]:
                assert (row["registered"], row["resident"], row["requests"]) == (False, True, 1)
            evidence = await engine.drain_evidence()
            assert evidence.incarnation == await engine.incarnation()
            assert [await asker.text(other, PROMPT) for other in "cde"] == [others[other] for other in "cde"]
            assert await asker.text(name, PROMPT) == others["b"]
            if did_run := await counted(asker, a):
                assert a in evidence.paths
            assert b in evidence.paths
        assert a not in (await engine.drain_evidence()).paths
        return did_run

    async def shows_after_an_unload(name: str) -> bool:
        await asker.load(name, a)
        async with in_flight(asker, name, a, expected):
            assert await engine.unload(name, request_id="r") == Done()
            assert (await asker.complete(name, PROMPT)).status_code == 404
            return await counted(asker, a)

    await while_it_runs(shows_after_a_swap)
    for name in await asker.adapters():
        await asker.unload(name)
    await while_it_runs(shows_after_an_unload)
    assert (await asker.client.get("/health")).status_code == 200


@dataclass
class Sampling:
    """Asks for x until it is told to stop; keeps each answer with what it says made it."""

    asker: Asker
    is_over: bool = False
    samples: list[tuple[str | None, str]] = dataclasses.field(default_factory=list)

    def has_more_than(self, count: int) -> bool:
        return len(self.samples) > count

    async def run(self) -> None:
        while not self.is_over:
            reply = await self.asker.complete("x", PROMPT)
            assert reply.status_code == 200, reply.text
            self.samples.append((reply.headers.get(HEADER), reply.json()["choices"][0]["text"]))


async def test_answers_prove_the_version_that_made_them_while_it_is_swapped(engine, asker, tiny):
    """R26 answered-by: under load no answer says of another version that it made it, and none says nothing."""
    paths = {f"x@{number} sha256:{number:064x}": tiny.adapter(letter) for number, letter in ((1, "a"), (2, "b"))}
    texts = {}
    for proof, path in paths.items():
        await asker.load("reference", path)
        texts[proof] = await asker.text("reference", PROMPT)
        await asker.unload("reference")
    first, second = paths
    await engine.tell_versions({("x", paths[first]): first})
    await asker.load("x", paths[first])
    sampling = Sampling(asker)
    running = [asyncio.create_task(sampling.run()) for _ in range(3)]
    for old, new in ((first, second), (second, first)) * 4:
        await eventually(partial(sampling.has_more_than, len(sampling.samples) + 3))
        await engine.tell_versions({("x", paths[new]): new})
        assert await engine.swap("x", paths[old], paths[new], request_id="r") == Done()
    sampling.is_over = True
    await asyncio.gather(*running)
    assert {proof for proof, _ in sampling.samples} == {first, second}
    assert [one for one in sampling.samples if texts.get(one[0] or "") != one[1]] == []
    assert HEADER not in (await asker.complete(BASE_MODEL, PROMPT)).headers
    await asker.load("theirs", paths[second])
    assert HEADER not in (await asker.complete("theirs", PROMPT)).headers


@pytest.mark.engine
async def test_real_vllm_proves_chats_and_streams_as_well(real, flags, tiny):
    """R26 answered-by: a stream that began before a swap says what it is made by."""
    engine, a, b = real.driver(), tiny.adapter("a"), tiny.adapter("b")
    await engine.observe()
    old, new = (f"x@{number} sha256:{number:064x}" for number in (1, 2))
    await engine.tell_versions({("x", a): old, ("x", b): new})
    assert await engine.load("x", a, request_id="r") == Done()
    chat = {"model": "x", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    text = {"model": "x", "prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True, "stream": True}
    async with httpx.AsyncClient(base_url=real.url, timeout=60, trust_env=False) as client:
        async with client.stream("POST", "/v1/completions", json=text) as answer:
            assert (answer.status_code, answer.headers.get(HEADER)) == (200, old)
            assert await engine.swap("x", a, b, request_id="r") == Done()
            await answer.aread()
        for body in (chat, chat | {"stream": True}, text):
            answer = await client.post(f"/v1/{'chat/' * ('messages' in body)}completions", json=body)
            assert (answer.status_code, answer.headers.get(HEADER)) == (200, new), answer.text
        base = await client.post("/v1/chat/completions", json=chat | {"model": BASE_MODEL})
        assert (base.status_code, HEADER in base.headers) == (200, False)
    await engine.aclose()


async def test_swap_to_bad_files_leaves_the_old_version_serving(engine, asker, tiny):
    """R8 isolation: a bad new version costs its own name nothing."""
    a = tiny.adapter("a")
    await asker.load("x", a)
    before, rows = await asker.text("x", PROMPT), await state(asker)
    outside = await engine.swap("x", a, "/nowhere", request_id="r")
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


async def test_of_two_swaps_at_once_one_wins_whole(asker, tiny):
    a, b, c = (tiny.adapter(name) for name in "abc")
    await asker.load("x", a)
    results = await asyncio.gather(swap(asker, "x", b, a), swap(asker, "x", c, a))
    assert sorted(results) == [(200, ""), (409, "conflict")]
    winner, loser = (b, c) if results[0] == (200, "") else (c, b)
    assert await asker.adapters() == {"x": winner}
    for path in (a, loser):
        await eventually(lambda path=path: forgotten(asker, path))


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


async def test_a_web_page_unloads_nothing(asker, tiny):
    """X2 unbreakable: vLLM itself lets every origin and every kind of body through."""
    await asker.load("x", tiny.adapter("a"))
    evil, form = {"origin": "https://evil.example"}, {"content-type": "text/plain"}
    for headers, status in (
        ({CONTROL_HEADER: None}, 404),
        ({CONTROL_HEADER: None} | evil | form, 404),
        ({CONTROL_HEADER: "another"}, 403),
        (evil, 403),
        ({"host": "evil.example"}, 403),
        (form, 415),
    ):
        sent = {**asker.client.headers, "content-type": "application/json"} | headers
        request = httpx.Request(
            "POST",
            f"{asker.url}/v1/loraplane/unload",
            content=b'{"lora_name": "x"}',
            headers={name: value for name, value in sent.items() if value is not None},
        )
        assert (await asker.client.send(request)).status_code == status, headers
    assert await asker.adapters() == {"x": tiny.adapter("a")}


async def test_a_driver_without_the_token_says_what_is_missing(url, tmp_path):
    """The engine serves on; a file that cannot be read is told as itself."""
    for file, said in ((None, "--control-token-file"), (tmp_path / "none", f"--control-token-file {tmp_path}/none")):
        engine = VllmEngine(url, deadlines=PATIENT, control_token_file=file)
        with pytest.raises(EngineUnusable, match=said) as caught:
            await engine.observe()
        assert caught.value.reason == "engine_unauthorized"


BODIES = {
    b"{": "body",
    b"[]": "body",
    b" " * 70_000: "body",
    b'{"lora_path": "/a", "expected_path": "/b"}': "lora_name",
    b'{"lora_name": "", "lora_path": "/a", "expected_path": "/b"}': "lora_name",
    b'{"lora_name": 3, "lora_path": "/a", "expected_path": "/b"}': "lora_name",
    b'{"lora_name": "%s", "lora_path": "/a", "expected_path": "/b"}' % (b"n" * 257): "lora_name",
    b'{"lora_name": "x", "lora_path": "a", "expected_path": "/b"}': "lora_path",
    b'{"lora_name": "x", "lora_path": "/\\u0000", "expected_path": "/b"}': "lora_path",
    b'{"lora_name": "x", "lora_path": "/%s", "expected_path": "/b"}' % (b"p" * 4096): "lora_path",
    b'{"lora_name": "x", "lora_path": "/a"}': "expected_path",
}


async def test_malformed_swaps_are_400_and_name_the_field(asker):
    """Names and bodies are bounded."""
    for body, field in BODIES.items():
        reply = await asker.client.post(
            "/v1/loraplane/swap", content=body, headers={"Content-Type": "application/json"}
        )
        error = reply.json()["error"]
        assert (reply.status_code, error["type"], error["param"], error["code"]) == (
            *(400, "invalid_argument", field, 400),
        )


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


async def test_a_plugin_comes_and_goes_with_its_process(tiny):
    """Fault 18: what a process had, and was asked for, is not expected of the next one, which may be without it."""
    (port,) = free_ports(1)
    engine, seen = VllmEngine(f"http://127.0.0.1:{port}", deadlines=PATIENT), set()
    for has_plugin in (True, False, True):
        simulated = SimulatedVllm(Options(plugin=has_plugin))
        async with serving(simulated, port=port):
            for _ in range(2):
                observed = await engine.observe()
                assert dict(observed.adapters) == {}
                assert observed.facts.swap == ("plugin" if has_plugin else "pipelined")
                assert observed.facts.limits.max_cpu_loras == (16 if has_plugin else None)
            seen.add(observed.facts.incarnation)
            await engine.load("x", tiny.adapter("a"), request_id="r")
            await simulated.card_of("x")
            assert set((await engine.observe()).last_used) == ({"x"} if has_plugin else set())
    assert len(seen) == 3
    await engine.aclose()
