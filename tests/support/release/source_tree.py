"""The source of a release: a commit, whose parts all say the same version."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

VERSION = re.compile(r"\d+\.\d+\.\d+")
_MOST_NAMED = 5


class ReleaseRefused(Exception):
    """No release can be made of what is here; the message says why, and what to do."""


@dataclass(frozen=True)
class Source:
    """A commit to be released.

    Attributes:
        tree: its files, in a folder of their own.
        version: of the release.
        commit: its id.
        epoch: seconds since 1970 at which it was committed: the time of whatever is made of it.
    """

    tree: Path
    version: str
    commit: str
    epoch: int


def take_source(root: Path, version: str, folder: Path) -> Source:
    """Writes the files of the last commit into `folder`.

    Raises:
        ReleaseRefused: the tree holds what is not committed, or a part of it says another version.
    """
    if not VERSION.fullmatch(version):
        raise ReleaseRefused(f"VERSION={version}: it is x.y.z, such as 0.2.0")
    if changed := _git(root, "status", "--porcelain").decode().splitlines():
        named = ", ".join(line[3:] for line in changed[:_MOST_NAMED])
        more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        raise ReleaseRefused(f"the tree is dirty: commit or remove {named}{more}, then run it again")
    # A mask of the caller's own would be in the modes of wheels.
    with tarfile.open(fileobj=io.BytesIO(_git(root, "-c", "tar.umask=0022", "archive", "HEAD"))) as archive:
        archive.extractall(folder, filter="tar")
    if others := {where: found for where, found in versions(folder).items() if found != version}:
        told = ", ".join(f"{where} says {found}" for where, found in others.items())
        raise ReleaseRefused(f"VERSION={version}: {told}; cut the release there first (docs/upgrading.md)")
    commit, epoch = _git(root, "log", "-1", "--format=%H %ct").decode().split()
    return Source(folder, version, commit, int(epoch))


def versions(tree: Path) -> Mapping[str, str]:
    """The version that each part of a tree says."""
    chart = yaml.safe_load((tree / "deploy/helm/loraplane/Chart.yaml").read_text())
    heading = re.search(r"^## \[([^\]]+)\]", (tree / "CHANGELOG.md").read_text(), re.MULTILINE)
    found = {
        "pyproject.toml": _project(tree / "pyproject.toml"),
        "sidecar/vllm_plugin/pyproject.toml": _project(tree / "sidecar/vllm_plugin/pyproject.toml"),
        "version of deploy/helm/loraplane/Chart.yaml": str(chart["version"]),
        "appVersion of deploy/helm/loraplane/Chart.yaml": str(chart["appVersion"]),
        "CHANGELOG.md's first section": heading[1] if heading else "nothing",
    }
    for path in sorted(path for folder in ("compose", "deploy") for path in (tree / folder).rglob("*.yaml")):
        tags: dict[str, set[str]] = {}
        for image, tag in re.findall(r"image: (loraplane/\w+):(\S+)", path.read_text()):
            tags.setdefault(f"{image} in {path.relative_to(tree)}", set()).add(tag)
        found |= {where: " and ".join(sorted(said)) for where, said in tags.items()}
    return found


def notes(tree: Path, version: str) -> str:
    """The section of CHANGELOG.md about a release. Raises ReleaseRefused: there is none."""
    text = (tree / "CHANGELOG.md").read_text()
    section = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", text, re.DOTALL | re.MULTILINE)
    if section is None or not section[1].strip():
        raise ReleaseRefused(f"CHANGELOG.md says nothing of {version}: name its section `## [{version}] - DATE`")
    return f"# LoraPlane {version}\n\n{section[1].strip()}\n"


def _project(file: Path) -> str:
    return str(tomllib.loads(file.read_text())["project"]["version"])


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True).stdout
