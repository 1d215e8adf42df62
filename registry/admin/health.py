"""Health of the admin service, and its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from grpc_health.v1 import health, health_pb2
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from registry.access.control import AccessControl
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, EtcdUnauthenticated, TlsFailed
from registry.etcd3.tls import CertificateSpan, certificate_spans
from registry.model.errors import FailedPrecondition
from registry.model.keys import Keys
from registry.store.writer import WriteGate, ensure_meta

PROBE_SECONDS = 1.0
_PROBE_TIMEOUT_SECONDS = 3.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Readiness:
    """Verdict on whether the service does its work, and if not, why."""

    ready: bool
    reason: str


class Probe:
    """Keeps health, gate and readiness as etcd is. Logs each change of state once."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        gate: WriteGate,
        servicer: health.aio.HealthServicer,
        metrics: AdminMetrics,
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
        except (TlsFailed, EtcdUnauthenticated):
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


_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class AdminMetrics:
    """Metrics of one server; a registry of their own, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.requests = counter(
            "loraplane_admin_requests", "Calls that ended, by method and status.", ["method", "code"]
        )
        self.refused = counter("loraplane_admin_refused", "Calls that were refused, by reason.", ["reason"])
        self.seconds = Histogram(
            "loraplane_admin_request_seconds",
            "Duration of unary calls.",
            ["method"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.streams = gauge("loraplane_admin_streams", "Streams that are open.", ["method"])
        self.no_space = counter("loraplane_admin_no_space", "Changes that etcd refused for want of space.")
        told = "Rollouts that were promoted or halted by this service, or found so."
        self.conducted = counter("loraplane_admin_rollouts", told, ["verb"])
        told = "Adapters whose ttl was over that this service deleted, or found deleted so."
        self.expired = counter("loraplane_admin_expired_adapters", told)
        told = "Steps by which this service changed a number of replicas that follows requests, or found it changed so."
        self.scaled = counter("loraplane_admin_scaling_steps", told, ["direction"])
        told = "Failures of a part of this service that nobody foresaw; it is run again."
        self.internal_errors = counter("loraplane_admin_internal_errors", told, ["part"])
        told = "Connections to the HTTP port that this service ended by itself, by why."
        self.closed = counter("loraplane_admin_connections_closed", told, ["reason"])
        told = "Requests that the pages beside the API refused, by cause."
        self.http_refused = counter("loraplane_admin_http_refused", told, ["reason"])
        told = "Records of refused calls that could not be written."
        self.denials_lost = counter("loraplane_admin_denials_lost", told)
        told = "Replicas that a pool expects and that do not live."
        self.missing = gauge("loraplane_admin_missing_replicas", told, ["pool"])
        self.etcd_up = gauge("loraplane_admin_etcd_up", "1 while etcd answers.")

    def show_access(self, access: AccessControl) -> None:
        """Shows from now on which access file counts."""
        self.registry.register(AccessCollector(access))

    def show_certificates(self, files: Mapping[str, Path]) -> None:
        """Shows from now on when the certificates in these files end, by the flags that name them."""
        self.registry.register(CertificateCollector(files))

    def show_missing(self, missing: Mapping[str, int]) -> None:
        """Sets how many replicas are missing in each pool there is."""
        self.missing.clear()
        for pool, count in missing.items():
            self.missing.labels(pool).set(count)

    def count_conducted(self, verb: str) -> None:
        """Counts a rollout that was ended."""
        self.conducted.labels(verb).inc()

    def count_scaled(self, direction: str) -> None:
        """Counts a step of a number of replicas that follows requests."""
        self.scaled.labels(direction).inc()

    def count_closed(self, reason: str) -> None:
        """Counts a connection that was closed."""
        self.closed.labels(reason).inc()

    def count_refused_page(self, reason: str) -> None:
        """Counts a request that a page refused."""
        self.http_refused.labels(reason).inc()

    def count_internal_error(self, part: str) -> None:
        """Counts a failure of a part, which may be one of many pools: ``rollouts of POOL`` counts as ``rollouts``."""
        self.internal_errors.labels(part.partition(" of ")[0]).inc()


class AccessCollector(Collector):
    """Collector of what there is to say of the access file, as it is when somebody asks."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def collect(self) -> Iterator[Metric]:
        access = self._access
        told = "1 with the digest of the access file that counts."
        info = GaugeMetricFamily("loraplane_admin_access_info", told, labels=["digest"])
        info.add_metric([access.digest], 1)
        yield info
        told = "Time when the access file that counts was read, in seconds since 1970."
        loaded = access.loaded_at.timestamp()
        yield GaugeMetricFamily("loraplane_admin_access_loaded_timestamp_seconds", told, value=loaded)
        told = "1 while the access file as it is cannot be used, so that the last good one counts."
        yield GaugeMetricFamily("loraplane_admin_access_stale", told, value=bool(access.trouble))
        told = "States of the access file that could not be used."
        yield CounterMetricFamily("loraplane_admin_access_failed_reloads", told, value=access.failed_reloads)


class CertificateCollector(Collector):
    """Collector of when certificates begin and end, by the flags that name their files, read when somebody asks."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def describe(self) -> Iterable[Metric]:
        return _spans_shown([])

    def collect(self) -> Iterable[Metric]:
        return _spans_shown(certificate_spans(self._files))


def _spans_shown(spans: Iterable[CertificateSpan]) -> tuple[Metric, Metric]:
    told = "When the certificate in the file of a flag {}, in seconds since 1970."
    begins, expires = (
        GaugeMetricFamily(f"loraplane_certificate_{verb}_timestamp_seconds", told.format(word), labels=["flag"])
        for verb, word in (("begins", "begins to be valid"), ("expires", "ends"))
    )
    for one in spans:
        begins.add_metric([one.flag], one.begins.timestamp())
        expires.add_metric([one.flag], one.ends.timestamp())
    return begins, expires
