"""The chart as helm renders it: safe unless told otherwise, and each wrong value is refused with the value's name."""

from __future__ import annotations

import json
import re
import tomllib
from io import BytesIO
from pathlib import PurePath
from urllib.error import URLError

import pytest
import yaml
from pydantic import ByteSize, TypeAdapter

from registry.access.file import read_access
from registry.picker.settings import PickerSettings
from registry.runtime.flags import read_settings
from tests.support.manifests import (
    CHART,
    DEPLOY,
    ROOT,
    Refused,
    containers_of,
    examples,
    of_kind,
    pod_of,
    rendered,
    run,
)

SAFE = DEPLOY / "examples/helm/production.yaml"
OURS = ("production", "statefulset", "trial", "etcd", "chart-around")
NAMESPACE_LABEL, PEERS = "kubernetes.io/metadata.name", ("gateway", "monitoring")
DNS = [53, 53, 5353, 5353]
OF_ADMIN = ("training", "monitoring")
PRIVATE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def workloads(*names: str) -> list[tuple[str, dict]]:
    kinds = ("Deployment", "StatefulSet")
    return [(name, one) for name in names for one in examples()[name] if one["kind"] in kinds]


def etcd_of(sets: list[str], part: str, name: str) -> tuple[set[str], list[object]]:
    """What a program shows etcd, and the secrets of it that its pod has."""
    pod = pod_of(of_kind(rendered(SAFE, sets=sets), "Deployment", part))
    shown = {f"{key}={value}" for key, value in flags(containers_of(pod)[name]).items() if "etcd-" in key}
    secrets = [one["secret"] for one in pod["volumes"] if one["name"].startswith("loraplane-etcd")]
    return {one.partition("=/run")[0] for one in shown}, [(one["secretName"], one.get("items")) for one in secrets]


def flags(container: dict) -> dict[str, str]:
    return dict(word.removeprefix("--").partition("=")[::2] for word in container["args"])


def replica(name: str = "production") -> dict:
    """The spec of a replica's pod."""
    return pod_of(next(one for _, one in workloads(name) if "loraplane-sidecar" in containers_of(pod_of(one))))


