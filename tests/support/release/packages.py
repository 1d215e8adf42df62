"""Wheels, source archives and the chart of a release, with equal bytes whenever and wherever they are made."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from itertools import product
from pathlib import Path

from tests.support.release.archives import packed
from tests.support.release.source_tree import Source

# By distribution, where it is.
DISTRIBUTIONS = {"loraplane": ".", "loraplane-vllm": "sidecar/vllm_plugin"}
_BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def make_packages(source: Source, into: Path) -> None:
    """Builds wheel and source archive of each distribution with the backend that the locks name."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(source.epoch), "PYTHONDONTWRITEBYTECODE": "1"}
    for where, make in product(DISTRIBUTIONS.values(), ("build_sdist", "build_wheel")):
        command = [sys.executable, "-W", "ignore", "-c", _BUILD, make, str(into)]
        folder = source.tree / where
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, umask=0o022)
    for archive in into.glob("*.tar.gz"):
        with tarfile.open(archive) as made:
            files = {one.name: (made.extractfile(one) or io.BytesIO()).read() for one in made if one.isfile()}
        archive.write_bytes(packed(dict(sorted(files.items())), source.epoch))


def make_chart(source: Source, into: Path) -> None:
    """Packs the chart as `helm package` does, which writes the time of the day into each file."""
    folder = source.tree / "deploy/helm/loraplane"
    found = (path for path in folder.rglob("*") if path.is_file())
    files = {f"loraplane/{path.relative_to(folder)}": path.read_bytes() for path in found}
    # helm reads what a chart is from the beginning of the archive.
    files = {"loraplane/Chart.yaml": files["loraplane/Chart.yaml"], **dict(sorted(files.items()))}
    (into / f"loraplane-{source.version}.tgz").write_bytes(packed(files, source.epoch))
