"""Access control: the first credential that names somebody counts, and a file that is replaced."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from registry.access.control import AccessControl, Shown
from registry.access.decision import whole_grant
from registry.access.principal import Credential, Principal, trace_of
from registry.access.questions import AccessQuestion, Resource, Verb
from registry.access.roles import AccessRole
from registry.model.errors import RETRY_AFTER, Reason, ResourceExhausted, Unauthenticated, Unavailable
from registry.sources.base import StoreError
from tests.simulation.loop import virtual
from tests.support.played_etcd import now
from tests.unit.access.test_tokens import CLAIMS, EC, NOW, public, signed

TEXT = """apiVersion: loraplane/v1
kind: Access
authentication:
  trustDomains: [ops.example]
  issuers: [{{issuer: https://ci, audiences: [loraplane], prefix: "ci:", algorithms: [ES256], jwks: {jwks}}}]
bindings:
  - {{role: security, users: [root]}}
  - {{role: router, users: ["ci:ann", spiffe://ops.example/ann]}}
"""
PEM = {"x509_pem_cert": [b"PEM"]}
CERTIFICATE = {**PEM, "peer_uri": [b"spiffe://ops.example/ann"]}
OTHERS = {**PEM, "peer_uri": [b"spiffe://sidecars.example/r0"], "peer_dns": [b"root"]}
ASKED = AccessQuestion(Verb.WATCH, Resource.RESIDENCY, "p")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "jwks").write_text(json.dumps({"keys": [public("ES256", EC)]}))
    (tmp_path / "access.yaml").write_text(TEXT.format(jwks=tmp_path / "jwks"))
    return tmp_path / "access.yaml"


def control(file) -> AccessControl:
    return AccessControl(file, lambda: NOW)


@pytest.mark.parametrize(
    ("facts", "authorization", "name", "expires"),
    [
        (CERTIFICATE, "", "spiffe://ops.example/ann", None),
        (CERTIFICATE, f"Bearer {signed()}", "spiffe://ops.example/ann", None),
        ({}, f"Bearer {signed()}", "ci:ann", CLAIMS["exp"] + 30),
        ({}, f"bearer  {signed()}", "ci:ann", CLAIMS["exp"] + 30),
        (OTHERS, f"Bearer {signed()}", "ci:ann", CLAIMS["exp"] + 30),
    ],
)
async def test_the_first_credential_that_names_somebody_counts(file, facts, authorization, name, expires):
    found, until = await control(file).principal(Shown("ipv4:1.2.3.4:5", facts, authorization))
    assert (found.name, until) == (name, expires)
    assert control(file).grant(found).by(ASKED).role is AccessRole.ROUTER


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (Shown("ipv4:1.2.3.4:5"), "show a client certificate (--tls-cert, --tls-key) or a token (--token-file)"),
        (Shown("unix:"), "show a client certificate"),
        (Shown("p", OTHERS), "of the trust domain 'sidecars.example', which trustDomains"),
        (Shown("p", OTHERS | {"peer_uri": [b"SPIFFE://sidecars.example/r0"]}), "of the trust domain"),
        (Shown("p", {**PEM, "x509_common_name": [b"root"]}), "no name of the kinds that count here (dns, email)"),
        (Shown("p", {**PEM, "peer_dns": [b"loraplane:host:0"]}), "no name of the kinds that count"),
        (Shown("p", {**PEM, "peer_uri": [b"spiffe://ops.example/a", b"spiffe://ops.example/b"]}), "2 SPIFFE ids"),
        (Shown("p", {}, "Basic " + signed()), "show a client certificate"),
        (Shown("p", {}, "Bearer "), "show a client certificate"),
        (Shown("p", {}, "Bearer x"), "it is no JSON Web Token"),
        (Shown("p", {}, f"Bearer {signed()}", is_private=False), "a token is taken over TLS or from this host alone"),
    ],
)  # fmt: skip
async def test_whoever_shows_nothing_that_is_believed_is_nobody(file, shown, told):
    """A1 named: a sidecar's certificate is not known by the name that stands beside its SPIFFE id, however spelt."""
    with pytest.raises(Unauthenticated) as caught:
        await control(file).principal(shown)
    assert told in caught.value.message


async def test_names_of_a_certificate_count_as_the_file_says(file):
    file.write_text(file.read_text().replace("trustDomains:", "certificateNames: [email, commonName]\n  trustDomains:"))
    facts = {**PEM, "peer_dns": [b"d"], "peer_email": [b"a@b"], "x509_common_name": [b"cn"]}
    found, _ = await control(file).principal(Shown("p", facts))
    assert found == Principal("a@b", Credential.CERTIFICATE)
    del facts["peer_email"]
    assert (await control(file).principal(Shown("p", facts)))[0].name == "cn"


@pytest.mark.parametrize("taken", [b"ci:ann", b"loraplane:host:0", b"spiffe://ops.example/ann"])
async def test_a_certificate_has_no_name_that_another_credential_could_have(file, taken):
    """A1 named: an authority that signs any common name makes nobody out of the users of tokens."""
    file.write_text(file.read_text().replace("trustDomains:", "certificateNames: [dns, commonName]\n  trustDomains:"))
    with pytest.raises(Unauthenticated):
        await control(file).principal(Shown("p", {**PEM, "peer_dns": [taken], "x509_common_name": [taken]}))


async def test_the_hosts_administrator_may_do_everything(file):
    shown = Shown("unix-abstract:loraplane-1-0123456789abcdef-uid-0-1")
    found, until = await control(file).principal(shown)
    assert (found, until) == (Principal("loraplane:host:0", Credential.SOCKET), None)
    assert control(file).grant(found) == whole_grant()


async def test_a_file_that_is_replaced_counts_and_a_wrong_one_leaves_the_last_good(file):
    held = control(file)
    first, (ann, _) = held.digest, await held.principal(Shown("p", CERTIFICATE))
    text, loaded = file.read_text(), held.loaded_at
    file.write_text(text.replace("role: router", "role: king"))
    held._followed.refresh()
    assert "line 8: bindings.1.role" in held.trouble
    assert (held.digest, held.loaded_at, held.failed_reloads) == (first, loaded, 1)
    assert held.grant(ann).by(ASKED)
    file.write_text(text.replace("role: router", "role: backup"))
    held._followed.refresh()
    assert (held.trouble, held.digest != first, held.grant(ann).by(ASKED)) == ("", True, None)
    assert held.grant(ann).by(AccessQuestion(Verb.GET, Resource.BACKUPS))
    file.unlink()
    held._followed.refresh()
    assert "No such file" in held.trouble
    assert held.grant(ann).by(AccessQuestion(Verb.GET, Resource.BACKUPS))


def test_without_a_file_that_can_be_read_there_is_no_start(tmp_path):
    with pytest.raises(StoreError, match="No such file"):
        AccessControl(tmp_path / "none", lambda: datetime.now(UTC))
    (tmp_path / "wrong").write_text("a: [")
    with pytest.raises(StoreError, match="line 1"):
        AccessControl(tmp_path / "wrong", lambda: datetime.now(UTC))


@pytest.mark.timeout(60)  # a loop that never rests would hold up everything
@virtual
async def test_a_stream_of_somebody_whose_credential_is_believed_no_longer_ends(file):
    """A1 named: roles are the same, but nobody is known by it any more. What concerns others ends nothing."""
    held = control(file)
    ann, expires = await held.principal(Shown("ipv4:1.2.3.4:5", {}, f"Bearer {signed()}"))
    following = asyncio.ensure_future(held.run())
    stream = asyncio.ensure_future(held.until_revoked(ann, held.grant(ann), expires))
    await asyncio.sleep(3)
    assert not stream.done()
    file.write_text(file.read_text() + "  - {role: router, users: [bob]}\n")
    await asyncio.sleep(3)
    assert not stream.done()
    file.write_text(file.read_text().replace("https://ci", "https://elsewhere"))
    await asyncio.sleep(3)
    with pytest.raises(Unavailable, match="connect again"):
        stream.result()
    with pytest.raises(Unauthenticated):
        await held.principal(Shown("ipv4:1.2.3.4:5", {}, f"Bearer {signed()}"))
    following.cancel()


@pytest.mark.parametrize(("step", "late"), [(-10, 10), (0, 0), (10, 0)])
@virtual
async def test_a_stream_ends_with_the_token_of_its_reader(file, step, late):
    """A1 named: by the clock on the wall, which may be set while it waits."""
    began = now()
    held = AccessControl(file, lambda: NOW + timedelta(seconds=now() - began + (step if now() > began + 5 else 0)))
    ann, expires = await held.principal(Shown("ipv4:1.2.3.4:5", {}, f"Bearer {signed()}"))
    with pytest.raises(Unauthenticated, match="your token has expired; take a new one"):
        await held.until_revoked(ann, held.grant(ann), expires)
    assert now() - began == pytest.approx(CLAIMS["exp"] + 30 - NOW.timestamp() + late)


async def test_a_token_that_was_looked_at_while_its_issuer_was_taken_away_is_not_believed(file):
    held = control(file)
    asking = asyncio.ensure_future(held.principal(Shown("ipv4:1.2.3.4:5", {}, f"Bearer {signed()}")))
    await asyncio.sleep(0)
    file.write_text(file.read_text().replace("https://ci", "https://elsewhere"))
    held._followed.refresh()
    with pytest.raises(Unauthenticated, match="no issuer"):
        await asking


TOKEN = signed()
ANN_BY = partial(Principal, "ann")


@pytest.mark.parametrize(
    ("known", "marked"),
    [
        (ANN_BY(Credential.CERTIFICATE), b"PEM"),
        (ANN_BY(Credential.TOKEN), TOKEN.encode()),
        (ANN_BY(Credential.SOCKET), b""),
        (None, b"PEM"),
    ],
)
def test_a_call_is_marked_by_the_credential_that_names_its_caller(known, marked):
    """A5 tamper-evident: and one that nobody believes by the first that was shown."""
    shown = Shown("peer", CERTIFICATE, f"Bearer {TOKEN}", user_agent="curl")
    assert shown.trace(known) == trace_of("peer", marked, "curl")
    assert TOKEN not in repr(shown)


@virtual
async def test_an_address_with_many_wrong_tokens_has_to_wait_before_one_is_looked_at(file, monkeypatch):
    """R16 bounded: a flood costs no verification. A token that is known goes on, and so do those of other addresses."""
    held = control(file)
    good = Shown("ipv4:1.2.3.4:5", {}, f"Bearer {signed()}")
    await held.principal(good)
    for number in range(100):
        with pytest.raises(Unauthenticated):
            await held.principal(Shown(f"ipv4:1.2.3.4:{number}", {}, f"Bearer {signed(key_id=f'{number}')}"))
    with pytest.raises(ResourceExhausted) as refused:
        await held.principal(Shown("ipv4:1.2.3.4:7", {}, "Bearer not.a.token"))
    assert refused.value.reason is Reason.TOO_MANY_CALLS
    wait = float(refused.value.metadata[RETRY_AFTER])
    assert 0 < wait <= 0.1
    assert (await held.principal(good))[0].name == "ci:ann"
    fresh = f"Bearer {signed(exp=CLAIMS['exp'] + 1)}"
    assert (await held.principal(Shown("ipv4:1.2.3.5:5", {}, fresh)))[0].name == "ci:ann"
    other = Shown("ipv4:1.2.3.4:5", {}, f"Bearer {signed(exp=CLAIMS['exp'] + 2)}")
    with pytest.raises(ResourceExhausted):
        await held.principal(other)
    await asyncio.sleep(wait)
    assert (await held.principal(other))[0].name == "ci:ann"


@virtual
async def test_each_caller_has_the_calls_that_the_file_allows(file):
    """R16 bounded: but the host's administrator any, who is the way in."""
    file.write_text(f"{file.read_text()}limits: {{callsPerSecond: 2, callsAtOnce: 1}}\n")
    held = control(file)
    ann, bob = (Principal(name, Credential.TOKEN) for name in ("ci:ann", "ci:bob"))
    with held.within_quota(ann), pytest.raises(ResourceExhausted), held.within_quota(ann):
        pass
    with held.within_quota(ann), held.within_quota(bob):
        pass
    with pytest.raises(ResourceExhausted), held.within_quota(ann):
        pass
    root = Principal("loraplane:host:0", Credential.SOCKET)
    for _ in range(9):
        with held.within_quota(root):
            pass