def test_helm_finds_nothing_wrong_with_the_chart():
    for file in sorted((DEPLOY / "examples/helm").glob("*.yaml")):
        assert "0 chart(s) failed" in run("helm", "lint", "--strict", str(CHART), "--values", str(file))


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["admin.replica=3"], "at '/admin': additional properties 'replica' not allowed"),
        (["replicas.count=two"], "at '/replicas/count': got string, want integer"),
        (["plugin.source=wheel"], "at '/plugin/source': value must be one of"),
        (["etcd.endpoints={https://etcd:2379}"], "at '/etcd/endpoints/0': 'https://etcd:2379' does not match pattern"),
        (["etcd.endpoints=null"], "etcd.endpoints is empty: give HOST:PORT of each member"),
        (["etcd.tlsSecretName="], "etcd.tlsSecretName is empty: name a Secret"),
        (["etcd.single.enabled=true"], "etcd.single.enabled and etcd.endpoints name two etcds"),
        (["etcd.single.enabled=true", "etcd.endpoints=null"], "give insecure: true, or etcd.endpoints of a cluster"),
        (["sidecar.etcd.user=sidecars"], "sidecar.etcd.user needs sidecar.etcd.passwordSecretName"),
        (["admin.tlsSecretName="], "admin.tlsSecretName is empty: name a Secret with tls.crt"),
        (["admin.tlsSecretName=", "insecure=true"], "admin.tokens needs admin.tlsSecretName"),
        (["admin.access.policy=null", "insecure=true"], "admin.tokens needs admin.access, by which callers are known"),
        (["admin.access.policy=null"], "admin.access is empty: whoever reaches the API could change everything"),
        (["admin.access.secretName=mine"], "admin.access.secretName and admin.access.policy are two access files"),
        (["sidecar.controlTokenSecretName="], "sidecar.controlTokenSecretName is empty: whoever reaches the engine"),
        (
            ["replicas.kind=StatefulSet", "sidecar.store.hostPath=/a", "sidecar.store.claim.size=1Gi"],
            "are two stores: give one of them",
        ),
        (["sidecar.http.tlsSecretName=", "monitoring.podMonitor.enabled=false"], "sidecar.http.tokenSecretName needs"),
        (["sidecar.http.tlsSecretName="], "monitoring.podMonitor needs sidecar.http.tlsSecretName"),
        (["sidecar.http=null"], "at '/sidecar': missing property 'http'"),
        (["sidecar.store.path=/store"], "at '/sidecar/store/path': '/store' does not match pattern"),
        (["sidecar.store.claim.size=1Gi"], "sidecar.store.claim needs replicas.kind: StatefulSet"),
        (["picker.admin=https://admin:7600"], "at '/picker/admin': 'https://admin:7600' does not match pattern"),
        (["picker.replicas=0"], "at '/picker/replicas': minimum: got 0, want 1"),
        (["picker.pool=main"], "at '/picker': additional properties 'pool' not allowed"),
        (["picker.queueMetric=a b"], "at '/picker/queueMetric': 'a b' does not match pattern"),
        (["admin.enabled=false"], "picker.admin is empty, and admin.enabled is false"),
        (["picker.tokenSecretName=t", "picker.adminTlsSecretName="], "picker.tokenSecretName needs picker.adminTls"),
        (["picker.tokenSecretName=t", "admin.tokens=false"], "picker.tokenSecretName needs admin.tokens: true"),
        (["picker.askGateways=true", "picker.tlsSecretName="], "picker.askGateways needs picker.tlsSecretName"),
        (["picker.tlsSecretName="], "picker.tlsSecretName is empty: others could read requests"),
        (["picker.http.tlsSecretName="], "picker.http.tlsSecretName is empty"),
        (["picker.adminTlsSecretName="], "picker.adminTlsSecretName is empty: name a Secret with the admin service's"),
        (["monitoring.podMonitor.certificateSecretName="], "needs monitoring.podMonitor.certificateSecretName"),
        (
            ["monitoring.podMonitor.certificateSecretName=", "sidecar.http.tokenSecretName=", "picker.enabled=false"],
            "monitoring.podMonitor needs sidecar.http.tokenSecretName or monitoring.podMonitor.certificateSecretName",
        ),
        (["admin.http.tlsSecretName="], "monitoring.serviceMonitor needs admin.http.tlsSecretName and"),
        (["monitoring.serviceMonitor.tokenSecret.name="], "monitoring.serviceMonitor needs admin.http.tlsSecretName"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(sets, told):
    with pytest.raises(Refused) as refused:
        rendered(SAFE, sets=sets)
    assert told in re.sub(r"\s+", " ", str(refused.value))


def test_the_schema_says_what_every_value_may_be_and_takes_nothing_else():
    schema, values = (
        json.loads((CHART / "values.schema.json").read_text()),
        yaml.safe_load((CHART / "values.yaml").read_text()),
    )

    def compare(part: dict, told: object, path: str) -> None:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        if "properties" not in part or not isinstance(told, dict):
            return
        assert part["additionalProperties"] is False, path
        assert {*part["properties"]} - {"global"} == {*told} or path.endswith("items"), path
        for key, value in told.items():
            compare(part["properties"][key], value, f"{path}/{key}")

    compare(schema, values, "")


def test_the_chart_is_of_the_release_that_the_project_is():
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    images = re.findall(r"image: loraplane/\w+:(\S+)", (DEPLOY / "kustomize/component/replica.yaml").read_text())
    assert {chart["version"], chart["appVersion"], *images} == {release}


def test_alerts_are_those_of_the_compose_file():
    told = of_kind(examples()["production"], "ConfigMap", "alerts")["data"]["alerts.yml"]
    assert yaml.safe_load(told) == yaml.safe_load((ROOT / "compose/prometheus/alerts.yml").read_text())


def test_alerts_lead_to_the_page_that_the_operator_names():
    made = rendered(SAFE, sets=["alerts.operationsUrl=https://docs.example/operations/"])
    rules = yaml.safe_load(of_kind(made, "ConfigMap", "alerts")["data"]["alerts.yml"])
    urls = [rule["annotations"]["runbook_url"] for group in rules["groups"] for rule in group["rules"]]
    assert [one for one in urls if not one.startswith("https://docs.example/operations/#")] == []


def test_dashboards_are_there_for_grafanas_sidecar_until_they_are_switched_off():
    found = of_kind(examples()["production"], "ConfigMap", "dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    boards = {name: json.loads(text) for name, text in found["data"].items()}
    files = {f"loraplane-{path.name}": json.loads(path.read_text()) for path in (CHART / "files/dashboards").iterdir()}
    assert boards == files != {}
    without = [one["metadata"]["name"] for one in rendered(SAFE, sets=["dashboards.enabled=false"])]
    assert [name for name in without if name.endswith("dashboards")] == []


@pytest.mark.parametrize("example", OURS)
def test_every_container_has_the_least_rights_and_no_token_of_the_api_server(example):
    pods = [pod_of(workload) for _, workload in workloads(example)]
    assert pods
    assert {pod["automountServiceAccountToken"] for pod in pods} == {False}
    for pod_user, name, container in (
        (pod["securityContext"].get("runAsUser"), *one) for pod in pods for one in containers_of(pod).items()
    ):
        rights = container["securityContext"]
        user = rights.pop("runAsUser", pod_user)
        assert (name, rights, user > 10000) == (name, PRIVATE, True)
        rights["runAsUser"] = user
        assert container["resources"]["limits"]["memory"]


def test_without_insecure_every_program_has_tls_and_asks_who_calls():
    admin = containers_of(pod_of(of_kind(examples()["production"], "Deployment", "admin")))["admin"]
    sidecar = containers_of(replica())["loraplane-sidecar"]
    assert {"tls-cert", "tls-key", "tls-ca", "access", "etcd-tls-ca"} <= {*flags(admin)}
    assert {"etcd-tls-ca", "control-token-file"} <= {*flags(sidecar)}
    assert "insecure" not in {*flags(admin), *flags(sidecar)}
    policy = of_kind(examples()["production"], "Secret", "access")["stringData"]["access.yaml"]
    assert len(read_access(policy.encode(), "access.yaml").bindings) == 3


def settings_of_picker(*sets: str) -> PickerSettings:
    """The picker's settings by the flags that the chart gives it."""
    container = containers_of(pod_of(of_kind(rendered(SAFE, sets=sets), "Deployment", "picker")))["picker"]
    assert container["command"] == ["loraplane-picker"]
    return read_settings(PickerSettings, program="", summary="", arguments=container["args"], environment={})


def test_a_picker_is_started_with_flags_that_it_takes_and_nothing_unprotected():
    told = settings_of_picker()
    assert (told.admin, told.pool, told.unprotected()) == ("fleet-loraplane-admin:7600", ("qwen-prod",), ())
    assert (told.token(), told.admin_tls_cert is not None, told.tls_ca, told.insecure) == (None, True, None, False)
    other = settings_of_picker("picker.tokenSecretName=t", "picker.pools={a,b}", "picker.askGateways=true")
    assert (other.admin, other.pool, str(other.tls_ca)[-6:]) == ("fleet-loraplane-admin:7603", ("a", "b"), "ca.crt")
    assert (other.admin_tls_cert, str(other.token())[-5:]) == (None, "token")
    assert settings_of_picker("picker.admin=elsewhere:1").admin == "elsewhere:1"
    open_one = settings_of_picker("insecure=true", "picker.tlsSecretName=", "picker.http.tlsSecretName=")
    assert len(open_one.unprotected()) == 2


def test_a_picker_is_asked_by_gateways_and_asks_the_admin_service_and_the_queues_of_engines():
    production = examples()["production"]
    service = of_kind(production, "Service", "picker")["spec"]
    assert [(one["port"], one.get("appProtocol")) for one in service["ports"]] == [(7603, "https"), (7604, None)]
    policy = of_kind(production, "NetworkPolicy", "picker")["spec"]
    gateways, monitoring = ([{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: one}}}] for one in PEERS)
    asked = [(one["from"], [port["port"] for port in one["ports"]]) for one in policy["ingress"]]
    assert asked == [(gateways, [7603]), (monitoring, [7604])]
    assert [port["port"] for one in policy["egress"] for port in one["ports"]] == [*DNS, 7600, 8000]
    engines = of_kind(production, "NetworkPolicy", "replica")["spec"]["ingress"]
    assert [one["from"][0]["podSelector"]["matchLabels"] for one in engines if "podSelector" in one["from"][0]] == [
        policy["podSelector"]["matchLabels"]
    ]
    trial = rendered(DEPLOY / "examples/helm/trial.yaml", sets=["picker.enabled=true"])
    assert of_kind(trial, "Service", "picker")["spec"]["ports"][0]["appProtocol"] == "kubernetes.io/h2c"
    assert of_kind(trial, "NetworkPolicy", "picker")["spec"].get("ingress") is None
    assert not [one for one in examples()["trial"] if one["metadata"]["name"].endswith("picker")]


