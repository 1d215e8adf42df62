"""Proofs of adapters inside the API server, on one that is played."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from sidecar.engines.driver import SerialEngine
from sidecar.engines.observed import Done
from sidecar.engines.simulated.app import SimulatedServer
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.vllm_plugin import proof as module
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.proof import Prover, compared, has_products
from sidecar.vllm_plugin.protocol import (
    ExpectedAnswers,
    PromptedAnswer,
    Resolved,
    Step,
    expected_key,
    write_expected,
)
from sidecar.vllm_plugin.server import EngineAdapter, EngineRefused, FilesMissing
from tests.simulation.loop import virtual
from tests.support.waiting import eventually
from tests.unit.vllm_plugin.played import PlayedServer

BASE = (-1.0, -2.0)


def steps(logprobs: Sequence[float]) -> tuple[Step, ...]:
    """An answer of one token with these logprobs."""
    return ((0, dict(enumerate(logprobs))),)


def adapter(folder: Path, number: float = 1.0, name: str = "q_proj.lora_B.weight") -> str:
    """A directory with an adapter whose lora_B is this number everywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    entries = {"q_proj.lora_A.weight": (0, 8), name: (8, 16)}
    header = json.dumps({key: {"data_offsets": span} for key, span in entries.items()} | {"__metadata__": {}}).encode()
    weights = len(header).to_bytes(8, "little") + header + struct.pack("<4f", 1, 1, number, number)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return str(folder)


def server_of(adapted: tuple[float, ...] | Exception, gate: asyncio.Event | None = None) -> PlayedServer:
    """Answers the base with BASE, and an adapter so."""

    async def prober(one: EngineAdapter | None, _prompt: Sequence[int], _tokens: int) -> tuple[Step, ...]:
        if gate is not None:
            await gate.wait()
        if one is None:
            return steps(BASE)
        if isinstance(adapted, Exception):
            raise adapted
        return steps(adapted)

    return PlayedServer(prober=prober)


@pytest.mark.parametrize(
    ("adapted", "base", "proof"),
    [
        ((-1.0, -2.1), BASE, "effect"),
        (BASE, BASE, "no_effect"),
        ((-1.0,), BASE, "effect"),
        ((-1.0, -2.0000001), BASE, "effect"),
        ((math.nan, -2.0), BASE, "not_finite"),
        ((-math.inf, -2.0), BASE, "not_finite"),
        ((math.nan, -2.0), (math.nan, -2.0), "unknown"),
    ],
)
def test_answers_are_compared_to_the_last_bit(adapted, base, proof):
    """R22 applied-whole."""
    assert compared(adapted, base) == proof


async def test_what_shows_nothing_in_one_token_is_asked_for_more(tmp_path):
    """R22 applied-whole, R8: experts of the last layer see few tokens, and nothing right is refused for that."""
    asked = []

    async def prober(one: EngineAdapter | None, _prompt: Sequence[int], tokens: int) -> tuple[Step, ...]:
        asked.append(tokens)
        return steps((-3.0,) if one is not None and tokens >= shown_at else BASE)

    for shown_at, expected in ((32, [1, 1, 32, 32]), (1, [1, 1])):
        asked.clear()
        path = adapter(tmp_path / f"{shown_at}")
        assert (await Adapters(PlayedServer(prober=prober)).prove(path))["proof"] == "effect"
        assert asked == expected


@pytest.mark.parametrize(
    ("adapted", "proof"),
    [(BASE, "no_effect"), ((-1.0, -3.0), "effect"), (RuntimeError("no"), "unknown"), (None, "unknown")],
)
async def test_an_adapter_is_proven_under_no_name_and_removed(tmp_path, adapted, proof):
    """R22, R19: no name is bound to it; what is wrong with a prompt, or cannot be asked, is no reason against it."""
    server, path = PlayedServer() if adapted is None else server_of(adapted), adapter(tmp_path / "a")
    adapters = Adapters(server)
    assert ("proof" in adapters.abilities) is (adapted is not None)
    told = await adapters.prove(path)
    assert (told["proof"], bool(told["message"])) == (proof, proof == "no_effect")
    assert (server.paths(), server.memory) == ({}, set())
    assert server.calls == ([("add", 1), ("remove", 1)] if adapted is not None else [])
    assert adapters.prover.without_effect == ([path] if proof == "no_effect" else [])
    assert (adapters.prover.as_expected, adapters.prover.unexpected) == ([], {}), "of who expects nothing"
    if proof != "unknown":
        assert [(await adapters.prove(path, more))["proof"] for more in ("", *[WANTED] * (adapted == BASE))][
            -1
        ] == proof
        assert len(server.calls) == 2


