"""The demonstration's steps on a stack that a test plays: what each does and checks, and that lies make it fail."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from registry.tools.devstack.stack import Stack
from registry.tools.devstack.stack_file import EngineKind, StackLayout, port_names
from registry.tools.devstack.stack_parts import BASE_MODEL, Folder
from registry.tools.devstack.stack_verbs import ADAPTERS
from tests.e2e.demo import __main__ as demo
from tests.e2e.demo.answers import BASE, PROMPTS, AnswerRefused, EngineAnswer, Stream, Version
from tests.e2e.demo.world import StepFailed, World, require

NAMES = (BASE, *ADAPTERS)
REFERENCE = {
    name: {prompt: EngineAnswer((number,), (-float(number),)) for prompt in PROMPTS}
    for number, name in enumerate(NAMES, start=65)
}
REPLICAS = ("r1", "r2")
LAYOUT = StackLayout(EngineKind.SIM, REPLICAS, {name: port for port, name in enumerate(port_names(REPLICAS), 10_000)})


class PlayedStack(Stack):
    """Parts are running or not; nothing else."""

    def __init__(self, root: Path) -> None:
        super().__init__(Folder(root), LAYOUT)
        self.running = {part.name for part in self.parts}

    def start(self, name: str) -> None:
        self.running.add(name)

    def kill(self, name: str) -> None:
        self.running.discard(name)

    def stop(self, names: Iterable[str]) -> None:
        self.running -= {*names}

    def wait_ready(self, names: Iterable[str], timeout_seconds: float = 0.0) -> None:
        require({*names} <= self.running, f"{names} do not run")


class PlayedWorld(World):
    """Everything converges at once: what is served is what was asked for. `lies` are replicas that say otherwise."""

    def __init__(self, root: Path) -> None:
        self.told: list[str] = []
        super().__init__(PlayedStack(root), REFERENCE, lambda line: self.told.append(line.strip()))
        self.lies: set[str] = set()

    def run(self, *arguments: str) -> str:
        self.told.append(f"$ {' '.join(arguments[:2])}")
        return ""

    def run_fails(self, *arguments: str) -> bool:
        return "etcd" not in self.stack.running

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Any]:
        yield SimpleNamespace(
            poll=lambda: 0 if "ended" in self.lies else None,
            communicate=lambda timeout: ("added sql-old\nserved by r1, r2\n", "no such pool"),
            returncode=4 if "refused" in self.lies else 0,
        )

    def lists_all(self, replica: str) -> bool:
        return f"engine-{replica}" in self.stack.running and "lists" not in self.lies

    def readiness(self, replica: str) -> int:
        is_up = {f"engine-{replica}", f"sidecar-{replica}"} <= self.stack.running
        return 200 if is_up or "ready" in self.lies else 503

    def status(self, replica: str) -> dict[str, Any]:
        stale = "etcd" not in self.stack.running and "fresh" not in self.lies
        at = 7 + (stale and "moved" in self.lies)
        return {"note": "", "served": {"count": len(self.served)}, "observed_revision": at, "stale": stale}

    def check_answers(self, replicas: Iterable[str] | None = None) -> None:
        self.told.append(f"answers like {self.served['sql']}")
        require(all(f"engine-{one}" in self.stack.running for one in replicas or self.replicas), "it does not run")


@pytest.fixture
def world(tmp_path, monkeypatch) -> PlayedWorld:
    monkeypatch.setattr(demo, "await_", lambda check, what: require(check(), what))
    monkeypatch.setattr(demo, "ask", lambda *_: AnswerRefused(404, ""))
    return PlayedWorld(tmp_path)


def play(world: PlayedWorld, step: str, served: str) -> list[str]:
    """What a step tells after `served` are, and what it runs."""
    world.served = {name: "sql-v2" if name == "sql" and step != "swap" else name for name in served.split()}
    if step == "etcd_back":
        world.stack.running.discard("etcd")
    next(one for _, one in demo.STEPS if one.__name__ == step)(world)
    return world.told


FAILS = {
    "kill_engine ready": "says that it is not ready",
    "kill_engine lists": "r1 lists",
    "outage fresh": "does not say that it cannot see etcd",
    "outage moved": "is at 8, was at 7",
    "etcd_back refused": "the change ended with 4: no such pool",
    "etcd_back ended": "did not wait for etcd",
}


@pytest.mark.parametrize("case", FAILS)
def test_a_step_whose_replicas_lie_fails(world, case):
    step, lie = case.split()
    world.lies.add(lie)
    with pytest.raises(StepFailed, match=FAILS[case]):
        play(world, step, "sql support")


SWAPPED = "ooooo" + "nnnnn"
OF = {"o": Version.OLD, "n": Version.NEW, "f": Version.FAILED, "x": Version.NEITHER}
LOST = "AnswerRefused(status=404)"


@pytest.mark.parametrize(
    ("seen", "strange", "why"),
    [
        ("oooooofnnnnn", LOST, None),
        ("ooonnnnn", "", "answers of the old generation"),
        ("ooooonnn", "", "answers of the new generation"),
        ("ooooonnnnno", "", "an old answer after a new one"),
        ("oooooxnnnnn", "what", "an answer of neither generation"),
        ("ooooofnnnnn", "AnswerRefused(status=500)", "failed otherwise than by not knowing the name"),
    ],
)
def test_a_swap_is_watched_by_traffic_and_one_that_is_mixed_fails(world, monkeypatch, seen, strange, why):
    """R5: on any one of the replicas; a name may be unknown for a moment."""

    @contextmanager
    def traffic(urls: list[str], *_: object) -> Iterator[list[Stream]]:
        found = zip(urls, ((SWAPPED, []), (seen, [strange] if strange else [])), strict=True)
        yield [Stream(url, [OF[one] for one in letters], of) for url, (letters, of) in found]

    monkeypatch.setattr(demo, "traffic", traffic)
    if why:
        with pytest.raises(StepFailed, match=why):
            play(world, "swap", "legal sql support")
        return
    assert play(world, "swap", "legal sql support") == [
        "$ set sql",
        "r1 during the swap: 5 old, 5 new, 0 neither, 0 failed",
        f"r2 during the swap: 6 old, 5 new, 0 neither, 1 failed ({LOST})",
        "answers like sql-v2",
    ]


@pytest.mark.parametrize("answer", [AnswerRefused(0, ""), REFERENCE[BASE][PROMPTS[0]]], ids=["none", "the base's"])
def test_a_deleted_one_is_missing_everywhere(world, monkeypatch, answer):
    """R5: never the base's answer."""
    urls = {world.engine("r1"): AnswerRefused(404, ""), world.engine("r2"): answer}
    monkeypatch.setattr(demo, "ask", lambda _, url, name, prompt: urls[url] if name == "legal" else None)
    with pytest.raises(StepFailed, match="r2 answers 404 for legal"):
        play(world, "delete_one", "legal sql support")


