"""Usual mistakes in a pod with a sidecar, told from its manifest, each with the remedy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from registry.cli.doctor.pod_findings import pod_findings

Pod = dict[str, Any]
STORE = "/var/lib/loraplane/store"
HOOK = {"preStop": {"exec": {"command": ["sh", "-c", "curl http://127.0.0.1:7602/drain?wait=30; sleep 5"]}}}


def deployment() -> Pod:
    """A Deployment in which nothing is wrong."""
    store = {"name": "store", "mountPath": "/var/lib/loraplane"}
    sidecar = {
        "name": "loraplane-sidecar",
        "image": "registry.example/loraplane/sidecar:0.2.0",
        "restartPolicy": "Always",
        "args": [
            f"--store={STORE}",
            "--engine=http://127.0.0.1:8000",
            "--advertise-url",
            "http://$(POD_IP):8000",
        ],
        "startupProbe": {"httpGet": {"path": "/livez", "port": 7602}},
        "volumeMounts": [store],
    }
    engine = {
        "name": "vllm",
        "args": ["--enable-lora"],
        "env": [
            {"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "1"},
            {"name": "VLLM_PLUGINS", "value": "other,loraplane"},
            {"name": "LORAPLANE_PLUGIN", "value": "1"},
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 7602}},
        "lifecycle": HOOK,
        "volumeMounts": [{"name": "models", "mountPath": "/models"}, {**store}],
    }
    labels = {"helm.sh/chart": "loraplane-0.2.0", "app.kubernetes.io/version": "0.2.0"}
    spec = {"terminationGracePeriodSeconds": 100, "initContainers": [sidecar], "containers": [engine]}
    return {
        "kind": "Deployment",
        "metadata": {"name": "v"},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": spec}},
    }


def spec_of(pod: Pod) -> Pod:
    return pod["spec"]["template"]["spec"]


def sidecar_of(pod: Pod) -> Pod:
    return spec_of(pod)["initContainers"][0]


def engine_of(pod: Pod) -> Pod:
    return spec_of(pod)["containers"][0]


def reasons(*documents: object) -> list[tuple[str, str]]:
    return [(one.subject, one.reason) for one in pod_findings(documents)]


def of_config_maps(pod: Pod) -> None:
    """Settings that a manifest does not say are not guessed."""
    del sidecar_of(pod)["args"][:4]
    sidecar_of(pod)["envFrom"] = engine_of(pod)["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    engine_of(pod)["env"].clear()


def of_variables(pod: Pod) -> None:
    """Settings may be variables, and an image may be named by its digest."""
    values = {"STORE": STORE, "ADVERTISE_URL": "http://[::1"}
    env = [{"name": f"LORAPLANE_{name}", "value": value} for name, value in values.items()]
    sidecar_of(pod).update(args=[], env=env, image="loraplane/sidecar@sha256:" + 64 * "0")


def beside_the_engine(pod: Pod) -> None:
    """The sidecar is a second main container, and nothing but that tells which one is the engine."""
    of_config_maps(pod)
    engine_of(pod)["args"] = []
    spec_of(pod)["containers"].insert(0, spec_of(pod)["initContainers"].pop())


def without_variable(pod: Pod) -> None:
    """Of several main containers the flag tells which is the engine, as the variable does."""
    spec_of(pod)["containers"].insert(0, {"name": "proxy"})
    spec_of(pod)["containers"][1]["env"].pop(0)


def without_flag(pod: Pod) -> None:
    """The same the other way round."""
    engine_of(pod)["args"] = []
    spec_of(pod)["containers"].insert(0, {"name": "proxy"})


def having(of: Callable[[Pod], Any], *path: Any) -> Callable[[Pod], None]:
    """The mistake of the last of these in the place to which the others lead."""

    def spoil(pod: Pod) -> None:
        *steps, last, value = path
        place = of(pod)
        for step in steps:
            place = place[step]
        place[last] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "reason", "told"),
    [
        (lambda _pod: None, None, ""),
        (lambda pod: engine_of(pod)["volumeMounts"].pop(), "store_not_shared", "vllm does not have it"),
        (having(engine_of, "volumeMounts", 1, "mountPath", "/store"), "store_not_shared", "vllm has it at /store"),
        (having(engine_of, "volumeMounts", 0, "mountPath", STORE), "store_not_shared", "vllm has it at /var/lib"),
        (lambda pod: sidecar_of(pod).pop("volumeMounts"), "store_not_shared", "is on no volume"),
        (lambda pod: engine_of(pod)["env"].pop(), "plugin_absent", "requests may fail"),
        (lambda pod: engine_of(pod)["env"].pop(1), "plugin_absent", "does not load the plugin"),
        (lambda pod: engine_of(pod)["env"].pop(0), "runtime_loading_off", "no routes to load"),
        (
            having(sidecar_of, "args", ["--engine=http://127.0.0.1:8000"]),
            "engine_url_loopback",
            "http://127.0.0.1:8000",
        ),
        (lambda pod: sidecar_of(pod)["args"].append("--advertise-url=http://localhost:8000"), None, ""),
        (lambda pod: engine_of(pod).pop("lifecycle"), "no_prestop", "vllm has no preStop hook"),
        (having(engine_of, "lifecycle", {"preStop": {"httpGet": {"path": "/drain?wait=30", "port": 7602}}}), None, ""),
        (lambda pod: spec_of(pod).update(terminationGracePeriodSeconds=30), "grace_too_short", "killed after 30 s"),
        (lambda pod: spec_of(pod).update(terminationGracePeriodSeconds=31), None, ""),
        (lambda pod: spec_of(pod).update(terminationGracePeriodSeconds="$(SECONDS)"), None, ""),
        (lambda pod: spec_of(pod).pop("terminationGracePeriodSeconds"), "grace_too_short", "killed after 30 s"),
        (having(engine_of, "readinessProbe", "httpGet", "path", "/health"), "readiness_elsewhere", "ready before"),
        (having(sidecar_of, "startupProbe", "httpGet", "path", "/readyz"), "startup_deadlock", "never starts"),
        (lambda pod: sidecar_of(pod).pop("restartPolicy"), "sidecar_not_native", "no native sidecar"),
        (having(sidecar_of, "image", "loraplane/sidecar:0.1.0"), "release_differs", "image sidecar; 0.2.0: the chart"),
        (having(sidecar_of, "args", 3, "vllm:8000"), None, ""),
        (having(sidecar_of, "args", 3, "http://127.0.0.1:8001"), "engine_url_loopback", "http://127.0.0.1:8001"),
        (lambda pod: sidecar_of(pod)["args"].pop(), "engine_url_loopback", "http://127.0.0.1:8000"),
        (beside_the_engine, "sidecar_not_native", "no native sidecar"),
        (without_variable, "runtime_loading_off", "no routes to load"),
        (without_flag, None, ""),
        (lambda pod: spec_of(pod)["containers"].append({"name": "proxy"}), None, ""),
        (lambda pod: spec_of(pod)["initContainers"].append({"name": "fetch", "args": ["--enable-lora"]}), None, ""),
        (lambda pod: spec_of(pod)["containers"].insert(0, {"name": "first"}), None, ""),
        (lambda pod: spec_of(pod).update(containers=[]), "no_engine", "no container beside the sidecar"),
        (of_config_maps, None, ""),
        (of_variables, None, ""),
    ],
)
def test_a_mistake_is_told_by_its_reason(spoil: Callable[[Pod], object], reason: str | None, told: str):
    pod = deployment()
    spoil(pod)
    found = pod_findings([{"kind": "Service"}, pod])
    assert [one.reason for one in found] == ([reason] if reason else [])
    assert told in "".join(one.finding for one in found)
    assert all(one.subject == "Deployment/v" and one.remedy for one in found)


def test_images_of_another_release_are_told_of_pods_without_a_sidecar_too():
    """Admin services and pickers are of the chart as well."""
    admin = deployment()
    admin["metadata"]["name"] = "admin"
    spec_of(admin).update(initContainers=[], containers=[{"name": "admin", "image": "loraplane/admin:0.1.0"}])
    (found,) = pod_findings([deployment(), admin])
    assert (found.subject, found.reason) == ("Deployment/admin", "release_differs")
    assert "0.1.0: image admin; 0.2.0: the chart" in found.finding


def test_lists_and_single_pods_are_looked_at_too():
    whole, broken = deployment(), deployment()
    engine_of(broken).pop("lifecycle")
    single = {"kind": "Pod", "metadata": {"name": "p"}, "spec": copy.deepcopy(spec_of(broken))}
    assert reasons({"kind": "List", "items": [whole, broken, "no manifest"]}, single) == [
        ("Deployment/v", "no_prestop"),
        ("Pod/p", "no_prestop"),
    ]


@pytest.mark.parametrize(
    "document", [{}, "text", [], {"kind": "Deployment", "spec": {"template": {"spec": {"containers": "none"}}}}]
)
def test_where_no_pod_has_a_sidecar_that_is_told(document):
    assert reasons(document) == [("all", "no_sidecar")]


def test_a_sidecar_is_known_by_its_image_its_command_or_its_name():
    for change in (
        {"name": "x"},
        {"name": "x", "image": "mine", "command": ["/opt/loraplane/bin/loraplane-sidecar"]},
        {"image": "mine"},
    ):
        pod = deployment()
        sidecar_of(pod).update(change)
        engine_of(pod).pop("lifecycle")
        assert reasons(pod) == [("Deployment/v", "no_prestop")]