@pytest.mark.parametrize("name", ["q_proj.lora_B.weight", "embed_tokens.lora_embedding_B"])
async def test_an_adapter_that_was_never_trained_is_right_to_have_no_effect(tmp_path, name):
    for number, proof in ((0.0, "effect"), (1.0, "no_effect")):
        assert await Prover(server_of(BASE)).prove(adapter(tmp_path / proof, number, name)) == proof


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 16,
        *(
            len(header).to_bytes(8, "little") + header
            for header in (
                b"{]",
                b"[]",
                b'{"lora_B": {}}',
                b'{"lora_B": 7}',
                b'{"lora_B": {"data_offsets": 7}}',
                b'{"lora_B": {"data_offsets": [0]}}',
                b'{"lora_B": {"data_offsets": ["0", 4]}}',
                b'{"lora_B": {"data_offsets": [-99, 4]}}',
            )
        ),
    ],
)
async def test_weights_that_cannot_be_read_prove_nothing(tmp_path, content):
    """X2 unbreakable."""
    path = adapter(tmp_path / "a")
    (tmp_path / "a" / "adapter_model.safetensors").write_bytes(content)
    assert await Prover(server_of(BASE)).prove(path) == "effect"


@pytest.mark.parametrize("alone", [(-7.0,), RuntimeError("no")])
async def test_what_equals_a_base_that_it_ran_over_into_is_not_accused(tmp_path, alone):
    """R22, R8: vLLM's CPU build applies what is in its last slot to requests for the base in the same step."""
    server = server_of(BASE)

    async def prober(one: EngineAdapter | None, _prompt: Sequence[int], _tokens: int) -> tuple[Step, ...]:
        if one is not None or server.memory:
            return steps(BASE)
        if isinstance(alone, Exception):
            raise alone
        return steps(alone)

    server.prober = prober
    assert await Prover(server).prove(adapter(tmp_path / "a")) == "unknown"


async def test_an_adapter_that_the_engine_refuses_is_refused(tmp_path):
    server = server_of(BASE)
    server.fails = RuntimeError("rank")
    with pytest.raises(EngineRefused, match="rank"):
        await Adapters(server).prove(adapter(tmp_path / "a"))
    with pytest.raises(FilesMissing):
        await Adapters(server).prove(str(tmp_path / "nowhere"))


async def test_a_full_engine_is_asked_later(tmp_path, monkeypatch):
    """R18, R19: neither the load nor anybody's request waits; what is not registered in time is left out."""
    server, paths = server_of(BASE), [adapter(tmp_path / name) for name in ("gone", "a", "b")]
    adapters = Adapters(server)
    server.is_full = True
    assert [(await adapters.prove(path))["proof"] for path in paths] == ["later"] * 3
    with pytest.raises(FilesMissing):
        await adapters.prove(str(tmp_path / "nowhere"))
    for name, path in zip("ab", paths[1:], strict=True):
        server.load(name, path)
    adapters.prover.look_later()
    assert (adapters.prover.without_effect, server.calls) == ([], [])
    server.is_full, before = False, adapters.changes
    await eventually(lambda: adapters.prover.look_later() or adapters.prover.without_effect == paths[1:])
    assert (len(server.calls), adapters.changes) == (4, before + 2), "who polls the count looks at once"
    monkeypatch.setattr(module, "COMING_SECONDS", 0.0)
    assert (await adapters.prove(paths[0]))["proof"] == "no_effect"  # and not late
    gone = adapter(tmp_path / "gone too")
    server.is_full = True
    assert (await adapters.prove(gone))["proof"] == "later"
    server.is_full = False
    adapters.prover.look_later()
    server.load("gone too", gone)
    adapters.prover.look_later()
    await asyncio.sleep(0)
    assert len(server.calls) == 6


