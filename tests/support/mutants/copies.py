"""Throw-away copies of the code: a deliberate bug is never put into the checkout."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]


def tracked_files(root: Path = ROOT) -> list[str]:
    """The files of the checkout, those that are not committed yet among them, as they now stand."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True).stdout
    return [name for name in sorted(set(found.split("\0"))) if name and (root / name).is_file()]


@contextmanager
def copy_of_checkout() -> Iterator[Path]:
    """A copy that is gone at the end, with the checkout's environments; what is then edited there is no part of it."""
    with _folder() as folder:
        for name in tracked_files(ROOT):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        for environment in ROOT.glob(".venv-*"):
            (folder / environment.name).symlink_to(environment)
        yield folder


@contextmanager
def copy_of_tree(tree: Path) -> Iterator[Path]:
    """A copy of a copy, with what Python compiled there, that is gone at the end."""
    with _folder() as folder:
        yield shutil.copytree(tree, folder / "tree", symlinks=True)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