def completion(answer: EngineAnswer) -> dict[str, Any]:
    tokens = [f"token_id:{token}" for token in answer.tokens]
    return {"choices": [{"logprobs": {"tokens": tokens, "token_logprobs": answer.logprobs}}]}


@pytest.fixture
def asked(tmp_path) -> Iterator[tuple[World, dict[str, Any], list[str]]]:
    """A world whose engine and sidecar answer by path what a test says, and what it said."""
    answers, said = dict[str, Any](), list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        found = answers.get(json.loads(request.content)["model"] if request.content else request.url.path)
        if found is None or isinstance(found, Exception):
            raise found or httpx.ConnectError("away")
        return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        yield World(Stack(Folder(tmp_path), LAYOUT), REFERENCE, said.append, {"a": "sql"}, http), answers, said


def test_every_name_is_compared_with_its_reference(asked):
    """R4, R5: the base too. What an engine lists is exactly what should be served."""
    world, answers, said = asked
    answers |= {BASE_MODEL: completion(REFERENCE[BASE][PROMPTS[0]]), "a": completion(REFERENCE["sql"][PROMPTS[0]])}
    world.check_answers()
    world.check_answers(["r2"])
    told = [f"8 answers of r1, r2 ({BASE_MODEL}, a)", f"4 answers of r2 ({BASE_MODEL}, a)"]
    assert [line.split(" equal")[0].strip() for line in said] == told
    for wrong in ("legal", BASE):
        answers["a"] = completion(REFERENCE[wrong][PROMPTS[0]])
        with pytest.raises(StepFailed, match=r"r1 answers 'a' to .* expected"):
            world.check_answers(["r1"])
    answers["a"] = httpx.Response(404, text="no such model")
    with pytest.raises(StepFailed, match="r1 refused 'a': 404 no such model"):
        world.check_answers()
    assert len(said) == 2
    answers.clear()
    world, answers, _ = asked
    assert (world.listing("r1"), world.lists_all("r1"), world.readiness("r1")) == ({}, False, 0)
    base = {"id": BASE_MODEL, "root": "/m", "parent": None}
    for names, is_all in (("a", True), ("", False), ("ab", False)):
        cards = [{"id": name, "root": f"/{name}", "parent": BASE_MODEL} for name in names]
        answers["/v1/models"] = {"data": [base, *cards]}
        assert (world.listing("r1"), world.lists_all("r1")) == ({name: f"/{name}" for name in names}, is_all)
    answers |= {"/v1/models": ValueError("ours"), "/readyz": ValueError("ours")}
    for question in (world.listing, world.readiness):
        with pytest.raises(ValueError, match="ours"):
            question("r1")
    answers |= {"/readyz": httpx.Response(503), "/status": {"stale": True}}
    assert (world.readiness("r1"), world.status("r1")) == (503, {"stale": True})
