"""sign: a bundle beside the files with an ECDSA key, a signature for the record with an Ed25519 key."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509

from registry.lora.directory import digest_of
from registry.lora.ed25519 import read_public_key
from registry.lora.signatures import signer
from registry.lora.signing.bundle import bundle_in, folder_sha256, read_bundle, statement_in
from registry.lora.signing.keys import read_signing_key
from registry.lora.signing.statement import SignatureBinding
from tests.support.signing import SigningAuthority, make_ec_key, make_key


@pytest.fixture
def public(tmp_path) -> str:
    private, public = make_ec_key()
    (tmp_path / "key.pem").write_bytes(private)
    return public


def test_an_ed25519_key_prints_a_signature_of_the_digest_that_a_record_pins(cli, adapter, tmp_path):
    _, public = make_key(tmp_path)
    sign = ["sign", str(adapter), "--key", "key.pem"]
    signature = cli(*sign).out.strip()
    assert signer(digest_of(adapter), signature, {"mine": read_public_key(public)}) == "mine"
    assert cli("-o", "json", *sign).json["signature"] == signature
    assert cli("digest", str(adapter)).out.strip() == digest_of(adapter)
    assert cli("-o", "json", "digest", adapter.as_uri()).json["digest"] == digest_of(adapter)
    assert bundle_in(adapter) is None
    ran = cli(*sign, "--name", "acme/*")
    assert (ran.code, "--name is for an ECDSA key" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("flags", "binding", "told"),
    [
        ([], SignatureBinding(), ", for any name, pool and base, and without an end"),
        (
            ["--name", "acme/*", "--name", "sql", "--pool", "qwen", "--base", "b", "--not-after", "2027-06-30"],
            SignatureBinding(("acme/*", "sql"), ("qwen",), "b", datetime(2027, 6, 30, 23, 59, 59, tzinfo=UTC)),
            ", as acme/*, sql in qwen on b until 2027-06-30T23:59:59Z",
        ),
        (["--pool", "qwen", "--base", "b"], SignatureBinding((), ("qwen",), "b"), ", in qwen on b"),
        (["--name", "sql"], SignatureBinding(("sql",)), ", as sql"),
    ],
)
def test_an_ecdsa_key_writes_a_bundle_over_all_files_of_the_folder(
    cli, adapter, tmp_path, public, monkeypatch, flags, binding, told
):
    """R21 proven-here: each file by its sha256, and what they may be used for; the environment binds no pool."""
    monkeypatch.setenv("LORAPLANE_POOL", "other")
    (adapter / "notes").mkdir()
    (adapter / "notes" / "README.md").write_text("mine")
    (adapter / ".git").mkdir()
    (adapter / ".git" / "config").write_text("not signed")
    ran = cli("sign", str(adapter), "--key", "key.pem", *flags)
    assert (ran.code, ran.out) == (0, f"{adapter}/model.sig is over 3 files{told}\n")
    content = bundle_in(adapter)
    assert content is not None
    signed = statement_in(content)
    assert (signed.subject, signed.binding, signed.sha256) == ("adapter", binding, folder_sha256(adapter))
    assert set(signed.sha256) == {"adapter_config.json", "adapter_model.safetensors", "notes/README.md"}
    assert read_signing_key(public).made(read_bundle(content))
    assert not list(tmp_path.glob(".adapter.*"))
    assert cli("sign", str(adapter), "--key", "key.pem", *["--name", "a"] * 64).code == 0, (
        "as many as a bundle may have"
    )


def test_a_certificate_goes_into_the_bundle_and_a_script_gets_its_path(cli, adapter, tmp_path):
    private, chain = SigningAuthority().issue(x509.RFC822Name("a@b"))
    (tmp_path / "key.pem").write_bytes(private)
    (tmp_path / "chain.pem").write_bytes(chain)
    sign = ["sign", str(adapter), "--key", "key.pem", "--certificate", "chain.pem"]
    assert cli("-o", "name", *sign).out == f"{adapter}/model.sig\n"
    said = cli("-o", "json", *sign).json
    assert (said["bundle"], said["digest"], len(said["files"])) == (f"{adapter}/model.sig", digest_of(adapter), 2)
    content = bundle_in(adapter)
    assert content is not None
    assert len(read_bundle(content).chain) == 1


@pytest.mark.parametrize(
    ("change", "flags", "code", "why"),
    [
        (lambda _: None, ["--not-after", "soon"], 2, "--not-after 'soon' must be a day or a moment with its zone"),
        (lambda _: None, ["--name", ""], 2, "--name takes 1 to 64 patterns"),
        (lambda _: None, ["--pool", "p"] * 65, 2, "--pool takes 1 to 64 patterns"),
        (lambda _: None, ["--certificate", "/nowhere"], 2, "--certificate /nowhere cannot be read"),
        (lambda one: (one / "adapter_model.safetensors").unlink(), [], 4, "source_incomplete"),
        (lambda one: (one / "linked").symlink_to("/etc/hostname"), [], 2, "is a link"),
        (lambda one: (one / "model.sig").mkdir(), [], 2, "cannot write"),
    ],
)
def test_what_cannot_be_signed_is_told_with_what_to_do_and_nothing_is_left(
    cli, adapter, tmp_path, public, change, flags, code, why
):
    change(adapter)
    ran = cli("sign", str(adapter), "--key", "key.pem", *flags)
    assert (ran.code, why in ran.err) == (code, True)
    assert not (adapter / "model.sig").is_file()
    assert not list(tmp_path.glob(".adapter.*"))


def test_keys_and_places_that_cannot_be_used(cli, adapter, tmp_path, public):
    (tmp_path / "none.pem").write_text("none")
    for line, code, why in (
        (f"{adapter} --key /nowhere", 2, "--key /nowhere cannot be read"),
        ("s3://bucket/a --key key.pem", 2, "name the folder"),
        ("/nowhere --key key.pem", 3, "there is no folder /nowhere"),
        (f"{adapter} --key none.pem", 2, "no unencrypted private key in PEM"),
        (f"{adapter} --key key.pem --certificate none.pem", 2, "the certificates are not in PEM"),
    ):
        ran = cli("sign", *line.split())
        assert (ran.code, why in ran.err) == (code, True)
