"""What the driver of vLLM makes of a look: which process it is, what that can do, and what it has."""

from __future__ import annotations

import asyncio
import errno
import json
from dataclasses import replace
from unittest.mock import Mock

import pytest

from sidecar.engines.driver import EngineAbsent, EngineUnreachable, EngineUnusable
from sidecar.engines.load_ledger import LoadLedger
from sidecar.engines.observed import Done, EngineLimits, EnginePaused
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.transport import Lost, Reply
from sidecar.engines.vllm.responses import PAUSED
from sidecar.vllm_plugin.protocol import Resolved
from sidecar.vllm_plugin.resolver import ResolverClient
from tests.simulation.loop import virtual
from tests.support.engine_in_memory import DEADLINES, PLAIN, URL, WITH_PLUGIN, driver_of

PROVING = replace(WITH_PLUGIN, proves=True)
PAGES = ("/metrics", "/v1/models", "/metrics")
PAGES_OF_PLUGIN = ("/metrics", "/v1/loraplane/uses", "/v1/models", "/metrics")
NO = Reply(500, b"no")


async def test_a_look_tells_the_process_and_what_it_has(a):
    """R9: what stays the same of a process is asked once; of the next one again."""
    engine = SimulatedVllm(replace(PLAIN, max_loras=7))
    driver, way = driver_of(engine, DEADLINES, limits=EngineLimits(2, 3, 4, ("q_proj",)))
    await engine.load("x", a)
    found = await driver.observe()
    assert (found.base_models, dict(found.adapters)) == (("base",), {"x": a})
    facts = found.facts
    assert (facts.kind, facts.version, facts.url) == ("vllm", "0.32.0", URL)
    assert (facts.incarnation, facts.limits) == (repr(engine.started_at), EngineLimits(2, 3, 4, ("q_proj",)))
    assert (facts.swap, facts.resolves, facts.evidence, facts.hazards) == ("pipelined", False, None, ())
    assert (facts.proves, facts.expects, found.paused, dict(found.past)) == (False, False, "", {})
    assert way.together[0] == PAGES
    assert [path for method, path, _ in way.asked[3:] if method == "GET"] == [
        "/version",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/loraplane/plugin",
        "/is_sleeping",
        "/is_paused",
        "/metrics",
    ]
    assert way.seconds == [3, 1, 1, 1, 1, 1, 1, 1]
    way.together.clear()
    await engine.generate(engine.cards["x"], "p", 1)
    assert (await driver.observe()).facts.limits.max_loras == 7, "told from the first request on"
    assert await driver.incarnation() == facts.incarnation
    assert way.together == [PAGES, ("/metrics",)]
    engine.started_at += 1
    again = (await driver.observe()).facts
    assert again.incarnation == repr(engine.started_at)
    assert ("/version",) in way.together


async def test_a_listing_of_thousands_is_read():
    """R9, R16: it has several times as many bytes as the answer to a call may have."""
    engine = SimulatedVllm(PLAIN)
    driver, _ = driver_of(engine)
    engine.cards |= {
        name: engine.card(name, f"/store/{name}") for name in map("tenant/adapter-{:05}".format, range(5000))
    }
    assert len((await driver.observe()).adapters) == 5000