@pytest.mark.parametrize(("prove", "expect"), [(True, ""), (True, "WANTED"), (False, "")])
async def test_a_lazy_adapter_is_proven_after_its_first_request(tmp_path, prove, expect):
    """R22 applied-whole, R19: the request does not wait; the pool decides whether it is proven at all."""
    path, expect = adapter(tmp_path / "a"), WANTED if expect else ""
    server = answering(OTHERWISE) if expect else server_of(BASE)
    sidecar = Mock(find=AsyncMock(return_value=Resolved(path, prove=prove, expect=expect)))
    adapters = Adapters(server, sidecar)
    found = await adapters.resolve("x", "/base")
    sidecar.find.assert_awaited_once_with("x", "/base")
    assert found is not None
    adapters.prover.look_later()
    assert server.calls == [], "vLLM has not loaded it yet"
    server.registered["x"] = found
    if not prove:
        adapters.prover.look_later()
        await asyncio.sleep(0)
        assert server.calls == []
        return
    wanted = ([], [expected_key(path, expect)]) if expect else ([path], [])
    told = lambda: (adapters.prover.without_effect, list(adapters.prover.unexpected))  # noqa: E731
    await eventually(lambda: adapters.prover.look_later() or told() == wanted)
    assert await adapters.resolve("x", "/base") is not None  # that it is refused is the sidecar's answer
    calls = len(server.calls)
    adapters.prover.look_later()
    await asyncio.sleep(0)
    assert len(server.calls) == calls, "what is known is not asked again"


async def test_what_was_put_off_waits_while_the_engine_cannot_be_asked(tmp_path):
    """R22: and is asked once it can be."""
    server, path = server_of(BASE), adapter(tmp_path / "a")
    prover, prober = Prover(server), server.prober
    prover.prove_later(path)
    server.load("x", path)
    server.prober = None
    prover.look_later()
    await asyncio.sleep(0)
    assert (server.calls, prover.without_effect) == ([], [])
    server.prober = prober
    await eventually(lambda: prover.look_later() or prover.without_effect == [path])


async def test_a_proof_that_takes_long_holds_no_load_up(tmp_path, monkeypatch):
    """R18, R19: it goes on, and is told of when it ends; meanwhile no other begins."""
    gate = asyncio.Event()
    server, prover = server_of(BASE, gate), None
    prover = Prover(server, seconds=0)
    first, second = adapter(tmp_path / "a"), adapter(tmp_path / "b")
    assert [await prover.prove(path) for path in (first, second)] == ["later", "later"]
    monkeypatch.setattr(module, "MAX_REMEMBERED", 1)
    assert await prover.prove(adapter(tmp_path / "c")) == "later"  # and is not even remembered
    server.load("b", second)
    prover.look_later()
    gate.set()
    await eventually(lambda: prover.without_effect == [first])
    prover.look_later()
    await eventually(lambda: prover.without_effect == [second])  # R16: of so many that are remembered


@virtual
async def test_a_load_waits_four_seconds_for_a_proof(tmp_path):
    """R19: and no longer, for what the engine cannot answer by then."""
    gate, loop = asyncio.Event(), asyncio.get_running_loop()
    prover = Prover(server_of((-1.0, -3.0), gate), module.PROOF_SECONDS)
    assert await prover.prove(adapter(tmp_path / "a")) == "later"
    assert loop.time() == pytest.approx(4.0, abs=0.1)
    gate.set()
    await asyncio.sleep(1.0)
    assert await prover.prove(str(tmp_path / "a")) == "effect"
    gate.clear()
    loop.call_later(3.5, gate.set)
    assert await prover.prove(adapter(tmp_path / "b")) == "effect"


@pytest.mark.parametrize(("seconds", "is_proven"), [(119.5, True), (120.5, False)])
@virtual
async def test_what_is_registered_within_two_minutes_is_proven(tmp_path, seconds, is_proven):
    """R22: what comes later was not that load, and what never comes is not remembered for ever."""
    server = server_of(BASE)
    prover, path = Prover(server), adapter(tmp_path / "a")
    server.is_full = True
    prover.prove_later(path)
    await asyncio.sleep(seconds)
    prover.look_later()
    server.is_full = False
    prover.look_later()
    server.load("a", path)
    prover.look_later()
    await asyncio.sleep(1.0)
    assert prover.without_effect == ([path] if is_proven else [])


