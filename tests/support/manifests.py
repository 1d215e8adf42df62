"""Manifests as Kubernetes' own programs make them: charts by helm, examples by kustomize. Each is made once a session.

Needs ``.venv-kubernetes``, which ``make test`` brings.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-kubernetes/bin"
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/loraplane"
RELEASE, NAMESPACE = "fleet", "lora"
_SECONDS = 120
Manifest = dict[str, Any]


class Refused(Exception):
    """What helm or kubectl said instead."""


def run(*command: str | Path, text: str | None = None) -> str:
    """Output of one of the programs.

    Raises:
        Refused: it failed.
    """
    done = subprocess.run(
        [BIN / command[0], *command[1:]], input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise Refused(done.stderr or done.stdout)
    return done.stdout


def documents(text: str) -> list[Manifest]:
    """The manifests of a text."""
    return [one for one in yaml.safe_load_all(text) if one]


def rendered(*values: Path, chart: Path = CHART, sets: Sequence[str] = ()) -> list[Manifest]:
    """A chart as `helm install` would send it.

    Raises:
        Refused: helm does not take the values.
    """
    flags = [part for file in values for part in ("--values", str(file))]
    flags += [part for one in sets for part in ("--set", one)]
    return documents(run("helm", "template", RELEASE, str(chart), "--namespace", NAMESPACE, *flags))


def around() -> list[Manifest]:
    """The chart of somebody else that takes our templates."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "chart"
        shutil.copytree(DEPLOY / "examples/chart-around", chart)
        shutil.copytree(CHART, chart / "charts/loraplane")
        return rendered(chart=chart)


def kustomized(folder: Path) -> list[Manifest]:
    """A kustomization, built."""
    return documents(run("kubectl", "kustomize", str(folder)))


@cache
def examples() -> dict[str, list[Manifest]]:
    """The manifests of every example, by its name."""
    charts = {file.stem: rendered(file) for file in sorted((DEPLOY / "examples/helm").glob("*.yaml"))}
    built = {one.parent.name: kustomized(one.parent) for one in sorted(DEPLOY.glob("kustomize/examples/*/kustom*"))}
    plain = {"etcd": documents((DEPLOY / "examples/etcd/etcd.yaml").read_text())}
    return charts | built | plain | {"chart-around": around()}


def of_kind(manifests: Sequence[Manifest], kind: str, part: str = "") -> Manifest:
    """The one manifest of a kind; `part`: the end of its name."""
    (found,) = (one for one in manifests if one["kind"] == kind and one["metadata"]["name"].endswith(part))
    return found


def pod_of(workload: Manifest) -> Manifest:
    """The spec of its pods."""
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


def containers_of(pod: Manifest) -> dict[str, Manifest]:
    """All containers of a pod's spec by name, in the order of their start."""
    return {one["name"]: one for one in [*pod.get("initContainers", []), *pod["containers"]]}
