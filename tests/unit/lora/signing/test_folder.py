"""Folders that are signed: which of their files count, and what cannot be signed."""

from __future__ import annotations

import hashlib

import pytest

from registry.lora.signing import bundle
from registry.lora.signing.bundle import (
    SignedBundle,
    UnsignableFolder,
    bundle_in,
    folder_sha256,
    statement_in,
    write_bundle,
)
from registry.lora.signing.statement import SignedFiles, write_statement


def test_all_files_count_but_the_bundle_and_those_of_git(tmp_path):
    for name in ("a", "b/c", ".git/config", ".gitignore", "b/.gitignore", "model.sig"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert folder_sha256(tmp_path) == {
        name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b/.gitignore", "b/c")
    }


def test_a_link_and_too_many_files_are_refused(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UnsignableFolder, match="is a link"):
        folder_sha256(tmp_path)
    (tmp_path / "b").unlink()
    monkeypatch.setattr(bundle, "MAX_FILES", 0)
    with pytest.raises(UnsignableFolder, match="more than 0 files"):
        folder_sha256(tmp_path)


def test_the_bundle_beside_the_files_is_read_whoever_signed_it(tmp_path):
    assert bundle_in(tmp_path) is None
    signed = SignedFiles("sql", {"a": "a" * 64})
    (tmp_path / "model.sig").write_bytes(write_bundle(SignedBundle(write_statement(signed, []), b"x")))
    content = bundle_in(tmp_path)
    assert content is not None
    assert statement_in(content) == signed
