"""Content of the dashboards of a fleet and of an adapter: what a team is asked about, over all replicas."""

from __future__ import annotations

from tests.support.dashboards.grafana import Choice, Page, Plot, Query, Section, Stat


def quantile(share: float, metric: str, *by: str) -> str:
    """PromQL of a quantile of a histogram over all processes."""
    labels = ", ".join(("le", *by))
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"


def both_quantiles(metric: str) -> tuple[Query, Query]:
    """The usual duration and the slowest of a hundred."""
    return Query(quantile(0.5, metric), "half of them"), Query(quantile(0.99, metric), "99 of 100")


def rate(metric: str, *by: str) -> str:
    """PromQL of events per second, by labels."""
    return f"sum by ({', '.join(by)}) (rate({metric}[$__rate_interval]))"


def _ports(process: str, told: str) -> Plot:
    return Plot(
        "What ports closed and refused, and parts that failed",
        (
            Query(rate(f"{process}_connections_closed_total", "reason"), "closed: {{reason}}"),
            Query(rate(f"{process}_http_refused_total", "reason"), "refused: {{reason}}"),
            Query(rate(f"{process}_internal_errors_total", "part"), "failed: {{part}}"),
        ),
        told,
        unit="ops",
    )


_NOW = Section(
    "Now",
    stats=(
        Stat("Sidecars that answer", 'sum(up{job="sidecar"})', "Of those that Prometheus knows."),
        Stat("Replicas ready", "sum(loraplane_ready)", "As /readyz of each says it."),
        Stat(
            "Replicas missing",
            "sum(max by (namespace, pool) (loraplane_admin_missing_replicas))",
            "Expected, and not alive: `loraplane doctor` names them.",
            bad_from=1,
        ),
        Stat(
            "Served as desired",
            "sum(loraplane_served_adapters) / sum(loraplane_desired_adapters)",
            "Adapters that engines list in the generation that is desired, of those that they are to serve.",
            unit="percentunit",
        ),
        Stat(
            "Failed",
            "sum(loraplane_failed_adapters) or vector(0)",
            "Refused or not loadable, each counted at each replica: `loraplane doctor` says why.",
            bad_from=1,
        ),
        Stat(
            "Admin services with etcd",
            "sum(loraplane_admin_etcd_up)",
            "Without one nothing can be changed; what is served stays.",
        ),
    ),
)
_REPLICAS = Section(
    "Replicas",
    plots=(
        Plot(
            "Replicas by state",
            (
                Query('sum(up{job="sidecar"})', "answer"),
                Query("sum(loraplane_ready)", "ready"),
                Query("sum(loraplane_draining)", "drain"),
                Query("sum(loraplane_stale)", "stale"),
                Query("sum(loraplane_degraded)", "degraded"),
                Query("sum(loraplane_list_held)", "hold etcd's list"),
            ),
            "Stale: etcd is not followed. Degraded: the engine refuses much of what it should serve.",
        ),
        Plot(
            "Missing replicas by pool",
            (Query("max by (namespace, pool) (loraplane_admin_missing_replicas)", "{{namespace}} {{pool}}"),),
            "Expected, and not alive.",
        ),
        Plot(
            "Adapters not served yet, by replica",
            (Query("sum by (instance) (loraplane_desired_adapters - loraplane_served_adapters)", "{{instance}}"),),
            "Of those that the replica is to serve. 0 at rest.",
        ),
        Plot(
            "Failed, by reason",
            (Query("sum by (reason) (loraplane_failed_adapters)", "{{reason}}"),),
            "docs/errors.md has each reason with what helps.",
        ),
        Plot(
            "From a change's commit until it is served",
            both_quantiles("loraplane_propagation_seconds"),
            "At the replica, over all replicas.",
            unit="s",
        ),
        Plot(
            "Requests at the engines",
            (
                Query("sum(vllm:num_requests_running)", "running"),
                Query("sum(vllm:num_requests_waiting)", "waiting"),
            ),
            "As vLLM counts them.",
        ),
    ),
)
_ADMIN = Section(
    "Admin services",
    plots=(
        Plot(
            "Calls by method",
            (Query(rate("loraplane_admin_requests_total", "method"), "{{method}}"),),
            "",
            unit="reqps",
        ),
        Plot(
            "Calls that did not end well",
            (
                Query(rate('loraplane_admin_requests_total{code!="OK"}', "code"), "{{code}}"),
                Query(rate("loraplane_admin_refused_total", "reason"), "{{reason}}"),
                Query("sum(rate(loraplane_admin_no_space_total[$__rate_interval]))", "etcd has no space"),
                Query("sum(rate(loraplane_admin_denials_lost_total[$__rate_interval]))", "refusals not recorded"),
            ),
            "By status, and by reason of what was refused.",
            unit="reqps",
        ),
        Plot(
            "Duration of calls, 99 of 100",
            (Query(quantile(0.99, "loraplane_admin_request_seconds", "method"), "{{method}}"),),
            "Streams are not counted.",
            unit="s",
        ),
        Plot(
            "Open streams",
            (Query("sum by (method) (loraplane_admin_streams)", "{{method}}"),),
            "Followers and waiters.",
        ),
        Plot(
            "Rollouts that ended",
            (Query(rate("loraplane_admin_rollouts_total", "verb"), "{{verb}}"),),
            "Canaries that were promoted or halted.",
            unit="ops",
        ),
        Plot(
            "Steps of numbers of replicas",
            (
                Query(
                    "sum by (direction) (rate(loraplane_admin_scaling_steps_total[$__rate_interval]))", "{{direction}}"
                ),
            ),
            "Of adapters whose number of replicas follows their requests.",
            unit="ops",
        ),
        Plot(
            "Adapters that expired",
            (Query("sum(rate(loraplane_admin_expired_adapters_total[$__rate_interval]))", "deleted"),),
            "Their time to live was over.",
            unit="ops",
        ),
        Plot(
            "Access file",
            (
                Query("sum(loraplane_admin_access_stale)", "services that cannot use theirs"),
                Query("count(count by (digest) (loraplane_admin_access_info))", "different files"),
                Query("sum(increase(loraplane_admin_access_failed_reloads_total[$__range]))", "failed reloads"),
                Query(
                    "time() - min(loraplane_admin_access_loaded_timestamp_seconds)", "seconds since the oldest was read"
                ),
            ),
            "One file everywhere: more than one gives a caller other rights at another service.",
        ),
        _ports("loraplane_admin", "A part that fails is a fault of ours; the log has the traceback."),
    ),
)
_PICKERS = Section(
    "Pickers",
    plots=(
        Plot(
            "Decisions",
            (Query(rate("loraplane_picker_requests_total", "pool", "outcome"), "{{pool}} {{outcome}}"),),
            "By the pool that a request went to, or why it was refused.",
            unit="reqps",
        ),
        Plot(
            "Duration of a decision",
            both_quantiles("loraplane_picker_seconds"),
            "Without the request's body.",
            unit="s",
        ),
        Plot(
            "On their way, and known",
            (
                Query("sum(loraplane_picker_in_flight)", "requests on their way"),
                Query("max by (namespace, pool) (loraplane_picker_adapters)", "adapters of {{namespace}} {{pool}}"),
            ),
            "",
        ),
        Plot(
            "Registry out of reach",
            (Query("max by (namespace, pool) (loraplane_picker_registry_away_seconds)", "{{namespace}} {{pool}}"),),
            "For how long. Pickers go on with what they know.",
            unit="s",
        ),
        Plot(
            "Revisions of the last picker behind the first",
            (
                Query(
                    "max by (namespace, pool) (loraplane_picker_revision)"
                    " - min by (namespace, pool) (loraplane_picker_revision)",
                    "{{namespace}} {{pool}}",
                ),
            ),
            "A picker that stays behind does not know the newest changes.",
        ),
        _ports("loraplane_picker", ""),
    ),
)
FLEET = Page(
    "fleet",
    "Fleet",
    "Whether all replicas serve what they should, and what keeps them.",
    (_NOW, _REPLICAS, _ADMIN, _PICKERS),
)

