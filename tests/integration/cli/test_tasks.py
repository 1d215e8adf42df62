"""Tasks of an operator, each in at most three commands, as docs/operations.md has them, on real parts."""

from __future__ import annotations

import asyncio
import re
import shlex
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import pytest

from registry.cli.doctor import collect
from registry.model.placement import Member
from registry.model.records import AdapterSpec, Placement, SourceSpec
from tests.conftest import EtcdForTest
from tests.integration.cli.conftest import Cli, make_admin
from tests.support.adapters import write_adapter
from tests.support.fleet import BASE, POOL, Sidecar, SimulatedEngine
from tests.support.ran import Ran
from tests.support.residency_world import assigned
from tests.support.waiting import eventually

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
REPLICAS = {"r1": "a", "r2": "b", "r3": "c"}
# The column of -o wide that says where.
REPLICAS_SHOWN = 8
PATIENCE_SECONDS = 120
MOST = 3


@dataclass
class Fleet:
    """An installation with three replicas, each in a zone of its own."""

    cli: Cli
    sources: Path
    parts: dict[str, tuple[SimulatedEngine, Sidecar]]

    def add(self, name: str, *flags: str) -> Path:
        """Adds an adapter, which is served then; gives its folder."""
        folder = write_adapter(self.sources / name, seed=len(name), base=BASE).directory
        ran = self.cli("add", name, "--source", folder.as_uri(), "--wait", "--timeout", "60", *flags)
        assert ran.code == 0, ran.err

        def is_told() -> bool:
            return cells(self.cli("get", "adapters", name).out, name)[2] == "Healthy"

        asyncio.run(eventually(is_told, timeout_seconds=PATIENCE_SECONDS))
        return folder


@pytest.fixture(scope="module")
def fleet(etcd_member, tmp_path_factory) -> Iterator[Fleet]:
    """One for all tasks; each has adapters of its own."""
    folder = tmp_path_factory.mktemp("tasks")
    etcd = EtcdForTest(etcd_member, f"/test/{uuid.uuid4().hex}")
    admin = make_admin(folder, etcd)
    made = Fleet(Cli(admin, folder), folder / "sources", {})
    with ExitStack() as stack:
        stack.callback(admin.program.kill)
        admin.start()
        assert made.cli("pool", "create", POOL, "--base-model", BASE).code == 0
        for name, zone in REPLICAS.items():
            engine = SimulatedEngine(folder / name)
            labels = ["--labels", f"zone={zone}"]
            sidecar = Sidecar(
                folder / name, etcd.endpoints, etcd.prefix, engine.url, replica=name, sources=made.sources, extra=labels
            )
            sidecar.change("decided")
            made.parts[name] = engine, sidecar
            for program in (engine.program, sidecar.program):
                stack.callback(program.kill)
                program.start()
        for _, sidecar in made.parts.values():
            asyncio.run(eventually(sidecar.is_ready, timeout_seconds=PATIENCE_SECONDS))
        yield made


def recipe(title: str) -> list[str]:
    """The commands of a task on the page."""
    (text,) = re.findall(rf"^### {title}\n((?:    .+\n)+)", PAGE.read_text(), re.MULTILINE)
    return [line.partition("#")[0].strip() for line in text.splitlines()]


@dataclass
class Task:
    """Runs the commands of one task and notes them; a command that is repeated until it says something is one."""

    cli: Cli
    commands: list[str] = field(default_factory=list)

    def __call__(self, command: str, code: int = 0) -> str:
        """Runs a command as somebody types it; gives what it prints."""
        self.commands.append(command)
        ran = self._run(command)
        assert ran.code == code, (command, ran.out, ran.err)
        return ran.out

    def until(self, command: str, is_told: Callable[[str], bool], code: int = 0) -> str:
        """Repeats it until it says so."""

        def told() -> str:
            ran = self._run(command)
            assert (ran.code, is_told(ran.out)) == (code, True), (command, ran.out, ran.err)
            return ran.out

        self.commands.append(command)
        return asyncio.run(eventually(told, timeout_seconds=PATIENCE_SECONDS, every_seconds=0.2))

    def _run(self, command: str) -> Ran:
        program, *arguments = shlex.split(command)
        assert program == "loraplane"
        return self.cli(*arguments)


@pytest.fixture
def task(fleet, request, monkeypatch) -> Iterator[Task]:
    """Compares what a test ran with the page, under the title in its docstring's first line."""
    monkeypatch.chdir(fleet.cli.folder)
    monkeypatch.setattr(collect, "_CALL_SECONDS", 60.0)
    task = Task(fleet.cli)
    yield task
    assert len(task.commands) <= MOST
    assert task.commands == recipe(request.function.__doc__.partition(".")[0])


