"""Real etcd behind its own grpc-proxy, which answers no request for progress and may lose events (etcd #21813)."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry.etcd3 import watch
from registry.etcd3.client import Client
from registry.etcd3.ops import Range, Txn
from registry.etcd3.stream import Connected, Disconnected
from registry.tools.devstack.processes import child_environment, find_etcd, free_ports
from tests.contract.etcd3.mirror import mirroring, put, reflect
from tests.support.etcd import END_SECONDS, PATIENCE_SECONDS
from tests.support.waiting import eventually


def started(member: str, where: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [str(find_etcd()), "grpc-proxy", "start", "--endpoints", member, "--listen-addr", where]
    with (folder / "proxy.log").open("wb") as log:
        return subprocess.Popen(command, env=child_environment(), stdout=log, stderr=log, cwd=folder)


@pytest.fixture
async def behind_proxy(etcd, tmp_path) -> AsyncIterator[Client]:
    """A client that reaches the session's etcd through a grpc-proxy only."""
    (port,) = free_ports(1)
    where = f"127.0.0.1:{port}"
    process = started(etcd.endpoints[0], where, tmp_path)
    client = Client(etcd.options(endpoints=(where,), call_timeout_seconds=PATIENCE_SECONDS))
    try:
        await eventually(client.status)
        yield client
    finally:
        await client.aclose()
        process.kill()
        process.wait(END_SECONDS)


async def test_what_answers_no_request_for_progress_is_named(behind_proxy, etcd, rng, monkeypatch):
    """R2 replay-equal cannot be kept there, and nobody should look for a server that hangs."""
    await behind_proxy.txn(put((etcd.key("a"), b"1")))
    read = await behind_proxy.txn(Txn((), (Range(etcd.key("a")), Range(etcd.key("b")))))
    assert [one.count for one in read.responses] == [1, 0]
    monkeypatch.setattr(watch, "SILENCE_SECONDS", (0.5, 0.5, 0.5))
    monkeypatch.setattr(watch, "_ANSWER_SECONDS", PATIENCE_SECONDS)
    async with mirroring(reflect(behind_proxy, etcd, rng)) as mirror:
        await mirror.first(Connected)
        lost = await mirror.first(Disconnected)
    assert lost.refuses_progress
    assert "refused two requests for progress" in lost.message
    assert "--etcd" in lost.message
