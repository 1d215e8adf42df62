"""Measures how long a change takes from its commit until it is served here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from registry.model.names import name_key
from sidecar.desired import DesiredAdapter
from sidecar.metrics import PROPAGATION_SECONDS
from sidecar.plan import Plan


class Propagation:
    """Watches names from pending to served. Changes from before `started` are not counted: nobody waited here."""

    def __init__(self, started: datetime) -> None:
        self._started = started
        self._pending: dict[str, int] = {}

    def follow(self, plan: Plan, adapters: Mapping[str, DesiredAdapter], now: datetime) -> None:
        """Takes note of one plan; `adapters` are the desired ones by name key, `now` is UTC."""
        if self._pending:
            served = {adapter.name: adapter.generation for adapter in plan.served}
            for key, generation in self._pending.items():
                adapter = adapters.get(key)
                if adapter is not None and served.get(adapter.name) == generation:
                    self._observe(adapter.updated_at, now)
        self._pending = {name_key(entry.name): entry.generation for entry in plan.pending if not entry.is_settled}

    def _observe(self, updated_at: str, now: datetime) -> None:
        try:
            committed = datetime.fromisoformat(updated_at)
        except ValueError:
            return
        if committed.tzinfo is not None and committed >= self._started:
            PROPAGATION_SECONDS.observe(max(0.0, (now - committed).total_seconds()))
