"""Kubernetes' own programs are there in the versions that the lock names, so that no test of manifests is left out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

BIN = Path(__file__).parents[2] / ".venv-kubernetes/bin"


@pytest.mark.parametrize(
    ("command", "version"),
    [
        (["helm", "version", "--template", "{{.Version}}"], "v4.3.1"),
        (["kubectl", "version", "--client", "--output", "json"], "v1.37.1"),
    ],
    ids=["helm", "kubectl"],
)
def test_programs_of_the_environment_run(command, version):
    assert (BIN / command[0]).exists(), "make .venv-kubernetes/.installed puts it there"
    shown = subprocess.run([BIN / command[0], *command[1:]], capture_output=True, text=True, check=True, timeout=60)
    said = json.loads(shown.stdout)["clientVersion"]["gitVersion"] if shown.stdout.startswith("{") else shown.stdout
    assert said == version
