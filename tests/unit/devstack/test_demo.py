"""The demonstration's steps on a stack that a test plays: what each does and checks, and that lies make it fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from registry.tools.devstack import demo, demo_world
from registry.tools.devstack.demo_answers import BASE, PROMPTS, AnswerRefused, EngineAnswer, Stream, Version
from registry.tools.devstack.demo_world import StepFailed, World, require
from registry.tools.devstack.stack import Stack
from registry.tools.devstack.stack_file import EngineKind, StackError, StackLayout, port_names
from registry.tools.devstack.stack_parts import BASE_MODEL, Folder
from registry.tools.devstack.stack_verbs import ADAPTERS

NAMES = (BASE, *ADAPTERS)
REFERENCE = {
    name: {prompt: EngineAnswer((number,), (-float(number),)) for prompt in PROMPTS}
    for number, name in enumerate(NAMES, start=65)
}


REPLICAS = ("r1", "r2")
LAYOUT = StackLayout(EngineKind.SIM, REPLICAS, {name: port for port, name in enumerate(port_names(REPLICAS), 10_000)})


class PlayedStack(Stack):
    """Parts are running or not; nothing else."""

    def __init__(self, root: Path, did: list[str]) -> None:
        super().__init__(Folder(root), LAYOUT)
        self.did, self.running = did, {part.name for part in self.parts}

    def start(self, name: str) -> None:
        self.did.append(f"start {name}")
        self.running.add(name)

    def kill(self, name: str) -> None:
        self.did.append(f"kill {name}")
        self.running.discard(name)

    def stop(self, names: Iterable[str]) -> None:
        for name in names:
            self.did.append(f"stop {name}")
            self.running.discard(name)

    def wait_ready(self, names: Iterable[str], timeout_seconds: float = 0.0) -> None:
        self.did += [f"ready {name}" for name in names]
        require({*names} <= self.running, f"{names} do not run")


class PlayedWorld(World):
    """Everything converges at once: what is served is what was asked for. `lies` are replicas that say otherwise."""

    def __init__(self, root: Path) -> None:
        self.did: list[str] = []
        super().__init__(PlayedStack(root, self.did), REFERENCE, self._told)
        self.lies: set[str] = set()
        self.revision = 7

    def _told(self, line: str) -> None:
        if "were back" in line:
            self.did.append("tell how long it took")

    def run(self, *arguments: str) -> str:
        self.did.append(f"$ {' '.join(arguments[:2])}")
        return ""

    def run_fails(self, *arguments: str) -> bool:
        return "etcd" not in self.stack.running

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Any]:
        self.did.append(f"$ {' '.join(arguments[:2])} &")
        yield SimpleNamespace(
            poll=lambda: 0 if "ended" in self.lies else None, communicate=lambda timeout: ("", ""), returncode=0
        )

    def lists_all(self, replica: str) -> bool:
        return f"engine-{replica}" in self.stack.running and "lists" not in self.lies

    def readiness(self, replica: str) -> int:
        is_up = {f"engine-{replica}", f"sidecar-{replica}"} <= self.stack.running
        return 200 if is_up or "ready" in self.lies else 503

    def status(self, replica: str) -> dict[str, Any]:
        stale = "etcd" not in self.stack.running and "fresh" not in self.lies
        at = self.revision + (stale and "moved" in self.lies)
        return {"note": "", "served": {"count": len(self.served)}, "observed_revision": at, "stale": stale}

    def check_answers(self, replicas: Iterable[str] | None = None) -> None:
        of = [*(replicas or self.replicas)]
        self.did.append(f"answers {' '.join(of)}: {' '.join(sorted(self.served))}")
        require(all(f"engine-{one}" in self.stack.running for one in of), "it does not run")


@pytest.fixture
def world(tmp_path, monkeypatch) -> PlayedWorld:
    made = PlayedWorld(tmp_path)

    def at_once(check: Callable[[], bool], what: str) -> None:
        made.did.append(f"await {what.split(' ', 1)[1]}" if what.startswith("r") else f"await {what}")
        require(check(), what)

    monkeypatch.setattr(demo, "await_", at_once)
    return made


STEPS = {step.__name__: step for _, step in demo.STEPS}
THREE = "legal sql support"


def play(world: PlayedWorld, step: str, served: str = THREE) -> list[str]:
    """What a step does after `served` are."""
    world.served = {name: "sql-v2" if name == "sql" else name.removesuffix("-2") for name in served.split()}
    STEPS[step](world)
    return world.did


def test_three_are_applied_and_asked(world, tmp_path):
    assert play(world, "apply_three", "") == ["$ apply -f", f"answers r1 r2: {THREE}", "$ get replicas"]
    documents = (tmp_path / "adapters.yaml").read_text().split("---\n")
    assert [f"metadata: {{name: {name}, pool: dev}}" in one for name, one in zip(demo._FIRST, documents, strict=True)]
    assert all((tmp_path / "adapters" / name).as_uri() in one for name, one in zip(demo._FIRST, documents, strict=True))


def streams(monkeypatch, *seen: str, strange: Iterable[str] = ()) -> None:
    """What engines answer while a swap goes on, by the first letters of versions."""
    of = {version.value[0]: version for version in (Version.OLD, Version.FAILED)} | {"n": Version.NEW}

    @contextmanager
    def traffic(urls: list[str], *_: object) -> Iterator[list[Stream]]:
        assert len(urls) == len(seen)
        of_all = {"x": Version.NEITHER} | of
        yield [
            Stream(url, [of_all[one] for one in letters], [*strange] if {*letters} & {"f", "x"} else [])
            for url, letters in zip(urls, seen, strict=True)
        ]

    monkeypatch.setattr(demo, "traffic", traffic)


SWAPPED = "ooooo" + "nnnnn"


def test_a_swap_is_watched_by_traffic(world, monkeypatch):
    streams(monkeypatch, SWAPPED, "oooooof" + "nnnnn", strange=["AnswerRefused(status=404)"])
    awaited = ["await answers of the old generation", "$ set sql", "await answers of the new generation"]
    assert play(world, "swap", THREE) == [*awaited, f"answers r1 r2: {THREE}"]
    assert world.served["sql"] == "sql-v2"


@pytest.mark.parametrize(
    ("seen", "strange", "why"),
    [
        ("ooonnnnn", (), "answers of the old generation"),
        ("ooooonnn", (), "answers of the new generation"),
        ("ooooonnnnno", (), "an old answer after a new one"),
        ("oooooxnnnnn", ("what",), "an answer of neither generation"),
        ("ooooofnnnnn", ("AnswerRefused(status=500)",), "failed otherwise than by not knowing the name"),
    ],
)
def test_a_swap_that_is_mixed_fails(world, monkeypatch, seen, strange, why):
    """R5: on any one of the replicas."""
    streams(monkeypatch, SWAPPED, seen, strange=strange)
    with pytest.raises(StepFailed, match=why):
        play(world, "swap")


@pytest.mark.parametrize(
    ("answer", "is_missing"),
    [(AnswerRefused(404, ""), True), (AnswerRefused(0, ""), False), (REFERENCE[BASE][PROMPTS[0]], False)],
    ids=["404", "no answer", "the base's"],
)
def test_a_deleted_one_is_missing_everywhere(world, monkeypatch, answer, is_missing):
    """R5: never the base's answer."""
    urls = {world.engine("r1"): AnswerRefused(404, ""), world.engine("r2"): answer}
    monkeypatch.setattr(demo, "ask", lambda _, url, name, prompt: urls[url] if name == "legal" else None)
    if not is_missing:
        with pytest.raises(StepFailed, match="r2 answers 404 for legal"):
            play(world, "delete_one")
        return
    awaited = ["await answers 404 for legal"] * 2
    assert play(world, "delete_one") == ["$ delete adapter", *awaited, "answers r1 r2: sql support"]


