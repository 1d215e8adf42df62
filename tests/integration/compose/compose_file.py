"""Reads compose.yaml and the Dockerfile as a container engine would, as far as our services need it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.promql import selectors

FOLDER = Path(__file__).parents[3] / "compose"
_VARIABLE = re.compile(r"\$\{(\w+)(?::[-?]([^}]*))?\}")


@dataclass(frozen=True)
class Service:
    """One service. `settings` is what stands in the file, with variables at their defaults."""

    name: str
    settings: Mapping[str, Any]

    @property
    def command(self) -> list[str]:
        return [*self.settings.get("entrypoint", []), *self.settings["command"]]

    @property
    def flags(self) -> dict[str, str]:
        """Flags of the form --name=value, or --name value."""
        words = [word for flag in self.settings["command"] for word in flag.split("=", 1)]
        pairs = zip(words, [*words[1:], ""], strict=True)
        return {
            word.removeprefix("--"): "" if value.startswith("--") else value
            for word, value in pairs
            if word.startswith("--")
        }

    @property
    def environment(self) -> dict[str, str]:
        return dict(self.settings.get("environment", {}))

    @property
    def target(self) -> str | None:
        """The target in our Dockerfile; None if it is not built there."""
        build = self.settings.get("build")
        return build.get("target") if build else None

    @property
    def networks(self) -> set[str]:
        return set(self.settings["networks"])

    @property
    def healthcheck(self) -> list[str]:
        kind, *command = self.settings["healthcheck"]["test"]
        assert kind == "CMD"
        return command


@dataclass(frozen=True)
class Target:
    """A target of the Dockerfile with all that it inherits: its instructions in order."""

    instructions: list[tuple[str, str]]

    def last(self, keyword: str) -> str:
        """What the last instruction of a kind says."""
        return [text for word, text in self.instructions if word == keyword][-1]

    @property
    def entrypoint(self) -> list[str]:
        return list(json.loads(self.last("ENTRYPOINT")))

    @property
    def healthcheck(self) -> list[str]:
        return list(json.loads(self.last("HEALTHCHECK").partition("CMD ")[2]))


def services() -> dict[str, Service]:
    """All services of compose.yaml."""
    text = (FOLDER / "compose.yaml").read_text()
    file = yaml.safe_load(_VARIABLE.sub(lambda match: match[2] or "", text))
    return {name: Service(name, settings) for name, settings in file["services"].items()}


def without_gpus() -> dict[str, Service]:
    """What compose.cpu.yaml says of services, by itself."""
    text = (FOLDER / "compose.cpu.yaml").read_text().replace("!reset null", "reset")
    file = yaml.safe_load(_VARIABLE.sub(lambda match: match[2] or "", text))
    return {name: Service(name, settings) for name, settings in file["services"].items()}


def secured() -> dict[str, Service]:
    """All services of compose.yaml with compose.secure.yaml after it, as a container engine puts the two together."""
    text = (FOLDER / "compose.secure.yaml").read_text().replace("$$", "$").replace(" !override", "")
    file = yaml.safe_load(_VARIABLE.sub(lambda match: match[2] or "", text))
    whole = services()
    for name, more in file["services"].items():
        known = whole[name].settings if name in whole else {}
        whole[name] = Service(name, _merged(known, more))
    return whole


def _merged(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(known)
    for name, value in more.items():
        before = known.get(name)
        if name == "depends_on" and isinstance(before, list):
            before = {one: {"condition": "service_started"} for one in before}
        if isinstance(value, dict) and isinstance(before, dict):
            merged[name] = _merged(before, value)
        elif name in {"volumes", "group_add"}:
            merged[name] = [*(before or []), *value]
        else:
            merged[name] = value
    return merged


def mounts(service: Service) -> dict[str, tuple[str, bool]]:
    """Source and whether it is read-only, by the path in the container."""
    found: dict[str, tuple[str, bool]] = {}
    for volume in service.settings.get("volumes", []):
        if isinstance(volume, str):
            source, path, *mode = volume.split(":")
            found[path] = (source, mode == ["ro"])
        else:
            found[volume["target"]] = (volume["source"], volume.get("read_only", False))
    return found


def with_grafana() -> Service:
    """What compose.grafana.yaml adds."""
    file = yaml.safe_load(_VARIABLE.sub(lambda match: match[2] or "", (FOLDER / "compose.grafana.yaml").read_text()))
    ((name, settings),) = file["services"].items()
    return Service(name, settings)


def gateway_file() -> str:
    """The configuration of Envoy."""
    return (FOLDER / "envoy/envoy.yaml").read_text()


def arguments(file: str) -> dict[str, str]:
    """The build arguments of a Dockerfile, with their defaults."""
    return dict(re.findall(r"^ARG (\w+)=(\S+)$", (FOLDER / file).read_text(), re.MULTILINE))


def engine_file() -> str:
    """The Dockerfile of the engines."""
    return (FOLDER / "Dockerfile.engine").read_text()


def copied(file: str) -> set[str]:
    """What a Dockerfile copies of the repository, as it names it there."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", (FOLDER / file).read_text(), re.MULTILINE)
    return {path for line in lines for path in line.split()[:-1]}


def let_through(file: str) -> set[str]:
    """What the ignore file of a Dockerfile, which leaves out all else, lets a build see."""
    lines = (FOLDER / f"{file}.dockerignore").read_text().splitlines()
    assert "*" in lines
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


def targets() -> dict[str, Target]:
    """The targets of the Dockerfile by name."""
    found: dict[str, Target] = {}
    name = ""
    for word, text in _instructions():
        if word == "FROM":
            parent, _, name = text.partition(" AS ")
            found[name] = Target([*found[parent].instructions] if parent in found else [])
        if name:  # what stands before the first are arguments
            found[name].instructions.append((word, text))
    return found


def _instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (FOLDER / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def scrape_jobs(file: str = "prometheus.yml") -> list[dict[str, Any]]:
    """What Prometheus scrapes, and how."""
    return list(yaml.safe_load((FOLDER / "prometheus" / file).read_text())["scrape_configs"])


def prometheus_targets(file: str = "prometheus.yml") -> set[str]:
    """Every HOST:PORT that Prometheus scrapes."""
    return {target for job in scrape_jobs(file) for static in job["static_configs"] for target in static["targets"]}


def alert_metrics() -> set[str]:
    """Every metric that an alert asks for."""
    rules = yaml.safe_load((FOLDER / "prometheus" / "alerts.yml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return {one.name for text in expressions for one in selectors(text)} - {"up"}  # which is Prometheus' own
