"""Known vulnerabilities of what is locked, as pip-audit tells them. As a program: fails if there are any.

A lack of data is told, and fails nothing. Accepted findings are in `requirements/accepted-findings.txt`, one
a line: number, day, reason.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
ACCEPTED = REQUIREMENTS / "accepted-findings.txt"
LOCKS = ("dev", "engine", "oldest", "proto", "containers", "tools")  # what the others have is in dev, too
ARGUMENTS = "-m pip_audit --disable-pip --require-hashes --progress-spinner=off --timeout=30 --format=json"


def accepted(text: str) -> set[str]:
    """The numbers of the accepted findings.

    Raises:
        ValueError: a line lacks the number, the day or the reason.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    if wrong := [line for line in lines if not re.fullmatch(r"\S+ \d{4}-\d\d-\d\d \S.+", line)]:
        raise ValueError(f"{ACCEPTED.name}: write NUMBER YYYY-MM-DD REASON, not: {wrong[0]}")
    return {line.partition(" ")[0] for line in lines}


def judge(said: str, allowed: Collection[str]) -> tuple[list[str], int, int]:
    """What pip-audit's JSON has of findings that are not accepted; how many packages it knew about, of how many."""
    packages = json.loads(said)["dependencies"]
    known = [package for package in packages if "skip_reason" not in package]
    findings = [
        f"{package['name']} {package['version']}: {' '.join(names)}, mended in {one['fix_versions'] or 'no version'}"
        for package in known
        for one in package["vulns"]
        if not {*(names := [one["id"], *one["aliases"]])} & {*allowed}
    ]
    return findings, len(known), len(packages)


def _ask(command: list[str]) -> tuple[str, str]:
    """What pip-audit printed, and why if it is nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired as error:
        return "", str(error)
    return done.stdout, (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]


def main() -> None:
    """Entry point of ``make audit``."""
    allowed, findings = accepted(ACCEPTED.read_text()), []
    for lock in LOCKS:
        said, failure = _ask([sys.executable, *ARGUMENTS.split(), f"--requirement={REQUIREMENTS / lock}.txt"])
        if not said.strip():
            print(f"{lock}: not audited: {failure}")
            break
        new, known, total = judge(said, allowed)
        findings += [f"{lock}: {finding}" for finding in new]
        print(f"{lock}: {known} of {total} packages audited, {len(new)} findings")
        if not known:
            print("There is no data about any of them here, so the others are not asked about")
            break
    if findings:
        remedy = f"take newer versions (make lock UPGRADE=yes), or accept them in requirements/{ACCEPTED.name}"
        sys.exit("\n".join(["Known vulnerabilities:", *findings, remedy]))


if __name__ == "__main__":
    main()
