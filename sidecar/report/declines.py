"""Declines of this replica: told in its presence, kept for its next process.

Every sidecar of the pool gets a presence and then finds its share anew, and tells so in its status. So what is new is
gathered for a moment, and told only now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import structlog

from registry.model.errors import RegistryError
from registry.model.placement import Declined, declined_of
from registry.model.status import RememberedDeclines, ReportedDeclines
from registry.runtime.local_files import make_way, read_file
from sidecar.plan.backoff import Declines
from sidecar.plan.declines import announced
from sidecar.plan.types import RoundReport
from sidecar.report.announcement import Announcement

_log = structlog.get_logger()
FILE = "declines.json"
GATHER_SECONDS = 0.5
PACE_SECONDS = 5.0


class DeclineTeller:
    """One replica's. A file that cannot be read or written only has adapters come back after a restart for a moment."""

    def __init__(self, announcement: Announcement, state: Path) -> None:
        """Reads nothing yet: another sidecar of this replica may still be there. `state`: the replica's directory."""
        self._announcement = announcement
        self._file = state / FILE
        self._newest: Declines = {}
        self._told_at = -PACE_SECONDS
        self._is_due = False
        self.told: Mapping[str, Declined] = {}

    def restore(self) -> None:
        """Tells what the process before declined, until this one knows better."""
        try:
            self.told = declined_of(RememberedDeclines.parse(read_file(self._file)).declines)
        except FileNotFoundError:
            return
        except (OSError, RegistryError) as error:
            _log.warning("declines_unreadable", error=str(error))
            return
        self._announcement.decline(_reported(self.told))

    def take(self, report: RoundReport) -> None:
        """Takes in what a round came to."""
        plan = report.situation.plan
        if plan is None or plan.declined is self._newest:
            return
        self._newest = plan.declined
        if not self._is_due:
            self._is_due, loop = True, asyncio.get_running_loop()
            loop.call_at(max(loop.time() + GATHER_SECONDS, self._told_at + PACE_SECONDS), self._tell)

    def _tell(self) -> None:
        self._is_due, news = False, announced(self._newest)
        if news == self.told:
            return
        self.told, self._told_at = news, asyncio.get_running_loop().time()
        _log.info("declines_told", adapters=len(self._newest), reasons=sorted(news))
        reported = _reported(news)
        self._remember(RememberedDeclines(declines=reported))
        self._announcement.decline(reported)

    def _remember(self, declines: RememberedDeclines) -> None:
        temporary = self._file.with_suffix(".tmp")
        try:
            make_way(temporary)
            temporary.write_bytes(declines.to_bytes())
            make_way(self._file)
            temporary.rename(self._file)
        except OSError as error:
            _log.warning("declines_not_kept", error=str(error))


def _reported(declines: Mapping[str, Declined]) -> dict[str, ReportedDeclines]:
    return {reason: ReportedDeclines(by=one.by, adapters=sorted(one.adapters)) for reason, one in declines.items()}
