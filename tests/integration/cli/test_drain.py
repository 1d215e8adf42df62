"""`loraplane drain` and `undrain`, through the real admin service on a real etcd."""

from __future__ import annotations

from tests.integration.cli.test_doctor import WELL, write


def test_what_is_so_already_is_said(cli, etcd, revision):
    """R20 drain: exit 0; W9 dry-run."""
    write(etcd, ("r1", WELL))
    ran = cli("undrain", "r1")
    assert (ran.code, "replica r1 does not drain" in ran.out) == (0, True)
    before = revision()
    assert cli.json("drain", "r1", "--dry-run")["changed"]
    assert revision() == before
    assert cli.json("drain", "r1")["changed"]
    assert "replica r1 drains already" in cli("drain", "r1").out
    assert cli.json("undrain", "r1")["changed"]
    told = cli.json("events", "--replica", "r1", "--since", "1d")["items"]
    assert [one["event"] for one in told if one["by"]] == ["drain", "undrain"]
