"""Content of the dashboards of a sidecar and of etcd: what is looked at once something is wrong with one of them."""

from __future__ import annotations

from tests.support.dashboards.fleet import quantile, rate
from tests.support.dashboards.grafana import Choice, Page, Plot, Query, Section, Stat

_HERE = 'instance=~"$instance"'


def _now(metric: str, legend: str = "{{instance}}") -> Query:
    return Query(f"{metric}{{{_HERE}}}", legend)


def _rate(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(('instance', *by))}) (rate({metric}{{{_HERE}}}[$__rate_interval]))"


def _slowest(metric: str, *by: str) -> str:
    labels = ", ".join(("le", "instance", *by))
    return f"histogram_quantile(0.99, sum by ({labels}) (rate({metric}_bucket{{{_HERE}}}[$__rate_interval])))"


def _stat(title: str, metric: str, told: str, bad_from: float | None = None) -> Stat:
    return Stat(title, f"sum({metric}{{{_HERE}}})", told, bad_from=bad_from)


_STATE = Section(
    "State",
    stats=(
        _stat("Ready", "loraplane_ready", "As /readyz says it, which also says why it is not."),
        _stat("Drain", "loraplane_draining", "Not ready on purpose."),
        _stat("Stale", "loraplane_stale", "etcd is not followed; what runs stays.", 1),
        _stat("Degraded", "loraplane_degraded", "The engine refuses more than a share of what it should serve.", 1),
        _stat("Hold etcd's list", "loraplane_list_held", "It lacks too much: `loraplane pool confirm-removals`.", 1),
        _stat("Operator's files not taken", "loraplane_files_not_taken", "Such as --signature-policy.", 1),
    ),
)
_ADAPTERS = Section(
    "Adapters",
    plots=(
        Plot(
            "Desired and served",
            (
                _now("loraplane_desired_adapters", "desired at {{instance}}"),
                _now("loraplane_served_adapters", "served at {{instance}}"),
                _now("loraplane_kept_adapters", "with an earlier generation at {{instance}}"),
                _now("loraplane_lazy_resident", "lazy at {{instance}}"),
            ),
            "",
        ),
        Plot(
            "Failed",
            (Query(f"sum by (instance, reason) (loraplane_failed_adapters{{{_HERE}}})", "{{reason}} at {{instance}}"),),
            "",
        ),
        Plot(
            "Until a change is served, 99 of 100",
            (Query(_slowest("loraplane_propagation_seconds"), "{{instance}}"),),
            "From the record's commit.",
            "s",
        ),
    ),
)
_WORK = Section(
    "Work",
    plots=(
        Plot(
            "A round, 99 of 100",
            (Query(_slowest("loraplane_reconcile_seconds"), "{{instance}}"),),
            "Look, plan, calls.",
            "s",
        ),
        Plot(
            "Calls to the engine, 99 of 100",
            (Query(_slowest("loraplane_engine_call_seconds", "call"), "{{call}} at {{instance}}"),),
            "",
            "s",
        ),
        Plot(
            "Calls to the engine by outcome",
            (
                Query(
                    _rate("loraplane_engine_call_seconds_count", "call", "outcome"),
                    "{{call}} {{outcome}} at {{instance}}",
                ),
            ),
            "",
            "ops",
        ),
        Plot("Bringing files, 99 of 100", (Query(_slowest("loraplane_stage_seconds"), "{{instance}}"),), "", "s"),
        Plot(
            "Engine restarts",
            (Query(f"increase(loraplane_engine_restarts_total{{{_HERE}}}[$__range])", "{{instance}}"),),
            "In the time that is shown.",
        ),
        Plot(
            "How weights are replaced",
            (_now("loraplane_engine_swap", "{{strategy}} at {{instance}}"),),
            "In place, if the plugin is in the engine.",
        ),
        Plot(
            "Questions for lazy adapters",
            (Query(_rate("loraplane_lazy_questions_total", "answer"), "{{answer}} at {{instance}}"),),
            "",
            "ops",
        ),
    ),
)
_STORE = Section(
    "Store",
    plots=(
        Plot("Size", (_now("loraplane_store_bytes"),), "Of all artifacts in the host's store.", "bytes"),
        Plot(
            "Artifacts",
            (
                _now("loraplane_store_artifacts", "there at {{instance}}"),
                _now("loraplane_store_leased", "that the engine may be reading at {{instance}}"),
                Query(_rate("loraplane_store_removed_total"), "removed a second at {{instance}}"),
            ),
            "",
        ),
        Plot(
            "Damaged or touched",
            (
                _now("loraplane_store_damaged", "damaged at {{instance}}"),
                _now("loraplane_store_touched", "touched at {{instance}}"),
            ),
            "The disk gave other bytes back, or somebody else writes there.",
        ),
    ),
)
_PROCESS = Section(
    "Process",
    plots=(
        Plot(
            "Connections to etcd made again, and lists",
            (
                Query(_rate("loraplane_etcd_reconnects_total"), "connections at {{instance}}"),
                Query(_rate("loraplane_relists_total"), "lists at {{instance}}"),
            ),
            "At rest neither.",
            "ops",
        ),
        Plot(
            "Revisions behind the furthest replica",
            (
                Query(
                    f"scalar(max(loraplane_observed_revision)) - loraplane_observed_revision{{{_HERE}}}", "{{instance}}"
                ),
            ),
            "Pools move apart; what counts is one that grows.",
        ),
        Plot(
            "What ports closed and refused, and parts that failed",
            (
                Query(_rate("loraplane_connections_closed_total", "port", "reason"), "closed: {{port}} {{reason}}"),
                Query(_rate("loraplane_http_refused_total", "reason"), "refused: {{reason}}"),
                Query(_rate("loraplane_internal_errors_total", "part"), "failed: {{part}}"),
            ),
            "",
            "ops",
        ),
        Plot(
            "Processor",
            (Query(f"rate(process_cpu_seconds_total{{{_HERE}}}[$__rate_interval])", "{{instance}}"),),
            "Cores.",
            "short",
        ),
        Plot("Memory", (_now("process_resident_memory_bytes"),), "", "bytes"),
        Plot("Descriptors", (_now("process_open_fds"),), ""),
        Plot(
            "Until certificates end",
            (
                Query(
                    f"loraplane_certificate_expires_timestamp_seconds{{{_HERE}}} - time()", "{{flag}} at {{instance}}"
                ),
            ),
            "Put a new one in the file of the flag; it is read again.",
            "s",
        ),
    ),
)
SIDECAR = Page(
    "sidecar",
    "Sidecar",
    "One replica, or some: what it serves, what it does, its store and its process.",
    (_STATE, _ADAPTERS, _WORK, _STORE, _PROCESS),
    (Choice("instance", "instance", "loraplane_ready"),),
)

