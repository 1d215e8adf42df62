"""loraplane sign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.cli.main import run
from registry.lora.directory import digest_of
from registry.lora.ed25519 import read_public_key
from registry.lora.signatures import signer
from tests.support.adapters import write_adapter
from tests.support.signing import make_key


@pytest.fixture
def adapter(tmp_path) -> Path:
    return write_adapter(tmp_path / "adapter").directory


def test_the_signature_is_of_the_files_in_the_folder(capsys, adapter, tmp_path):
    _, public = make_key(tmp_path)
    arguments = [str(adapter), "--key", str(tmp_path / "key.pem")]
    assert run(["sign", *arguments]) == 0
    signature = capsys.readouterr().out.strip()
    assert signer(digest_of(adapter), signature, {"mine": read_public_key(public)}) == "mine"
    assert run(["-o", "json", "sign", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["signature"] == signature


CANNOT = [("gone", "key.pem", 3), ("adapter", "gone.pem", 2), ("adapter", ".", 2)]


@pytest.mark.parametrize(("source", "key", "code"), CANNOT)
def test_what_cannot_be_signed_is_said(capsys, adapter, tmp_path, source, key, code):
    make_key(tmp_path)
    assert run(["sign", str(tmp_path / source), "--key", str(tmp_path / key)]) == code
    assert capsys.readouterr().err.startswith("error: ")


def test_a_file_that_is_no_key_is_not_shown(capsys, adapter, tmp_path):
    """X1 secret-free."""
    (tmp_path / "no.pem").write_text("canary")
    assert run(["sign", str(adapter), "--key", str(tmp_path / "no.pem")]) == 2
    err = capsys.readouterr().err
    assert "no.pem" in err
    assert "canary" not in err
