"""Puts LoraPlane's plugin into vLLM's environment without installing anything there.

A folder for PYTHONPATH, with the one package that the plugin is in and the metadata by which vLLM finds its entry
points. It is always of the same version as the sidecar, and leaves the engine environment as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, distribution
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "loraplane"
PLUGIN = "loraplane"
PACKAGE = "sidecar"
# vLLM loads no plugin that adds routes unless it is named, and ours does nothing unless it is told to.
PLUGIN_VARIABLES = {"VLLM_PLUGINS": PLUGIN, "LORAPLANE_PLUGIN": "1"}
# Names the socket on which the plugin asks the sidecar for names that are not loaded.
RESOLVER_VARIABLE = "LORAPLANE_RESOLVER"
_GROUPS = ("vllm.general_plugins", "vllm.endpoint_plugins")


class PluginNotInstalled(Exception):
    """This distribution is installed without the plugin's entry points; the message says what to do."""


def plugin_folder(folder: Path) -> Path:
    """Makes `folder` such a folder, or mends it, and gives it.

    Raises:
        PluginNotInstalled: our own metadata does not name the plugin.
    """
    points = [point for point in distribution(DISTRIBUTION).entry_points if point.group in _GROUPS]
    spec = find_spec(PACKAGE)
    if len({point.group for point in points}) != len(_GROUPS) or spec is None or spec.origin is None:
        raise PluginNotInstalled("this installation has no vLLM plugin: install it anew, with: make install")
    info = folder / f"{DISTRIBUTION}-{distribution(DISTRIBUTION).version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    version = distribution(DISTRIBUTION).version
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(_entry_points(points))
    _link(folder / PACKAGE, Path(spec.origin).parent)
    return folder


def plugin_environment(folder: Path) -> dict[str, str]:
    """What vLLM's environment needs beside, to run the plugin of `folder`."""
    return {"PYTHONPATH": str(folder), **PLUGIN_VARIABLES}


def _entry_points(points: Iterable[EntryPoint]) -> str:
    return "".join(f"[{point.group}]\n{point.name} = {point.value}\n" for point in points)


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target, target_is_directory=True)
