"""The chapter of docs/operations.md on etcd's snapshots, word for word, with the etcd that comes along."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from registry.tools.devstack.processes import wait_until
from tests.support.cli_examples import Shell

pytestmark = pytest.mark.timeout(1500)
PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
PATIENCE_SECONDS = 120


def recipe() -> tuple[list[str], list[str]]:
    """The lines of the page: before, and to go back to it."""
    text = PAGE.read_text().partition("### In the local stack, word for word\n")[2].partition("\n### ")[0]
    before, after = (
        [line[4:] for line in one.splitlines()] for one in re.findall(r"(?:^    .+\n)+", text, re.MULTILINE)
    )
    return before, after


class Follower:
    """Runs lines one after another in one folder; what is exported stays."""

    def __init__(self, folder: Path, start: str) -> None:
        self.shell = Shell(folder)
        self.exported: list[str] = []
        self(start)

    def __call__(self, line: str, code: int = 0) -> str:
        done = self.shell.run("\n".join([*self.exported, line]))
        assert done.returncode == code, (line, done.stdout)
        if line.startswith("export "):
            self.exported.append(line)
        return done.stdout


@pytest.mark.skipif(not os.environ.get("NIGHTLY"), reason="sessions are played by make sessions")
def test_a_snapshot_is_restored_as_the_page_says(tmp_path):
    """R15: what the backup lacks is served until somebody says that it is right; then it is what all serve."""
    before, after = recipe()
    run = Follower(tmp_path, "loraplane dev up --engine sim")
    try:
        run("loraplane add sql --source .loraplane/adapters/sql --wait")
        for line in before:
            run(line)
        run("loraplane add legal --source .loraplane/adapters/legal --wait")
        # So far ahead that the restored store does not pass what a slow replica followed before that one looks at it.
        run("for number in $(seq 100); do etcdctl put /elsewhere $number; done")
        run("loraplane set sql --priority 3 --wait")
        *restoring, doctor, confirm = after
        for line in restoring:
            told = run(line)
        [sql] = [line.split() for line in told.splitlines() if line.startswith("sql ")]
        assert sql[4] == "1", "its generation"
        assert "legal" not in told

        def is_held() -> bool:
            return "2 replicas (r1, r2) do not follow etcd" in run.shell.run(doctor).stdout

        assert wait_until(is_held, PATIENCE_SECONDS), run(doctor, 4)
        (revision,) = re.findall(
            r"for all of them: loraplane pool confirm-removals dev --revision (\d+)", run(doctor, 4)
        )
        assert confirm.endswith(" --revision R")
        run(confirm.replace("R", revision))
        run("loraplane rollout sql --timeout 120")
        assert wait_until(lambda: "nothing is wrong" in run.shell.run(doctor).stdout, PATIENCE_SECONDS), run(doctor)
        served = [line.split()[3] for line in run("loraplane get replicas").splitlines() if line.startswith("r")]
        assert served == ["1/1", "1/1"]
    finally:
        run("loraplane dev down")
