"""Secrets of a secure stack: who signs what, what is made anew, and which flags name it."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from registry.access.control import certificate_principal
from registry.access.decision import grant_of
from registry.access.file import read_access
from registry.access.principal import Credential, Principal
from registry.access.questions import AccessQuestion, Resource, Verb
from registry.access.roles import ROLES, AccessRole
from registry.admin.settings import AdminSettings
from registry.runtime.flags import read_settings
from registry.tools.devstack import stack_verbs
from registry.tools.devstack.certificates import CertificateMaker, make_secrets
from registry.tools.devstack.secure import (
    OPERATOR,
    ROUTER,
    SCRAPER,
    AuthorityName,
    SecretFolder,
    access_file,
    admin_flags,
    etcd_flags,
    operator_flags,
    sidecar_flags,
    wanted_certificates,
)
from registry.tools.devstack.stack_file import EngineKind, StackError
from registry.tools.devstack.stack_parts import parts
from sidecar.settings import SidecarSettings

WANTED = wanted_certificates("dev", ("r1",), ("m1",), ("admin", "r1"))
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory) -> SecretFolder:
    folder = SecretFolder(tmp_path_factory.mktemp("stack") / "secrets")
    make_secrets(folder, WANTED)
    return folder


def certificate(folder: SecretFolder, file: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(folder.certificate(file).read_bytes())


def signs(one: x509.Certificate) -> tuple[bool, bool]:
    """Whether others may be issued by it, as each of both extensions says."""
    usage = one.extensions.get_extension_for_class(x509.KeyUsage).value
    return one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca, usage.key_cert_sign


def test_each_certificate_fits_its_key_and_is_of_its_own_authority(secrets):
    """A certificate of one authority is none of another: a sidecar is no operator, and nobody of etcd."""
    for one in WANTED:
        for name in AuthorityName:
            issuer = certificate(secrets, f"{name}-ca")
            if name is one.authority:
                certificate(secrets, one.file).verify_directly_issued_by(issuer)
            else:
                with pytest.raises(ValueError, match="Issuer"):
                    certificate(secrets, one.file).verify_directly_issued_by(issuer)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(secrets.certificate(one.file), secrets.key(one.file))
        assert signs(certificate(secrets, one.file)) == (False, False), "it makes no other"
    assert signs(issuer) == (True, True)
    names = certificate(secrets, "etcd-replica-r1").subject.rfc4514_string()
    assert names == "CN=loraplane-replica:dev/r1"


def test_owners_are_known_by_names_addresses_and_uris(secrets):
    def names(file: str, kind: type) -> list[str]:
        found = certificate(secrets, file).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(one) for one in found.get_values_for_type(kind)]

    kinds = (x509.DNSName, x509.IPAddress, x509.UniformResourceIdentifier)
    assert [names("service-admin", kind) for kind in kinds] == [["admin", "localhost"], ["127.0.0.1", "::1"], []]
    assert [names("operator", kind) for kind in kinds] == [[], [], [OPERATOR]]


def test_what_is_missing_ends_soon_or_is_for_other_names_is_made_anew(tmp_path):
    folder = SecretFolder(tmp_path / "s")
    assert len(make_secrets(folder, WANTED)) == len(AuthorityName) + len(WANTED) + 1
    folder.key("operator").unlink()
    assert CertificateMaker(folder, NOW).make(WANTED) == ["operator"]
    moved = wanted_certificates("dev", ("r1", "r2"), ("m1",), ("admin", "r1"))
    assert CertificateMaker(folder, NOW).make(moved) == ["etcd-replica-r2"]
    assert {*CertificateMaker(folder, NOW + timedelta(days=340)).make(WANTED)} == {one.file for one in WANTED}
    folder.key("services-ca").unlink()
    assert CertificateMaker(folder, NOW).make(WANTED) == ["services-ca", "service-admin", "service-r1"]
    folder.certificate("operator").write_text("none")
    with pytest.raises(ValueError, match="PEM"):
        CertificateMaker(folder, NOW).make(WANTED)


def test_the_access_file_lets_the_operator_do_everything_and_prometheus_read():
    access = read_access(access_file().encode(), "access.yaml")
    named = certificate_principal({"peer_uri": [OPERATOR.encode()]}, access.authentication)
    grant = grant_of(access, named)
    for role in AccessRole:
        for action in ROLES[role]:
            question = AccessQuestion(*action, "p", "acme", "s3://b/a", "c")
            assert grant.by(question), action
    scraper = grant_of(access, Principal(SCRAPER, Credential.CERTIFICATE))
    assert scraper.by(AccessQuestion(Verb.GET, Resource.METRICS))
    assert not scraper.by(AccessQuestion(Verb.APPLY, Resource.ADAPTERS, "p", "acme"))
    router = grant_of(access, Principal(ROUTER, Credential.CERTIFICATE))
    assert all(router.by(AccessQuestion(*action, "p")) for action in ROLES[AccessRole.ROUTER])
    assert not router.by(AccessQuestion(Verb.GET, Resource.METRICS))


def test_flags_are_those_of_the_daemons(secrets):
    admin = ["--etcd", "127.0.0.1:1", *admin_flags(secrets)]
    told = read_settings(AdminSettings, program="p", summary="s", arguments=admin, environment={})
    assert all(file and file.exists() for file in (told.access, told.tls_ca, told.etcd_tls_cert, told.http_tls_key))
    needed = ["--etcd", "127.0.0.1:1", "--pool", "dev", "--replica", "r1", "--engine", "http://e", "--store", "s"]
    sidecar = [*needed, *sidecar_flags(secrets, "r1")]
    told = read_settings(SidecarSettings, program="p", summary="s", arguments=sidecar, environment={})
    assert all(file and file.exists() for file in (told.http_tls_ca, told.etcd_tls_ca, told.etcd_tls_key))
    assert set(etcd_flags(secrets, "m1")) == {"cert-file", "key-file", "trusted-ca-file", "client-cert-auth"}
    services, own = (
        secrets.authority(AuthorityName.SERVICES),
        (secrets.certificate("operator"), secrets.key("operator")),
    )
    assert operator_flags(secrets) == ["--tls-ca", f"{services}", "--tls-cert", f"{own[0]}", "--tls-key", f"{own[1]}"]


def test_a_stack_stays_as_it_was_made(tmp_path, monkeypatch):
    monkeypatch.setattr(stack_verbs, "_make_files", lambda _: None)
    monkeypatch.setattr("registry.tools.devstack.stack_parts.find_etcd", lambda: tmp_path / "etcd")
    made = stack_verbs.set_up(tmp_path / "s", 1, EngineKind.SIM, secure=True)
    assert made.folder.secrets.access.exists()
    assert stack_verbs.set_up(tmp_path / "s", None, None).layout.secure
    files = made.folder.secrets
    told = {"admin": admin_flags(files), "sidecar-r1": sidecar_flags(files, "r1"), "etcd": ["--client-cert-auth=true"]}
    with pytest.raises(StackError, match="was made with --secure; remove it with: loraplane dev down --purge"):
        stack_verbs.set_up(tmp_path / "s", 1, EngineKind.SIM, secure=False)
    plain = stack_verbs.set_up(tmp_path / "plain", 1, EngineKind.SIM)
    for part, flags in told.items():
        assert {*flags} <= {*made.command(part).arguments}, part
        assert {one.partition("=")[0] for one in flags}.isdisjoint(plain.command(part).arguments), part
    asked = {one.name: one.ready_url.partition(":")[0] for one in parts(made.layout)}
    assert asked == {"etcd": "http", "admin": "https", "engine-r1": "http", "sidecar-r1": "https"}
    assert {one.ready_url.partition(":")[0] for one in parts(plain.layout)} == {"http"}
    with pytest.raises(StackError, match="was made without --secure"):
        stack_verbs.set_up(tmp_path / "plain", None, None, secure=True)
    made.folder.secrets.certificate("operator").write_text("none")
    with pytest.raises(StackError, match="holds what is no certificate"):
        stack_verbs.set_up(tmp_path / "s", None, None)
