"""R1 to R9 and R11 by the replay checker: sidecars' logs and engines' listings, as an operator would gather them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from unittest import mock

from registry.etcd3.ops import Event
from registry.tools.verify.history import Revision
from tests.simulation.artifacts import STORES, id_of, source_of
from tests.simulation.history import POOL
from tests.simulation.loop import current_process_name
from tests.simulation.world import EPOCH, KEYS, World
from tests.support.checkers.index import HistoryIndex
from tests.support.checkers.replay import check_replicas, check_seen
from tests.support.checkers.replicas import EngineListing

# Of the kinds of keys that replicas are checked by.
_FOLDED = tuple(f"{KEYS.prefix}/{kind}/".encode() for kind in ("adapters", "pools", "status"))


class Logs:
    """What each sidecar would have on its disk; `compared`: how much of that was held against something."""

    def __init__(self) -> None:
        self.compared: Counter[str] = Counter()
        self._lines: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def note(self, event: str, fields: Mapping[str, Any]) -> None:
        """A line of the process that runs, dated by a clock that nobody sets."""
        line = {"event": event, "timestamp": _told_at(asyncio.get_running_loop().time()), **fields}
        if event == "engine_listed":
            line["adapters"] = {name: path and _exported(path) for name, path in fields["adapters"].items()}
        self._lines[current_process_name().rpartition(".")[0]].append(line)

    def forget(self, replica: str, since: float) -> None:
        """A power cut may have taken what was acted upon since then, and with it the lines that tell of that."""
        until = _told_at(max(0.0, since))
        self._lines[replica] = [line for line in self._lines[replica] if line["timestamp"] < until]

    def check(self, world: World) -> None:
        """Holds everything against everything. Of what a replaced store had, looks and files alone can be judged."""
        steps = (Revision(at, events) for at, events in world.store.history if _is_folded(events))
        index = HistoryIndex(KEYS).replay(steps)
        hosts = {host.engine.replica for host in (*world.replicas, *world.rivals)}
        logs = [(host, lines) for host, lines in self._lines.items() if host in hosts]
        with mock.patch("tests.support.checkers.replicas.CLOCK_SECONDS", 0.0):
            if world.restores:
                findings, self.compared = check_seen(index, POOL, logs, _listings(world))
            else:
                findings, self.compared = check_replicas(index, POOL, logs, _listings(world))
        for finding in findings:
            world.checks.violated(f"{finding}")


def _told_at(seconds: float) -> str:
    return (EPOCH + timedelta(seconds=seconds)).isoformat(timespec="microseconds")


def _is_folded(events: Iterable[Event]) -> bool:
    return any(event.key.startswith(_FOLDED) for event in events)


def _exported(path: str) -> str:
    """A path as it would be on a disk."""
    return f"/store/adapters/sha256-{id_of(source_of(path))}" if path.startswith(STORES) else path


def _listings(world: World) -> list[EngineListing]:
    """Each engine whenever something changed there; of no revision, since nobody asked the sidecar for its own."""
    return [
        EngineListing(
            replica=replica,
            revision=0,
            adapters={name: _exported(path) for name, path in sample.listing.items()},
            at=(EPOCH + timedelta(seconds=sample.at)).timestamp(),
            incarnation=sample.incarnation,
        )
        for replica, samples in world.checks.samples.items()
        for sample in samples
        if sample.incarnation
    ]
