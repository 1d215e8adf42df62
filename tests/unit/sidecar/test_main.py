"""How a sidecar's process begins and ends."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import pytest

from registry.runtime.http import CannotListen
from sidecar import main as module
from sidecar.daemon import StoreUnusable
from sidecar.desired.journal import SnapshotUnread
from sidecar.ownership import ReplicaTaken
from sidecar.resolver.server import SocketUnusable
from sidecar.settings import SidecarSettings


class Process:
    """What a process of it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self._monkeypatch = monkeypatch
        for name in ("spare_collector", "raise_descriptor_limit", "configure_logging", "end_soon"):
            monkeypatch.setattr(module, name, lambda name=name: self.did.append(name))
        arguments = "--etcd 127.0.0.1:1 --pool p --replica r1 --engine http://127.0.0.1:1 --store /nowhere"
        monkeypatch.setattr(sys, "argv", ["loraplane-sidecar", *arguments.split()])

    def run(self, work: Any) -> int:
        """Its exit code, where this is the work of a sidecar."""

        async def run(settings: SidecarSettings, stop: asyncio.Event) -> None:
            self.did.append(f"run {settings.pool} {settings.replica}")
            await work(stop)

        self._monkeypatch.setattr(module, "run", run)
        try:
            module.main()
        except SystemExit as ended:
            return int(str(ended.code))
        return 0


@pytest.fixture
def process(monkeypatch) -> Process:
    return Process(monkeypatch)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_it_hand_over(process, number):
    """R20 drain: it ends by itself then; its log and its memory are as they shall be before anything else happens."""

    async def work(stop: asyncio.Event) -> None:
        assert not stop.is_set()
        signal.raise_signal(number)
        await stop.wait()
        process.did.append("handed over")

    assert process.run(work) == 0
    assert sorted(process.did[:3]) == ["configure_logging", "raise_descriptor_limit", "spare_collector"]
    assert process.did[3:] == ["run p r1", "handed over", "end_soon"]


def test_the_second_signal_ends_it_at_once(process):
    async def work(stop: asyncio.Event) -> None:
        signal.raise_signal(signal.SIGTERM)
        await stop.wait()
        process.did.append("hands over")
        signal.raise_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    assert process.run(work) == 0
    assert process.did[-2:] == ["hands over", "end_soon"]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (StoreUnusable("the store"), 2, "loraplane-sidecar: the store\n"),
        (CannotListen("the port"), 2, "loraplane-sidecar: the port\n"),
        (SocketUnusable("the socket"), 2, "loraplane-sidecar: the socket\n"),
        (ReplicaTaken("taken"), 3, "loraplane-sidecar: taken\n"),
        (SnapshotUnread("no descriptors"), 1, "loraplane-sidecar: no descriptors\n"),
        (ExceptionGroup("several", [ReplicaTaken("taken twice")]), 3, "loraplane-sidecar: taken twice\n"),
        (RuntimeError("a fault"), 1, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_ends_it_is_its_exit_code(process, capsys, error, code, said):
    """R10, R12: 2 asks for another flag, 3 says that another has its id, 1 that it is a fault of ours."""

    async def work(_: asyncio.Event) -> None:
        raise error

    assert process.run(work) == code
    assert capsys.readouterr().err == said or not said


def test_without_what_it_needs_it_does_not_begin(process, monkeypatch, capsys):
    """The program's own name is no flag."""

    async def work(_: asyncio.Event) -> None:
        raise AssertionError

    monkeypatch.setattr(sys, "argv", ["loraplane-sidecar"])
    assert process.run(work) == 2
    assert process.did == []
    assert capsys.readouterr().err.startswith("loraplane-sidecar: ")
