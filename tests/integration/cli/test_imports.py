"""Adapters of other systems in a real registry: what is imported can be applied, and comes out as it went in."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

SAMPLES = Path(__file__).parents[2] / "samples" / "imports"


@pytest.mark.parametrize("kind", ["lora-syncer", "production-stack"])
def test_what_was_imported_is_applied_and_exported_as_it_was(cli, kind):
    ran = cli("import", kind, str(SAMPLES / f"{kind}.yaml"), "--pool", "dev")
    file = cli.folder / "imported.yaml"
    file.write_text(ran.out)
    wanted = {one["metadata"]["name"]: one for one in yaml.safe_load_all(ran.out)}
    counts = cli.json("diff", "-f", str(file), "--look-seconds", "0")["summary"]
    assert (ran.code, counts["created"], len(wanted)) == (0, 2, 2)
    applied = cli("apply", "-f", str(file), "--look-seconds", "0")
    assert applied.code == 0, applied.err
    exported = {one["metadata"]["name"]: one for one in yaml.safe_load_all(cli("export", "--pool", "dev").out)}
    assert exported == wanted
    again = cli.json("diff", "-f", str(file), "--look-seconds", "0")["summary"]
    assert (again["unchanged"], again["updated"]) == (2, 0)