def test_the_engine_and_its_sidecar_have_one_store_at_one_path_and_only_the_sidecar_writes():
    for example, workload in workloads("production", "statefulset", "trial", "chart-around"):
        found = containers_of(pod_of(workload))
        if "loraplane-sidecar" not in found:
            continue
        mounts = [
            {one["name"]: one for one in found[name]["volumeMounts"]} for name in ("loraplane-sidecar", [*found][-1])
        ]
        stores = [one["loraplane-store"] for one in mounts]
        assert (example, len({one["mountPath"] for one in stores})) == (example, 1)
        assert [one.get("readOnly", False) for one in stores] == [False, True]
        # Below the volume's root, to which anybody may write.
        assert str(PurePath(flags(found["loraplane-sidecar"])["store"]).parent) == stores[0]["mountPath"]


def test_a_startup_probe_asks_nothing_that_waits_for_what_it_holds_back():
    """With /readyz there the engine would never be started: the sidecar is ready once its engine is."""
    sidecar, engine = containers_of(replica())["loraplane-sidecar"], containers_of(replica())["vllm"]
    assert sidecar["restartPolicy"] == "Always"
    assert [sidecar[kind]["httpGet"]["path"] for kind in ("startupProbe", "livenessProbe")] == ["/livez", "/livez"]
    assert "readinessProbe" not in sidecar
    assert engine["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 7602, "scheme": "HTTPS"}
    assert {engine[kind]["httpGet"]["path"] for kind in ("startupProbe", "livenessProbe")} == {"/health"}


def test_a_pod_is_killed_no_earlier_than_its_steps_take():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    hand_over, engine = values["sidecar"]["handOverSeconds"], values["engine"]
    hook = containers_of(replica())["vllm"]["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert f"/drain?wait={hand_over}', {hand_over + 5})" in hook
    assert f"time.sleep({engine['routerSeconds']})" in hook
    assert f"time.monotonic() + {engine['requestSeconds']}" in hook
    least = hand_over + 5 + engine["routerSeconds"] + engine["requestSeconds"] + 15
    assert replica()["terminationGracePeriodSeconds"] == least


class Clock:
    """A clock that goes on while somebody sleeps."""

    now = 0.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([URLError(TimeoutError()), 'vllm:num_requests_running{engine="0"} 1.0', "vllm:num_requests_waiting{} 0.0"], 3),
        ([TimeoutError("no answer"), "vllm:num_requests_running 0"], 2),
        ([URLError(ConnectionResetError()), "vllm:num_requests_running 0"], 2),
        ([URLError(ConnectionRefusedError()), "never asked"], 1),
        (["vllm:num_requests_waiting 1"] * 9, 8),
    ],
)
def test_an_engine_that_is_late_is_not_taken_for_idle(answers, asked, monkeypatch):
    """What runs there would be cut short; where nobody listens there is nothing to wait for."""
    hook = containers_of(replica())["vllm"]["lifecycle"]["preStop"]["exec"]["command"][-1]
    clock, left = Clock(), list(answers)

    def answered(request, **_):
        if "/drain" in request.full_url:
            return BytesIO(b"{}")
        clock.now += 1
        answer = left.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return BytesIO(f"# HELP\n{answer}\n".encode())

    monkeypatch.setattr("urllib.request.urlopen", answered)
    monkeypatch.setattr("time.sleep", clock.pass_by)
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    hook = hook.replace("open('/run/secrets/loraplane/control/token').read()", "'secret'").replace("+ 60", "+ 15")
    exec(compile(hook, "hook", "exec"), {})  # noqa: S102 - ours
    assert len(answers) - len(left) == asked


