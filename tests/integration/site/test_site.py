"""The documentation as a site: every page is in its tree, and no link is dead."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.site import ROOT, lay_out, navigation

MKDOCS = ROOT / ".venv-site/bin/mkdocs"
SETTINGS = (ROOT / "mkdocs.yml").read_text()
pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(not MKDOCS.exists(), reason="make .venv-site/.installed")]


def built(folder: Path, settings: str) -> subprocess.CompletedProcess[str]:
    (folder / "mkdocs.yml").write_text(settings)
    command = [str(MKDOCS), "build", "--strict", "--config-file", "mkdocs.yml"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=280
    )


def test_the_site_is_whole(tmp_path):
    lay_out(ROOT, tmp_path / "pages")
    done = built(tmp_path, navigation(SETTINGS, ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    found = json.loads((site / "search/search_index.json").read_text())
    assert {"docs/operations/", "docs/support/", "CHANGELOG/"} <= {one["location"] for one in found["docs"]}
    assert "<li><code>--access</code> names the file" in re.sub(
        r"\s+", " ", (site / "docs/deployment/index.html").read_text()
    )
    assert (site / "compose/compose.yaml").exists()


def test_dead_links_and_pages_out_of_the_tree_fail(tmp_path):
    root = tmp_path / "root"
    (root / "docs/decisions").mkdir(parents=True)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/a.md", "docs/b.md", "docs/decisions/README.md"):
        (root / name).write_text("# A page\n")
    (root / "README.md").write_text("# A page\n\n[x](docs/absent.md) [y](docs/a.md#absent) [z](/absolute.md)\n")
    lay_out(root, tmp_path / "pages")
    tree = "nav: [index.md, CONTRIBUTING.md, CHANGELOG.md, docs/a.md, docs/decisions/README.md]\n"
    done = built(tmp_path, navigation(SETTINGS.partition("nav:\n")[0] + tree, root))
    said = done.stdout + done.stderr
    assert done.returncode != 0
    for told in ("'docs/absent.md'", "anchor '#absent'", "'/absolute.md'", "docs/b.md", "Aborted with 4 warnings"):
        assert told in said
