"""This tree as it is now, committed in a repository of its own, so that tests can make releases of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NOT_RELEASED = ("tests/", "docs/decisions/", "bench/")


def git(folder: Path, *arguments: str, **environment: str) -> None:
    """Runs git in a folder, as somebody who may commit."""
    identity = ("-c", "user.name=releaser", "-c", "user.email=releaser@example.com")
    whole = {**os.environ, **environment}
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, env=whole)


def commit_all(folder: Path, epoch: int | None = None) -> None:
    """Commits all files of a repository; `epoch`, in seconds, is when."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All of it", **({} if epoch is None else _at(epoch)))


def _at(epoch: int) -> dict[str, str]:
    return dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"{epoch} +0000")


def check_out(folder: Path, epoch: int | None = None) -> Path:
    """Writes what belongs to a release of this tree into a new repository, and commits it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and not name.startswith(_NOT_RELEASED):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    commit_all(folder, epoch)
    return folder