def test_a_pod_is_not_ended_for_what_its_store_holds():
    """The kubelet ends a pod with more in an emptyDir than its size, and the sidecar sees only the node's disk."""

    def told(*sets: str) -> int | None:
        found = rendered(SAFE, sets=sets)
        pod = pod_of(
            next(one for one in found if one["metadata"]["name"].endswith("-replica") and "template" in str(one))
        )
        container = containers_of(pod)["loraplane-sidecar"]
        arguments = [one for one in container["args"] if one.startswith("--store-budget")]
        read = TypeAdapter(ByteSize).validate_python
        return read(arguments[0].partition("=")[2]) if arguments else None

    store = "sidecar.store"
    assert told() == 45 << 30
    assert told(f"{store}.sizeLimit=1.5Ti") == int(1.35 * (1 << 40))
    assert told(f"{store}.sizeLimit=800M") == 720_000_000
    assert told(f"{store}.sizeLimit=53687091200Ki") == 45 << 40
    assert told(f"{store}.sizeLimit=2000000Mi") == 1_800_000 << 20
    assert told(f"{store}.sizeLimit=") is None
    assert told(f"{store}.budget=20GB") == 20_000_000_000
    assert told(f"{store}.hostPath=/a") is None
    assert told(f"{store}.claim.size=1Gi", "replicas.kind=StatefulSet") is None


