"""Generated stubs and gRPC work with the oldest versions that we support; all other tests use new ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OVERLAY = ROOT / ".venv-oldest"
# What stands on stubs and on gRPC itself: calls and streams of etcd, and calls of the admin API with their errors. What
# we make of them is the same on all versions.
SUITES = (
    *(f"tests/contract/etcd3/test_{name}.py" for name in ("kv", "lists", "connections", "watch")),
    *(
        f"tests/integration/admin/test_writes.py::test_{name}"
        for name in (
            "a_set_is_one_revision_however_often_and_of_whom_it_is_asked_for",
            "of_many_who_race_as_many_win_as_may",
        )
    ),
)
SHOW_VERSIONS = "import google.protobuf, grpc; print(grpc.__version__, google.protobuf.__version__)"


def _pins() -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "requirements/oldest.txt").read_text(), re.MULTILINE))


def _on_oldest(*command: str, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{OVERLAY}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


def test_the_oldest_are_those_that_the_package_asks_for() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = dict(match.groups() for line in asked if (match := re.match(r"([\w-]+)>=([\d.]+)", line)))
    assert {name: bounds[name] for name in _pins()} == _pins()


@pytest.mark.timeout(1500)
def test_suites_pass_on_the_oldest_versions() -> None:
    pins = _pins()
    shown = _on_oldest("-c", SHOW_VERSIONS, timeout_seconds=240)
    assert shown.stdout.split() == [pins["grpcio"], pins["protobuf"]], "make .venv-oldest/.installed puts them there"
    done = _on_oldest("-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES, timeout_seconds=1440)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
