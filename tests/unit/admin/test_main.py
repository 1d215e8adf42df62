"""The program ``loraplane-admin``: what it does first, when it stops, and with which code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog.testing

from registry.admin import main as program
from registry.admin.settings import AdminSettings
from registry.etcd3.errors import EtcdUnauthenticated, TlsFailed
from registry.runtime.http import CannotListen


def test_it_reads_its_settings_before_anything_else_and_is_supervised(monkeypatch):
    """R12: a mistake in a flag is told in plain words; all that follows is logged."""
    told: list[object] = []
    settings = AdminSettings(etcd="127.0.0.1:1")  # type: ignore[arg-type]

    def read(model: type, **options: object) -> AdminSettings:
        told.append((model, options["program"], options["arguments"]))
        return settings

    monkeypatch.setattr(program.sys, "argv", ["loraplane-admin", "--etcd", "x"])
    monkeypatch.setattr(program, "read_settings", read)
    monkeypatch.setattr(program, "spare_collector", lambda: told.append("spared"))
    monkeypatch.setattr(program, "raise_descriptor_limit", lambda: told.append("descriptors"))
    monkeypatch.setattr(program, "configure_logging", lambda: told.append("logs"))
    monkeypatch.setattr(program, "_serve", lambda given: ("serves", given))
    monkeypatch.setattr(program, "supervise", lambda *given: told.append(given))
    program.main()
    (first, *between, (name, work, exits)) = told  # type: ignore[misc]
    assert first == (AdminSettings, "loraplane-admin", ["--etcd", "x"])
    assert set(between) == {"spared", "descriptors", "logs"}
    assert (name, work) == ("loraplane-admin", ("serves", settings))
    assert exits == {CannotListen: 2, TlsFailed: 2, EtcdUnauthenticated: 2}


async def test_it_serves_until_a_signal(monkeypatch):
    """R18: the end is told twice, when it begins and when all is closed."""
    told: list[str] = []
    stops: list[Callable[[], object]] = []

    @asynccontextmanager
    async def running(_: AdminSettings) -> AsyncIterator[None]:
        told.append("serves")
        yield
        told.append("closed")

    monkeypatch.setattr(program, "running", running)
    monkeypatch.setattr(program, "on_stop_signal", stops.append)
    with structlog.testing.capture_logs() as logged:
        serving = asyncio.create_task(program._serve(AdminSettings(etcd="127.0.0.1:1")))  # type: ignore[arg-type]
        for _ in range(5):
            await asyncio.sleep(0)
        assert (told, serving.done()) == (["serves"], False)
        [stop] = stops
        stop()
        await serving
    assert told == ["serves", "closed"]
    assert [line["event"] for line in logged] == ["stopping", "stopped"]
