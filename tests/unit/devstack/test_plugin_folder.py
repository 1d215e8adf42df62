"""A folder that gives vLLM the plugin of this installation."""

from __future__ import annotations

from pathlib import Path

import sidecar
from registry.tools.devstack.engine_environment import PACKAGE, plugin_folder


def test_the_package_is_that_of_this_installation_whatever_it_was_before(tmp_path):
    """An installation that moved, or is another, would leave vLLM with the old plugin, or none."""
    ours = Path(sidecar.__file__).parent
    for _ in range(2):
        assert (plugin_folder(tmp_path) / PACKAGE).readlink() == ours
    (tmp_path / PACKAGE).unlink()
    (tmp_path / PACKAGE).symlink_to(tmp_path / "gone")
    assert (plugin_folder(tmp_path) / PACKAGE).readlink() == ours
