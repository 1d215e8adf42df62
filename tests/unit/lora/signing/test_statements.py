"""Statements, bundles and folders: what is written is read, and what is not of the form is refused with what to do."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime

import pytest

from registry.lora.signing import bundle as module
from registry.lora.signing.bundle import (
    MAX_BUNDLE_BYTES,
    SignedBundle,
    UnsignableFolder,
    bundle_in,
    folder_sha256,
    read_bundle,
    signed_content,
    statement_in,
    write_bundle,
)
from registry.lora.signing.forms import BadBundle
from registry.lora.signing.statement import (
    BINDING_FIELD,
    SignatureBinding,
    SignedFiles,
    read_moment,
    read_statement,
    write_statement,
)

SHA, OTHER_SHA = "a" * 64, "b" * 64
END = datetime(2027, 1, 31, 12, tzinfo=UTC)
FILES = {"adapter_model.safetensors": OTHER_SHA, "adapter_config.json": SHA}
BINDING = SignatureBinding(("acme/*",), ("qwen-*",), "qwen2.5", END)


def changed(content: bytes, path: str, value: object) -> bytes:
    """The JSON with what a path leads to exchanged; None: taken out."""
    whole = json.loads(content)
    *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    place = whole
    for part in way:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize("binding", [SignatureBinding(), BINDING, SignatureBinding(base="qwen2.5")])
def test_what_is_written_is_read(binding):
    signed = SignedFiles("sql", FILES, binding)
    assert read_statement(write_statement(signed, [".git"])) == signed


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("_type", "https://in-toto.io/Statement/v0.1", "_type"),
        ("predicateType", "https://model_signing/Digests/v0.1", "predicateType"),
        ("subject", [], "its subject is \\[\\], expected a list of 1"),
        ("subject", [1], "subject"),
        ("subject.0.digest", "x", "subject.digest"),
        ("subject.0.digest.sha256", SHA, "that of its resources"),
        ("subject.0.name", "", "1 to 512 characters"),
        ("predicate", [], "predicate"),
        ("predicate.serialization", None, "serialization"),
        ("predicate.serialization.method", "shards", "method files"),
        ("predicate.serialization.hash_type", "blake3", "sha256"),
        ("predicate.resources", {}, "a list of 1 to 4096"),
        ("predicate.resources.0.algorithm", "blake2b", "resource"),
        ("predicate.resources.0.digest", 7, "64 hexadecimal digits"),
        ("predicate.resources.0.digest", SHA.upper(), "64 hexadecimal digits"),
        ("predicate.resources.0.name", "adapter_model.safetensors", "twice"),
        ("predicate.resources.0.name", "x" * 513, "1 to 512 characters"),
    ],
)
def test_a_statement_of_another_form_is_refused(path, value, why):
    content = changed(write_statement(SignedFiles("sql", FILES), []), path, value)
    with pytest.raises(BadBundle, match=why) as told:
        read_statement(content)
    assert "sign the folder anew" in str(told.value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "a JSON object"),
        ({"names": "acme/*"}, "a list of 0 to 64"),
        ({"pools": ["p"] * 65}, "a list of 0 to 64"),
        ({"names": [""]}, "1 to 512 characters"),
        ({"base": 7}, "1 to 512 characters"),
        ({"notAfter": "tomorrow"}, "2027-01-31T12:00:00Z"),
        ({"notAfter": "2027-01-31T12:00:00"}, "2027-01-31T12:00:00Z"),
        ({"notAfter": 7}, "2027-01-31T12:00:00Z"),
        ({"regions": ["eu"]}, "binds 'regions', which this release does not know; upgrade it"),
    ],
)
def test_a_limit_that_is_not_understood_refuses_all(value, why):
    content = write_statement(SignedFiles("sql", FILES, BINDING), [])
    whole = json.loads(content)
    whole["predicate"][BINDING_FIELD] = value
    with pytest.raises(BadBundle, match=why):
        read_statement(json.dumps(whole).encode())


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"a":1,"a":2}', b"[" * 100_000])
def test_what_is_no_json_object_is_refused(content):
    """X2 unbreakable: whoever may write beside the files writes this."""
    for read in (read_statement, read_bundle):
        with pytest.raises(BadBundle, match="sign the folder anew"):
            read(content)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2027-01-31", datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC)),
        ("2027-01-31T12:00:00Z", END),
        ("2027-01-31T13:00:00+01:00", END),
    ],
)
def test_a_day_means_its_end(text, moment):
    assert read_moment(text) == moment


BUNDLE = SignedBundle(b"{}", b"signature", "f" * 64)


@pytest.mark.parametrize("bundle", [BUNDLE, SignedBundle(b"{}", b"signature", chain=(b"one", b"two"))])
def test_a_bundle_is_read_as_it_was_written(bundle):
    assert read_bundle(write_bundle(bundle)) == bundle


def test_what_is_signed_names_the_type_and_the_lengths():
    """DSSE's own example has this form."""
    assert signed_content(b"{}") == b"DSSEv1 28 application/vnd.in-toto+json 2 {}"