LEFT = "sql support"
LISTS = "await lists ['sql', 'support']"
TIMED = "tell how long it took"


def _sidecar(text: str) -> str:
    return f"await the sidecar of r1 says that it is {text}"


def test_an_engine_that_is_killed_comes_back_with_its_adapters(world):
    ready = _sidecar("ready")
    assert play(world, "kill_engine", LEFT) == [
        *("kill engine-r1", _sidecar("not ready"), f"answers r2: {LEFT}"),
        *("start engine-r1", "ready engine-r1", LISTS, TIMED, ready, f"answers r1: {LEFT}"),
    ]


@pytest.mark.parametrize(("lie", "why"), [("ready", "says that it is not ready"), ("lists", "r1 lists")])
def test_an_engine_that_comes_back_without_them_fails(world, lie, why):
    world.lies.add(lie)
    with pytest.raises(StepFailed, match=why):
        play(world, "kill_engine", LEFT)


def test_a_sidecar_that_is_killed_misses_nothing(world):
    lists = "await lists ['legal-2', 'sql', 'support']"
    assert play(world, "kill_sidecar", LEFT) == [
        *("kill sidecar-r2", f"answers r2: {LEFT}", "$ add legal-2", "start sidecar-r2", "ready sidecar-r2"),
        *(lists, lists, f"answers r1 r2: legal-2 {LEFT}"),
    ]
    assert world.served["legal-2"] == "legal"


