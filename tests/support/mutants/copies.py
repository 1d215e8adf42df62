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
def copy_of_tree(root: Path = ROOT) -> Iterator[Path]:
    """A copy that is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        for name in tracked_files(root):
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target)
        yield Path(folder)
