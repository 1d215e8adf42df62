"""Images of a release as archives, where podman can be had."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.release.source_tree import Source

TARGETS = ("admin", "sidecar", "plugin")
BUILD_SECONDS = 3600


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
        arguments: of its `build`, such as another base.
    """
    for target in TARGETS:
        tag = f"localhost/loraplane/{target}:{source.version}"
        labels = _labels(source, into, target)
        named = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
        build = ["build", "--quiet", "--format", "oci", "--timestamp", str(source.epoch), "--target", target]
        build += ["--file", "compose/Dockerfile", "--tag", tag, *named, *arguments, "."]
        archive = into / f"loraplane-{target}-{source.version}.oci.tar"
        for words in (build, ["save", "--quiet", "--format", "oci-archive", "--output", str(archive), tag]):
            done = subprocess.run(
                [*command, *words],
                cwd=source.tree,
                env=os.environ,
                timeout=BUILD_SECONDS,
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise RuntimeError(f"podman {words[0]} of {target}: {done.stderr[-2000:]}")


def _labels(source: Source, into: Path, target: str) -> dict[str, str]:
    bill = into / f"{'loraplane-vllm' if target == 'plugin' else 'loraplane'}-{source.version}.cdx.json"
    return {
        "org.opencontainers.image.title": f"loraplane-{target}",
        "org.opencontainers.image.version": source.version,
        "org.opencontainers.image.revision": source.commit,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.loraplane.sbom": f"{bill.name}@sha256:{hashlib.sha256(bill.read_bytes()).hexdigest()}",
    }
