"""Images of a release: archives that run, as nobody, and say what they are of. `make containers` builds them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.containers.images import PYTHON, make_base, offline
from tests.containers.podman import environment, missing, places, podman, set_up
from tests.support.checkout import ROOT, check_out, git
from tests.support.release.__main__ import make_bills
from tests.support.release.images import BASE, TARGETS, make_images
from tests.support.release.source_tree import take_source, versions

WHY_NOT = missing() if os.environ.get("CONTAINERS") else "containers are started by make containers"
pytestmark = [pytest.mark.skipif(WHY_NOT is not None, reason=f"Skipped: {WHY_NOT}"), pytest.mark.timeout(3600)]
VERSION = versions(ROOT)["pyproject.toml"]
EPOCH = 1_700_000_000
SHOWS = {
    "admin": ["--version"],
    "sidecar": ["--version"],
    "plugin": ["python", "-c", "import sys; sys.path.append('/opt/loraplane-plugin'); import loraplane_vllm.entry"],
}


def test_images_are_archives_of_nobody_and_equal_each_time(tmp_path, monkeypatch):
    """Of two clones, made at other times, in another time zone and under another mask."""
    set_up()
    make_base()
    for name, value in environment(**{BASE: PYTHON}).items():
        monkeypatch.setenv(name, value)
    checkout = check_out(tmp_path / "checkout", EPOCH)
    git(tmp_path, "clone", "--quiet", str(checkout), "elsewhere")
    made(checkout, tmp_path / "one")
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    before = os.umask(0o077)
    try:
        made(tmp_path / "elsewhere", tmp_path / "two")
    finally:
        os.umask(before)
    for target in TARGETS:
        archive = tmp_path / "one" / f"loraplane-{target}-{VERSION}.oci.tar"
        runs_as_nobody(archive, target)
        assert layers(archive) == layers(tmp_path / "two" / archive.name)
        assert digest(archive) == digest(tmp_path / "two" / archive.name)


def made(clone: Path, into: Path) -> None:
    """Makes the images of a clone's last commit."""
    source = take_source(clone, VERSION, into / "tree")
    assert source.epoch == EPOCH
    make_bills(source, into)
    make_images(
        source, into, ["podman", *places()], [*offline(), "--no-cache", "--build-arg", f"PYTHON_IMAGE={PYTHON}"]
    )


def runs_as_nobody(archive: Path, target: str) -> None:
    loaded = podman("load", "--quiet", "--input", str(archive)).split()[-1]
    (told,) = json.loads(podman("image", "inspect", loaded))
    labels = told["Labels"]
    bill = archive.with_name(labels["org.loraplane.sbom"].partition("@")[0])
    assert labels["org.loraplane.sbom"] == f"{bill.name}@sha256:{digest(bill)}"
    assert (labels["org.opencontainers.image.version"], told["User"]) == (VERSION, "10001")
    isolated = ("run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL")
    said = podman(*isolated, loaded, *SHOWS[target])
    assert said.split()[-1:] == ([] if target == "plugin" else [VERSION])
    if target != "plugin":  # made on any day
        users = podman(*isolated, "--user", "0", "--entrypoint", "cat", loaded, "/etc/shadow")
        assert f"loraplane:!:{EPOCH // 86_400}:" in users


def layers(archive: Path) -> list[str]:
    """Digests of the layers of an archive, and of its settings."""
    index = json.loads(read(archive, "index.json"))
    manifest = json.loads(read(archive, _blob(index["manifests"][0]["digest"])))
    return [manifest["config"]["digest"], *(one["digest"] for one in manifest["layers"])]


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def read(archive: Path, name: str) -> bytes:
    return subprocess.run(
        ["tar", "--extract", "--to-stdout", "--file", archive, name], check=True, capture_output=True
    ).stdout


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
