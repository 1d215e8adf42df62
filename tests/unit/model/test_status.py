"""Presences: whose they are."""

from __future__ import annotations

import pytest

from registry.model.status import host_of


@pytest.mark.parametrize(
    ("owner", "host"), [("boot-1:42", "boot-1"), ("unknown-boot:42", ""), ("boot-1", "boot-1"), ("", "")]
)
def test_the_host_of_an_owner_is_its_boot_id(owner, host):
    """R10 one-owner: of a boot id that nobody knows, nothing is said."""
    assert host_of(owner) == host
