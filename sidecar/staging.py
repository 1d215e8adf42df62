"""Brings artifacts into the store, several at once, and tells the reconciler when one is there or has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import perf_counter

import structlog

from registry.sources.errors import ArtifactError
from sidecar.artifacts.types import ArtifactRef, ArtifactStore
from sidecar.metrics import STAGE_SECONDS
from sidecar.plan import Stage

_log = structlog.get_logger()
MAX_CONCURRENT = 4
_BROKEN = "the sidecar failed over it, which is a fault of the sidecar's: its log has the traceback; please report it"


class Staging:
    """Runs `ArtifactStore.ensure` in tasks of the given group; at most `MAX_CONCURRENT` at a time."""

    def __init__(
        self,
        store: ArtifactStore,
        tasks: asyncio.TaskGroup,
        *,
        on_failure: Callable[[Stage, ArtifactError], None],
        on_end: Callable[[], None],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._on_failure = on_failure
        self._on_end = on_end
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self.in_progress: set[ArtifactRef] = set()

    def start(self, stages: Iterable[Stage]) -> None:
        """Starts what is not in progress yet."""
        for stage in stages:
            if stage.ref not in self.in_progress:
                self.in_progress.add(stage.ref)
                self._tasks.create_task(self._run(stage), name=f"stage {stage.name}")

    async def _run(self, stage: Stage) -> None:
        started = perf_counter()
        try:
            async with self._slots:
                staged = await self._store.ensure(stage.ref)
            about = {"name": stage.name, "artifact": staged.id, "digest": staged.digest}
            _log.info("artifact_staged", **about, request_id=stage.request_id)
        except ArtifactError as error:
            self._on_failure(stage, error)
            _log.warning("artifact_failed", name=stage.name, reason=error.reason, request_id=stage.request_id)
        except Exception:  # noqa: BLE001 - the supervisor of one staging: what somebody's files made us do ends no other
            self._on_failure(stage, ArtifactError("internal_error", _BROKEN, permanent=False))
            _log.exception("staging_broke", name=stage.name, request_id=stage.request_id)
        finally:
            STAGE_SECONDS.observe(perf_counter() - started)
            self.in_progress.discard(stage.ref)
            self._on_end()
