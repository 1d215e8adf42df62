"""Each alert in promtool, Prometheus' own: it fires for what it is about, and not for what is usual."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.support.expressions import COMPOSE

PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
pytestmark = pytest.mark.skipif(not PROMTOOL, reason="no promtool: Debian's package prometheus has it, or PROMTOOL")

CERTIFICATE = '_timestamp_seconds{instance="s",flag="--etcd-tls-cert"}'
USUAL = {
    'up{job="sidecar",instance="s"}': "1x40",
    'up{job="engine",instance="e"}': "1x40",
    'up{job="admin",instance="a"}': "1x40",
    'up{job="etcd",instance="m"}': "1x40",
    'loraplane_served_adapters{instance="s"}': "5x40",
    'loraplane_desired_adapters{instance="s"}': "5x40",
    'loraplane_stale{instance="s"}': "0x40",
    'loraplane_ready{instance="s"}': "1x40",
    'loraplane_draining{instance="s"}': "0x40",
    'loraplane_degraded{instance="s"}': "0x40",
    'loraplane_files_not_taken{instance="s"}': "0x40",
    'loraplane_list_held{instance="s"}': "0x40",
    'loraplane_observed_revision{instance="s"}': "100+10x40",
    'loraplane_observed_revision{instance="t"}': "100+10x40",
    'loraplane_engine_restarts_total{instance="s"}': "0x40",
    'loraplane_relists_total{instance="s"}': "1x40",
    'loraplane_internal_errors_total{instance="s",part="loop"}': "0x40",
    'loraplane_store_damaged{instance="s"}': "0x40",
    f"loraplane_certificate_begins{CERTIFICATE}": "0x40",
    f"loraplane_certificate_expires{CERTIFICATE}": "20000x40",
    'loraplane_store_touched{instance="s"}': "0x40",
    'loraplane_admin_missing_replicas{instance="a",pool="p"}': "0x40",
    'loraplane_admin_etcd_up{instance="a"}': "1x40",
    'loraplane_admin_access_stale{instance="a"}': "0x40",
    'loraplane_admin_access_info{instance="a",digest="1"}': "1x40",
    'loraplane_admin_no_space_total{instance="a"}': "0x40",
    'etcd_server_has_leader{instance="m"}': "1x40",
    'etcd_mvcc_db_total_size_in_bytes{instance="m"}': "50x40",
    'etcd_server_quota_backend_bytes{instance="m"}': "100x40",
}
# By alert: what differs from the usual, from the first minute on, and the first minute at which it fires.
FIRES: dict[str, tuple[Mapping[str, str], int]] = {
    "SidecarDown": ({'up{job="sidecar",instance="s"}': "0x40"}, 1),
    "EngineDown": ({'up{job="engine",instance="e"}': "1 0x39"}, 3),
    "AdaptersMissing": ({'loraplane_served_adapters{instance="s"}': "4x40"}, 5),
    "AdaptersFailed": ({'loraplane_failed_adapters{instance="s",reason="digest_mismatch"}': "2x40"}, 2),
    "ReplicaStale": ({'loraplane_stale{instance="s"}': "1x40"}, 2),
    "ReplicaNotReady": ({'loraplane_ready{instance="s"}': "0x40"}, 10),
    "ReplicaDegraded": ({'loraplane_degraded{instance="s"}': "1x40"}, 2),
    "FilesNotTaken": ({'loraplane_files_not_taken{instance="s"}': "1x40"}, 1),
    "ListHeld": ({'loraplane_list_held{instance="s"}': "1x40"}, 0),
    "ReplicaBehind": ({'loraplane_observed_revision{instance="s"}': "100+1x40"}, 7),
    "EngineRestarts": ({'loraplane_engine_restarts_total{instance="s"}': "0+1x40"}, 3),
    "AdminDown": ({'up{job="admin",instance="a"}': "0x40"}, 1),
    "ReplicaMissing": ({'loraplane_admin_missing_replicas{instance="a",pool="p"}': "1x40"}, 2),
    "AdminWithoutEtcd": ({'loraplane_admin_etcd_up{instance="a"}': "0x40"}, 1),
    "AccessFileNotTaken": ({'loraplane_admin_access_stale{instance="a"}': "1x40"}, 1),
    "AccessFilesDiffer": ({'loraplane_admin_access_info{instance="b",digest="2"}': "1x40"}, 5),
    "CertificateExpires": ({f"loraplane_certificate_begins{CERTIFICATE}": "-200000x40"}, 5),
    "RelistStorm": ({'loraplane_relists_total{instance="s"}': "1+1x40"}, 5),
    "StoreDamaged": ({'loraplane_store_damaged{instance="s"}': "1x40"}, 0),
    "StoreTouched": ({'loraplane_store_touched{instance="s"}': "1x40"}, 1),
    "EtcdMemberDown": ({'up{job="etcd",instance="m"}': "0x40"}, 1),
    "EtcdNoLeader": ({'etcd_server_has_leader{instance="m"}': "0x40"}, 1),
    "EtcdSpace": ({'etcd_mvcc_db_total_size_in_bytes{instance="m"}': "75x40"}, 5),
    "PartFails": ({'loraplane_internal_errors_total{instance="s",part="loop"}': "0+1x40"}, 4),
    "EtcdNoSpace": ({'loraplane_admin_no_space_total{instance="a"}': "0+1x40"}, 1),
    "EtcdSpaceCritical": ({'etcd_mvcc_db_total_size_in_bytes{instance="m"}': "90x40"}, 1),
}
# As `FIRES`, in other ways.
FIRES_TOO: tuple[tuple[str, Mapping[str, str], int], ...] = (
    ("AdminDown", {'up{job="admin",instance="a"}': "1x3 stale _x35"}, 5),  # nobody is left to be asked
    ("AdminDown", {'up{job="admin",instance="a"}': "0x40", 'up{job="admin",instance="b"}': "0x40"}, 1),
    (
        "AdminDown",
        {'up{job="admin",instance="a"}': "0x40", 'up{job="admin",instance="b",namespace="staging"}': "1x40"},
        1,
    ),
)
# A drain is on purpose, a full file is also more than 70 % full, a replica of many revisions is not behind,
# an engine loads its model first, an admin service that was never asked is another Prometheus', and what is in another
# namespace is another fleet's.
QUIET: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("ReplicaNotReady", {'loraplane_ready{instance="s"}': "0x40", 'loraplane_draining{instance="s"}': "1x40"}),
    ("ReplicaBehind", {'loraplane_observed_revision{instance="s"}': "95+10x40"}),
    ("ReplicaBehind", {'loraplane_observed_revision{instance="u",namespace="staging"}': "5+1x40"}),
    ("AccessFilesDiffer", {'loraplane_admin_access_info{instance="b",digest="1"}': "1x40"}),
    ("AccessFilesDiffer", {'loraplane_admin_access_info{instance="b",namespace="staging",digest="2"}': "1x40"}),
    ("EngineRestarts", {'loraplane_engine_restarts_total{instance="s"}': "0 1 2x38"}),
    ("EngineDown", {'up{job="engine",instance="e"}': "0x40"}),
    ("AdminDown", {'up{job="admin",instance="a"}': "_x40"}),
    ("AdminDown", {'up{job="admin",instance="a"}': "0x40", 'up{job="admin",instance="b"}': "1x40"}),
    ("EtcdSpaceCritical", {'etcd_mvcc_db_total_size_in_bytes{instance="m"}': "75x40"}),
)


def rules() -> list[dict[str, Any]]:
    read = yaml.safe_load((COMPOSE / "prometheus/alerts.yml").read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


def firing(alert: str, minute: int, count: int) -> dict[str, Any]:
    expected = [{"labels": "{}", "value": count}] if count else []
    return {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": f"{minute}m",
        "exp_samples": expected,
    }


def case(series: Mapping[str, str], *asked: dict[str, Any]) -> dict[str, Any]:
    given = [{"series": name, "values": values} for name, values in (USUAL | series).items()]
    return {"interval": "1m", "input_series": given, "promql_expr_test": [*asked]}


def cases() -> list[dict[str, Any]]:
    """Of each alert: silence at rest, silence a minute before its time, and itself."""
    names = [rule["alert"] for rule in rules()]
    rest = [case({}, *(firing(name, 35, 0) for name in names))]
    quiet = [case(series, firing(name, 35, 0)) for name, series in QUIET]
    for name, series, minute in (*((name, *told) for name, told in FIRES.items()), *FIRES_TOO):
        before = [firing(name, minute - 1, 0)] if minute else []
        rest.append(case(series, *before, firing(name, minute, 1)))
    return [*rest, *quiet]


def test_each_alert_fires_for_what_it_is_about_and_for_nothing_usual(tmp_path):
    assert [rule["alert"] for rule in rules()] == [*FIRES]
    (rule,) = (one for one in rules() if one["alert"] == "AdaptersFailed")
    told = {"exp_labels": {"severity": "warning", "instance": "s", "reason": "digest_mismatch", "namespace": "prod"}}
    told["exp_annotations"] = {
        "summary": "s cannot serve 2 adapters: digest_mismatch",
        "runbook_url": rule["annotations"]["runbook_url"],
    }
    named = case({'loraplane_failed_adapters{instance="s",reason="digest_mismatch",namespace="prod"}': "2x40"}) | {
        "alert_rule_test": [{"eval_time": "5m", "alertname": "AdaptersFailed", "exp_alerts": [told]}]
    }
    missing = 'loraplane_admin_missing_replicas{instance="b",pool="p",namespace="%s"}'
    fleets = case({missing % "prod": "1x40", missing % "staging": "2x40"}, firing("ReplicaMissing", 5, 2))
    asked = {"rule_files": [str(COMPOSE / "prometheus/alerts.yml")], "evaluation_interval": "1m"}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({**asked, "tests": [*cases(), named, fleets]}))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
