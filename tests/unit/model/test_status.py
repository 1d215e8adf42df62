"""Presences: whose they are."""

from __future__ import annotations

import json

import pytest

from registry.model.status import MAX_FOUND, MAX_LEAVING, MAX_SERVES, Presence, host_of, presence_of


@pytest.mark.parametrize(
    ("owner", "host"), [("boot-1:42", "boot-1"), ("unknown-boot:42", ""), ("boot-1", "boot-1"), ("", "")]
)
def test_the_host_of_an_owner_is_its_boot_id(owner, host):
    """R10 one-owner: of a boot id that nobody knows, nothing is said."""
    assert host_of(owner) == host


def test_the_names_of_a_status_fit_into_it():
    """R16: a status has at most 256 KiB; what it is to name leaves room for what goes wrong."""
    digest = "sha256:" + "0" * 64
    found = [{"name": f"acme/adapter-{at:06}", "generation": 100, "digest": digest} for at in range(MAX_FOUND)]
    serves = [[f"acme/adapter-{at:06}", 100] for at in range(MAX_SERVES)]
    leaving = [{"name": f"acme/adapter-{at:06}", "generation": 100} for at in range(MAX_LEAVING)]
    assert sum(len(json.dumps(names)) for names in (found, serves, leaving)) < 0.8 * 256 * 1024
    assert MAX_SERVES > 2000, "as many as a replica may have are told"
    assert MAX_LEAVING > 100, "a replica hands over as many at once"
    assert MAX_FOUND == 256, "all releases compare the same names"


@pytest.mark.parametrize(
    ("value", "is_there"), [(b"", False), (b"[]", False), (b"\xff", False), (b'{"schema": 2}', False), (None, True)]
)
def test_a_presence_is_read_or_is_none(value, is_there):
    """R14: whatever somebody wrote in the place of it."""
    whole = Presence(pool="p", replica="r", incarnation="i", owner="o", started_at="t")
    assert presence_of(whole.to_bytes() if value is None else value) == (whole if is_there else None)
