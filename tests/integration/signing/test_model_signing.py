"""OpenSSF's own tool and ours: each verifies what the other signed, offline."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from registry.cli.main import run
from registry.lora.directory import entries_of
from registry.lora.signing.bundle import bundle_in
from registry.model.signature_check import SignatureRefused, Use, check_files, vouched
from registry.model.signature_policy import SignaturePolicy
from tests.corpus.drafts import LLAMA
from tests.support.signing import FOR_SIGNING, SigningAuthority, make_ec_key
from tests.unit.model.test_signature_policy import policy_of_keys

PROGRAM = Path(__file__).parents[3] / ".venv-signing/bin/model_signing"
NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def adapter(tmp_path) -> Path:
    folder = LLAMA.draft().write(tmp_path / "adapter")
    (folder / "README.md").write_text("what PEFT leaves beside it")
    return folder


def model_signing(*words: object) -> subprocess.CompletedProcess[str]:
    assert PROGRAM.exists(), "make .venv-signing/.installed puts it there"
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, timeout=120)


def vouches(policy: SignaturePolicy, folder: Path) -> str:
    """The signer; or why there is none that counts."""
    rule, content = policy.rule("acme/sql"), bundle_in(folder)
    assert rule is not None
    assert content is not None
    try:
        found = vouched(rule, content, Use("acme/sql", "p"), NOW)
        check_files(found.signed, entries_of(folder))
    except SignatureRefused as error:
        return error.reason
    return found.signer


def _spoil(folder: Path) -> None:
    with (folder / "adapter_model.safetensors").open("ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda one: one.name)
def test_bundles_of_keys_are_verified_both_ways(adapter, tmp_path, curve):
    """R21 proven-here: what the field's tool signed counts, until a byte of a file is another."""
    private, public = make_ec_key(curve)
    key, pub, bundle = tmp_path / "key.pem", tmp_path / "key.pub", adapter / "model.sig"
    key.write_bytes(private)
    pub.write_text(public)
    policy = policy_of_keys(release=public)
    signed = model_signing("sign", "key", adapter, "--private_key", key, "--signature", bundle)
    assert (signed.returncode, vouches(policy, adapter)) == (0, "release"), signed.stderr
    assert run(["sign", str(adapter), "--key", str(key), "--name", "acme/*", "--not-after", "2027-06-30"]) == 0
    verify = ("verify", "key", adapter, "--public_key", pub, "--signature", bundle)
    verified = model_signing(*verify)
    assert (verified.returncode, vouches(policy, adapter)) == (0, "release"), verified.stdout + verified.stderr
    _spoil(adapter)
    assert (model_signing(*verify).returncode != 0, vouches(policy, adapter)) == (True, "signed_other_files")


def test_bundles_of_certificates_are_verified_both_ways(adapter, tmp_path):
    root = SigningAuthority()
    middle = SigningAuthority("releases", root)
    private, chain = middle.issue(x509.RFC822Name("release@acme.example"), usage=FOR_SIGNING)
    files = {"key.pem": private, "chain.pem": chain, "root.pem": root.pem.encode(), "middle.pem": middle.pem.encode()}
    key, whole, ca, above = (tmp_path / name for name in files)
    for path, content in zip((key, whole, ca, above), files.values(), strict=True):
        path.write_bytes(content)
    policy, bundle = policy_of_keys(authority=root.pem), adapter / "model.sig"
    certificates = ("--signing_certificate", whole, "--certificate_chain", above)
    words = ("sign", "certificate", adapter, "--private_key", key, *certificates, "--signature", bundle)
    signed = model_signing(*words)
    assert (signed.returncode, vouches(policy, adapter)) == (0, "authority"), signed.stdout + signed.stderr
    assert run(["sign", str(adapter), "--key", str(key), "--certificate", str(whole)]) == 0
    verify = ("verify", "certificate", adapter, "--certificate_chain", ca, "--signature", bundle)
    verified = model_signing(*verify)
    assert (verified.returncode, vouches(policy, adapter)) == (0, "authority"), verified.stdout + verified.stderr
