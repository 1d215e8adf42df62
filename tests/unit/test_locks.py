"""What is installed is locked: versions, hashes, nothing of where they came from; and what an audit makes of it."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import audit

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted({*(ROOT / "requirements").glob("*.txt")} - {ROOT / "requirements/accepted-findings.txt"})


def locked(path: Path) -> dict[str, str]:
    """Package to version; every entry of the file has to have a hash, and there may be nothing else."""
    lines = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)).splitlines()
    entries = [
        re.fullmatch(r"([\w.-]+)==(\S+) (?:; [^#;]+?)?(?: +--hash=sha256:[0-9a-f]{64})+", line) for line in lines
    ]
    assert [line[:80] for line, entry in zip(lines, entries, strict=True) if not entry] == []
    return {canonicalize_name(entry[1]): entry[2] for entry in entries if entry}


def asked(name: str) -> list[str]:
    """What pyproject.toml asks for by the name of a lock."""
    groups, extras = PROJECT["dependency-groups"], PROJECT["project"]["optional-dependencies"]
    servers = [*extras["server"], *extras["sidecar"], *extras["files"]]
    lines = {
        "control-plane": [*PROJECT["project"]["dependencies"], *servers],
        "dev": [
            *PROJECT["project"]["dependencies"],
            *servers,
            *extras["embedded"],
            *extras["otel"],
            *extras["dev"],
            *groups["build"],
        ],
    }.get(name) or groups[name]
    found = [one for line in lines for one in (groups[line["include-group"]] if isinstance(line, dict) else [line])]
    return [one for one in found if not one.startswith("loraplane[")]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_each_line_of_a_lock_is_a_version_with_hashes(path):
    """No line, and no comment, has the address of an index or of a file: others build from indexes of their own."""
    assert locked(path)
    assert "://" not in path.read_text()


@pytest.mark.parametrize("name", ["control-plane", "dev", *PROJECT["dependency-groups"]])
def test_what_is_asked_for_is_locked_within_its_bounds(name):
    versions = locked(ROOT / f"requirements/{name}.txt")
    wanted = [Requirement(line) for line in asked(name)]
    found = {one.name: versions.get(canonicalize_name(one.name), "") for one in wanted}
    assert [str(one) for one in wanted if not found[one.name] or found[one.name] not in one.specifier] == []


def test_locks_agree():
    """What ships is what was tested, built by what pyproject.toml names; the engine has what its list says."""
    build, dev, engine = (locked(ROOT / f"requirements/{name}.txt") for name in ("build", "dev", "engine"))
    assert {*build.items(), *locked(ROOT / "requirements/control-plane.txt").items()} <= {*dev.items()}
    assert PROJECT["build-system"]["requires"] == [f"setuptools=={build['setuptools']}"]
    pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements/engine.in").read_text(), re.MULTILINE)
    assert {canonicalize_name(name): version for name, version in pins} == engine
    assert locked(ROOT / "requirements/torch-cpu.txt") == {"torch": f"{engine['torch']}+cpu"}


def test_nothing_is_installed_without_its_lock():
    """Whatever builds and tests installs from a lock with hashes, and the project itself by what is there already."""
    places = ("Makefile", ".ci/run", "compose/Dockerfile", "compose/Dockerfile.engine")
    texts = [re.sub(r"\\\n", " ", (ROOT / place).read_text()) for place in places]
    installs = [one for text in texts for one in re.findall(r"pip install[^&\n]*", text)]
    safe = ("--require-hashes", "--no-build-isolation")
    assert len(installs) == 7
    assert [text for text in texts if re.search(r"--(extra-)?index|find-links", text)] == []
    assert [one for one in installs if "--no-deps" not in one or not any(word in one for word in safe)] == []


FINDING = {"id": "PYSEC-1", "aliases": ["CVE-2"], "fix_versions": ["1.1"], "description": ""}
FOUND = {"name": "a", "version": "1.0", "vulns": [FINDING]}
UNKNOWN = {"name": "b", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("said", "allowed", "told", "ends"),
    [
        ([FOUND, UNKNOWN], "# none\n", "dev: 1 of 2 packages audited, 1 findings", r"a 1\.0: PYSEC-1 CVE-2, mended"),
        ([FOUND, UNKNOWN], "CVE-2 2026-11-26 only a test needs it\n", "dev: 1 of 2 packages audited, 0 findings", None),
        ([UNKNOWN], "", "dev: 0 of 1 packages audited, 0 findings\nThere is no data", None),
        (None, "", "dev: not audited: no such host", None),
        ([FOUND, UNKNOWN], "CVE-2 because\n", "", r"write NUMBER YYYY-MM-DD REASON, not: CVE-2 because"),
    ],
    ids=["found", "accepted", "no data", "unreachable", "accepted without a day"],
)
def test_an_audit_fails_on_findings_and_not_for_want_of_data(tmp_path, monkeypatch, capsys, said, allowed, told, ends):
    monkeypatch.setattr(audit, "ACCEPTED", tmp_path / "accepted.txt")
    audit.ACCEPTED.write_text(allowed)
    answer = SimpleNamespace(
        stdout=json.dumps({"dependencies": said}) if said else "", stderr="Traceback\nno such host\n", returncode=1
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    if ends:
        with pytest.raises((SystemExit, ValueError), match=ends):
            audit.main()
    else:
        audit.main()
    assert capsys.readouterr().out.startswith(told)
