"""A local stack of a test's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from registry.tools.devstack.stack_parts import our_environment


@dataclass(frozen=True)
class DevStack:
    """`loraplane` in a folder of its own, whose stack is in ``.loraplane`` there."""

    folder: Path

    def __call__(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        # Who gives a time waits for an etcd that stands still for a moment.
        environment = {**our_environment(), "LORAPLANE_TIMEOUT": "300", **extra}
        command = [sys.executable, "-m", "registry.cli.main", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self.folder, env=environment, timeout=400
        )

    def json(self, *arguments: str) -> Any:
        done = self("-o", "json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def pids(self) -> dict[str, int | None]:
        return {part["name"]: part["pid"] for part in json.loads(self("-o", "json", "dev", "status").stdout)["parts"]}


@pytest.fixture
def dev(tmp_path) -> Iterator[DevStack]:
    dev = DevStack(tmp_path)
    try:
        yield dev
    finally:
        assert dev("dev", "down").returncode == 0
