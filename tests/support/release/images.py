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
        build = [
            "build",
            "--quiet",
            "--format",
            "oci",
            "--target",
            target,
            "--file",
            "compose/Dockerfile",
            "--tag",
            tag,
        ]
        build += ["--timestamp", str(source.epoch), "--build-arg", f"SOURCE_DATE_EPOCH={source.epoch}"]
        with tempfile.TemporaryDirectory(dir=into.parent) as temporary:
            _run([*command, *build, *named, *arguments, "."], source)
            _run([*command, "save", "--quiet", "--format", "oci-dir", "--output", temporary, tag], source)
            # podman's own archive has the time of the day in it.
            pack_folder(Path(temporary), into / f"loraplane-{target}-{source.version}.oci.tar", source.epoch)


def _run(command: Sequence[str], source: Source) -> None:
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
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")


def _labels(source: Source, into: Path, target: str) -> dict[str, str]:
    bill = into / f"{'loraplane-vllm' if target == 'plugin' else 'loraplane'}-{source.version}.cdx.json"
    return {
        "org.opencontainers.image.title": f"loraplane-{target}",
        "org.opencontainers.image.version": source.version,
        "org.opencontainers.image.revision": source.commit,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.loraplane.sbom": f"{bill.name}@sha256:{hashlib.sha256(bill.read_bytes()).hexdigest()}",
    }
