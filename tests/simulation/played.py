"""One engine of the simulation by itself, with its driver."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from sidecar.engines.vllm.driver import VllmEngine
from tests.simulation.artifacts import SimStore
from tests.simulation.engine_http import http_for
from tests.simulation.engines import EngineHost
from tests.simulation.plugin import Socket

REPLICA = "r"
PLAYED = "http://played"
# Where its store keeps everything.
STORE = f"/store/{REPLICA}"


def started(sources: Iterable[str], lease_file: Path, socket: Socket | None = None) -> EngineHost:
    """A host with an engine that has started, and a store with these sources in it; within a loop."""
    store = SimStore(REPLICA, random.Random(0), lease_file)
    for source in sources:
        store.put(source)
    host = EngineHost(REPLICA, PLAYED, store, random.Random(0), lambda *_: None, socket=socket)
    host.start()
    return host


def driver_of(host: EngineHost) -> VllmEngine:
    """The real driver, with the HTTP between them played."""
    with mock.patch("sidecar.engines.vllm.driver.VllmHttp", http_for({PLAYED: host}, lambda *_: None)):
        return VllmEngine(PLAYED)
