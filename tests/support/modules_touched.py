"""Modules of ours that take part in one `loraplane add … --wait`, in each process and in all.

It plays the command against real etcd, an admin service, and one sidecar on a simulated engine, and prints in which
modules code ran meanwhile: whoever changes this path has to read these. What an import runs does not count, nor does
the process that examines an adapter's files::

    python -m tests.support.modules_touched
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.support.adapters import write_adapter
from tests.support.admin import admin_program
from tests.support.etcd import one_member
from tests.support.fleet import BASE, POOL, Sidecar, SimulatedEngine
from tests.support.processes import Program
from tests.support.profiled import BEGIN, END, NOTES
from tests.support.waiting import eventually

COMMAND_LINE = "registry.cli.main"
PREFIX = "/modules-touched"


def profiled(program: Program, folder: Path) -> None:
    """Has a program, before its start, note what runs in it."""
    folder.mkdir()
    program.arguments[:0] = [str(folder), program.module]
    program.module = "tests.support.profiled"


async def noted(folder: Path) -> list[str]:
    """Modules that a process noted, once it has written them."""
    file = folder / "modules.json"
    await eventually(file.exists)
    found: list[str] = json.loads(file.read_text())
    return found


def run(address: str, *arguments: str, folder: Path | None = None) -> None:
    """Runs the command line, which must succeed."""
    before = ["tests.support.profiled", str(folder)] if folder else []
    command = [sys.executable, "-m", *before, COMMAND_LINE, "--admin", address, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def is_ready(url: str) -> bool:
    """True once an admin service takes calls; a command line that comes earlier is refused at once."""
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False


async def play(etcd: tuple[str, ...], folder: Path, stack: ExitStack) -> Mapping[str, list[str]]:
    """Modules by process."""
    admin = admin_program(folder, etcd, PREFIX)
    engine = SimulatedEngine(folder)
    sidecar = Sidecar(folder, etcd, PREFIX, engine.url)
    notes = {name: folder / f"notes-{name}" for name in ("cli", "admin", "sidecar")}
    profiled(admin.program, notes["admin"])
    profiled(sidecar.program, notes["sidecar"])
    for program in (admin.program, engine.program, sidecar.program):
        stack.callback(program.kill)
        program.start()
    await eventually(engine.is_healthy)
    await eventually(lambda: is_ready(admin.http))
    await asyncio.to_thread(run, admin.address, "pool", "create", POOL, "--base-model", BASE)
    await eventually(sidecar.is_ready)
    source = write_adapter(folder / "sources" / "a").directory.as_uri()
    notes["cli"].mkdir()
    for one in notes.values():
        (one / BEGIN).touch()
    for name in ("admin", "sidecar"):
        await eventually((notes[name] / NOTES).exists)
    await asyncio.to_thread(
        run, admin.address, "add", "a", "--pool", POOL, "--source", source, "--wait", folder=notes["cli"]
    )
    for one in notes.values():
        (one / END).touch()
    return {name: await noted(one) for name, one in notes.items()}


def main() -> None:
    """Plays it, and prints the modules."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        etcd = stack.enter_context(one_member(folder / "etcd"))
        found = asyncio.run(play(tuple(etcd.endpoints), folder, stack))
    for process, modules in found.items():
        print(f"{process}: {len(modules)}")
        print("".join(f"  {one}\n" for one in modules), end="")
    print(f"together: {len(set().union(*found.values()))}")


if __name__ == "__main__":
    main()
