"""The plugin in vLLM's environment, where nothing else of ours is: lent by `loraplane dev`, or installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from registry.tools.devstack.engine_environment import PLUGIN_VARIABLES, plugin_environment, plugin_folder
from sidecar import vllm_plugin

SOURCE = Path(vllm_plugin.__file__).parent
ROOT = Path(__file__).parents[3]
_SCRIPT = """
import sys
from importlib.metadata import entry_points
loaded = [(group, point.load().__name__) for group in ("vllm.general_plugins", "vllm.endpoint_plugins")
          for point in entry_points(group=group, name="loraplane")]
assert loaded == [("vllm.general_plugins", "prepare_process"), ("vllm.endpoint_plugins", "Endpoints")], loaded
foreign = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"__main__", "loraplane_vllm"}
assert not {name for name in foreign if not name.startswith("_")}, foreign
"""


def _lent(folder: Path) -> dict[str, str]:
    plugin_folder(folder / "plugin")
    return plugin_environment(plugin_folder(folder / "plugin"))


def _installed(folder: Path) -> dict[str, str]:
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(folder / "plugin"))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(folder / "source")], check=True, timeout=300)
    return {"PYTHONPATH": str(folder / "plugin"), **PLUGIN_VARIABLES}


@pytest.mark.parametrize("brought", [_lent, _installed])
def test_the_entry_points_load_with_the_standard_library_alone(tmp_path, brought):
    """-S leaves all installed packages out: the folder alone names the entry points, and holds what they are."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", _SCRIPT],
        env=brought(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_both_distributions_are_of_one_version():
    plugin, whole = (tomllib.loads((at / "pyproject.toml").read_text())["project"] for at in (SOURCE, ROOT))
    assert (plugin["version"], plugin["license"]) == (whole["version"], whole["license"])
