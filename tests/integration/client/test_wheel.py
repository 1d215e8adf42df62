"""The package as pip installs it: a wheel, in an environment that knows nothing of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUILT_OF = ("loraplane", "registry", "sidecar", "docs/loraplane.1", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
TYPES = ROOT / "tests/support/client_types.py"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Python of an environment with our wheel, and the packages of ours that it needs."""
    folder = tmp_path_factory.mktemp("wheel")
    for one in BUILT_OF:
        (folder / "tree" / one).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / one).is_dir() else shutil.copy
        copy(ROOT / one, folder / "tree" / one)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *offline, "-w", folder, folder / "tree"], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env/bin/python"
    [site] = folder.glob("env/lib/python*/site-packages")
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, "install", *offline, "--target", site, wheel], check=True)
    # A folder that is named here is not asked for such files itself, so that what is editable there stays there.
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def run(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MYPY"))}
    command = [python, *arguments]
    return subprocess.run(
        command, cwd=python.parent, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_what_is_installed_has_its_types(installed, tmp_path):
    """Each of them as programs that are checked with mypy see it, and none from this folder."""
    where = run(
        installed, "-c", "import loraplane, registry.v1.registry_pb2 as pb; print(loraplane.__file__, pb.__file__)"
    )
    assert where.returncode == 0, where.stderr
    assert all(Path(one).is_relative_to(installed.parents[1]) for one in where.stdout.split())
    program = shutil.copy(TYPES, tmp_path / "program.py")
    done = run(installed, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", program)
    assert done.returncode == 0, done.stdout + done.stderr
    broken = tmp_path / "broken.py"
    broken.write_text("from loraplane import Registry\n\nRegistry().get(1)\n")
    done = run(installed, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", broken)
    assert "arg-type" in done.stdout, "types were not looked at"