def test_a_replica_comes_back_from_its_snapshot(world):
    """R13."""
    assert play(world, "outage", LEFT) == [
        *("await says what it serves", "stop etcd", "kill engine-r1", "kill sidecar-r1", "start sidecar-r1"),
        *("start engine-r1", "ready engine-r1", LISTS, TIMED, _sidecar("ready"), f"answers r1 r2: {LEFT}"),
    ]


@pytest.mark.parametrize(
    ("lie", "why"), [("fresh", "does not say that it cannot see etcd"), ("moved", "is at 8, was at 7")]
)
def test_a_replica_that_denies_the_outage_fails(world, lie, why):
    world.lies.add(lie)
    with pytest.raises(StepFailed, match=why):
        play(world, "outage", LEFT)


def test_a_change_that_waited_arrives(world):
    world.stack.running.discard("etcd")
    lists = "await lists ['sql', 'sql-old', 'support']"
    assert play(world, "etcd_back", LEFT) == [
        *("$ add sql-old &", "await the admin service says that etcd is away", "start etcd", lists, lists),
        *("answers r1 r2: sql sql-old support", "await is not stale any more", "await is not stale any more"),
        "$ get replicas",
    ]


def test_a_change_that_did_not_wait_fails(world):
    world.stack.running.discard("etcd")
    world.lies.add("ended")
    with pytest.raises(StepFailed, match="did not wait for etcd"):
        play(world, "etcd_back", LEFT)


@pytest.mark.parametrize("error", [None, StepFailed("it is not so"), StackError("no engine")], ids=str)
def test_each_step_is_told_and_what_fails_ends_it(tmp_path, monkeypatch, capsys, error):
    """Its logs stay; else nothing does."""
    root = tmp_path / "demo"
    did: list[str] = []

    def second(_: World) -> None:
        did.append("second")
        if error is not None:
            raise error

    steps = [("One", lambda _: did.append("first")), ("Two", second), ("Three", lambda _: did.append("third"))]
    monkeypatch.setattr(demo, "STEPS", steps)
    monkeypatch.setattr(demo, "set_up", lambda *_: None)
    monkeypatch.setattr(demo, "_prepare", lambda _: None)
    monkeypatch.setattr(demo.signal, "signal", lambda *_: None)
    monkeypatch.setattr(demo.tempfile, "mkdtemp", lambda prefix: (root.mkdir(), str(root))[1])
    if error is None:
        demo.demo(engine=EngineKind.SIM)
    else:
        with pytest.raises(SystemExit) as ended:
            demo.demo(engine=EngineKind.SIM)
        assert ended.value.code == 1
    told = capsys.readouterr().out
    titles = ["1. One", "2. Two", *(["3. Three"] if error is None else [])]
    assert [line for line in told.splitlines() if line[:2] in {"1.", "2.", "3."}] == titles
    assert did == ["first", "second", *(["third"] if error is None else [])]
    assert (f"FAILED: {error}" in told, "All 3 steps held" in told) == (error is not None, error is None)
    assert root.exists() is (error is not None)


