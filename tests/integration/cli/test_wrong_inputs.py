"""Command lines that a real admin service refuses: each is told in one line with what to do, and changes nothing."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.support.wrong_inputs import table

FILES, INPUTS = table()


@pytest.fixture(scope="module")
def prepared(shared_cli):
    """The command line of a pool that holds the adapter `sql`, with the files of the table."""
    for name, text in FILES.items():
        (shared_cli.folder / name).write_text(text)
    (shared_cli.folder / "folder").mkdir()
    assert shared_cli("add", "sql", "--source", "s3://b/sql", "--look-seconds", "0").code == 0
    before = [shared_cli.json("get", kind) for kind in ("adapters", "pools", "tenants")]
    yield shared_cli
    assert [shared_cli.json("get", kind) for kind in ("adapters", "pools", "tenants")] == before, "by any of them"


@pytest.mark.parametrize("given", [one for one in INPUTS if not one.is_ours], ids=lambda one: one.line)
def test_a_wrong_input_is_told_with_its_remedy(prepared, monkeypatch, given):
    monkeypatch.chdir(prepared.folder)
    monkeypatch.setenv("LORAPLANE_LOOK_SECONDS", "0")
    ran = prepared(*shlex.split(given.line))
    said = re.sub(r"current is [0-9]+", "current is {etag}", ran.err)
    assert (ran.code, said) == (given.exit, f"error: {given.message}\n")
