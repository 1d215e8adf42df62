"""The demonstration's steps on a stack that a test plays: what each does and checks, and that lies make it fail."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

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
        self.told = ""
        self.said: list[str] = []
        self.revision = 7

    def _told(self, line: str) -> None:
        self.said.append(line.strip())
        if "were back" in line:
            self.did.append("tell how long it took")
        elif line.startswith("     "):
            self.did.append(f"tell {line.strip()}")

    def run(self, *arguments: str) -> str:
        if arguments[0] == "apply":
            require(Path(arguments[2]).exists(), "there is nothing to apply")
        self.did.append(f"$ {' '.join(arguments[:2])}")
        return ""

    def run_fails(self, *arguments: str) -> bool:
        return "etcd" not in self.stack.running

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Any]:
        self.did.append(f"$ {' '.join(arguments[:2])} &")
        yield SimpleNamespace(
            poll=lambda: 0 if "ended" in self.lies else None,
            communicate=lambda timeout: (self.told, "no such pool"),
            returncode=4 if "refused" in self.lies else 0,
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
    is_swapped = step != "swap"  # which itself does it
    world.served = {
        name: "sql-v2" if name == "sql" and is_swapped else name.removesuffix("-2") for name in served.split()
    }
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


def test_a_change_that_waited_arrives(world):
    world.stack.running.discard("etcd")
    lists, told = "await lists ['sql', 'sql-old', 'support']", ["tell added sql-old", "tell served by r1, r2"]
    world.told = "added sql-old\nserved by r1, r2\n"
    assert play(world, "etcd_back", LEFT) == [
        *("$ add sql-old &", "await the admin service says that etcd is away", "start etcd", *told, lists, lists),
        *("answers r1 r2: sql sql-old support", "await is not stale any more", "await is not stale any more"),
        "$ get replicas",
    ]


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
    assert (f"the logs are in {root / 'logs'}" in told) is (error is not None)


RIGHT = "".join(chr(65 + number) for number in range(len(NAMES)))  # each answers with one letter

TOLD = {
    "apply_three": [
        f'{name} continues "{PROMPTS[0]}" with "{RIGHT[NAMES.index(like)]}"'
        for name, like in ((BASE_MODEL, BASE), ("sql", "sql"), ("legal", "legal"), ("support", "support"))
    ],
    "delete_one": ["r1, r2 answer 404 for legal"],
    "kill_engine": [
        "kill -9 to the engine of r1",
        "its sidecar answers /readyz with 503: no note",
        "engine of r1 started, healthy after # s; all 3 adapters were back # s later",
    ],
    "kill_sidecar": [
        "kill -9 to the sidecar of r2; its engine goes on:",
        "sidecar started again; what was added meanwhile is served everywhere",
    ],
    "outage": [
        "etcd stopped",
        "kill -9 to the engine and the sidecar of r1",
        "engine of r1 started, healthy after # s; all 3 adapters were back # s later",
        "r1 came back from its snapshot at revision 7, and says that it is stale",
    ],
    "etcd_back": ["etcd started again"],
}


@pytest.mark.parametrize("step", TOLD)
def test_each_step_tells_what_it_did_and_saw(world, monkeypatch, step):
    """Whoever looks on sees nothing else of it."""
    monkeypatch.setattr(demo, "ask", lambda *_: AnswerRefused(404, ""))
    if step == "etcd_back":
        world.stack.running.discard("etcd")
    play(world, step)
    assert [re.sub(r"-?\d+\.\d", "#", line) for line in world.said] == TOLD[step]


def test_a_swap_tells_what_each_replica_answered(world, monkeypatch):
    streams(monkeypatch, SWAPPED, "oooooof" + "nnnnn", strange=["AnswerRefused(status=404)"])
    play(world, "swap", THREE)
    assert world.said == [
        "r1 during the swap: 5 old, 5 new, 0 neither, 0 failed",
        "r2 during the swap: 6 old, 5 new, 0 neither, 1 failed (AnswerRefused(status=404))",
    ]


def test_a_command_that_fails_ends_a_step(tmp_path, monkeypatch):
    said: list[str] = []
    world = World(Stack(Folder(tmp_path), LAYOUT), REFERENCE, said.append)
    assert not world.http.trust_env, "no proxy is asked for what runs on this machine"
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
        if isinstance(found, Exception):
            raise found
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
    for question in (world.listing, world.readiness):
        answers |= {"/v1/models": ValueError("ours"), "/readyz": ValueError("ours")}
        with pytest.raises(ValueError, match="ours"):
            question("r1")
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
    waited: list[tuple[bool, float]] = []
    monkeypatch.setattr(
        demo_world, "wait_until", lambda check, seconds: (waited.append((check(), seconds)), waited[-1][0])[1]
    )
    monkeypatch.setattr(demo_world, "_asked", lambda part, _: {"asked": part.address})
    if ready and runs:
        assert demo_world.find_reference(stack, {}, 81) == {"asked": "127.0.0.1:81"}
    else:
        with pytest.raises(StackError, match="the reference engine did not start; its log"):
            demo_world.find_reference(stack, {}, 81)
    assert killed == [True]
    assert waited == [(ready or not runs, 60)], "what has ended is not waited for"


@pytest.mark.parametrize("alike", [False, True])
def test_the_right_answers_are_found_out_beside_the_start_of_the_stack(tmp_path, monkeypatch, capsys, alike):
    """And where two adapters answer alike, the demonstration would prove nothing."""
    stack, did = PlayedStack(tmp_path, []), list[str]()
    reference = {**REFERENCE, "legal": REFERENCE["sql"]} if alike else REFERENCE

    def find(of: Stack, adapters: dict[str, Path], port: int) -> Any:
        assert (of, port) == (stack, 81)
        assert adapters == {name: stack.folder.adapters / name for name in ADAPTERS}
        did.append("find")
        return reference

    def begin(of: Stack, tell: Callable[[str], None]) -> None:
        did.append("start")
        tell("etcd is ready")

    monkeypatch.setattr(demo, "find_reference", find)
    monkeypatch.setattr(demo, "start", begin)
    monkeypatch.setattr(demo, "free_ports", lambda count: [81, 82][:count])
    if alike:
        with pytest.raises(StepFailed, match=r"these answer alike.*'legal', 'sql'"):
            demo._prepare(stack)
        return
    world = demo._prepare(stack)
    assert (world.stack, world.reference, world.served, sorted(did)) == (stack, REFERENCE, {}, ["find", "start"])
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "0. A real etcd, the admin service, 2 sim engines with sidecars"
    assert told[1] == "   etcd is ready"
    assert told[2].startswith("   ready after ")
    world.say("what a step says")
    assert capsys.readouterr().out == "what a step says\n"


def test_a_scratch_engine_is_told_each_adapter_and_asked_each_prompt_by_each_name(tmp_path, monkeypatch):
    """The base is asked by its own name; what it says is kept under the empty one."""
    stack, loaded = Stack(Folder(tmp_path), LAYOUT), list[dict[str, str]]()
    port, refuses = 4321, set[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.url.host, request.url.port) == ("127.0.0.1", port)
        body = json.loads(request.content)
        if request.url.path == "/v1/load_lora_adapter":
            loaded.append(body)
            return httpx.Response(400 if body["lora_name"] in refuses else 200)
        if body["model"] in refuses:
            return httpx.Response(404, text="no such model")
        of = REFERENCE[BASE if body["model"] == BASE_MODEL else body["model"]]
        return httpx.Response(200, json=completion(of[body["prompt"]]))

    killed: list[bool] = []
    process = SimpleNamespace(is_running=lambda: True, kill=lambda: killed.append(True))
    client = httpx.Client
    monkeypatch.setattr(demo_world, "spawn", lambda *_: process)
    monkeypatch.setattr(demo_world, "is_ready", lambda _: True)

    def direct(*, trust_env: bool, **_: object) -> httpx.Client:
        assert not trust_env, "a proxy would not reach the loopback of this machine"
        return client(transport=httpx.MockTransport(answer))

    monkeypatch.setattr(httpx, "Client", direct)
    adapters = {"sql": tmp_path / "a", "legal": tmp_path / "b"}
    found = demo_world.find_reference(stack, adapters, port)
    assert found == {name: REFERENCE[name] for name in (BASE, "sql", "legal")}
    assert loaded == [{"lora_name": name, "lora_path": str(path)} for name, path in adapters.items()]
    refuses.add(BASE_MODEL)
    with pytest.raises(StackError, match="the reference engine answered 404: no such model"):
        demo_world.find_reference(stack, adapters, port)
    refuses.add("legal")
    with pytest.raises(httpx.HTTPStatusError):
        demo_world.find_reference(stack, adapters, port)
    assert killed == [True] * 3


@pytest.mark.parametrize("code", [0, 1])
def test_of_vllm_transformers_and_peft_tell_the_right_answers(tmp_path, monkeypatch, code):
    layout = StackLayout(EngineKind.VLLM, REPLICAS, LAYOUT.ports)
    stack, asked = Stack(Folder(tmp_path), layout), list[list[str]]()
    printed = {"": {"Hello": [{"token": 72, "logprob": -0.5}]}}

    def run(command: list[str], **how: Any) -> SimpleNamespace:
        asked.append(command)
        assert (how["text"], how["capture_output"], how["check"]) == (True, True, False)
        assert how["env"]["VLLM_TARGET_DEVICE"] == "cpu"
        return SimpleNamespace(returncode=code, stdout=json.dumps(printed), stderr="x" * 999 + "no torch\n")

    monkeypatch.setattr(demo_world.subprocess, "run", run)
    monkeypatch.setattr(demo_world, "find_engine_python", lambda: Path("/python"))
    adapters = {"sql": tmp_path / "sql"}
    if code:
        with pytest.raises(StackError, match=r"^the reference could not be computed: x{492}no torch$"):
            demo_world.find_reference(stack, adapters, 81)
    else:
        assert demo_world.find_reference(stack, adapters, 81) == {"": {"Hello": EngineAnswer((72,), (-0.5,))}}
    ((program, *_, model),) = [command[:5] for command in asked]
    assert (program, model) == ("/python", str(stack.folder.model))
    assert asked[0][5:7] == ["--adapter", f"sql={tmp_path / 'sql'}"]
    assert [part for part in asked[0] if part in PROMPTS] == [*PROMPTS]


@pytest.mark.parametrize("fails", [False, True])
def test_a_command_that_runs_beside_is_ended_with_the_body(tmp_path, monkeypatch, fails):
    """A body that fails leaves no process behind; the program is asked of the stack's own admin service."""
    said, did = list[str](), list[str]()

    class Child:
        def __init__(self, command: list[str], **how: Any) -> None:
            assert command[1:] == ["-m", "registry.cli.main", "--admin", LAYOUT.address("admin"), "get", "pools"]
            assert (how["stdout"], how["stderr"], how["text"]) == (-1, -1, True)
            assert "LORAPLANE_ADMIN" not in how["env"]

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            did.append("waited for")

        def kill(self) -> None:
            did.append("killed")

    monkeypatch.setenv("LORAPLANE_ADMIN", "elsewhere:1")
    monkeypatch.setattr(demo_world.subprocess, "Popen", Child)
    world = World(Stack(Folder(tmp_path), LAYOUT), REFERENCE, said.append)
    if fails:
        with pytest.raises(StepFailed, match="no"), world.running("get", "pools"):
            raise StepFailed("no")
    else:
        with world.running("get", "pools") as process:
            assert isinstance(process, Child)
    assert did == ["killed", "waited for"]
    assert said[0].startswith("   $ loraplane get pools")


