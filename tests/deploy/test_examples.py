"""Every example is taken by the API's strict schemas, and by a scanner but for what has a reason here."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml

from registry.cli.doctor.pod_findings import pod_findings
from tests.deploy.test_chart import OURS
from tests.support.manifests import BIN, DEPLOY, ROOT, containers_of, examples, of_kind, pod_of

RELEASES = [f"1.{minor}" for minor in range(29, 38)]
# Of Prometheus' operator: the API itself has no schema of them.
OF_OTHERS = {
    "PodMonitor/fleet-loraplane-picker",
    "PodMonitor/fleet-loraplane-replica",
    "ServiceMonitor/fleet-loraplane-admin",
}
BY_COMPONENT = ("plain-vllm", "production-stack", "llm-d")
# The scanner's findings that stay, and why.
REASONS = {
    "CKV_K8S_11": "a limit of processor time slows an engine down at the moment when it has most to do",
    "CKV_K8S_15": "tags of releases do not move, and digests can be given: Always makes each start need the registry",
    "CKV_K8S_21": "the namespace is helm's, or the caller's",
    "CKV_K8S_35": "vLLM takes its key and the hub's token from variables alone",
    "CKV_K8S_43": "the digest of our images is known once they are built; images.*.digest takes it",
}
# What belongs to a chart around ours.
REASONS_OF_EXAMPLE = {"chart-around": {"CKV2_K8S_6": "its owner writes its policies"}}


def told_of(releases: list[str], names: list[str]) -> list[list[str]]:
    asked = {"versions": releases, "manifests": [one for name in names for one in examples()[name]]}
    done = subprocess.run(
        [BIN / "python", "-m", "tests.support.kubernetes_schemas"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout)


def test_every_release_of_kubernetes_takes_every_manifest():
    found = [one for one in told_of(RELEASES, [*examples()]) if one[1] not in OF_OTHERS]
    # An image as a volume is newer than the others; that example says so.
    image = [(release, one) for release, one, told in found if "'image' was unexpected" in told]
    assert image == [("1.29", "StatefulSet/fleet-loraplane-replica"), ("1.30", "StatefulSet/fleet-loraplane-replica")]
    assert len(found) == len(image), found


def test_a_schema_finds_what_is_misspelt(monkeypatch):
    wrong = json.loads(json.dumps(of_kind(examples()["trial"], "Deployment", "replica")))
    pod_of(wrong)["containers"][0]["lifecycle"]["prestop"] = {}
    monkeypatch.setitem(examples(), "wrong", [wrong])
    (found,) = told_of(["1.33"], ["wrong"])
    assert "'prestop' was unexpected" in found[2]


def test_a_scanner_finds_nothing_that_has_no_reason(tmp_path):
    for name in OURS:
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(examples()[name]))
    flags = ("--framework", "kubernetes", "--output", "json", "--compact", "--quiet", "--skip-download", "--soft-fail")
    done = subprocess.run(
        [BIN / "python", "-m", "checkov.main", "--directory", tmp_path, *flags],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    told = json.loads(done.stdout)
    failed = {
        (one["file_path"].strip("/").removesuffix(".yaml"), one["check_id"]) for one in told["results"]["failed_checks"]
    }
    assert (told["summary"]["resource_count"] > 30, told["summary"]["parsing_errors"]) == (True, 0)
    assert {one for one in failed if one[1] not in REASONS | REASONS_OF_EXAMPLE.get(one[0], {})} == set()
    assert {one[1] for one in failed} == {*REASONS, *REASONS_OF_EXAMPLE["chart-around"]}, (
        "what is not found needs no reason"
    )


@pytest.mark.parametrize("example", BY_COMPONENT)
def test_the_component_makes_of_somebodys_engine_what_the_chart_makes(example):
    """The same sidecar, plugin, probes and hook; settings come from a ConfigMap instead."""
    (engines,) = (
        one
        for one in examples()[example]
        if "llm-d.ai/engine-type" in str(one.get("spec")) and one["kind"] == "Deployment"
    )
    pod, ours = pod_of(engines), pod_of(of_kind(examples()["chart-around"], "Deployment"))
    found, wanted = containers_of(pod), containers_of(ours)
    assert [*found][:2] == ["loraplane-plugin", "loraplane-sidecar"]
    assert found["loraplane-plugin"] == wanted["loraplane-plugin"]
    sidecar, from_chart = dict(found["loraplane-sidecar"]), dict(wanted["loraplane-sidecar"])
    (source,) = sidecar.pop("envFrom")
    settings = of_kind(examples()[example], "ConfigMap", source["configMapRef"]["name"])["data"]
    flags = {f"--{name.removeprefix('LORAPLANE_').lower().replace('_', '-')}" for name in settings}
    own, chart = ({one.partition("=")[0] for one in container.pop("args")} for container in (sidecar, from_chart))
    assert (own | flags, sidecar) == (chart, from_chart)
    engine, their = found["vllm"], wanted["engine"]
    for key in ("readinessProbe", "lifecycle"):
        assert engine[key] == their[key]
    for key in ("env", "volumeMounts"):
        assert [one for one in their[key] if "LORAPLANE" in str(one) or "loraplane" in str(one)] == [
            one for one in engine[key] if "LORAPLANE" in str(one) or "loraplane" in str(one)
        ]
    volumes = [{one["name"]: one for one in which["volumes"] if "loraplane" in one["name"]} for which in (pod, ours)]
    assert (volumes[0], pod["terminationGracePeriodSeconds"]) == (volumes[1], ours["terminationGracePeriodSeconds"])


@pytest.mark.parametrize("example", [*OURS[:3], *OURS[4:], *BY_COMPONENT])
def test_doctor_finds_no_mistake_in_a_pod_of_ours(example):
    assert [(one.reason, one.finding) for one in pod_findings(examples()[example])] == []


def test_the_etcd_of_the_examples_lets_every_sidecar_and_prometheus_in():
    policy = of_kind(examples()["etcd"], "NetworkPolicy")["spec"]
    (let_in,) = (one["from"][0]["podSelector"]["matchLabels"] for one in policy["ingress"] if "2379" in str(one))
    kinds = ("Deployment", "StatefulSet")
    pods = [(name, one["spec"]["template"]) for name in examples() for one in examples()[name] if one["kind"] in kinds]
    labels = [
        (name, pod["metadata"]["labels"]) for name, pod in pods if "loraplane-sidecar" in containers_of(pod["spec"])
    ]
    assert len(labels) == len(examples()) - 1
    assert [name for name, found in labels if not let_in.items() <= found.items()] == []
    production = of_kind(examples()["production"], "NetworkPolicy", "replica")["spec"]["ingress"]
    assert policy["ingress"][-1] == {**production[-1], "ports": [{"protocol": "TCP", "port": 2381}]}


def test_what_is_no_engine_stays_as_it_was():
    router = of_kind(examples()["production-stack"], "Deployment", "router")
    assert [*containers_of(pod_of(router))] == ["router-container"]


def test_every_example_is_held_to_this():
    assert {*examples()} == {*OURS, *BY_COMPONENT}
    assert len([*DEPLOY.glob("examples/*")]) == 3
