"""Secrets of an installation in containers: each part is given its own, once."""

from __future__ import annotations

import runpy

import pytest

from registry.picker.settings import PickerSettings
from registry.runtime.flags import read_settings
from registry.tools.devstack import shared_secrets
from registry.tools.devstack.secure import SecretFolder, etcd_peer_flags, picker_flags
from registry.tools.devstack.shared_secrets import make_and_share, shares


def given(folder) -> tuple:
    return folder / "secrets", folder / "shares", "main", ["r1"], ["m1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make_and_share(*given(folder))
    return folder


def test_each_part_has_its_files_and_its_group_may_read_them(made):
    """X1 secret-free: what is for all parts together is for its owner alone."""
    secrets = made / "secrets"
    expected = shares(SecretFolder(secrets), ["r1"], ["m1"])
    assert {one.name for one in (made / "shares").iterdir()} == {*expected}
    for part, files in expected.items():
        there = {one.name: one for one in (made / "shares" / part).iterdir()}
        assert {*there} == {one.name for one in files}
        assert {one.stat().st_mode & 0o777 for one in there.values()} == {0o640}
        assert all(there[one.name].read_bytes() == one.read_bytes() for one in files)
    assert {one.stat().st_mode & 0o777 for one in (secrets, *secrets.iterdir())} == {0o700, 0o600}
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert SecretFolder(secrets).control_token("r1").read_text().strip()


def test_flags_of_parts_name_files_that_they_have(made):
    picker = SecretFolder(made / "shares" / "picker")
    arguments = ["--pool", "main", *picker_flags(picker)]
    told = read_settings(PickerSettings, program="p", summary="s", arguments=arguments, environment={})
    named = (told.admin_tls_ca, told.admin_tls_cert, told.admin_tls_key, told.http_tls_ca, told.http_tls_cert)
    assert all(file and file.exists() for file in (*named, told.http_tls_key))
    member = SecretFolder(made / "shares" / "etcd")
    files = [value for value in etcd_peer_flags(member, "m1").values() if value.startswith("/")]
    assert len(files) == 3
    assert {*files} <= {str(one) for one in member.root.iterdir()}


def test_a_second_time_only_what_was_changed_is_given(tmp_path, capsys):
    """The access file is its operator's, and never written again."""
    make_and_share(*given(tmp_path))
    of_certificates, files = len([*(tmp_path / "secrets").glob("*.pem")]), len([*(tmp_path / "shares").glob("*/*")])
    told = f"made {of_certificates + 2} secrets, gave {files} files to their parts\n"
    assert capsys.readouterr().out == told, "the access file and a token of the replica, too"
    make_and_share(*given(tmp_path))
    assert capsys.readouterr().out == "made 0 secrets, gave 0 files to their parts\n"
    (tmp_path / "secrets" / "access.yaml").write_text("changed")
    make_and_share(*given(tmp_path))
    assert capsys.readouterr().out == "made 0 secrets, gave 1 files to their parts\n"
    assert (tmp_path / "shares" / "admin" / "access.yaml").read_text() == "changed"


def test_what_cannot_be_used_is_named(tmp_path):
    (tmp_path / "shares").write_text("in the way")
    with pytest.raises(SystemExit, match="shares/etcd cannot be used: Not a directory"):
        make_and_share(*given(tmp_path))
    SecretFolder(tmp_path / "secrets").certificate("operator").write_text("none")
    with pytest.raises(SystemExit, match="secrets holds what is no certificate; remove it, and begin anew"):
        make_and_share(*given(tmp_path))


def test_it_is_a_program_too(tmp_path, monkeypatch, capsys):
    """As the containers call it."""
    folders, named = ("--secrets", f"{tmp_path / 's'}", "--into", f"{tmp_path / 'i'}"), ("--pool", "main")
    monkeypatch.setattr("sys.argv", ["shared-secrets", *folders, *named, "--replica", "r1", "--member", "m1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(shared_secrets.__file__, run_name="__main__")
    assert (ended.value.code, capsys.readouterr().out.startswith("made ")) == (0, True)
