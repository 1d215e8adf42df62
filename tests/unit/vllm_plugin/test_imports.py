"""The plugin is imported in vLLM's environment, where nothing of ours is installed beside it."""

from __future__ import annotations

import subprocess
import sys

from registry.tools.devstack.engine_environment import plugin_environment, plugin_folder

_SCRIPT = """
import sys
from importlib.metadata import entry_points
loaded = [point.load() for group in ("vllm.general_plugins", "vllm.endpoint_plugins")
          for point in entry_points(group=group, name="loraplane")]
assert [one.__name__ for one in loaded] == ["prepare_process", "Endpoints"], loaded
foreign = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"__main__", "sidecar"}
assert not {name for name in foreign if not name.startswith("_")}, foreign
"""


def test_the_entry_points_load_with_the_standard_library_alone(tmp_path):
    """-S leaves all installed packages out; the folder alone names the entry points, and holds what they are."""
    environment = plugin_environment(plugin_folder(tmp_path / "plugin"))
    plugin_folder(tmp_path / "plugin")
    done = subprocess.run(
        [sys.executable, "-S", "-c", _SCRIPT],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (environment["VLLM_PLUGINS"], environment["LORAPLANE_PLUGIN"]) == ("loraplane", "1")
