"""Clients in forks, in threads that fork, in spawned processes and on loops that end, each a program of its own.

Real gRPC, on a server of this process: in a fork of a program that had a connection gRPC hangs, or ends it with a
segmentation fault.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest

from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin, Hold, Refusal, served

START = """
import asyncio, multiprocessing, os, sys, threading
from loraplane import AsyncRegistry, NotFound, PermissionDenied, Registry, RegistryError, Unavailable
ADDRESS = sys.argv[1]

def new():
    with Registry(ADDRESS, timeout_seconds=30) as registry:
        print("listed", registry.list("p").revision)
        states = registry.residency("p")
        print("resident", next(states).revision)
        states.close()
        try:
            registry.get("a", "p")
        except NotFound as error:
            print("told", error.reason, error.field)

def ended(child):
    sys.stdout.flush()
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

def forked(function):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        function()
        sys.stdout.flush()
        os._exit(0)
    ended(child)
"""
# The child's output: what is listed, the first residency, and a refusal with its details.
NEW = ["listed 9", "resident 7", "told ADAPTER_NOT_FOUND name"]
USED = """
registry = Registry(ADDRESS, timeout_seconds=30)
states = registry.residency("p")
print("before", registry.list("p").revision, next(states).revision)
"""
AFTER = 'print("after", registry.list("p").revision)'
PROGRAMS: dict[str, tuple[str, list[str]]] = {
    "a fork beside a connection": (f"{USED}\nforked(new)\n{AFTER}", ["before 9 7", *NEW, "ended 0", "after 9"]),
    "a fork after a connection": (
        f"{USED}\nstates.close()\nregistry.close()\nforked(new)",
        ["before 9 7", *NEW, "ended 0"],
    ),
    "a fork of a fork": (f"{USED}\nforked(lambda: forked(new))", ["before 9 7", *NEW, "ended 0", "ended 0"]),
    "a fork without a connection": ("forked(new)\nnew()", [*NEW, "ended 0", *NEW]),
    "a fork that ends as programs do": (
        f"""{USED}
child = os.fork()
if child == 0:
    registry.close()
    del states, registry
    new()
    sys.exit(0)
ended(child)
{AFTER}""",
        ["before 9 7", *NEW, "ended 0", "after 9"],
    ),
    "threads that go on": (
        f"""{USED}
stop = threading.Event()
def asks():
    while not stop.is_set():
        registry.list("p")
threads = [threading.Thread(target=asks) for _ in range(4)]
for thread in threads: thread.start()
forking = threading.Thread(target=lambda: forked(new)); forking.start(); forking.join()
stop.set()
for thread in threads: thread.join()
{AFTER}""",
        ["before 9 7", *NEW, "ended 0", "after 9"],
    ),
    "a fork with an event loop that runs, as a notebook has one": (
        """
async def main():
    async with AsyncRegistry(ADDRESS, timeout_seconds=30) as registry, AsyncRegistry(ADDRESS) as other:
        print("before", (await registry.list("p")).revision, Registry(ADDRESS).list("p").revision)
        async def inner():
            async with AsyncRegistry(ADDRESS, timeout_seconds=30) as mine:
                print("listed", (await mine.list("p")).revision)
        def child():
            thread = threading.Thread(target=lambda: asyncio.run(inner()))
            thread.start(); thread.join()
        forked(child)
        print("after", (await registry.list("p")).revision)
asyncio.run(main())
""",
        ["before 9 9", "listed 9", "ended 0", "after 9"],
    ),
    "processes as Python's own are made": (
        f"""{USED}
for how in ("fork", "forkserver", "spawn"):
    context = multiprocessing.get_context(how)
    process = context.Process(target=print, args=("made", how)) if how != "fork" else context.Process(target=new)
    sys.stdout.flush(); process.start(); process.join(); print("ended", process.exitcode)
""",
        ["before 9 7", *NEW, "ended 0", "made forkserver", "ended 0", "made spawn", "ended 0"],
    ),
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    admin = FakeAdmin()
    admin.answers |= {
        "ListAdapters": [pb.ListAdaptersResponse(revision=9)],
        "WatchResidency": [[pb.WatchResidencyResponse(snapshot=True, revision=7), Hold()]],
        "GetAdapter": [Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "none", where="name")],
    }
    with served(admin) as address:
        yield address


def ran(program: str, address: str) -> subprocess.CompletedProcess[str]:
    guarded = f'{START}\nif __name__ == "__main__":\n' + "".join(f"    {line}\n" for line in program.splitlines())
    command = [sys.executable, "-c", guarded, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_new_connection_works_in_any_process(address, name):
    """X3 given-back: with its streams and its refusals; that of the other process goes on, and no traceback is told."""
    program, expected = PROGRAMS[name]
    done = ran(program, address)
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done.stderr
    assert "Traceback" not in done.stderr


def test_a_connection_of_another_process_says_so_at_once(address):
    """By both numbers, in each of its methods; to close it there ends nothing."""
    program = f"""{USED}
parent = os.getpid()
def child():
    for call in (lambda: registry.list("p"), lambda: next(registry.residency("p")), lambda: next(states)):
        try:
            call()
        except RuntimeError as error:
            told = f"made in process {{parent}} and is used in process {{os.getpid()}}"
            print(told in str(error), type(error).__name__)
    registry.close()
forked(child)
{AFTER}
"""
    done = ran(program, address)
    told = ["True UsedAfterFork"] * 3
    assert done.stdout.splitlines() == ["before 9 7", *told, "ended 0", "after 9"], done.stderr


def test_who_makes_calls_for_a_fork_tells_why_it_cannot(address):
    """W8 no-false-fail: nobody there, and no Python to start, are as unavailable as anywhere."""
    program = f"""{USED}
def child():
    for python, where in ((sys.executable, "127.0.0.1:1"), ("/none", ADDRESS)):
        sys.executable = python
        try:
            with Registry(where, timeout_seconds=1) as mine:
                mine.list("p")
        except Unavailable as error:
            print(error.reason, "cannot start /none" in error.message)
forked(child)
"""
    done = ran(program, address)
    told = ["ADMIN_UNAVAILABLE False", "ADMIN_UNAVAILABLE True"]
    assert done.stdout.splitlines() == ["before 9 7", *told, "ended 0"], done.stderr


def test_loops_that_end_leave_no_traceback(address):
    """Calls that were given up come late; once they were told to whichever loop ran, on standard error."""
    program = """
async def main():
    async with AsyncRegistry(ADDRESS, timeout_seconds=30) as registry:
        states = registry.residency("p")
        await anext(states)
        for task in [asyncio.create_task(anext(states)), asyncio.create_task(registry.list("p"))]:
            await asyncio.sleep(0)
            task.cancel()
threads = [threading.Thread(target=lambda: [asyncio.run(main()) for _ in range(10)]) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    done = ran(program, address)
    assert (done.returncode, done.stderr) == (0, "")