# What a world asks its parts.


def test_a_command_that_fails_ends_a_step(tmp_path, monkeypatch):
    said: list[str] = []
    world = World(Stack(Folder(tmp_path), LAYOUT), REFERENCE, said.append)
    codes = {"good": 0, "bad": 4}
    monkeypatch.setattr(
        demo_world,
        "cli",
        lambda _, verb, *more: SimpleNamespace(returncode=codes[verb], stdout="one\ntwo\n", stderr="why\n"),
    )
    assert world.run("good", "x") == "one\ntwo\n"
    assert said == ["   $ loraplane good x", "     one", "     two"]
    assert (world.run_fails("good"), world.run_fails("bad")) == (False, True)
    with pytest.raises(StepFailed, match="loraplane ended with 4: why"):
        world.run("bad")


@pytest.fixture
def asked(tmp_path) -> Iterator[tuple[World, dict[str, Any], list[str]]]:
    """A world whose engine and sidecar answer by path what a test says, and what it said."""
    answers: dict[str, Any] = {}
    said: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        key = json.loads(request.content)["model"] if request.content else request.url.path
        found = answers.get(key)
        if found is None:
            raise httpx.ConnectError("away")
        return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

    http = httpx.Client(transport=httpx.MockTransport(answer))
    stack = Stack(Folder(tmp_path), LAYOUT)
    yield World(stack, REFERENCE, said.append, {"a": "sql"}, http), answers, said
    http.close()


def completion(answer: EngineAnswer) -> dict[str, Any]:
    tokens = [f"token_id:{token}" for token in answer.tokens]
    return {"choices": [{"logprobs": {"tokens": tokens, "token_logprobs": answer.logprobs}}]}


def test_every_name_is_compared_with_its_reference(asked):
    """R4, R5: the base too."""
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


def test_what_an_engine_lists_is_exactly_what_should_be_served(asked):
    world, answers, _ = asked
    assert (world.listing("r1"), world.lists_all("r1"), world.readiness("r1")) == ({}, False, 0)
    base = {"id": BASE_MODEL, "root": "/m", "parent": None}
    for names, is_all in ((["a"], True), ([], False), (["a", "b"], False)):
        cards = [{"id": name, "root": f"/{name}", "parent": BASE_MODEL} for name in names]
        answers["/v1/models"] = {"data": [base, *cards]}
        assert world.listing("r1") == {name: f"/{name}" for name in names}
        assert world.lists_all("r1") is is_all
    answers |= {"/readyz": httpx.Response(503), "/status": {"stale": True}}
    assert (world.readiness("r1"), world.status("r1")) == (503, {"stale": True})


@pytest.mark.parametrize(("ready", "runs"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_reference_engine_is_asked_only_while_it_runs(tmp_path, monkeypatch, ready, runs):
    """It may end just after it said that it is ready; whatever comes, it is ended."""
    stack = Stack(Folder(tmp_path), LAYOUT)
    killed: list[bool] = []
    process = SimpleNamespace(is_running=lambda: runs, kill=lambda: killed.append(True))
    monkeypatch.setattr(demo_world, "spawn", lambda *_: process)
    monkeypatch.setattr(demo_world, "is_ready", lambda _: ready)
    monkeypatch.setattr(demo_world, "wait_until", lambda check, _: check())
    monkeypatch.setattr(demo_world, "_asked", lambda part, _: {"asked": part.address})
    if ready and runs:
        assert demo_world.find_reference(stack, {}, 81) == {"asked": "127.0.0.1:81"}
    else:
        with pytest.raises(StackError, match="the reference engine did not start; its log"):
            demo_world.find_reference(stack, {}, 81)
    assert killed == [True]
