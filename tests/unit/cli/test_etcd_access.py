"""Passwords of etcd's users in files."""

from __future__ import annotations

import pytest

from registry.access.etcd_users import ADMIN, AUDITOR, replica_user, wanted
from registry.cli.commands.etcd_access import _Passwords
from registry.cli.failure import CliError
from registry.model.keys import Keys

R1 = replica_user("p", "r1")


def test_a_password_is_kept_once_etcd_has_it(tmp_path):
    """X1 secret-free: it is new for each user, and its owner's alone."""
    folder = _Passwords(tmp_path / "new")
    want = wanted(Keys(), [("p", "r1")])
    assert folder.missing(want) == {ADMIN, AUDITOR, R1}
    with pytest.raises(KeyError), folder.password(R1):
        raise KeyError("etcd did not take it")
    assert folder.missing(want) == {ADMIN, AUDITOR, R1}
    with folder.password(R1) as password:
        assert password is not None
        assert len(password) >= 32
    with folder.password(R1) as again:
        assert again == password
    file = tmp_path / "new" / "loraplane-replica:p%2Fr1"
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"{password}\n", 0o600)
    assert folder.missing(want) == {ADMIN, AUDITOR}
    with folder.password(ADMIN) as other:
        assert other != password


def test_without_a_folder_there_is_no_password():
    folder = _Passwords(None)
    assert folder.missing(wanted(Keys(), [("p", "r1")])) == frozenset()
    with folder.password(R1) as password:
        assert password is None


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match="--password-dir"), _Passwords(tmp_path / "file").password(R1):
        pass
