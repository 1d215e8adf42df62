"""The signature policy: what is read of it, how a wrong one is refused, and which bundles it lets count."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from registry.lora.digest import FileEntry
from registry.lora.signing.keys import sign_statement
from registry.lora.signing.statement import SignatureBinding, SignedFiles, write_statement
from registry.model.operator_yaml import OperatorFileInvalid
from registry.model.signature_check import SignatureRefused, Use, Voucher, absent, check_files, vouched, without_rule
from registry.model.signature_policy import SignaturePolicy, read_policy
from tests.support.signing import BEGIN, SigningAuthority, make_ec_key
from tests.unit.lora.signing.test_statements import changed

NOW = datetime(2026, 11, 1, tzinfo=UTC)
PRIVATE, PUBLIC = make_ec_key()
OTHER = make_ec_key()[0]
ACME = SigningAuthority()
MAIL = x509.RFC822Name("Release@acme.example")
SHA = "a" * 64
FILES = {"adapter_config.json": SHA, "adapter_model.safetensors": SHA, "README.md": SHA}
USE = Use("acme/sql", "qwen-prod", frozenset({"qwen2.5", "sha256:" + SHA}))


def policy_text(rules: list[dict[str, object]] | None = None, **more: object) -> bytes:
    content = {
        "apiVersion": "loraplane/v1",
        "kind": "SignaturePolicy",
        "keys": {"release": PUBLIC},
        "authorities": {"acme": {"certificates": ACME.pem, "names": ["release@*"]}},
        "rules": rules or [{"tenants": ["Acme", "ml-*"], "signers": ["release", "acme"]}],
    }
    return json.dumps(content | more).encode()


def policy_of_keys(authority: str = "", **keys: str) -> SignaturePolicy:
    """A policy by which these keys, or whom this authority certifies, sign for all."""
    authorities = {"authority": {"certificates": authority, "names": ["*"]}} if authority else {}
    rules = [{"tenants": ["*"], "signers": [*keys, *authorities]}]
    return read_policy(policy_text(rules, keys=keys, authorities=authorities), "policy.yaml")


def policy(**rule: object):
    return read_policy(policy_text([{"tenants": ["acme"], "signers": ["release", "acme"]} | rule]), "policy.yaml")


UNBOUND = SignatureBinding()


def bundle(binding: SignatureBinding = UNBOUND, private: bytes = PRIVATE, chain: bytes = b"") -> bytes:
    return sign_statement(write_statement(SignedFiles("sql", FILES, binding), []), private, chain)


def vouch(content: bytes, **rule: object) -> Voucher:
    found = policy(**rule).rule(USE.name)
    assert found is not None
    return vouched(found, content, USE, NOW)


def refused(content: bytes, **rule: object) -> tuple[str, str]:
    with pytest.raises(SignatureRefused) as told:
        vouch(content, **rule)
    assert told.value.message.isprintable()
    return told.value.reason, told.value.message


def test_the_first_rule_that_names_the_tenant_decides():
    rules = [
        {"tenants": ["acme"], "signers": ["release"], "bind": ["name"], "ed25519Until": "2027-06-30"},
        {"tenants": ["*"], "unsigned": True},
    ]
    found = read_policy(policy_text(rules), "policy.yaml")
    first, second = found.rule("ACME/sql"), found.rule("sql")
    assert first is not None
    assert second is not None
    assert (first.signers, first.unsigned, first.bind) == ("release", False, frozenset({"name"}))
    assert first.ed25519_until == datetime(2027, 6, 30, 23, 59, 59, tzinfo=UTC)
    assert (second.signers, second.unsigned, second.ed25519_until) == ("nobody", True, None)
    assert policy().rule("other/sql") is None
    assert found.digest != policy().digest


def test_a_day_in_yaml_means_its_end():
    text = (
        b"apiVersion: loraplane/v1\nkind: SignaturePolicy\nrules:\n- {tenants: [a], unsigned: true, ed25519Until: %s}\n"
    )
    for written, hour in ((b"2027-06-30", 23), (b"2027-06-30T12:00:00Z", 12)):
        rule = read_policy(text % written, "policy.yaml").rule("a/b")
        assert rule is not None
        assert rule.ed25519_until is not None
        assert rule.ed25519_until.hour == hour


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"rules: [", "policy.yaml, line 1: it is no YAML"),
        (b"x" * (1 << 20) + b"x", "more than the 1048576"),
        (policy_text(kind="Access"), "kind: Input should be 'SignaturePolicy'"),
        (policy_text(rule=[]), "rule: Extra inputs"),
        (policy_text([{"tenants": ["a"]}]), "rules.0: name the signers that count, or write unsigned: true"),
        (policy_text([{"tenants": [], "unsigned": True}]), "rules.0.tenants"),
        (policy_text([{"tenants": ["a"], "signers": ["ann"]}]), "rules.0.signers: ann is neither in keys nor in"),
        (policy_text([{"tenants": ["a"], "unsigned": True, "ed25519Until": "soon"}]), "rules.0.ed25519Until"),
        (policy_text([{"tenants": ["a"], "unsigned": True, "bind": ["tenant"]}]), "rules.0.bind.0"),
        (policy_text(keys={"acme": PUBLIC}), "acme is both a key and an authority"),
        (policy_text(keys={"release": "none"}), "keys: release: it is no public key in PEM"),
        (policy_text(keys={"release": make_ec_key(ec.SECP256K1())[1]}), "keys: release: it is a key of the curve"),
        (
            policy_text(authorities={"acme": {"certificates": "none", "names": ["*"]}}),
            "authorities: acme: it holds no certificates",
        ),
        (policy_text(authorities={"acme": {"certificates": ACME.pem}}), "authorities.acme.names"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_field(text, why):
    with pytest.raises(OperatorFileInvalid) as told:
        read_policy(text, "policy.yaml")
    assert why in str(told.value)


@pytest.mark.parametrize(
    "binding",
    [
        SignatureBinding(),
        SignatureBinding(("ACME/*", "x")),
        SignatureBinding(pools=("qwen-*",)),
        SignatureBinding(base="qwen2.5"),
        SignatureBinding(base="sha256:" + SHA),
        SignatureBinding(not_after=NOW),
    ],
)
def test_a_bundle_counts_for_what_it_allows(binding):
    found = vouch(bundle(binding))
    assert (found.signer, found.signed.sha256, found.not_after) == ("release", FILES, binding.not_after)
    assert vouch(bundle(binding, *ACME.issue(MAIL))).signer == "acme"


def test_a_bundle_that_does_not_say_its_key_is_tried_with_all():
    older, forged = (
        changed(one, "verificationMaterial.publicKey.hint", "") for one in (bundle(), bundle(private=OTHER))
    )
    assert vouch(older).signer == "release"
    reason, message = refused(forged)
    assert reason == "signer_untrusted"
    assert "a key that it does not name; expected acme, release" in message


WRONG = [
    (b"{}", {}, "bundle_invalid", "model.sig cannot be used: its mediaType"),
    (bundle(private=OTHER), {}, "signer_untrusted", "was signed with the key"),
    (bundle(private=make_ec_key(ec.SECP384R1())[0]), {}, "signer_untrusted", "was signed with the key"),
    (bundle(), {"signers": ["acme"]}, "signer_untrusted", "expected acme"),
    (bundle(UNBOUND, *ACME.issue(MAIL)), {"signers": ["release"]}, "signer_untrusted", "no authority counts"),
    (bundle(UNBOUND, *SigningAuthority().issue(MAIL)), {}, "signer_untrusted", "a certificate that does not count"),
    (bundle(UNBOUND, *ACME.issue(MAIL, valid=(BEGIN, BEGIN))), {}, "signer_untrusted", "was valid from"),
    (
        bundle(UNBOUND, *ACME.issue(x509.DNSName("www.acme.example"))),
        {},
        "signer_untrusted",
        "it is of www.acme.example, whom the policy does not name",
    ),
    (bundle(), {"bind": ["name"]}, "signed_for_other", "does not bind name"),
    (bundle(), {"bind": ["pool"]}, "signed_for_other", "--pool"),
    (bundle(), {"bind": ["base"]}, "signed_for_other", "--base"),
    (bundle(), {"bind": ["notAfter"]}, "signed_for_other", "--not-after"),
    (bundle(SignatureBinding(("team/*",))), {}, "signed_for_other", "allows the names team/*, and this is acme/sql"),
    (
        bundle(SignatureBinding(pools=("llama",))),
        {},
        "signed_for_other",
        "allows the pools llama, and this is qwen-prod",
    ),
    (
        bundle(SignatureBinding(base="llama")),
        {},
        "signed_for_other",
        "allows the base llama, and this is qwen2.5, sha256:",
    ),
    (
        bundle(SignatureBinding(not_after=BEGIN)),
        {},
        "signature_expired",
        "allows ended at 2026-01-01T00:00:00Z; sign it anew",
    ),
]


@pytest.mark.parametrize(("content", "rule", "reason", "why"), WRONG)
def test_what_does_not_count_is_refused_with_one_reason_and_what_to_do(content, rule, reason, why):
    """R21 proven-here, A3 no-self-loosening: another key, curve, pool, name or base, and what has ended."""
    found, message = refused(content, **rule)
    assert (found, why in message, "sign" in message) == (reason, True, True), message


@pytest.mark.parametrize("signed", [bundle(), bundle(UNBOUND, *ACME.issue(MAIL))])
def test_a_statement_that_was_changed_or_exchanged_is_refused(signed):
    """R21 proven-here: a signature under another statement is none of it."""
    other = json.loads(bundle(SignatureBinding(("*",))))["dsseEnvelope"]["payload"]
    reason, message = refused(changed(signed, "dsseEnvelope.payload", other))
    assert (reason, "changed after it was signed" in message) == ("bundle_invalid", True)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        (
            {"adapter_config.json": SHA, "adapter_model.safetensors": "b" * 64},
            "adapter_model.safetensors has the sha256 b",
        ),
        ({"adapter_config.json": SHA, "other.bin": SHA}, "other.bin is not among the files"),
    ],
)
def test_files_are_those_that_were_signed(entries, why):
    """R21 proven-here: a file of another release beside this one's, and one that nobody signed."""
    signed = SignedFiles("sql", FILES)
    check_files(signed, [FileEntry(path, 1, SHA) for path in FILES if path != "README.md"])
    with pytest.raises(SignatureRefused) as told:
        check_files(signed, [FileEntry(path, 1, sha256) for path, sha256 in entries.items()])
    assert (told.value.reason, why in told.value.message) == ("signed_other_files", True)


def test_what_has_no_bundle_or_no_rule_is_told_what_to_do():
    assert "loraplane sign DIR" in absent("acme/sql").message
    assert "add one to the file of --signature-policy" in without_rule("acme/sql").message
    assert (absent("a").reason, without_rule("a").reason) == ("bundle_missing", "signer_untrusted")
