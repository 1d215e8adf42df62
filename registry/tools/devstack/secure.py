"""Secrets of a secure installation, and the flags that name them. Pure.

There are three authorities, so that nobody is taken for somebody else: `etcd` signs for etcd's members and users (whose
name is the common name), `services` for what admin services and sidecars show, `operators` for those who call them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from registry.access.etcd_users import ADMIN, replica_user


class AuthorityName(StrEnum):
    """Authority of an installation."""

    ETCD = "etcd"
    SERVICES = "services"
    OPERATORS = "operators"


@dataclass(frozen=True, slots=True)
class WantedCertificate:
    """A certificate that is to be there.

    Attributes:
        file: its file without the ending.
        authority: who signs it.
        common_name: of its owner.
        hosts: names, addresses or URIs of its owner.
    """

    file: str
    authority: AuthorityName
    common_name: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SecretFolder:
    """Files of secrets in a folder that nobody else may enter."""

    root: Path

    def authority(self, name: AuthorityName) -> Path:
        """Certificate of an authority."""
        return self.certificate(authority_file(name))

    def certificate(self, file: str) -> Path:
        return self.root / f"{file}.pem"

    def key(self, file: str) -> Path:
        return self.root / f"{file}.key"

    @property
    def access(self) -> Path:
        return self.root / "access.yaml"

    def control_token(self, replica: str) -> Path:
        """Token that a replica's sidecar shows to the plugin in its engine."""
        return self.root / f"control-token-{replica}"


def authority_file(name: AuthorityName) -> str:
    """File of an authority without its ending."""
    return f"{name}-ca"


OPERATOR = "spiffe://loraplane.dev/operator"
SCRAPER = "spiffe://loraplane.dev/prometheus"
ROUTER = "spiffe://loraplane.dev/router"
# A name of every member of etcd and of nobody else: members take no other certificate of their authority for a peer.
ETCD_PEERS = "etcd-member"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Of a file's name and a certificate's owner.
ETCD_ROOT, ETCD_ADMIN = "etcd-root", "etcd-admin"
OPERATOR_FILE, SCRAPER_FILE, ROUTER_FILE = "operator", "prometheus", "router"
ADMIN_SERVICE, PICKER_SERVICE = "admin", "picker"
_ROLES = "security pool-operator publisher releaser operator tenant-admin restorer backup auditor router".split()
_OF_TENANTS = frozenset({"publisher", "releaser", "tenant-admin", "auditor"})


def etcd_file(replica: str) -> str:
    """File of the certificate by which etcd knows a replica."""
    return f"etcd-replica-{replica}"


def etcd_member(member: str) -> str:
    """File of the certificate that a member of etcd shows."""
    return f"etcd-member-{member}"


def service_file(service: str) -> str:
    """File of the certificate that an admin service or a sidecar shows."""
    return f"service-{service}"


def wanted_certificates(
    pool: str, replicas: Iterable[str], members: Iterable[str], services: Iterable[str]
) -> list[WantedCertificate]:
    """Certificates of all processes and of the operator, on hosts of their names and on the loopback. Pure.

    `members`: of etcd. `services`: admin services, sidecars and pickers.
    """
    etcd, own = AuthorityName.ETCD, AuthorityName.SERVICES
    return [
        *(WantedCertificate(etcd_member(one), etcd, one, (one, ETCD_PEERS, *LOOPBACK)) for one in members),
        WantedCertificate(ETCD_ROOT, etcd, "root"),
        WantedCertificate(ETCD_ADMIN, etcd, ADMIN),
        *(WantedCertificate(etcd_file(one), etcd, replica_user(pool, one)) for one in replicas),
        *(WantedCertificate(service_file(one), own, one, (one, *LOOPBACK)) for one in services),
        WantedCertificate(OPERATOR_FILE, AuthorityName.OPERATORS, "operator", (OPERATOR,)),
        WantedCertificate(SCRAPER_FILE, AuthorityName.OPERATORS, "prometheus", (SCRAPER,)),
        WantedCertificate(ROUTER_FILE, AuthorityName.OPERATORS, "router", (ROUTER,)),
    ]