def test_a_sidecar_shows_etcd_nothing_of_the_admin_services():
    """A4 own-keys: with the admin service's user or key, whoever takes a sidecar over could change every record."""
    password, ca = "etcd-password-file", [{"key": "ca.crt", "path": "ca.crt"}]
    certificate = {"etcd-tls-ca", "etcd-tls-cert", "etcd-tls-key"}
    sidecar = ("replica", "loraplane-sidecar")
    assert etcd_of([], *sidecar) == (certificate, [("loraplane-etcd-sidecar", None)])
    users = ["etcd.user=admin", "etcd.passwordSecretName=p"]
    assert etcd_of(users, *sidecar) == (certificate, [("loraplane-etcd-sidecar", None)])
    assert etcd_of(users, "admin", "admin") == (
        {"etcd-tls-ca", "etcd-user=admin", password},
        [("loraplane-etcd-client", ca), ("p", None)],
    )
    own = ["sidecar.etcd.tlsSecretName=", "sidecar.etcd.user=me", "sidecar.etcd.passwordSecretName=q"]
    assert etcd_of(own, *sidecar) == (
        {"etcd-tls-ca", "etcd-user=me", password},
        [("loraplane-etcd-client", ca), ("q", None)],
    )


def test_a_plugin_that_the_image_has_asks_for_the_token_too():
    """Else whoever reaches the engine swaps, though the operator gave a token; and no lazy adapter is served."""

    def variables(source: str) -> set[str]:
        found = rendered(SAFE, sets=[f"plugin.source={source}"])
        engine = containers_of(pod_of(of_kind(found, "Deployment", "replica")))["vllm"]
        return {one["name"] for one in engine["env"]}

    ours = {"LORAPLANE_STORE", "LORAPLANE_RESOLVER", "LORAPLANE_CONTROL_TOKEN_FILE"}
    assert ours <= variables("none")
    assert variables("initContainer") - variables("none") == {"PYTHONPATH", "VLLM_PLUGINS", "LORAPLANE_PLUGIN"}


def test_authorities_of_ones_own_are_named_by_a_variable():
    sets = [
        f"{part}.extraEnv[0].{field}" for part in ("admin", "sidecar") for field in ("name=SSL_CERT_FILE", "value=/a")
    ]
    found = rendered(SAFE, sets=sets)
    for kind, part, name in (("Deployment", "admin", "admin"), ("Deployment", "replica", "loraplane-sidecar")):
        env = containers_of(pod_of(of_kind(found, kind, part)))[name]["env"]
        assert env[-1] == {"name": "SSL_CERT_FILE", "value": "/a"}


def test_sources_of_a_fetcher_of_ones_own_are_allowed_too():
    """Their schemes are those with a hyphen."""
    told = rendered(SAFE, sets=["sidecar.allowSource={wandb-artifact://acme/}"])
    args = containers_of(pod_of(of_kind(told, "Deployment", "replica")))["loraplane-sidecar"]["args"]
    assert [one for one in args if "allow-source" in one] == ["--allow-source=wandb-artifact://acme/"]


