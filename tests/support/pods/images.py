"""Programs that stand for images: what an entrypoint or a command of a manifest is on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from registry.tools.devstack.engine_environment import find_engine_python, vllm_command, vllm_environment
from registry.tools.devstack.processes import find_etcd

Command = list[str]
# From the command and arguments of a container to what is run.
Programs = Callable[[Sequence[str], Sequence[str]], Command]
_INTERPRETERS = {"python", "python3"}
# Of the engine environment's variables those that are not this machine's; the manifest says the others.
_OF_VLLM = ("VLLM_", "OMP_", "HF_HUB_OFFLINE")
_MODEL = Path("/opt/model")
# Of vLLM's flags those that a simulated engine has as well.
_SIMULATED = ("--host", "--port", "--served-model-name", "--max-cpu-loras")


@dataclass(frozen=True)
class Image:
    """What a container of it runs; `folders`: what of this machine it has, by the path in it."""

    run: Programs
    folders: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def on_this_machine(command: Sequence[str]) -> Command:
    """A command with our interpreter where it names any."""
    return [sys.executable if command[0] in _INTERPRETERS else command[0], *command[1:]]


def module(name: str) -> Image:
    """An image whose entrypoint is a program of ours."""

    def run(command: Sequence[str], arguments: Sequence[str]) -> Command:
        return [*(on_this_machine(command) if command else [sys.executable, "-m", name]), *arguments]

    return Image(run)


def simulated_vllm(*flags: str) -> Image:
    """vLLM's image, with an engine that has no model in its place; `flags` are the simulated engine's own."""

    def run(_command: Sequence[str], arguments: Sequence[str]) -> Command:
        known = [one for one in arguments if one.partition("=")[0] in _SIMULATED]
        return [sys.executable, "-m", "sidecar.engines.simulated", *known, *flags]

    return Image(run)


def real_vllm(model: Path) -> Image:
    """vLLM's image: its CPU build with a tiny model, at the manifest's port."""
    python = find_engine_python()
    home = python.parents[1].resolve()
    variables = {name: value for name, value in vllm_environment().items() if name.startswith(_OF_VLLM)}

    def run(_command: Sequence[str], arguments: Sequence[str]) -> Command:
        (port,) = (int(one.partition("=")[2]) for one in arguments if one.startswith("--port="))
        command = vllm_command(home / "bin/python", _MODEL, port=port, served_model_name="base")
        return ["0.0.0.0" if word == "127.0.0.1" else word for word in command]  # noqa: S104 - in the pod's network

    return Image(run, {str(home): home, str(_MODEL): model}, variables)


def etcd() -> Image:
    """etcd's image: the binary of the tests."""
    return Image(lambda _command, arguments: [str(find_etcd()), *arguments])


def plugin(folder: Path) -> Image:
    """The plugin's image, which has that folder and a `cp`."""
    return Image(lambda command, arguments: [*command, *arguments], {"/opt/loraplane-plugin": folder})


def ours(plugin_folder: Path, engine: Image) -> dict[str, Image]:
    """All images that our manifests name, by their repositories."""
    return {
        "loraplane/admin": module("registry.admin.main"),
        "loraplane/sidecar": module("sidecar.main"),
        "loraplane/plugin": plugin(plugin_folder),
        "vllm/vllm-openai": engine,
        "gcr.io/etcd-development/etcd": etcd(),
    }


def repository(image: str) -> str:
    """The name of an image without tag and digest."""
    return image.partition("@")[0].rpartition(":")[0] if ":" in image.partition("@")[0] else image.partition("@")[0]
