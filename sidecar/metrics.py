"""Prometheus metrics of a sidecar.

Durations are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from prometheus_client import Counter, Gauge, Histogram

from registry.model.status import ReplicaStatus

DESIRED_ADAPTERS = Gauge("loraplane_desired_adapters", "Eager adapters that this replica is to serve")
SERVED_ADAPTERS = Gauge("loraplane_served_adapters", "Adapters that the engine lists as desired")
KEPT_ADAPTERS = Gauge("loraplane_kept_adapters", "Adapters that the engine answers with other weights than desired")
FAILED_ADAPTERS = Gauge("loraplane_failed_adapters", "Adapters refused or not loadable here", ["reason"])
OBSERVED_REVISION = Gauge("loraplane_observed_revision", "Revision of etcd up to which the pool is followed")
RECONCILE_SECONDS = Histogram("loraplane_reconcile_seconds", "One round: look, plan, calls")
STAGE_SECONDS = Histogram("loraplane_stage_seconds", "Bringing one artifact into the store")
ENGINE_CALL_SECONDS = Histogram("loraplane_engine_call_seconds", "One call to the engine", ["call", "outcome"])
PROPAGATION_SECONDS = Histogram("loraplane_propagation_seconds", "From a record's commit until it is served here")
ETCD_RECONNECTS = Counter("loraplane_etcd_reconnects", "Connections to etcd that had to be made again")
RELISTS = Counter("loraplane_relists", "Whole lists read from etcd")
LIST_HELD = Gauge("loraplane_list_held", "1 while etcd's list is not followed, since it would remove too much")
STALE = Gauge("loraplane_stale", "1 while etcd is not followed, so that what is served may be out of date")
READY = Gauge("loraplane_ready", "1 once the first plan since the engine's start has been carried out")
DRAINING = Gauge("loraplane_draining", "1 while the replica drains, so that it is not ready on purpose")
DEGRADED = Gauge("loraplane_degraded", "1 while the engine refuses more than a share of what it should serve")
FILES_NOT_TAKEN = Gauge(
    "loraplane_files_not_taken", "Files of the operator's that are not taken as they are now, as --signature-policy"
)
CERTIFICATE_BEGINS = Gauge(
    "loraplane_certificate_begins_timestamp_seconds", "When the certificate in the file of a flag begins", ["flag"]
)
CERTIFICATE_EXPIRES = Gauge(
    "loraplane_certificate_expires_timestamp_seconds", "When the certificate in the file of a flag ends", ["flag"]
)
ENGINE_RESTARTS = Counter("loraplane_engine_restarts", "New incarnations of the engine, the first not counted")
INTERNAL_ERRORS = Counter(
    "loraplane_internal_errors", "Failures of a part of this sidecar that nobody foresaw; it is run again", ["part"]
)
HTTP_REFUSED = Counter("loraplane_http_refused", "Requests that this port refused, by cause", ["reason"])
STORE_BYTES = Gauge("loraplane_store_bytes", "Bytes of all artifacts in the host's store")
STORE_ARTIFACTS = Gauge("loraplane_store_artifacts", "Artifacts in the host's store")
STORE_LEASED = Gauge("loraplane_store_leased", "Artifacts that this replica's engine may be reading")
STORE_DAMAGED = Gauge("loraplane_store_damaged", "Artifacts of the store that are damaged and may be in use")
STORE_TOUCHED = Gauge(
    "loraplane_store_touched", "Artifacts that the engine may be reading and whose files were removed or changed"
)
STORE_REMOVED = Counter("loraplane_store_removed", "Artifacts that this sidecar removed from the store")
LAZY_RESIDENT = Gauge("loraplane_lazy_resident", "Lazy adapters that the engine lists as desired")
LAZY_QUESTIONS = Counter("loraplane_lazy_questions", "Questions of the engine, by what it was told", ["answer"])
CONNECTIONS_CLOSED = Counter(
    "loraplane_connections_closed", "Connections that this sidecar ended by itself, by why", ["port", "reason"]
)
SWAP_STRATEGY = Gauge("loraplane_engine_swap", "1 for how weights behind a name are replaced", ["strategy"])
SYNCER_STATUS = Gauge(
    "lora_syncer_adapter_status",
    "1 if the adapter is served, 0 if it failed; the name that the former Kubernetes sidecar used",
    ["adapter_name"],
)


def done_calls() -> dict[str, tuple[int, float]]:
    """By the kind of call, as ``load``: how many succeeded since this process began, and how many seconds they took."""
    found: dict[str, tuple[int, float]] = {}
    for metric in ENGINE_CALL_SECONDS.collect():
        for sample in metric.samples:
            call, (count, seconds) = sample.labels["call"], found.get(sample.labels["call"], (0, 0.0))
            if sample.labels["outcome"] == "done" and sample.name.endswith("_count"):
                found[call] = int(sample.value), seconds
            elif sample.labels["outcome"] == "done" and sample.name.endswith("_sum"):
                found[call] = count, sample.value
    return found


def show_status(status: ReplicaStatus, desired: int, served: Iterable[str], resident: int) -> None:
    """Sets the gauges to what a status says. `desired` is how many eager adapters are this replica's to serve.

    `served` are the names behind the status' count, `resident` is how many lazy ones are loaded beside them.
    """
    LAZY_RESIDENT.set(resident)
    DESIRED_ADAPTERS.set(desired)
    SERVED_ADAPTERS.set(status.served.count)
    KEPT_ADAPTERS.set(status.kept_count)
    LIST_HELD.set(bool(status.held))
    STALE.set(status.stale)
    READY.set(status.ready)
    DEGRADED.set(bool(status.degraded))
    for gauge in (CERTIFICATE_EXPIRES, CERTIFICATE_BEGINS):
        gauge.clear()
    for certificate in status.certificates:
        for gauge, at in ((CERTIFICATE_EXPIRES, certificate.ends), (CERTIFICATE_BEGINS, certificate.begins)):
            gauge.labels(certificate.flag).set(datetime.fromisoformat(at).timestamp())
    SWAP_STRATEGY.clear()
    if status.engine.swap:
        SWAP_STRATEGY.labels(status.engine.swap).set(1)
    FAILED_ADAPTERS.clear()
    SYNCER_STATUS.clear()
    for name in served:
        SYNCER_STATUS.labels(name).set(1)
    for entry in status.failed:
        FAILED_ADAPTERS.labels(entry.reason).inc()
        SYNCER_STATUS.labels(entry.name).set(0)