def cells(told: str, name: str) -> list[str]:
    """The line of a table that begins with that name."""
    lines = [line.strip() for line in told.splitlines() if line.split()[:1] == [name]]
    assert len(lines) == 1, (name, told)
    return re.split(r" {2,}", lines[0])


def test_it_is_found_why_an_adapter_is_not_served(task, fleet):
    """Find why an adapter is not served."""
    folder = write_adapter(fleet.sources / "legal", base=BASE).directory
    weights = folder / "adapter_model.safetensors"
    weights.rename(fleet.sources / "weights")
    assert fleet.cli("add", "legal", "--source", folder.as_uri(), "--force").code == 0
    by_many = re.compile(r"\d replicas \(r1, r2.*cannot serve the newest of legal: source_incomplete")
    task.until("loraplane doctor", lambda out: bool(by_many.search(out)), code=4)
    why = f"{folder.as_uri()} has no adapter_model.safetensors"
    task.until("loraplane describe adapter legal", lambda out: why in out)
    (fleet.sources / "weights").rename(weights)
    task("loraplane retry adapter legal")
    assert fleet.cli("rollout", "legal").code == 0


def test_it_is_found_why_engines_answer_404(task, fleet):
    """Find why engines answer 404. One command tells of each engine what it answers, as these do."""
    fleet.add("partial", "--replicas", "1")

    def answers(name: str) -> str:
        body = {"model": "partial", "prompt": "x", "max_tokens": 1}
        code = httpx.post(f"{fleet.parts[name][0].url}/v1/completions", json=body, timeout=30).status_code
        return {200: "yes", 404: "no"}[code]

    told = task("loraplane why partial")
    assert {name: cells(told, name)[1] for name in REPLICAS} == {name: answers(name) for name in REPLICAS}
    assert told.count("it is not placed there (placement.replicas: 1)") == 2


def test_it_is_found_who_changed_an_adapter_to_what(task, fleet):
    """Find who changed an adapter to what."""
    fleet.add("sql-x")
    ran = fleet.cli("set", "sql-x", "--priority", "7", "--request-id", "raise-it")
    assert ran.code == 0, ran.err
    told = task("loraplane events sql-x")
    [row] = [line for line in told.splitlines() if " updated " in line]
    assert re.search(r" sql-x +- +2 +anonymous +raise-it +priority: 0 → 7 \(ApplyAdapters\)$", row), row
    told = task("loraplane diff sql-x 1 2").splitlines()
    assert told.index("-priority: 0") + 1 == told.index("+priority: 7")


CANARY = """\
apiVersion: loraplane/v1
kind: Adapter
metadata: {name: chat, pool: POOL}
spec:
  source: {uri: "URI"}
  strategy: {canary: {replicas: 1}, promote: auto}
"""


def test_a_canary_is_followed_to_its_halt(task, fleet):
    """Follow a canary to its halt. One that cannot be served takes nothing away from the others."""
    fleet.add("chat")
    bad = write_adapter(fleet.sources / "chat-bad", rank=64, base=BASE).directory
    manifest = fleet.cli.folder / "chat.yaml"
    manifest.write_text(CANARY.replace("POOL", POOL).replace("URI", bad.as_uri()))
    ran = fleet.cli("apply", "-f", str(manifest))
    assert ran.code == 0, ran.err
    task.until("loraplane rollout chat", lambda _out: True, code=7)
    told = task("loraplane describe adapter chat")
    assert re.search(r"^State: +Halted, ", told, re.MULTILINE), told
    assert "LoRA rank 64 is greater than max_lora_rank 16" in told
    task("loraplane rollout abort chat --wait")
    assert fleet.cli.json("get", "adapters", "chat")["spec"]["source"]["uri"].endswith("/chat")


def test_a_bad_version_is_rolled_back(task, fleet):
    """Roll back a bad version."""
    first = fleet.add("sql")
    bad = write_adapter(fleet.sources / "sql-bad", seed=9, base=BASE).directory
    assert fleet.cli("set", "sql", "--source", bad.as_uri(), "--wait").code == 0
    told = task("loraplane history sql")
    assert "source.uri: " in cells(told, "2")[-1], told
    assert cells(told, "1")[-1] == "-"
    told = task("loraplane rollback sql --wait")
    assert re.search(r"sql generation 3: (\d) of \1 replicas serve it$", told.strip())
    is_back = ["Healthy", "3/3", "3"]
    task.until("loraplane get adapters sql", lambda out: cells(out, "sql")[2:5] == is_back)
    assert fleet.cli.json("get", "adapters", "sql")["spec"]["source"]["uri"] == first.as_uri()