def test_a_bundle_of_an_older_tool_does_not_say_its_key():
    content = changed(write_bundle(BUNDLE), "verificationMaterial.publicKey.hint", None)
    assert read_bundle(content).hint == ""


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("mediaType", "application/json", "mediaType"),
        ("dsseEnvelope", None, "dsseEnvelope"),
        ("dsseEnvelope.payloadType", "text/plain", "payloadType"),
        ("dsseEnvelope.payload", "?", "base64"),
        ("dsseEnvelope.payload", 7, "base64"),
        ("dsseEnvelope.signatures", [], "a list of 1"),
        ("dsseEnvelope.signatures", [{"sig": "YQ=="}] * 2, "a list of 1"),
        ("dsseEnvelope.signatures.0.sig", "", "base64"),
        ("verificationMaterial", [], "verificationMaterial"),
        ("verificationMaterial.publicKey", None, "publicKey"),
        ("verificationMaterial.publicKey.hint", 7, "hint"),
        ("verificationMaterial.x509CertificateChain", [], "x509CertificateChain"),
        ("verificationMaterial.x509CertificateChain", {"certificates": []}, "a list of 1 to 8"),
        ("verificationMaterial.x509CertificateChain", {"certificates": [{"rawBytes": "YQ=="}] * 9}, "1 to 8"),
        ("verificationMaterial.x509CertificateChain", {"certificates": [{}]}, "rawBytes"),
        ("verificationMaterial.certificate", {"rawBytes": "YQ=="}, "keyless"),
        ("verificationMaterial.tlogEntries", [{}], "keyless"),
    ],
)
def test_a_bundle_of_another_form_is_refused(path, value, why):
    with pytest.raises(BadBundle, match=why) as told:
        read_bundle(changed(write_bundle(BUNDLE), path, value))
    assert "sign" in str(told.value)


def test_a_bundle_has_a_largest_size():
    with pytest.raises(BadBundle, match="more than"):
        read_bundle(b" " * (MAX_BUNDLE_BYTES + 1))


def test_what_a_message_shows_of_a_bundle_moves_no_terminal():
    """X2 unbreakable: the message goes into logs and statuses."""
    content = changed(write_bundle(BUNDLE), "mediaType", base64.b64encode(b"x").decode() + "\x1b[2J\u202e")
    with pytest.raises(BadBundle) as told:
        read_bundle(content)
    assert str(told.value).isprintable()


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
    monkeypatch.setattr(module, "MAX_FILES", 1)
    assert [*folder_sha256(tmp_path)] == ["a"]
    (tmp_path / "b").write_text("b")
    with pytest.raises(UnsignableFolder, match="more than 1 files"):
        folder_sha256(tmp_path)


def test_the_bundle_beside_the_files_is_read_whoever_signed_it(tmp_path):
    assert bundle_in(tmp_path) is None
    signed = SignedFiles("sql", {"a": "a" * 64})
    (tmp_path / "model.sig").write_bytes(write_bundle(SignedBundle(write_statement(signed, []), b"x")))
    content = bundle_in(tmp_path)
    assert content is not None
    assert statement_in(content) == signed