@pytest.mark.parametrize(
    ("entries", "content", "is_trained"),
    [
        ({"q.lora_B.weight": (0, 4)}, bytes(4), False),
        ({"q.lora_B.weight": (0, 4)}, b"\0\0\0\1", True),
        ({"q.lora_A.weight": (0, 4), "q.lora_B.weight": (4, 8)}, b"\1" * 4 + bytes(4), False),
        ({"q.lora_A.weight": (4, 8), "q.lora_B.weight": (0, 4)}, bytes(4) + b"\1" * 4, False),
        ({"q.lora_A.weight": (12, 16), "q.lora_B.weight": (4, 8)}, bytes(8) + b"\1" * 8, False),
        ({"q.lora_B.weight": (0, 0)}, b"", False),
        ({"q.lora_B.weight": (0, 3 << 20)}, bytes((3 << 20) - 1) + b"\1", True),
        ({"q.lora_B.weight": (0, (1 << 20) + 7)}, bytes((1 << 20) + 6) + b"\1", True),
        ({"q.lora_B.weight": (0, (1 << 20) + 7)}, bytes((1 << 20) + 7) + b"\1", False),
        ({"a.lora_B.weight": (0, 4), "b.lora_B.weight": (4, 8)}, bytes(4) + b"\1" * 4, True),
        ({"lora_embedding_B": (0, 4)}, b"\1" * 4, True),
        ({"lora_embedding_A": (0, 4)}, b"\1" * 4, False),
    ],
    ids=lambda value: f"{value}"[:60],
)
def test_an_adapter_is_trained_if_any_product_is_not_zero(tmp_path, entries, content, is_trained):
    """R8: read in pieces, to the last byte of each and to none beside it."""
    header = json.dumps({name: {"data_offsets": span} for name, span in entries.items()}).encode()
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + content)
    assert has_products(tmp_path) is is_trained


async def test_a_proof_that_was_put_off_and_fails_is_told_in_a_line(tmp_path, caplog):
    """R18: nobody waits for it, and the next one is begun all the same."""
    server, paths = server_of(BASE), [adapter(tmp_path / name) for name in "ab"]
    prover = Prover(server)
    server.is_full = True
    for name, path in zip("ab", paths, strict=True):
        assert await prover.prove(path) == "later"
        server.load(name, path)
    server.is_full, server.fails = False, RuntimeError("rank")
    prover.look_later()
    await eventually(lambda: ("remove", 3) in server.calls)
    server.fails = None
    await eventually(lambda: prover.look_later() or prover.without_effect == paths[1:])
    assert "a proof failed: rank" in caplog.text
    assert "never retrieved" not in caplog.text


async def test_a_proof_that_is_cancelled_ends_quietly(tmp_path):
    server = server_of(BASE, asyncio.Event())
    prover = Prover(server, seconds=0)
    assert await prover.prove(adapter(tmp_path / "a")) == "later"
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await eventually(lambda: ("remove", 1) in server.calls)


RIGHT = PromptedAnswer((5, 6), (7, 8), (-0.5, -1.0))
WANTED = write_expected(ExpectedAnswers((RIGHT, PromptedAnswer((9,), (7,))), 0.1))
OTHER = write_expected(ExpectedAnswers((RIGHT,), 0.01))


def answering(found: Sequence[Step] | Exception, asked: list[object] | None = None) -> PlayedServer:
    """Answers the base otherwise than any adapter, and each expected prompt so."""

    async def prober(one: EngineAdapter | None, prompt: Sequence[int], tokens: int) -> tuple[Step, ...]:
        if len(prompt) > 2:
            return steps(BASE if one is None else (-3.0,))
        assert one is not None, "the base is asked for nothing that is expected of an adapter"
        if asked is not None:
            asked.append((tuple(prompt), tokens))
        if isinstance(found, Exception):
            raise found
        return tuple(found[:tokens])

    return PlayedServer(prober=prober)


AS_TRAINED: list[Step] = [(7, {7: -0.52, 1: -2.0}), (8, {8: -1.0})]
OTHERWISE: list[Step] = [(7, {7: -0.9, 1: -2.0}), (8, {8: -1.0})]


async def test_an_adapter_that_answers_as_its_record_expects_is_right(tmp_path):
    """R22 applied-whole: what it was asked is remembered, and another expectation is another question."""
    asked: list[object] = []
    server, path = answering(AS_TRAINED, asked), adapter(tmp_path / "a")
    adapters = Adapters(server)
    for _ in range(2):
        assert await adapters.prove(path, WANTED) == {"proof": "effect", "message": ""}
    assert asked == [((5, 6), 2), ((9,), 1)]
    assert (adapters.prover.as_expected, adapters.prover.unexpected) == ([expected_key(path, WANTED)], {})
    assert (server.calls, server.memory, server.paths()) == ([("add", 1), ("remove", 1)], set(), {})
    told = await adapters.prove(path, OTHER)
    assert (told["proof"], len(server.calls)) == ("not_as_expected", 4)
    assert (await adapters.prove(path))["proof"] == "effect", "who expects nothing is not refused for what others do"