def test_an_end_that_somebody_asks_for_cleans_up_as_an_interrupt_does(tmp_path, monkeypatch, capsys):
    """SIGTERM, as whoever runs it in the background sends it."""
    root, handlers = tmp_path / "demo", dict[int, Callable[[int, object], None]]()

    def play(*_: object) -> None:
        handlers[demo.signal.SIGTERM](15, None)

    monkeypatch.setattr(demo.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(demo.tempfile, "mkdtemp", lambda prefix: (root.mkdir(), str(root))[1])
    monkeypatch.setattr(demo, "_play", play)
    with pytest.raises(KeyboardInterrupt):
        demo.demo(engine=EngineKind.SIM)
    assert not root.exists()
    assert "held" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "expected"), [((), ("vllm", 2)), (("--engine", "sim", "--replicas", "3"), ("sim", 3))]
)
def test_the_demonstration_is_called_as_its_page_says(monkeypatch, tmp_path, given, expected):
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(demo, "_play", lambda _, engine, replicas: asked.append((engine, replicas)))
    monkeypatch.setattr(demo.tempfile, "mkdtemp", lambda prefix: ((tmp_path / "d").mkdir(), str(tmp_path / "d"))[1])
    monkeypatch.setattr(demo.signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["demo", *given])
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert (ended.value.code, asked) == (0, [expected])
    for replicas in ("1", "9"):  # one would show nothing, nine would be too many
        monkeypatch.setattr("sys.argv", ["demo", "--replicas", replicas])
        with pytest.raises(SystemExit) as ended:
            demo.main()
        assert (ended.value.code, asked) == (2, [expected])


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
    if step == "etcd_back":
        world.stack.running.discard("etcd")
    with pytest.raises(StepFailed, match=FAILS[case]):
        play(world, step, LEFT)


