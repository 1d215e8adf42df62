"""The command line as a process: what it imports; on a terminal, interrupted, and with a reader that leaves."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from registry.cli.command_tree import ENTRIES, LazyCommand
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import Hold, Refusal, served
from tests.support.processes import child

HEAVY = {"grpc", "google.protobuf", "pydantic", "yaml", "httpx", "numpy", "obstore", "cryptography", "structlog"}
RUN = """
import sys
from registry.cli.main import run
try:
    code = run(sys.argv[1:])
except SystemExit:
    code = 0
print(*sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""
# A completion says nothing when its second is over, and a loaded machine takes longer to connect.
PATIENT = "from registry.cli import completion; completion.SECONDS = 120.0"


def imported(*arguments: str, before: str = "", **variables: str) -> set[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LORAPLANE_")} | variables
    command = [sys.executable, "-c", before + RUN, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return set(ran.stderr.split())


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_a_version_and_a_help_import_nothing_heavy(option):
    assert not imported(option) & (HEAVY | {"rich"})


@pytest.mark.parametrize("form", ["table", "wide", "json", "name"])
def test_a_get_imports_grpc_and_nothing_else_that_is_heavy(address, admin, form):
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    modules = imported("--admin", address, "-o", form, "get", "adapters")
    assert modules & (HEAVY | {"rich"}) == {"grpc", "google.protobuf"}


def test_a_tab_imports_grpc_and_an_apply_whose_files_are_elsewhere_nothing_that_reads_adapters(
    address, admin, manifest
):
    """Somebody waits with a finger on the key; of its time most would be that of imports."""
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    line = {"_LORAPLANE_COMPLETE": "bash_complete", "COMP_WORDS": "loraplane get adapters a", "COMP_CWORD": "3"}
    modules = imported(before=PATIENT, LORAPLANE_ADMIN=address, **line)
    assert modules & (HEAVY | {"rich"}) == {"grpc", "google.protobuf"}
    assert admin.asked("ListAdapters")[0].filter == "name=a*"
    path = manifest("a", source={"uri": "s3://b/a", "digest": "sha256:" + "5" * 64})
    modules = imported("--admin", address, "apply", "-f", path)
    assert modules & (HEAVY | {"rich"}) == {"grpc", "google.protobuf", "pydantic", "yaml"}
    assert not modules & {"registry.cli.source_reader", "registry.lora.check", "registry.sources.allowed"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_help_in_the_list_is_that_of_the_command(entry):
    loaded = LazyCommand(entry).load()
    assert (loaded.name, " ".join(loaded.help.split("\n\n")[0].split())) == (entry.name, entry.about)


SERVING = pb.RolloutReplica(replica="r1", state=pb.RolloutReplica.SERVING)
PENDING = pb.RolloutReplica(replica="r1", state=pb.RolloutReplica.PENDING, reason="staging")
SQL = pb.Adapter(name="sql", pool="dev", generation=1)


@pytest.fixture
def address(admin) -> Iterator[str]:
    """On a port: other processes are its clients."""
    with served(admin) as address:
        yield address


def command(address: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "registry.cli.main", "--admin", address, *arguments]


def on_a_terminal(command: list[str]) -> tuple[int, str]:
    """Exit code and what a person sees, escape sequences included."""
    ours, its = pty.openpty()
    with child(command, stdout=its, stderr=its, env={**os.environ, "TERM": "xterm", "COLUMNS": "60"}) as process:
        os.close(its)
        seen = b"".join(iter(lambda: _read(ours), b""))
        process.wait(timeout=60)
    os.close(ours)
    return process.returncode, seen.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # how Linux tells the end of a terminal
        return b""


def _seen_until(terminal: int, told: bytes) -> bytes:
    seen = b""
    while told not in seen:
        more = _read(terminal)
        assert more, (told, seen)
        seen += more
    return seen


@pytest.mark.parametrize("wide", [(), ("-o", "wide")])
def test_a_watch_on_a_terminal_is_a_table_that_is_drawn_anew(address, admin, wide):
    states = {name: pb.RolloutReplica.State.Value(name) for name in ("PENDING", "SERVING")}
    residency = {}
    for name, value in states.items():
        one = pb.AdapterResidency(name="sql", generation=1, counts=[pb.ResidenceCount(replicas=2, state=value)])
        residency[name] = pb.WatchResidencyResponse(snapshot=name == "PENDING", adapters=[one])
    is_seen = threading.Event()

    def news(_request: object) -> Iterator[object]:
        yield residency["PENDING"]
        is_seen.wait()
        yield residency["SERVING"]
        yield Hold()

    listed = pb.WatchAdaptersResponse(revision=1, events=[pb.AdapterEvent(put=SQL)], snapshot=True)
    admin.answers |= {"WatchAdapters": [[listed, Hold()]], "WatchResidency": [news]}
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "24"}
    with child(command(address, "get", "adapters", "-w", *wide), stdout=its, stderr=its, env=environment) as run:
        os.close(its)
        try:
            _seen_until(ours, b"0/2")
            is_seen.set()
            seen = _seen_until(ours, b"2/2")
            run.send_signal(signal.SIGINT)
            # It may be within its drawing, which fails on a terminal that is gone.
            seen += b"".join(iter(lambda: _read(ours), b""))
            run.wait(timeout=60)
        finally:
            is_seen.set()
            os.close(ours)
    assert (run.returncode, [one in seen for one in (b"\x1b[2J", b"STATE", b"Healthy")]) == (130, [True] * 3), seen


@pytest.mark.parametrize("arguments", [("get", "adapters", "-w"), ("rollout", "sql")])
def test_an_interrupt_ends_it_at_once_without_a_traceback(address, admin, arguments):
    admin.answers["WatchAdapters"] = [
        [pb.WatchAdaptersResponse(revision=1, events=[pb.AdapterEvent(put=SQL)], snapshot=True), Hold()]
    ]
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, replicas=[PENDING]), Hold()]]
    pipe = subprocess.PIPE
    with child(command(address, *arguments), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        while "sql" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_an_interrupted_change_says_how_to_see_whether_it_is_made(address, admin, dry):
    """W8 no-false-fail: it is on its way, and the id of its request is lost with the command."""
    came, ended = threading.Event(), threading.Event()

    def asked(request: pb.SetTenantRequest) -> pb.Tenant:
        came.set()
        ended.wait(60)
        return request.tenant

    admin.answers["SetTenant"] = [asked]
    line = command(address, "-o", "json", "tenant", "set", "acme", "--max-adapters", "3", "--request-id", "q1", *dry)
    with child(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert came.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        ended.set()
    assert (process.returncode, out) == (130, "")
    assert (err == "") is bool(dry)
    if not dry:
        told = json.loads(err)["error"]
        assert (told["reason"], told["request_id"], told["exit_code"]) == ("OUTCOME_UNKNOWN", "q1", 130)
        assert "loraplane events --request q1 tells" in told["message"]


_INTERRUPTED = """
import threading
from registry.cli import command_tree, main

def invoke(_root, _context):
    lock = threading.Condition()
    with lock:
        lock.release()  # as `wait` does just before an interrupt
        raise KeyboardInterrupt

def stop():
    raise KeyboardInterrupt

command_tree.Group.invoke, main.tracing.stop = invoke, stop
main.main()
"""


def test_an_interrupt_that_python_made_another_error_of_or_that_comes_after_the_command_is_no_error():
    program = [sys.executable, "-c", _INTERRUPTED, "version"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")


_WRITES_TO_ITSELF = """
import contextlib, os
from registry.cli import main

def run(arguments):
    reads, writes = os.pipe()
    os.close(reads)
    with contextlib.suppress(BrokenPipeError):
        os.write(writes, b"x")
    return 130

main.run = run
main.main()
"""


def test_a_pipe_within_the_process_that_nobody_reads_does_not_end_it():
    program = [sys.executable, "-c", _WRITES_TO_ITSELF]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_reader_that_leaves_ends_it_without_a_traceback(address, admin):
    # Each is another, so that each is told: what is told before the reader leaves ends nothing.
    endless = (pb.Adapter(name="sql", pool="dev", etag=str(n)) for n in range(1, 100_000_000))
    news = (pb.WatchAdaptersResponse(revision=int(one.etag), events=[pb.AdapterEvent(put=one)]) for one in endless)
    admin.answers["WatchAdapters"] = [news]
    pipe = subprocess.PIPE
    with child(command(address, "get", "adapters", "-w"), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == -signal.SIGPIPE
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_change_is_made_without_standard_streams_too(address, admin, streams):
    """As some supervisors start programs: what is told goes nowhere, and the exit code is that of the change."""
    line = [
        "sh",
        "-c",
        f'exec "$@" {streams}',
        "sh",
        *command(address, "set", "sql", "--pool", "dev", "--priority", "3"),
    ]
    admin.answers["GetAdapter"] = [SQL]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr, len(admin.asked("ApplyAdapters"))) == (0, False, 1)


@pytest.mark.parametrize(
    "line", ["get pools", "-o json get pools", "delete sql --pool dev", "--help", "explain adapter"]
)
def test_an_output_that_is_full_is_no_error_of_ours(address, admin, line):
    """It is told without a traceback, and that a change was made is not denied."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(address, *line.split()), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "USAGE" in done.stderr
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert "may be changed all the same: loraplane events tells" in done.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("set sql --source https://127.0.0.1:1/a/ --look-seconds 1", 0),
        ("get adapters nope", 3),
        ("-o json get adapters nope", 3),
    ],
)
def test_a_full_standard_error_changes_neither_what_is_done_nor_the_exit_code(address, admin, line, code):
    """As where both are kept on a disk that has no room: a note is lost, and so is the error, whose code says it."""
    admin.answers["GetAdapter"] = [SQL if code == 0 else Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")]
    with Path("/dev/full").open("w") as full:
        ran = command(address, *line.split(), "--pool", "dev")
        done = subprocess.run(ran, stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False)
    assert (done.returncode, len(admin.asked("ApplyAdapters"))) == (code, code == 0)


@pytest.mark.parametrize("line", ["schema", "completion bash", "export litellm --pool dev", "get pools", "rollout sql"])
def test_an_output_that_nobody_reads_ends_it_without_a_traceback(address, admin, line):
    """A rollout is told by the threads that follow it."""
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, replicas=[PENDING]), Hold()]]
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        command(address, *line.split()), stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writes)
    assert (done.returncode, "Traceback" in done.stderr, "error" in done.stderr) == (-signal.SIGPIPE, False, False)


def test_a_rollout_on_a_terminal_is_shown_live_and_a_narrow_one_loses_nothing(address, admin):
    news = [pb.Rollout(name="sql", generation=2, replicas=[one], done=one is SERVING) for one in (PENDING, SERVING)]
    admin.answers["WatchRollout"] = [news]
    code, seen = on_a_terminal(command(address, "rollout", "sql"))
    assert (code, "\x1b[" in seen, "1 of 1 replicas serve it" in seen) == (0, True, True)
    uri = "file:///adapters/" + "".join(f"part{number}/" for number in range(12))
    adapter = pb.Adapter(name="sql", pool="dev", spec=pb.AdapterSpec(source=pb.Source(uri=uri)))
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[adapter])]
    code, seen = on_a_terminal(command(address, "get", "adapters"))
    assert (code, "…" in seen) == (0, False)