async def test_a_plugin_tells_more(a):
    """Limits, uses, proofs, and how its weights are replaced; a sidecar's own numbers go before those."""
    engine = SimulatedVllm(replace(PROVING, max_loras=5, kv_connectors=("OffloadingConnector",)))
    driver, way = driver_of(engine, limits=EngineLimits(max_cpu_loras=9))
    assert (driver.swaps_alone, driver.is_concurrent) == (True, False), "nobody looked yet"
    first = await driver.observe()
    assert (driver.swaps_alone, driver.is_concurrent) == (False, True)
    assert (first.facts.swap, first.facts.proves, first.facts.expects) == ("plugin", True, True)
    assert first.facts.resolves is False, "it has no socket to ask at"
    assert first.facts.limits == EngineLimits(5, 9, 16)
    await driver.load("x", a, request_id="r")
    await engine.generate(await engine.card_of("x"), "p", 1)
    way.together.clear()
    found = await driver.observe()
    assert way.together == [PAGES_OF_PLUGIN, ("/metrics",)], "it has yet to say what it applies"
    assert set(found.last_used) == {"x"}
    way.instead["/v1/loraplane/uses"].append(
        Reply(200, b'{"schema": 1, "no_effect": ["/n"], "as_expected": ["k"], "unexpected": {"u": "so"}}')
    )
    told = await driver.observe()
    assert (told.no_effect, told.as_expected, dict(told.unexpected)) == ({"/n"}, {"k"}, {"u": "so"})
    way.instead["/v1/loraplane/uses"].append(Reply(404, b""))
    assert dict((await driver.observe()).last_used) == {}, "another process may have no such page"


@pytest.mark.parametrize("capabilities", [["swap", "unload", "state"], ["swap", "unload", "state", "changes"]])
async def test_an_earlier_plugin_is_asked_for_no_more_than_it_has(capabilities):
    """Its sidecar may be newer than it."""
    engine = SimulatedVllm(PROVING)
    driver, way = driver_of(engine)
    about = {"schema": 1, "capabilities": capabilities}
    way.instead["/v1/loraplane/plugin"].append(Reply(200, json.dumps(about).encode()))
    for _ in range(2):
        facts = (await driver.observe()).facts
    assert (facts.swap, facts.proves, facts.limits) == ("plugin", False, EngineLimits())
    assert (await driver.has_changed(), (await driver.activity()).last_used) == (False, None)
    asked = {path for _, path, _ in way.asked}
    assert not asked & {"/v1/loraplane/uses", "/v1/loraplane/changes", "/v1/loraplane/coverage"}


@virtual
async def test_a_process_is_asked_what_it_applies_until_it_says_it_and_seldom_after_three_looks():
    """R22: that it does not say it is no reason not to drive it; one that hangs may say it when it is well again."""
    coverage = {"schema": 1, "architecture": "A", "applied": ["q_proj"], "taken": ["q_proj"], "renames": [{}, {}, {}]}
    said = Reply(200, json.dumps(coverage).encode())
    about = Reply(200, json.dumps({"schema": 1, "capabilities": ["swap", "unload", "state", "coverage"]}).encode())
    for answers, asked in (([said], 1), ([NO, Lost("no"), said], 3), ([Reply(404, b"")] * 3, 3), ([NO] * 5, 3)):
        driver, way = driver_of(SimulatedVllm(PROVING), DEADLINES)
        way.instead["/v1/loraplane/plugin"].append(about)
        way.instead["/v1/loraplane/coverage"].extend(answers)
        found = [(await driver.observe()).facts.evidence for _ in range(6)]
        assert [path for _, path, _ in way.asked].count("/v1/loraplane/coverage") == asked
        is_said = said in answers
        assert [one is not None for one in found] == [is_said and number >= asked for number in range(1, 7)]
        assert not is_said or (found[-1] is not None and found[-1].engine == "vllm 0.32.0")
        if not is_said:
            way.instead["/v1/loraplane/coverage"].clear()
            way.instead["/v1/loraplane/coverage"].append(said)
            await asyncio.sleep(59.0)
            assert (await driver.observe()).facts.evidence is None
            await asyncio.sleep(1.0)
            assert (await driver.observe()).facts.evidence is not None


READ = Reply(200, json.dumps({"schema": 1, "config": {}, "tensors": {"F32 4 2": ["q.weight"]}}).encode())
READING = Reply(200, b'{"schema": 1, "reading": true}')
NO_FOLDER = Reply(200, b'{"schema": 1, "path": "/m", "problem": "no such folder"}')