_CHOSEN = 'adapter_name=~"$adapter"'
_RUNNING = 'running_lora_adapters=~"(.*,)?(${adapter:regex})(,.*)?"'
ADAPTER = Page(
    "adapter",
    "Adapter",
    "Where an adapter answers and where it failed. `loraplane why NAME` says in a sentence for each replica why.",
    (
        Section(
            "Now",
            stats=(
                Stat(
                    "Replicas that serve it",
                    f"sum(lora_syncer_adapter_status{{{_CHOSEN}}})",
                    "Summed over what is chosen.",
                ),
                Stat(
                    "Replicas where it failed",
                    f"count(lora_syncer_adapter_status{{{_CHOSEN}}} == 0) or vector(0)",
                    "`loraplane describe adapter NAME` has the reason of each.",
                    bad_from=1,
                ),
                Stat(
                    "Answered with an earlier generation",
                    "sum(loraplane_kept_adapters)",
                    "Of all adapters: names that engines answer with other weights than desired, for now.",
                    bad_from=1,
                ),
            ),
        ),
        Section(
            "Over time",
            plots=(
                Plot(
                    "Replicas that serve it",
                    (Query(f"sum by (adapter_name) (lora_syncer_adapter_status{{{_CHOSEN}}})", "{{adapter_name}}"),),
                    "",
                ),
                Plot(
                    "By replica",
                    (Query(f"lora_syncer_adapter_status{{{_CHOSEN}}}", "{{adapter_name}} at {{instance}}"),),
                    "1: it answers. 0: it failed. No line: it is not placed there, or waits.",
                ),
                Plot(
                    "Since an engine ran a request for it",
                    (
                        Query(
                            f"time() - max by (instance) (vllm:lora_requests_info{{{_RUNNING}}})",
                            "{{instance}}",
                        ),
                    ),
                    "As vLLM tells it with its own metrics.",
                    unit="s",
                ),
            ),
        ),
        Section(
            "How changes come in, of all adapters",
            plots=(
                Plot(
                    "Until it is served",
                    both_quantiles("loraplane_propagation_seconds"),
                    "From the record's commit.",
                    "s",
                ),
                Plot("Bringing files", both_quantiles("loraplane_stage_seconds"), "One artifact into the store.", "s"),
                Plot(
                    "Calls to engines, 99 of 100",
                    (Query(quantile(0.99, "loraplane_engine_call_seconds", "call"), "{{call}}"),),
                    "",
                    "s",
                ),
                Plot(
                    "Calls to engines that failed",
                    (
                        Query(
                            rate('loraplane_engine_call_seconds_count{outcome!="done"}', "call", "outcome"),
                            "{{call}}: {{outcome}}",
                        ),
                    ),
                    "",
                    "ops",
                ),
                Plot(
                    "Lazy adapters that are loaded",
                    (Query("sum(loraplane_lazy_resident)", "loaded"),),
                    "Over all replicas.",
                ),
                Plot(
                    "Questions for lazy adapters",
                    (Query(rate("loraplane_lazy_questions_total", "answer"), "{{answer}}"),),
                    "What engines asked their sidecars, by what they were told.",
                    "ops",
                ),
            ),
        ),
    ),
    (Choice("adapter", "adapter_name", "lora_syncer_adapter_status"),),
)