def test_times_that_are_told_are_those_that_passed_and_seen_when_they_are_said(world, monkeypatch):
    """Also through a pipe, where a step may take minutes."""
    now, seen = iter([100.0, 103.5, 105.25]), list[str]()
    monkeypatch.setattr(demo, "time", SimpleNamespace(monotonic=lambda: next(now)))
    play(world, "kill_engine")
    assert "healthy after 3.5 s; all 3 adapters were back 1.8 s later" in world.said[-1]
    out = SimpleNamespace(write=seen.append, flush=lambda: seen.append("flushed"))
    monkeypatch.setattr("sys.stdout", out)
    demo._say("a step")
    monkeypatch.undo()
    assert seen == ["a step\n", "flushed"]


def test_a_fleet_of_one_replica_has_no_others_to_ask_and_what_does_not_come_in_time_ends_a_step(world, monkeypatch):
    """While its engine is away nothing answers."""
    monkeypatch.setattr(PlayedWorld, "replicas", ("r1",))
    assert f"answers r2: {LEFT}" not in play(world, "kill_engine", LEFT)
    assert world.did[-1] == f"answers r1: {LEFT}"
    waited: list[float] = []
    monkeypatch.setattr(demo_world, "wait_until", lambda check, seconds: (waited.append(seconds), check())[1])
    demo_world.await_(lambda: True, "it comes", 5.0)
    with pytest.raises(StepFailed, match="not within 120 s: it comes"):
        demo_world.await_(lambda: False, "it comes")
    assert waited == [5.0, 120.0]