@pytest.mark.parametrize(
    ("answers", "awaited", "is_told"),
    [
        ([READ], [False], True),
        ([READING, READ], [True, False], True),
        ([NO, READ], [True, False], True),
        ([NO_FOLDER], [False], False),
        ([Reply(404, b"")], [False], False),
        ([NO] * 60, [True] * 59 + [False], False),
    ],
    ids=["told", "reading", "late", "no folder", "no page", "never"],
)
async def test_what_its_base_model_is_is_waited_for_while_it_may_be_told(answers, awaited, is_told):
    """R23 same-base: nothing is loaded before that, and an engine that never says it is driven all the same."""
    driver, way = driver_of(SimulatedVllm(PROVING), DEADLINES)
    about = {"schema": 1, "capabilities": ["swap", "unload", "state", "coverage", "base"]}
    applied = {"schema": 1, "architecture": "A", "applied": ["q"], "taken": [], "renames": [{}, {}, {}]}
    way.instead["/v1/loraplane/plugin"].append(Reply(200, json.dumps(about).encode()))
    way.instead["/v1/loraplane/coverage"].append(Reply(200, json.dumps(applied | {"shapes": {"4 2": ["q"]}}).encode()))
    way.instead["/v1/loraplane/base"].extend(answers)
    found = [(await driver.observe()).facts for _ in range(len(awaited) + 1)]
    assert [bool(one.base.awaited) for one in found] == [*awaited, False]
    assert [path for _, path, _ in way.asked].count("/v1/loraplane/base") == len(awaited)
    base = found[-1].base
    assert (base.files is not None, found[-1].base_path) == (is_told, "/models/base")
    assert (base.shapes, base.evidence, base.is_known) == ({"q": (4, 2)}, found[-1].evidence, True)
    assert base.evidence is not None


@pytest.mark.parametrize("options", [PLAIN, PROVING], ids=["plain", "plugin"])
@pytest.mark.parametrize("asked", ["/v1/models", "/version", "/v1/loraplane/plugin"])
async def test_a_restart_within_a_look_is_noticed(options, asked):
    """R9 status-truth: a listing belongs to one process, and so does what it is asked once."""
    engine = SimulatedVllm(options)
    driver, way = driver_of(engine)
    way.before[asked] = lambda: setattr(engine, "started_at", engine.started_at + 1)
    with pytest.raises(EngineUnreachable, match="restarted"):
        await driver.observe()
    way.before.clear()
    assert (await driver.observe()).facts.incarnation == repr(engine.started_at)


async def test_whether_it_has_other_adapters_than_at_the_last_look(a):
    """R6, R11: whoever did it; an engine that does not tell is not asked."""
    engine = SimulatedVllm(PROVING)
    driver, way = driver_of(engine, DEADLINES)
    assert await driver.has_changed() is False
    assert way.asked == [], "nobody knows yet that it can be asked"
    await driver.observe()
    assert await driver.has_changed() is True, "that look did not know that it can tell"
    await driver.observe()
    assert await driver.has_changed() is False
    await engine.load("x", a)
    way.seconds.clear()
    assert await driver.has_changed() is True
    assert way.seconds == [1]
    way.instead["/v1/loraplane/changes"].extend([Reply(404, b""), Reply(200, b"{}")])
    assert [await driver.has_changed() for _ in range(3)] == [False, False, True]
    another = b'{"schema": 1, "incarnation": "of another process", "changes": 99}'
    way.instead["/v1/loraplane/changes"].append(Reply(200, another))
    assert await driver.has_changed() is False, "of another life nothing can be said"
    await driver.observe()
    assert await driver.has_changed() is False
    plain, way = driver_of(SimulatedVllm(PLAIN))
    await plain.observe()
    way.asked.clear()
    assert (await plain.has_changed(), way.asked) == (False, [])


