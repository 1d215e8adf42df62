"""Findings about pods with a sidecar, from their manifests. Pure.

What is wrong in a pod shows late in a running fleet, or only when the pod ends. A manifest tells it before. Manifests
are what `kubectl get -o yaml`, `helm template` or `kubectl kustomize` print; no API server is asked. What a manifest
does not say, such as values that come from a ConfigMap, is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from registry.cli.doctor.findings import CheckedPart, DoctorFinding, error, warning
from registry.runtime.settings import is_loopback

_IMAGE = re.compile(r"(?:^|/)loraplane/(?P<part>[\w-]+)(?::(?P<tag>[\w.-]+))?(?:@sha256:[0-9a-f]+)?$")
_WAIT = re.compile(r"/drain\?wait=(\d+)")
_PORT = 7602
_GRACE_SECONDS = 30
_CHART = "docs/deployment.md has the parts of such a pod, and the chart's templates make them"
Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Container:
    """A container of a pod. `is_native`: it is an init container that goes on."""

    spec: Spec
    is_init: bool
    is_native: bool

    @property
    def name(self) -> str:
        return str(self.spec.get("name"))

    @property
    def words(self) -> list[str]:
        """Command and arguments."""
        return [str(one) for key in ("command", "args") for one in _list(self.spec.get(key))]

    @property
    def variables(self) -> dict[str, str]:
        """Variables whose values stand in the manifest."""
        return {str(one.get("name")): str(one.get("value", "")) for one in _mappings(self.spec.get("env"))}

    def says(self, flag: str) -> str | None:
        """Value of a flag of ours, or of its variable; None: it is not said here."""
        words, name = self.words, f"--{flag}"
        for place, word in enumerate(words):
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
            if word == name and place + 1 < len(words):
                return words[place + 1]
        return self.variables.get(f"LORAPLANE_{flag.upper().replace('-', '_')}")

    def volume_of(self, path: str) -> tuple[str, str] | None:
        """The volume that a path of it lies on, and where that is mounted; None: on none."""
        found = [(str(one.get("name")), str(one.get("mountPath"))) for one in _mappings(self.spec.get("volumeMounts"))]
        holding = [one for one in found if PurePosixPath(path).is_relative_to(one[1])]
        return max(holding, key=lambda one: len(one[1]), default=None)

    def probe(self, kind: str) -> Spec:
        """Question of a probe of it; empty: it has none by HTTP."""
        return _mapping(_mapping(self.spec.get(kind)).get("httpGet"))

    def hook(self) -> str:
        """Its preStop hook, as text; empty: it has none."""
        hook = _mapping(_mapping(self.spec.get("lifecycle")).get("preStop"))
        return " ".join(str(one) for one in _list(_mapping(hook.get("exec")).get("command"))) or str(hook or "")

    def image(self) -> re.Match[str] | None:
        """The parts of an image of ours; None: it is of others."""
        return _IMAGE.search(str(self.spec.get("image")))


@dataclass(frozen=True, slots=True)
class _Template:
    """A pod, or the template of pods; `subject` is what it is called in findings."""

    subject: str
    labels: Mapping[str, Any]
    spec: Spec


@dataclass(frozen=True, slots=True)
class _Pod(_Template):
    """One with a sidecar."""

    sidecar: _Container
    engine: _Container | None


def pod_findings(documents: Iterable[object]) -> list[DoctorFinding]:
    """Findings about manifests: of each pod with a sidecar, or that there is none, and of releases that differ."""
    templates = [template for one in documents for template in _templates(one)]
    pods = [pod for one in templates for pod in _with_sidecar(one)]
    if not pods:
        finding = "no pod in it has LoraPlane's sidecar"
        return [error(CheckedPart.POD, "all", "no_sidecar", finding, _CHART)]
    differing = [finding for template in templates for finding in _releases(template)]
    return [*differing, *(finding for pod in pods for finding in _of(pod))]


def _templates(document: object) -> Iterator[_Template]:
    manifest = _mapping(document)
    for item in _mappings(manifest.get("items")) if str(manifest.get("kind", "")).endswith("List") else ():
        yield from _templates(item)
    is_pod = manifest.get("kind") == "Pod"
    template = manifest if is_pod else _mapping(_mapping(manifest.get("spec")).get("template"))
    name = _mapping(manifest.get("metadata")).get("name", "without a name")
    labels = _mapping(_mapping(template.get("metadata")).get("labels"))
    yield _Template(f"{manifest.get('kind')}/{name}", labels, _mapping(template.get("spec")))


def _with_sidecar(template: _Template) -> Iterator[_Pod]:
    containers = _containers(template.spec)
    sidecar = next((one for one in containers if _is_sidecar(one)), None)
    if sidecar is not None:
        yield _Pod(template.subject, template.labels, template.spec, sidecar, _engine(containers))


def _containers(spec: Spec) -> list[_Container]:
    inits = _mappings(spec.get("initContainers"))
    early = [_Container(one, is_init=True, is_native=one.get("restartPolicy") == "Always") for one in inits]
    return early + [_Container(one, is_init=False, is_native=False) for one in _mappings(spec.get("containers"))]


def _is_sidecar(container: _Container) -> bool:
    image = container.image()
    named = any(PurePosixPath(word).name == "loraplane-sidecar" for word in container.words)
    return named or (image is not None and image["part"] == "sidecar") or container.name == "loraplane-sidecar"


def _engine(containers: Sequence[_Container]) -> _Container | None:
    """The container that looks like an engine; else the only main one that is not ours; else None."""
    main = [one for one in containers if not one.is_init and not _is_sidecar(one)]
    engines = [
        one for one in main if "--enable-lora" in one.words or "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in one.variables
    ]
    return next(iter(engines or (main if len(main) == 1 else ())), None)


def _of(pod: _Pod) -> Iterator[DoctorFinding]:
    yield from _order(pod)
    yield from _url(pod)
    if pod.engine is None:
        finding = "no container beside the sidecar has --enable-lora or VLLM_ALLOW_RUNTIME_LORA_UPDATING"
        yield _error(pod, "no_engine", finding, "put the sidecar into the pod of its engine")
        return
    yield from _store(pod, pod.engine)
    yield from _plugin(pod, pod.engine)
    yield from _end(pod, pod.engine)
    yield from _readiness(pod, pod.engine)


def _releases(pod: _Template) -> Iterator[DoctorFinding]:
    """A chart, and images, of several releases."""
    found: dict[str, list[str]] = {}
    if str(pod.labels.get("helm.sh/chart", "")).startswith("loraplane-"):
        found.setdefault(str(pod.labels.get("app.kubernetes.io/version")), []).append("the chart")
    for container in _containers(pod.spec):
        image = container.image()
        if image is not None and image["tag"]:
            found.setdefault(image["tag"], []).append(f"image {image['part']}")
    if len(found) > 1:
        told = "; ".join(f"{version}: {', '.join(dict.fromkeys(parts))}" for version, parts in sorted(found.items()))
        remedy = "install the chart of the images' release, and leave images.*.tag empty"
        yield _warning(pod, "release_differs", f"its parts are of several releases: {told}", remedy)


def _order(pod: _Pod) -> Iterator[DoctorFinding]:
    if not pod.sidecar.is_native:
        finding = (
            f"{pod.sidecar.name} is no native sidecar: it gets its SIGTERM with the engine, before requests have ended"
        )
        yield _warning(pod, "sidecar_not_native", finding, "make it an init container with restartPolicy: Always")
    if pod.sidecar.probe("startupProbe").get("path") == "/readyz":
        finding = "the sidecar's startupProbe waits for the engine, which is started after it: the pod never starts"
        yield _error(pod, "startup_deadlock", finding, "ask /livez there, and /readyz in the engine's readinessProbe")


def _url(pod: _Pod) -> Iterator[DoctorFinding]:
    told = pod.sidecar.says("advertise-url")
    if told is None and pod.sidecar.spec.get("envFrom"):
        return
    if told is None or is_loopback(_host(told)):
        finding = f"routers are told {told or pod.sidecar.says('engine') or 'the loopback'} as the engine's address"
        remedy = "give the sidecar --advertise-url=http://$(POD_IP):8000, with POD_IP from status.podIP"
        yield _warning(pod, "engine_url_loopback", finding, remedy)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _store(pod: _Pod, engine: _Container) -> Iterator[DoctorFinding]:
    store = pod.sidecar.says("store")
    if store is None:
        return
    mine, theirs = pod.sidecar.volume_of(store), engine.volume_of(store)
    if mine is None:
        finding = f"the sidecar's --store {store} is on no volume: the engine cannot see it"
        yield _error(pod, "store_not_shared", finding, f"mount one volume at {store} in both containers")
    elif theirs != mine:
        finding = f"the sidecar has volume {mine[0]} at {mine[1]}, for --store {store}; {_instead(engine, mine[0])}"
        remedy = f"mount {mine[0]} at {mine[1]} in {engine.name} too: the engine opens files by the sidecar's paths"
        yield _error(pod, "store_not_shared", finding, remedy)


def _instead(engine: _Container, volume: str) -> str:
    places = [
        str(one.get("mountPath")) for one in _mappings(engine.spec.get("volumeMounts")) if one.get("name") == volume
    ]
    return f"{engine.name} has it at {places[0]}" if places else f"{engine.name} does not have it"


def _plugin(pod: _Pod, engine: _Container) -> Iterator[DoctorFinding]:
    if engine.spec.get("envFrom"):
        return
    variables = engine.variables
    if "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in variables:
        remedy = f"give {engine.name} VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        yield _error(pod, "runtime_loading_off", "the engine has no routes to load and unload adapters", remedy)
    if "loraplane" not in variables.get("VLLM_PLUGINS", "").split(",") or variables.get("LORAPLANE_PLUGIN") != "1":
        finding = "vLLM does not load the plugin: requests may fail while a version is replaced, and none is lazy"
        remedy = f"give {engine.name} VLLM_PLUGINS=loraplane and LORAPLANE_PLUGIN=1, with the plugin on its PYTHONPATH"
        yield _warning(pod, "plugin_absent", finding, remedy)


def _end(pod: _Pod, engine: _Container) -> Iterator[DoctorFinding]:
    hook = engine.hook()
    if "/drain" not in hook:
        finding = f"{engine.name} has no preStop hook that drains: it ends before others serve what it alone serves"
        yield _warning(pod, "no_prestop", finding, f"call the sidecar's /drain?wait=30 there, and sleep; {_CHART}")
        return
    grace = pod.spec.get("terminationGracePeriodSeconds", _GRACE_SECONDS)
    wait = max((int(one) for one in _WAIT.findall(hook)), default=0)
    if isinstance(grace, int) and grace <= wait:
        finding = f"the pod is killed after {grace} s, and its preStop hook waits for {wait} s"
        remedy = f"set terminationGracePeriodSeconds to {wait} and the time of a request, and 20 more"
        yield _warning(pod, "grace_too_short", finding, remedy)


def _readiness(pod: _Pod, engine: _Container) -> Iterator[DoctorFinding]:
    if engine.probe("readinessProbe").get("path") != "/readyz":
        finding = f"{engine.name} is ready before its adapters are: its readinessProbe does not ask the sidecar"
        remedy = f"set httpGet: {{path: /readyz, port: {_PORT}}} there; the kubelet asks the pod, whichever container"
        yield _warning(pod, "readiness_elsewhere", finding, remedy)


def _error(pod: _Pod, reason: str, finding: str, remedy: str) -> DoctorFinding:
    return error(CheckedPart.POD, pod.subject, reason, finding, remedy)


def _warning(pod: _Template, reason: str, finding: str, remedy: str) -> DoctorFinding:
    return warning(CheckedPart.POD, pod.subject, reason, finding, remedy)


def _mapping(value: object) -> Spec:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mappings(value: object) -> list[Spec]:
    return [one for one in _list(value) if isinstance(one, Mapping)]
