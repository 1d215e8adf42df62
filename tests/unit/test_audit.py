"""What `make audit` makes of pip-audit's answers."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace

import pytest

from tests.support import audit

FINDING = {"id": "PYSEC-1", "aliases": ["CVE-2"], "fix_versions": ["1.1"], "description": ""}
FOUND = {"name": "a", "version": "1.0", "vulns": [FINDING]}
UNKNOWN = {"name": "b", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("said", "allowed", "told", "ends"),
    [
        (
            [FOUND, UNKNOWN],
            "# none\n",
            "dev: 1 of 2 packages audited, 1 findings",
            r"dev: a 1\.0: PYSEC-1 CVE-2, mended in \['1\.1'\]",
        ),
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
