"""``python -m tests.support.release``: makes a release of the last commit in dist/VERSION."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.release import images
from tests.support.release.packages import make_chart, make_packages
from tests.support.release.source_tree import ReleaseRefused, Source, notes, take_source

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / ".venv-tools/bin/python"
SUMS = "SHA256SUMS"
# By distribution, its pyproject.toml and the lock of what it needs; None: it needs nothing.
BILLS = {
    "loraplane": ("pyproject.toml", "requirements/control-plane.txt"),
    "loraplane-vllm": ("sidecar/vllm_plugin/pyproject.toml", None),
}


def make_release(version: str, into: Path, *, root: Path = ROOT, with_images: bool = True) -> list[str]:
    """Makes all parts of a release, and replaces `into` by them. Gives what could not be made, and why.

    Raises:
        ReleaseRefused: the tree cannot be released as this version.
    """
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        source = take_source(root, version, Path(temporary) / "tree")
        (made / f"NOTES-{version}.md").write_text(notes(source.tree, version))
        make_packages(source, made)
        make_chart(source, made)
        make_bills(source, made)
        absent = images.missing() if with_images else "they were not asked for"
        if absent is None:
            images.make_images(source, made)
        (made / SUMS).write_text(sums(made))
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(made, into)
    return [f"no images: {absent}"] if absent else []


def make_bills(source: Source, into: Path) -> None:
    """Writes what each distribution consists of, as CycloneDX."""
    for name, (project, lock) in BILLS.items():
        nothing = into.parent / "nothing.txt"
        nothing.touch()
        command = [str(TOOLS), "-W", "ignore", "-m", "cyclonedx_py", "requirements", "--output-reproducible"]
        command += ["--pyproject", project, "--output-file", str(into / f"{name}-{source.version}.cdx.json")]
        subprocess.run([*command, lock or str(nothing)], cwd=source.tree, check=True, capture_output=True)


def sums(folder: Path) -> str:
    """The digests of all files, as ``sha256sum --check`` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="make release", description="Makes a release of the last commit.")
    parser.add_argument("version", help="x.y.z")
    parser.add_argument("--without-images", action="store_true", help="leave the images out")
    arguments = parser.parse_args()
    into = ROOT / "dist" / arguments.version
    try:
        left_out = make_release(arguments.version, into, with_images=not arguments.without_images)
    except ReleaseRefused as refused:
        sys.exit(f"make release: {refused}")
    for line in [*left_out, *(into / SUMS).read_text().splitlines()]:
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