ETCD = Page(
    "etcd",
    "etcd",
    "What LoraPlane needs of etcd: a leader, disks that are fast enough, and space.",
    (
        Section(
            "Now",
            stats=(
                Stat("Members that answer", 'sum(up{job="etcd"})', "A majority has to."),
                Stat("Members with a leader", "sum(etcd_server_has_leader)", ""),
                Stat(
                    "Quota used",
                    "max(etcd_mvcc_db_total_size_in_bytes / etcd_server_quota_backend_bytes)",
                    "At 100 % etcd refuses writes: docs/operations.md, etcd is out of space.",
                    unit="percentunit",
                    bad_from=0.7,
                ),
                Stat(
                    "Writes refused for want of space",
                    "sum(increase(loraplane_admin_no_space_total[$__range]))",
                    "In the time that is shown.",
                    bad_from=1,
                ),
            ),
        ),
        Section(
            "Members",
            plots=(
                Plot(
                    "Size and what is in use",
                    (
                        Query("etcd_mvcc_db_total_size_in_bytes", "file of {{instance}}"),
                        Query("etcd_mvcc_db_total_size_in_use_in_bytes", "in use at {{instance}}"),
                        Query("min(etcd_server_quota_backend_bytes)", "quota"),
                    ),
                    "What lies between goes with a defragmentation.",
                    "bytes",
                ),
                Plot(
                    "Write-ahead log to disk, 99 of 100",
                    (
                        Query(
                            quantile(0.99, "etcd_disk_wal_fsync_duration_seconds", "instance"),
                            "{{instance}}",
                        ),
                    ),
                    "Above 10 ms members lose their leader under load.",
                    "s",
                ),
                Plot(
                    "Commit to disk, 99 of 100",
                    (
                        Query(
                            quantile(0.99, "etcd_disk_backend_commit_duration_seconds", "instance"),
                            "{{instance}}",
                        ),
                    ),
                    "Above 25 ms the disk is too slow.",
                    "s",
                ),
                Plot(
                    "Changes of the leader",
                    (Query("increase(etcd_server_leader_changes_seen_total[$__range])", "{{instance}}"),),
                    "In the time that is shown.",
                ),
                Plot(
                    "Proposals",
                    (
                        Query(
                            "rate(etcd_server_proposals_committed_total[$__rate_interval])", "committed at {{instance}}"
                        ),
                        Query("rate(etcd_server_proposals_failed_total[$__rate_interval])", "failed at {{instance}}"),
                        Query("etcd_server_proposals_pending", "pending at {{instance}}"),
                    ),
                    "",
                    "ops",
                ),
                Plot(
                    "Traffic with clients",
                    (
                        Query(
                            "rate(etcd_network_client_grpc_sent_bytes_total[$__rate_interval])", "sent by {{instance}}"
                        ),
                        Query(
                            "rate(etcd_network_client_grpc_received_bytes_total[$__rate_interval])",
                            "received by {{instance}}",
                        ),
                    ),
                    "Deliveries are changes × replicas of the pool.",
                    "Bps",
                ),
                Plot("Memory", (Query('process_resident_memory_bytes{job="etcd"}', "{{instance}}"),), "", "bytes"),
            ),
        ),
        Section(
            "As LoraPlane meets it",
            plots=(
                Plot("Admin services that reach it", (Query("loraplane_admin_etcd_up", "{{instance}}"),), ""),
                Plot(
                    "Connections made again",
                    (Query(rate("loraplane_etcd_reconnects_total", "instance"), "{{instance}}"),),
                    "By sidecars.",
                    "ops",
                ),
                Plot(
                    "Whole lists",
                    (Query(rate("loraplane_relists_total", "instance"), "{{instance}}"),),
                    "By sidecars. Many: history is compacted faster than they resume.",
                    "ops",
                ),
            ),
        ),
    ),
)