async def test_an_adapter_that_answers_otherwise_is_refused_before_its_name_is_bound(tmp_path):
    """R22 applied-whole: the message names prompt, token and distance, and is told to who asks later."""
    server, path = answering(OTHERWISE), adapter(tmp_path / "a")
    adapters = Adapters(server)
    before = adapters.changes
    told = await adapters.prove(path, WANTED)
    assert told["proof"] == "not_as_expected"
    assert all(part in told["message"] for part in ("[5, 6]", "token 1", "7 (logprob -0.5000)", "distance of 0.4"))
    assert (adapters.prover.as_expected, adapters.prover.unexpected) == (
        [],
        {expected_key(path, WANTED): told["message"]},
    )
    assert (adapters.changes, server.paths(), server.memory) == (before + 1, {}, set())
    assert await adapters.prove(path, WANTED) == told


async def test_numbers_that_are_none_are_told_before_answers_that_are_others(tmp_path):
    """R22: what the files are is found in them, whatever their record expects."""
    adapters = Adapters(server_of((math.nan, -2.0)))
    assert (await adapters.prove(adapter(tmp_path / "a"), WANTED))["proof"] == "not_finite"


def test_so_many_proofs_are_put_off_at_most(monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(module, "MAX_REMEMBERED", 2)

    async def put_off() -> int:
        prover = Prover(PlayedServer())
        for path in "abc":
            prover._put_off(path, "")
        return len(prover._later)

    assert asyncio.run(put_off()) == 2


@pytest.mark.parametrize("found", [RuntimeError("no such token"), AS_TRAINED[:1]])
@pytest.mark.parametrize("expect", [WANTED, "{}"])
async def test_prompts_that_cannot_be_answered_prove_nothing(tmp_path, found, expect):
    """R19 not-held-up: it is neither refused nor called proven."""
    adapters, path = Adapters(answering(found)), adapter(tmp_path / "a")
    assert (await adapters.prove(path, expect))["proof"] == "effect"
    assert (adapters.prover.as_expected, adapters.prover.unexpected) == ([], {})


@pytest.mark.parametrize(
    ("prompt", "token", "where"), [(2**31 - 1, 7, "prompt of answer 2"), (100, 7, "prompt of"), (99, 100, "tokens of")]
)
async def test_an_engine_is_never_asked_for_a_token_that_its_base_does_not_know(tmp_path, prompt, token, where):
    """X2 unbreakable: the adapter is refused, and the message names the number and how many there are."""
    asked: list[object] = []
    server, path = answering(AS_TRAINED, asked), adapter(tmp_path / "a")
    server.vocabulary = 100
    adapters = Adapters(server)
    expect = write_expected(ExpectedAnswers((RIGHT, PromptedAnswer((5, prompt), (token,))), 0.1))
    told = await adapters.prove(path, expect)
    assert (told["proof"], asked) == ("not_as_expected", [])
    assert f"token {max(prompt, token)} in the {where}" in told["message"]
    assert "none of the 100 that the base model knows" in told["message"]
    assert (adapters.prover.as_expected, adapters.prover.unexpected) == (
        [],
        {expected_key(path, expect): told["message"]},
    )
    assert (await adapters.prove(path, WANTED))["proof"] == "effect"


async def test_engines_that_compute_nothing_are_not_asked():
    server = SimulatedServer(SimulatedVllm(Options()))
    assert (server.prober, server.is_full) == (None, False)
    assert await SerialEngine().prove("/a", request_id="r") == Done()


@pytest.mark.parametrize(("most_bytes", "is_read"), [(0, True), (-1, False)], ids=["just within", "too long"])
def test_a_header_that_is_too_long_is_not_read(tmp_path, monkeypatch, most_bytes, is_read):
    """X2, R16: in the server of an engine."""
    header = json.dumps({"q.lora_B.weight": {"data_offsets": (0, 4)}}).encode()
    (tmp_path / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\1" * 4)
    monkeypatch.setattr(module, "_MAX_HEADER_BYTES", len(header) + most_bytes)
    if is_read:
        assert has_products(tmp_path)
    else:
        with pytest.raises(ValueError, match="too long"):
            has_products(tmp_path)