def test_an_adapter_is_moved(task, fleet):
    """Move an adapter."""
    fleet.add("support", "--on", "zone=a")
    assert cells(fleet.cli("get", "adapters", "support", "-o", "wide").out, "support")[REPLICAS_SHOWN] == "r1"
    told = task("loraplane get replicas -l zone=b")
    assert [line.split()[0] for line in told.splitlines()] == ["NAME", "r2"]
    told = task("loraplane set support --on zone=b --wait")
    assert "placement.selector.zone: a → b" in told
    assert told.strip().endswith("support generation 2: 1 of 1 replicas serve it")
    is_there = re.compile(r"^r2 +support +2 +serving", re.MULTILINE)
    task.until("loraplane describe adapter support", lambda out: bool(is_there.search(out)))


def test_a_replica_is_emptied(task, fleet):
    """Empty a replica."""
    members = [Member(name, {}, None) for name in REPLICAS]
    spec = AdapterSpec(source=SourceSpec(uri="file:///a"), placement=Placement(replicas=1))
    name = next(
        one for one in map("chat-{}".format, count()) if assigned(POOL, one, spec, members, {}).serving == ("r1",)
    )
    fleet.add(name, "--replicas", "1")
    assert cells(fleet.cli("get", "adapters", name, "-o", "wide").out, name)[REPLICAS_SHOWN] == "r1"
    try:
        told = task("loraplane drain r1 --wait")
        assert "replica r1 is to drain" in told
        assert told.endswith("replica r1: nothing is needed here any more\n")

        def is_empty(told: str) -> bool:
            shown = cells(told, name)
            return shown[2:4] == ["Healthy", "1/1 of 2"] and shown[REPLICAS_SHOWN] in {"r2", "r3"}

        task.until("loraplane get adapters -o wide", is_empty)
        told = task.until(
            "loraplane describe replica r1", lambda out: bool(re.search(r"^Leaving: +-", out, re.MULTILINE))
        )
        assert re.search(r"^Note: +it drains: an operator asked for it", told, re.MULTILINE)
    finally:
        assert fleet.cli("undrain", "r1").code == 0


def test_a_backup_is_restored(task, fleet):
    """Restore a backup."""
    fleet.add("finance")
    fleet.add("risk")
    assert (fleet.cli("backup", "backup.json", "--force").code, fleet.cli("delete", "finance").code) == (0, 0)
    assert fleet.cli("set", "risk", "--priority", "7").code == 0
    told = task("loraplane restore backup.json --dry-run")
    assert (told.splitlines()[:2], "summary: +1 ~1 -0" in told) == (["+ adapter p/finance", "~ adapter p/risk"], True)
    told = task("loraplane restore backup.json --yes")
    assert (cells(told, "created")[1], cells(told, "updated")[1]) == ("finance", "risk")

    def is_served(told: str) -> bool:
        return all(cells(told, name)[2] == "Healthy" for name in ("finance", "risk"))

    task.until("loraplane get adapters", is_served)


def test_the_dead_replica_is_found(task, fleet):
    """Find the dead replica."""
    fleet.add("watched")
    engine, sidecar = fleet.parts["r3"]
    sidecar.program.kill()
    engine.program.kill()
    told = task.until("loraplane doctor", lambda out: "do not live" in out, code=4)
    assert re.search(r"^error +pool +p +1 of 3 replicas do not live: r3 \(", told, re.MULTILINE), told
    assert "loraplane replica forget NAME" in told
    told = task("loraplane get replicas")
    assert cells(told, "r3")[2] == "no"

    def is_missed() -> bool:
        shown = cells(fleet.cli("get", "adapters", "watched").out, "watched")
        assert (shown[2:4], shown[-1]) == (["Degraded", "2/3"], "1 × not_alive")
        return True

    # Adapters are told as of a tenth of a second ago, replicas as of now.
    asyncio.run(eventually(is_missed, timeout_seconds=PATIENCE_SECONDS))
    assert re.fullmatch(r"just gone|last seen \d+ .* ago", cells(told, "r3")[-1])
    assert [cells(told, name)[2] for name in ("r1", "r2")] == ["yes", "yes"]
    task("loraplane replica forget r3")
    assert "r3" not in fleet.cli("get", "replicas").out


def test_every_task_of_the_page_is_tried():
    """A recipe that no test runs may be wrong."""
    section = PAGE.read_text().partition("## In three commands\n")[2].partition("\n## ")[0]
    tried = {
        one.__doc__.partition(".")[0] for name, one in globals().items() if name.startswith("test_") and one.__doc__
    }
    assert set(re.findall(r"^### (.+)$", section, re.MULTILINE)) <= tried