def access_file() -> str:
    """The access file: the operator may do everything, who scrapes metrics and pickers may read. Pure."""
    lines = [
        "# The operator, whose certificate is operator.pem, may do everything. Give others roles of their own:",
        "# docs/security.md. It is read anew when it changes, and never written again once it is here.",
        "apiVersion: loraplane/v1",
        "kind: Access",
        "authentication: {trustDomains: [loraplane.dev]}",
        "bindings:",
    ]
    for role in _ROLES:
        scope = _scope(role)
        lines.append(f'  - {{role: {role}, users: ["{OPERATOR}"]{scope}}}')
    lines.append(f'  - {{role: viewer, users: ["{SCRAPER}"], tenants: ["*"]}}')
    lines.append(f'  - {{role: router, users: ["{ROUTER}"]}}')
    return "\n".join(lines) + "\n"


def _scope(role: str) -> str:
    scope = ', tenants: ["*"]' if role in _OF_TENANTS else ""
    return f'{scope}, credentials: ["*"]' if role == "publisher" else scope


def etcd_flags(folder: SecretFolder, member: str) -> dict[str, str]:
    """Flags of a member of etcd that knows its users by their certificates. Pure."""
    file = etcd_member(member)
    return {
        "cert-file": f"{folder.certificate(file)}",
        "key-file": f"{folder.key(file)}",
        "trusted-ca-file": f"{folder.authority(AuthorityName.ETCD)}",
        "client-cert-auth": "true",
    }


def etcd_peer_flags(folder: SecretFolder, member: str) -> dict[str, str]:
    """Flags of a member of etcd that takes nobody but members for its peers. Pure."""
    own = {f"peer-{flag}": value for flag, value in etcd_flags(folder, member).items()}
    return {**own, "peer-cert-allowed-hostname": ETCD_PEERS}


def _flags(folder: SecretFolder, prefix: str, authority: AuthorityName, file: str) -> list[str]:
    """Flags of an authority that is trusted, and of an own certificate."""
    files = {"ca": folder.authority(authority), "cert": folder.certificate(file), "key": folder.key(file)}
    return [word for kind, path in files.items() for word in (f"{prefix}-{kind}", f"{path}")]


def _for_etcd(folder: SecretFolder, file: str) -> list[str]:
    return _flags(folder, "--etcd-tls", AuthorityName.ETCD, file)


def _for_clients(folder: SecretFolder, service: str, prefix: str) -> list[str]:
    return _flags(folder, prefix, AuthorityName.OPERATORS, service_file(service))


def admin_flags(folder: SecretFolder) -> list[str]:
    """Flags by which an admin service asks who calls, and is known to etcd. Pure."""
    api, pages = _for_clients(folder, ADMIN_SERVICE, "--tls"), _for_clients(folder, ADMIN_SERVICE, "--http-tls")
    return [*_for_etcd(folder, ETCD_ADMIN), *api, *pages, "--access", f"{folder.access}"]


def sidecar_flags(folder: SecretFolder, replica: str) -> list[str]:
    """Flags by which a sidecar asks who reads its pages, and is known to etcd. Pure."""
    return [*_for_etcd(folder, etcd_file(replica)), *_for_clients(folder, replica, "--http-tls")]


def picker_flags(folder: SecretFolder) -> list[str]:
    """Flags by which a picker asks who reads its pages, and is known to admin services. Pure."""
    own = _flags(folder, "--admin-tls", AuthorityName.SERVICES, ROUTER_FILE)
    return [*own, *_for_clients(folder, PICKER_SERVICE, "--http-tls")]


def operator_flags(folder: SecretFolder) -> list[str]:
    """Flags of a command line that is the operator's. Pure."""
    return _flags(folder, "--tls", AuthorityName.SERVICES, OPERATOR_FILE)


def root_flags(folder: SecretFolder) -> list[str]:
    """Flags of a command that changes etcd's users. Pure."""
    return _for_etcd(folder, ETCD_ROOT)
