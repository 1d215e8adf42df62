"""Parts of two releases beside each other, in the order of docs/upgrading.md and in the reverse one."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from registry.tools.devstack.stack_parts import our_environment
from tests.conftest import EtcdForTest
from tests.support.adapters import digest_of, write_adapter
from tests.support.admin import AdminProgram, admin_program
from tests.support.fleet import BASE, POOL, Sidecar, SimulatedEngine
from tests.support.processes import Program
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
# The last state of 0.1.0: before access control, the first part of 0.2.0.
OLD_COMMIT = "952b456c"
NAME = "acme/a"
RUN_CLI = "from registry.cli.main import main; main()"
PLUGIN = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_PLUGINS": "loraplane", "LORAPLANE_PLUGIN": "1"}


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """The tree of the release before, out of the history."""
    archived = subprocess.run(["git", "archive", OLD_COMMIT], cwd=ROOT, capture_output=True, check=False)
    if archived.returncode:
        pytest.skip(f"the history lacks {OLD_COMMIT}: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def of_release(program: Program, tree: Path) -> None:
    """Has a program, before its start, run from another tree: the folder that it is started in comes first."""
    program.before, program.environment = ("env", "-C", str(tree)), {**program.environment, "PYTHONPATH": str(tree)}


@dataclass
class TwoReplicas:
    """A fleet whose parts are of the old release or of the new one."""

    old: Path
    folder: Path
    etcd: EtcdForTest
    admin: AdminProgram = field(init=False)
    engines: dict[str, SimulatedEngine] = field(default_factory=dict)
    sidecars: dict[str, Sidecar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.admin = admin_program(self.folder, self.etcd.endpoints, self.etcd.prefix)
        for name in ("r1", "r2"):
            engine = SimulatedEngine(self.folder / name)
            engine.program.environment = PLUGIN
            self.engines[name] = engine
            self.sidecars[name] = self._sidecar(name)

    def _sidecar(self, name: str) -> Sidecar:
        folder = self.folder / name
        return Sidecar(
            folder, self.etcd.endpoints, self.etcd.prefix, self.engines[name].url, replica=name, sources=self.sources
        )

    @property
    def sources(self) -> Path:
        return self.folder / "sources"

    async def start_admin(self, tree: Path) -> None:
        """Starts the admin service of a release, at the same address, in place of the one that runs."""
        self.admin.program.stop()
        of_release(self.admin.program, tree)
        self.admin.program.start()
        await eventually(self.admin.is_ready)

    async def start_sidecar(self, name: str, tree: Path) -> None:
        """The same of a sidecar, until its replica is ready."""
        sidecar = self.sidecars[name]
        sidecar.program.stop()
        of_release(sidecar.program, tree)
        sidecar.program.start()
        await eventually(sidecar.is_ready)

    async def start_engine(self, name: str, tree: Path) -> None:
        """The same of an engine with the plugin of that release."""
        engine = self.engines[name]
        engine.program.stop()
        of_release(engine.program, tree)
        await engine.start()

    def said(self, tree: Path, *arguments: str) -> tuple[int, str]:
        """Exit code and output of the command line of a release."""
        done = subprocess.run(
            [sys.executable, "-c", RUN_CLI, "--admin", self.admin.address, *arguments],
            cwd=tree,
            env={**our_environment(), "PYTHONPATH": str(tree), "LORAPLANE_TIMEOUT": "120"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    async def publish(self, tree: Path, seed: int) -> None:
        """Publishes other weights by the command line of a release, and waits until all replicas serve them."""
        written = write_adapter(self.sources / str(seed), seed=seed)
        verb = ("set", NAME) if seed > 1 else ("add", NAME, "--pool", POOL)
        code, told = await asyncio.to_thread(self.said, tree, *verb, "--source", written.uri, "--wait")
        assert code == 0, told
        for engine in self.engines.values():
            assert digest_of(Path((await engine.listing())[NAME])) == written.digest, told


@contextmanager
def ended(fleet: TwoReplicas) -> Iterator[TwoReplicas]:
    programs = [fleet.admin.program, *(one.program for one in (*fleet.sidecars.values(), *fleet.engines.values()))]
    try:
        yield fleet
    finally:
        for program in programs:
            program.kill()


@asynccontextmanager
async def listed_throughout(engines: list[SimulatedEngine]) -> AsyncIterator[None]:
    """Fails unless these engines list the adapter at each look."""
    gaps: list[str] = []

    async def look() -> None:
        while True:
            for engine in engines:
                gaps.extend([engine.url] if NAME not in await engine.listing() else [])
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait([looking])
    assert gaps == []


async def test_parts_of_two_releases_beside_each_other(old, etcd: EtcdForTest, tmp_path):
    """R3 converge, R12 crash-only: one after another is replaced; each release's command line publishes meanwhile."""
    with ended(TwoReplicas(old, tmp_path, etcd)) as fleet:
        for name in ("r1", "r2"):
            await fleet.start_engine(name, old)
        await fleet.start_admin(old)
        code, told = fleet.said(old, "pool", "create", POOL, "--base-model", BASE)
        assert code == 0, told
        for name in ("r1", "r2"):
            await fleet.start_sidecar(name, old)
        await fleet.publish(old, 1)
        async with listed_throughout([*fleet.engines.values()]):
            # The reverse order first: a sidecar of today below the admin service of yesterday.
            await fleet.start_sidecar("r1", ROOT)
            await fleet.publish(ROOT, 2)
            # The order of the page: admin services, sidecars, engines with the plugin, command lines.
            await fleet.start_admin(ROOT)
            await fleet.publish(old, 3)
            await fleet.start_sidecar("r2", ROOT)
            await fleet.publish(ROOT, 4)
        await fleet.start_engine("r1", ROOT)
        async with listed_throughout([fleet.engines["r2"]]):
            await eventually(fleet.sidecars["r1"].is_ready)
            await fleet.publish(old, 5)
        code, told = fleet.said(old, "get", "replicas", "--pool", POOL, "-o", "name")
        assert (code, told.split()) == (0, ["r1", "r2"])
        code, told = fleet.said(ROOT, "doctor", "-o", "json")
        assert code == 0, told