@pytest.mark.parametrize("options", [PLAIN, PROVING], ids=["plain", "plugin"])
async def test_a_paused_engine_gets_no_call(options, a):
    """R18, R8: nor is it asked for a token, for which it would wait; once it goes on, it gets every one."""
    engine = SimulatedVllm(replace(options, development=True))
    driver, way = driver_of(engine, DEADLINES)
    assert ((await driver.observe()).paused, driver.paused) == ("", "")
    assert await driver.load("x", a, request_id="r") == Done()
    await way.ask("POST", "/pause")
    way.asked.clear()
    paused = EnginePaused(PAUSED)
    for _ in range(2):
        assert await driver.load("y", a, request_id="r") == paused
        assert await driver.swap("x", a, a, request_id="r") == paused
        assert await driver.unload("x", request_id="r") == paused
        assert await driver.prove(a, request_id="r") == paused
        assert (await driver.turns(), await driver.pulse()) == (False, None)
    assert {path for _, path, _ in way.asked} == {"/is_sleeping", "/is_paused"}
    found = await driver.observe()
    assert (found.paused, dict(found.adapters)) == (PAUSED, {"x": a})
    await way.ask("POST", "/resume")
    way.instead["/is_paused"].append(NO)
    assert driver.paused
    assert await driver.load("y", a, request_id="r") == paused, "what does not say it is what it was"
    assert await driver.load("y", a, request_id="r") == Done()
    assert ((await driver.observe()).paused, driver.paused) == ("", "")
    assert await driver.unload("y", request_id="r") == Done()
    await way.ask("POST", "/pause")
    assert (await driver.observe()).paused
    engine.started_at += 1
    way.instead["/is_paused"].append(NO)
    way.instead["/is_sleeping"].extend([None, NO])
    assert (await driver.observe()).paused == "", "of another process nothing was said yet"


@pytest.mark.parametrize("path", ["/sleep", "/pause"])
@pytest.mark.parametrize("missing", ["/is_sleeping", "/is_paused"])
async def test_either_page_tells_that_it_is_paused(path, missing):
    """R18: a release has one of them, or both; a page that is slow to answer is there."""
    engine = SimulatedVllm(replace(PLAIN, development=True))
    driver, way = driver_of(engine, DEADLINES)
    way.instead[missing].append(Reply(404, b""))
    way.instead[({"/is_sleeping", "/is_paused"} - {missing}).pop()].append(Lost("late"))
    await driver.observe()
    way.asked.clear()
    await way.ask("POST", path)
    found = await driver.observe()
    assert found.paused
    assert missing not in {asked for _, asked, _ in way.asked}


async def test_one_of_two_pages_that_says_nothing_leaves_what_was():
    """R19: unless the other one says that it is paused."""
    engine = SimulatedVllm(replace(PLAIN, development=True))
    driver, way = driver_of(engine)
    says = [(b'{"is_paused": true}', True), (b"{}", True), (b'{"is_paused": false}', False), (b"?", False)]
    await driver.observe()
    for body, is_paused in says:
        way.instead["/is_paused"].append(Reply(200, body))
        assert bool((await driver.observe()).paused) is is_paused
    way.instead["/is_sleeping"].append(Reply(200, b"{}"))
    way.instead["/is_paused"].append(Reply(200, b'{"is_paused": true}'))
    assert (await driver.observe()).paused


async def test_that_it_sleeps_is_told_by_its_metrics_alone(a):
    """R18: as where it was not started in its development mode; the probe of its identity tells it too."""
    engine = SimulatedVllm(PROVING)
    driver, way = driver_of(engine)
    await driver.observe()
    for look in (driver.incarnation, driver.observe):
        engine.pause(is_paused=True, sleeps=True)
        await look()
        assert "sleeps" in driver.paused
        assert isinstance(await driver.load("x", a, request_id="r"), EnginePaused)
        assert await driver.turns() is False
        engine.pause(is_paused=False, sleeps=False)
        await look()
        assert driver.paused == ""
    assert way.changes == []


ROUTES_OFF = replace(PLAIN, runtime_lora=False)
PROCESS, COUNTS = "process_start_time_seconds 1.5\n", "# TYPE vllm:num_requests_running gauge\n"


