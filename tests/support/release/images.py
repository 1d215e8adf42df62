"""Images of a release as archives, where podman can be had."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.release.archives import pack_folder
from tests.support.release.source_tree import ReleaseRefused, Source

TARGETS = ("admin", "sidecar", "plugin")
BUILD_SECONDS = 3600
BASE = "LORAPLANE_PYTHON_IMAGE"


def missing() -> str | None:
    """Why no images can be made here; None: they can."""
    if shutil.which("podman") is None:
        return "podman is not there (Debian: podman buildah)"
    return None


def make_images(
    source: Source, into: Path, command: Sequence[str] = ("podman",), arguments: Sequence[str] = ()
) -> None:
    """Builds each target of compose/Dockerfile and saves it as an OCI archive.

    Args:
        source: whose commit is named by labels, beside the bill of materials, by its digest.
        into: has the bills already.
        command: podman, as it is called.
        arguments: more of its `build`.

    Raises:
        ReleaseRefused: podman cannot make one.
    """
    for target in TARGETS:
        tag = f"localhost/loraplane/{target}:{source.version}"
        labels = _labels(source, into, target)
        named = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
        build = [
            "build",
            "--quiet",
            "--format",
            "oci",
            "--file",
            "compose/Dockerfile",
            "--target",
            target,
            "--tag",
            tag,
        ]
        # A layer that an earlier build left has the time of another commit.
        build += ["--no-cache", "--timestamp", str(source.epoch), "--build-arg", f"SOURCE_DATE_EPOCH={source.epoch}"]
        with tempfile.TemporaryDirectory(dir=into.parent) as temporary:
            _run(target, [*command, *build, *named, *_base(), *arguments, "."], source)
            _run(target, [*command, "save", "--quiet", "--format", "oci-dir", "--output", temporary, tag], source)
            # podman's own archive has the time of the day in it.
            pack_folder(Path(temporary), into / f"loraplane-{target}-{source.version}.oci.tar", source.epoch)


def _base() -> list[str]:
    """Another base than the Dockerfile's, as compose.yaml takes it: that of a registry of one's own."""
    named = os.environ.get(BASE)
    return ["--build-arg", f"PYTHON_IMAGE={named}"] if named else []


def _run(target: str, command: Sequence[str], source: Source) -> None:
    done = subprocess.run(
        command,
        cwd=source.tree,
        env=os.environ,
        timeout=BUILD_SECONDS,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        verb = "build" if "build" in command else "save"
        remedy = f"mend that, name another base ({BASE}), or leave images out: IMAGES=no"
        raise ReleaseRefused(f"podman {verb} of {target}: {why}; {remedy}")


def _labels(source: Source, into: Path, target: str) -> dict[str, str]:
    bill = into / f"{'loraplane-vllm' if target == 'plugin' else 'loraplane'}-{source.version}.cdx.json"
    return {
        "org.opencontainers.image.title": f"loraplane-{target}",
        "org.opencontainers.image.version": source.version,
        "org.opencontainers.image.revision": source.commit,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.loraplane.sbom": f"{bill.name}@sha256:{hashlib.sha256(bill.read_bytes()).hexdigest()}",
    }