def test_labels_and_addresses_come_from_the_pod():
    env = {
        one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"]
        for one in containers_of(replica())["loraplane-sidecar"]["env"]
    }
    assert env == {
        "POD_NAME": "metadata.name",
        "POD_IP": "status.podIP",
        "POD_ZONE": "metadata.labels['topology.kubernetes.io/zone']",
    }
    told = flags(containers_of(replica())["loraplane-sidecar"])
    assert (told["replica"], told["advertise-url"]) == ("$(POD_NAME)", "http://$(POD_IP):8000")
    labels = of_kind(examples()["production"], "Deployment", "replica")["spec"]["template"]["metadata"]["labels"]
    assert (labels["llm-d.ai/engine-type"], labels["inference.networking.k8s.io/engine-type"]) == ("vllm", "vllm")


def test_nobody_reaches_an_engine_or_etcd_unless_a_value_names_them():
    trial = {
        one["metadata"]["name"].rpartition("-")[2]: one["spec"]
        for one in examples()["trial"]
        if one["kind"] == "NetworkPolicy"
    }
    assert trial["replica"].get("ingress") is None
    ours = [
        {
            "podSelector": {
                "matchLabels": {"app.kubernetes.io/instance": "fleet", "app.kubernetes.io/part-of": "loraplane"}
            }
        }
    ]
    assert [(one["from"], [port["port"] for port in one["ports"]]) for one in trial["etcd"]["ingress"]] == [
        (ours, [2379])
    ]
    whole = {
        one["metadata"]["name"].rpartition("-")[2]: one["spec"]
        for one in examples()["production"]
        if one["kind"] == "NetworkPolicy"
    }
    asked = [port["port"] for one in whole["replica"]["ingress"] for port in one["ports"]]
    assert asked == [8000, 7602, 8000, 8000, 7602]
    assert [port["port"] for one in whole["replica"]["egress"] for port in one["ports"]] == [*DNS, 2379, 443]


def test_every_policy_lets_names_be_looked_up_where_openshift_answers_as_well():
    """There the pods of DNS listen on port 5353, and a policy is about where the packet arrives."""
    found = [(name, one["spec"]) for name in OURS for one in examples()[name] if one["kind"] == "NetworkPolicy"]
    calling = [(name, one["egress"]) for name, one in found if one.get("egress")]
    assert len(calling) > 6
    asked = [{(port["protocol"], port["port"]) for port in rules[0]["ports"]} for _, rules in calling]
    assert asked == [{(protocol, port) for protocol in ("UDP", "TCP") for port in (53, 5353)}] * len(calling)


def test_the_admin_service_reaches_the_keys_of_issuers_and_its_clients_reach_its_pages():
    """Without its egress no token is believed; routers read residency at the HTTP port."""
    admin = of_kind(examples()["production"], "NetworkPolicy", "admin")["spec"]
    assert [port["port"] for one in admin["egress"] for port in one["ports"]] == [*DNS, 2379, 443]
    trial = of_kind(examples()["trial"], "NetworkPolicy", "admin")["spec"]
    assert [port["port"] for one in trial["egress"] for port in one["ports"]] == [*DNS, 2379]
    clients, monitoring = ([{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: one}}}] for one in OF_ADMIN)
    asked = [(one["from"][-1:], one["from"], [port["port"] for port in one["ports"]]) for one in admin["ingress"]]
    assert [(last, ports) for last, _, ports in asked] == [(clients, [7600, 7603]), (monitoring, [7601])]
    assert asked[1][1] == [*clients, *monitoring]


def test_no_rule_of_a_policy_is_about_all_ports():
    """Kubernetes takes a rule without ports for one about all of them: whoever gives no port may mean none."""
    found = rendered(SAFE, sets=["networkPolicy.sourcePorts=null", "networkPolicy.issuerPorts=null"])
    policies = [one["spec"] for one in found if one["kind"] == "NetworkPolicy"]
    rules = [rule for one in policies for rule in (*one.get("ingress", ()), *one.get("egress", ()))]
    assert len(rules) > 10
    assert [rule for rule in rules if not rule.get("ports")] == []


def test_what_is_removed_on_purpose_is_one_at_a_time():
    kinds = (("production", "Deployment", "replica"), ("statefulset", "StatefulSet", "replica"))
    for name, kind, part in (*kinds, ("production", "Deployment", "picker")):
        workload = of_kind(examples()[name], kind, part)
        budget = of_kind(examples()[name], "PodDisruptionBudget", part)["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()
    rolling = of_kind(examples()["production"], "Deployment", "replica")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}


def test_extra_objects_are_templates():
    assert of_kind(examples()["trial"], "ConfigMap", "notes")["metadata"]["name"] == "fleet-notes"