@pytest.mark.parametrize(
    ("options", "metrics", "reason"),
    [
        (ROUTES_OFF, None, "runtime_lora_disabled"),
        (replace(PLAIN, version="0.9.2"), None, "engine_unsupported"),
        (PLAIN, f"{COUNTS}# EOF\n", "rust_frontend"),
        (PLAIN, COUNTS, "several_api_servers"),
        (ROUTES_OFF, PROCESS + COUNTS, "lora_disabled"),
        (PLAIN, f"{PROCESS}{COUNTS}# TYPE vllm:lora_requests_info gauge\n", ""),
        (PLAIN, PROCESS, ""),
    ],
    ids=["routes", "release", "rust", "several servers", "adapters", "none", "nothing is known without statistics"],
)
async def test_what_cannot_be_driven_is_named(options, metrics, reason):
    """Of two reasons by the one that says more."""
    driver, way = driver_of(SimulatedVllm(options))
    way.instead["/metrics"].extend([None if metrics is None else Reply(200, metrics.encode())] * 3)
    if not reason:
        assert (await driver.observe()).facts.incarnation == "1.5"
        return
    with pytest.raises(EngineUnusable) as told:
        await driver.observe()
    assert told.value.reason == reason
    assert f"{told.value}" == told.value.message, "which is told in logs as it is in the status"


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
async def test_a_missing_route_is_said_by_its_name_and_an_engine_that_goes_away_meanwhile_is_absent(path):
    """R18: that one is told as one that nobody reaches, and not as one whose routes are odd."""
    driver, way = driver_of(SimulatedVllm(PLAIN))
    way.instead[path].extend([Reply(404, b"")] * 3)
    with pytest.raises(EngineUnusable, match=path):
        await driver.observe()
    way.before[path] = lambda: setattr(way, "is_there", False)
    with pytest.raises(EngineAbsent):
        await driver.observe()


@pytest.mark.parametrize("path", ["/metrics", "/version", "/v1/models", "/v1/loraplane/plugin"])
@pytest.mark.parametrize("answer", [NO, Lost("it broke")], ids=["status", "lost"])
async def test_a_page_that_fails_makes_the_look_worthless(path, answer):
    """R9: unknown is not empty."""
    driver, way = driver_of(SimulatedVllm(PLAIN))
    way.instead[path].append(answer)
    with pytest.raises(EngineUnreachable):
        await driver.observe()
    assert (await driver.observe()).base_models == ("base",)
    way.is_there = False
    with pytest.raises(EngineAbsent):
        await driver.observe()


async def test_a_connector_that_shows_only_once_it_is_used_makes_names_keep_their_weights(a):
    """R4: what a name had is recorded from then on; of a connector whose cache outlives the process, for ever.

    The next process is not given other weights under that name before it has had a request, by which alone it tells.
    """
    engine = SimulatedVllm(replace(PLAIN, kv_connectors=("Own",)))
    driver, way = driver_of(engine)
    await driver.observe()
    assert driver.is_concurrent is True
    await engine.generate(None, "p", 1)
    found = await driver.observe()
    assert (found.facts.swap, [one.reason for one in found.facts.hazards]) == ("refused", ["kv_connector"])
    assert driver.is_concurrent is False
    way.together.clear()
    assert (await driver.observe()).facts == found.facts
    assert way.together == [PAGES], "R16: what is known is not looked at twice"
    assert await driver.load("x", a, request_id="r") == Done()
    engine.started_at += 1
    engine.tokens = engine.prompt_tokens = 0
    found = await driver.observe()
    assert (found.facts.swap, dict(found.past), driver.is_concurrent) == ("refused", {"x": a}, False)
    assert await driver.load("y", a, request_id="r") == Done()
    await engine.generate(None, "p", 1)
    assert dict((await driver.observe()).past) == {"x": a, "y": a}
    engine.started_at += 1
    engine.tokens = engine.prompt_tokens = 0
    engine.options = replace(engine.options, kv_connectors=())
    await driver.observe()
    await engine.generate(None, "p", 1)
    found = await driver.observe()
    assert (found.facts.swap, dict(found.past), driver.is_concurrent) == ("pipelined", {}, True), "it has none"


