"""The names of artifacts, which never come out differently, and signatures over them."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from hypothesis import example, given
from hypothesis import strategies as st

from registry.lora.digest import FileEntry, canonical_json, manifest_digest, prepared_id
from registry.lora.ed25519 import BadKey, Ed25519Key, read_public_key, sign
from registry.lora.signatures import SIGNATURE_PATTERN, objection, signed_bytes, signer
from tests.support.signing import make_key, public_pem

DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
ALICE, BOB = Ed25519PrivateKey.from_private_bytes(b"a" * 32), Ed25519PrivateKey.from_private_bytes(b"b" * 32)
KEYS = {"alice": Ed25519Key(ALICE.public_key()), "bob": Ed25519Key(BOB.public_key())}
SIGNED = base64.b64encode(BOB.sign(signed_bytes(DIGEST))).decode()


def test_a_signature_names_its_key_and_is_of_one_digest(tmp_path):
    private, public = make_key(tmp_path)
    signature = sign(DIGEST, private)
    assert re.fullmatch(SIGNATURE_PATTERN, signature)
    keys = {**KEYS, "mine": read_public_key(public)}
    assert signer(DIGEST, signature, keys) == "mine"
    assert signer(OTHER, signature, keys) is None
    assert signer(DIGEST, signature, KEYS) is None


def test_openssl_makes_the_same_signature(tmp_path):
    """What is signed is documented, and any tool can sign it."""
    private, _ = make_key(tmp_path)
    (tmp_path / "key.pem").write_bytes(private)
    (tmp_path / "message").write_text(f'{{"digest":"{DIGEST}","schema":"lora-signature/1"}}')
    command = ["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", "key.pem", "-in", "message", "-out", "signature"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this openssl cannot sign: {done.stderr[-200:]!r}")
    assert base64.b64encode(Path(tmp_path / "signature").read_bytes()).decode() == sign(DIGEST, private)


@given(
    st.text(alphabet="ABab01+/=", max_size=100) | st.binary(max_size=90).map(lambda one: base64.b64encode(one).decode())
)
@example("é" * 88)
@example(f"{SIGNED[:4]}?{SIGNED[4:]}")
@example(f"{SIGNED}\n")
def test_no_other_text_is_a_signature(text):
    assert signer(DIGEST, text, KEYS) is None or text == SIGNED


@pytest.mark.parametrize(
    ("signature", "keys", "is_required", "reason"),
    [
        (None, {}, False, None),
        (None, KEYS, False, None),
        (SIGNED, {}, False, None),
        (SIGNED, KEYS, False, None),
        (SIGNED, {"alice": KEYS["alice"]}, False, "signature_invalid"),
        (None, {}, True, "signature_keys_missing"),
        (SIGNED, {}, True, "signature_keys_missing"),
        (None, KEYS, True, "signature_missing"),
        (SIGNED, KEYS, True, None),
        (SIGNED, {"alice": KEYS["alice"]}, True, "signature_invalid"),
        ("?", KEYS, True, "signature_invalid"),
    ],
)
def test_what_speaks_against_an_adapter(signature, keys, is_required, reason):
    """Refused if in doubt, wherever a signature is asked for or given."""
    found = objection(DIGEST, signature, keys, is_required=is_required)
    assert (found and found[0]) == reason


# Keys of an algorithm that nobody has, with the number 1.2.3.4.
UNHEARD_OF = b"-----BEGIN PRIVATE KEY-----\nMA0CAQAwBQYDKgMEBAEA\n-----END PRIVATE KEY-----\n"
UNHEARD_OF_PUBLIC = "-----BEGIN PUBLIC KEY-----\nMAswBQYDKgMEAwIAAQ==\n-----END PUBLIC KEY-----\n"


def test_a_key_that_cannot_be_used_is_refused_in_our_words():
    """X2: one that is encrypted, or of an algorithm that is not known."""
    locked = ALICE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    for content in (locked, UNHEARD_OF):
        with pytest.raises(BadKey, match="no unencrypted private key in PEM"):
            sign(DIGEST, content)
    with pytest.raises(BadKey, match="no public key in PEM"):
        read_public_key(UNHEARD_OF_PUBLIC)


def test_what_is_no_key_is_refused_without_being_shown(tmp_path):
    """X1 secret-free."""
    rsa = subprocess.run(["openssl", "genrsa", "2048"], capture_output=True, check=True).stdout
    private, public = make_key(tmp_path)
    for content in (b"", b"secret", public.encode(), rsa):
        with pytest.raises(BadKey) as refused:
            sign(DIGEST, content)
        assert "secret" not in str(refused.value)
    for text in ("", "secret", private.decode(), public_pem(rsa)):
        with pytest.raises(BadKey) as refused:
            read_public_key(text)
        assert "secret" not in str(refused.value)


CONFIG = FileEntry("adapter_config.json", 2, "a" * 64)
WEIGHTS = FileEntry("adapter_model.safetensors", 3, "b" * 64)


def test_the_digest_is_that_of_the_manifest_as_documented():
    """R4 digest-true: the form is fixed; anybody can compute it with sha256sum and a JSON printer."""
    manifest = (
        '{"files":[{"path":"adapter_config.json","sha256":"' + "a" * 64 + '","size":2},'
        '{"path":"adapter_model.safetensors","sha256":"' + "b" * 64 + '","size":3}],"schema":"lora-manifest/1"}'
    )
    assert manifest_digest([WEIGHTS, CONFIG]) == "sha256:" + hashlib.sha256(manifest.encode()).hexdigest()


def test_the_id_depends_on_source_policy_and_base():
    """R4: what was made in another way stands under another name."""
    source, policy = "sha256:" + "a" * 64, {"name": "prepare", "version": 1}
    plain = prepared_id(source, policy, None)
    others = {
        prepared_id("sha256:" + "b" * 64, policy, None),
        prepared_id(source, policy | {"version": 2}, None),
        prepared_id(source, policy, "c" * 64),
    }
    expected = '{"base":null,"policy":{"name":"prepare","version":1},"source":"sha256:' + "a" * 64 + '"}'
    assert plain == hashlib.sha256(expected.encode()).hexdigest()
    assert len(others | {plain}) == 4


def test_canonical_json_has_no_spaces_sorts_and_keeps_unicode():
    assert canonical_json({"b": [1, 2], "a": "é"}) == '{"a":"é","b":[1,2]}'.encode()
