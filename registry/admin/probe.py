"""Asks etcd again and again whether it answers, and tells the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog
from grpc_health.v1 import health, health_pb2

from registry.admin.metrics import Metrics
from registry.errors import FailedPrecondition
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, TlsFailed, Unauthenticated
from registry.keys import Keys
from registry.store.gate import Gate
from registry.store.meta import ensure_meta

PROBE_SECONDS = 1.0
_PROBE_TIMEOUT_SECONDS = 3.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the service does its work, and if not, why."""

    ready: bool
    reason: str


class Probe:
    """Keeps health, gate and readiness as etcd is. Logs each change of state once."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        gate: Gate,
        servicer: health.aio.HealthServicer,
        metrics: Metrics,
        service: str,
    ) -> None:
        self._client = client
        self._keys = keys
        self._gate = gate
        self._servicer = servicer
        self._metrics = metrics
        self._service = service
        self._answered = False
        self.readiness = Readiness(ready=False, reason="etcd has not answered yet")

    async def run(self) -> None:
        """Probes until it is cancelled.

        Raises:
            TlsFailed, Unauthenticated: the very first answer of etcd; waiting would not help.
        """
        await self._show(self.readiness)
        while True:
            readiness = await self._look()
            if readiness != self.readiness:
                self.readiness = readiness
                await self._show(readiness)
                _tell(readiness)
            await asyncio.sleep(PROBE_SECONDS)

    async def _look(self) -> Readiness:
        """One linearizable read that also makes sure of the store's own record."""
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_SECONDS):
                await ensure_meta(self._client, self._keys)
        except (TlsFailed, Unauthenticated):
            if not self._answered:
                raise
            return Readiness(ready=False, reason="etcd refuses the admin service's certificate, user or password")
        except (EtcdError, TimeoutError) as error:
            return Readiness(ready=False, reason=f"etcd does not answer: {str(error) or 'no reply in time'}")
        except FailedPrecondition as error:
            self._gate.shut(error)
            return Readiness(ready=False, reason=error.message)
        self._answered = True
        self._gate.open()
        return Readiness(ready=True, reason="")

    async def _show(self, readiness: Readiness) -> None:
        self._metrics.etcd_up.set(readiness.ready)
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if readiness.ready else statuses.NOT_SERVING
        for service in ("", self._service):
            await self._servicer.set(service, status)


def _tell(readiness: Readiness) -> None:
    if readiness.ready:
        _log.info("ready")
    else:
        _log.warning("not_ready", reason=readiness.reason)