async def test_what_cannot_be_read_of_a_connector_before_is_not_taken_for_none(tmp_path, monkeypatch):
    """R4: for want of descriptors, say."""
    driver, _ = driver_of(SimulatedVllm(PLAIN), past=LoadLedger(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr("sidecar.engines.load_ledger.read_file", Mock(side_effect=OSError(errno.ENFILE, "none is left")))
        with pytest.raises(EngineUnreachable, match="none is left"):
            await driver.observe()
    assert (await driver.observe()).facts.swap == "pipelined"


LOAD = "/v1/load_lora_adapter"
VLLMS = json.dumps({"error": {"message": "so", "type": "T", "param": None, "code": 404}}).encode()


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([Reply(405, b"")], None),
        *(([Reply(404, b""), Reply(status, b"")], None) for status in (400, 422, 500)),
        *(([Reply(404, b""), Reply(status, VLLMS)], None) for status in (404, 501)),
        *(([Reply(404, b""), Reply(status, b"")], EngineUnusable) for status in (401, 405, 501)),
        ([Reply(404, b""), Reply(404, b'{"detail": "Not Found"}')], EngineUnusable),
        *(([Reply(404, b""), answer], EngineUnreachable) for answer in (Reply(502, VLLMS), Lost("it broke"))),
        *(([Reply(status, b"")], EngineUnreachable) for status in (200, 500)),
        ([Reply(403, b"")], EngineUnusable),
    ],
)
async def test_whether_there_is_a_route_is_asked_without_doing_anything(answers, error):
    """R9: of what stands between and answers otherwise nothing is concluded."""
    driver, way = driver_of(SimulatedVllm(PLAIN), DEADLINES)
    way.instead[LOAD].extend(answers)
    if error is None:
        await driver.observe()
    else:
        with pytest.raises(error):
            await driver.observe()
    asked = [(method, body) for method, path, body in way.asked if path == LOAD]
    assert asked == [("GET", {}), ("POST", {})][: len(answers)]


@pytest.mark.parametrize(
    ("set_here", "found"),
    [
        (EngineLimits(), EngineLimits(5, 16, 8)),
        (EngineLimits(max_lora_rank=4), EngineLimits(5, 16, 4)),
        (EngineLimits(max_lora_rank=64), EngineLimits(5, 16, 8)),
        (EngineLimits(2, 3, 8, ("q_proj",)), EngineLimits(2, 3, 8, ("q_proj",))),
    ],
    ids=str,
)
async def test_what_is_set_and_what_the_plugin_tells_of_its_limits_count_together(set_here, found):
    """R8: of two ranks the lower one, so that nothing is loaded that either says is too high."""
    engine = SimulatedVllm(replace(PROVING, max_loras=5, max_lora_rank=8))
    driver, _ = driver_of(engine, limits=set_here)
    assert (await driver.observe()).facts.limits == found


async def test_a_plugin_with_a_resolver_serves_names_that_are_not_loaded(a, monkeypatch):
    """R5: what the sidecar does not know is an error, and never the base's answer."""
    engine = SimulatedVllm(replace(PROVING, resolver="/nowhere/socket"))
    driver, way = driver_of(engine)
    assert (await driver.observe()).facts.resolves is True

    async def find(_: ResolverClient, name: str, base_model: str) -> Resolved | None:
        assert base_model == "/models/base"
        return Resolved(a) if name == "x" else None

    monkeypatch.setattr(ResolverClient, "find", find)
    for name, status in (("x", 200), ("y", 404)):
        reply = await way.ask("POST", "/v1/completions", {"model": name, "prompt": "p"})
        assert isinstance(reply, Reply)
        assert reply.status == status
    assert dict((await driver.observe()).adapters) == {"x": a}
