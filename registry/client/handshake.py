"""Troubles of TLS with a service, which gRPC tells as a closed socket.

gRPC repeats a handshake that can never succeed as it does one with a service that is away. So that nobody waits for a
service that is there, a second connection of our own is made, on which nothing is sent, and its end is put in words.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from registry.etcd3.options import TlsFiles

_SHOWN_LENGTH = 200
# Of connecting, and of each step of the handshake.
_STEP_SECONDS, _STEPS = 1.0, 3
# OpenSSL's numbers of what it finds wrong with a certificate.
_NOT_YET_VALID, _EXPIRED = 9, 10
_NO_AUTHORITY = frozenset({2, 18, 19, 20, 21})
_OTHER_NAME = frozenset({62, 64})


@dataclass(frozen=True, slots=True)
class HandshakeTrouble:
    """A reason for which no handshake succeeds, and its remedy; each a part of one line."""

    finding: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.finding}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class Party:
    """A service with TLS in the words of its callers.

    Attributes:
        name: what it is called, address included.
        flags: how the caller's flags for TLS begin, such as ``--tls``.
        own: the service's own flag for its certificate.
        instead: what a caller without a certificate may do beside giving one; empty: nothing.
    """

    name: str
    flags: str
    own: str
    instead: str = ""


def admin_service(address: str) -> Party:
    """The admin service at HOST:PORT."""
    instead = ", or, for a token, the address of its --token-listen"
    return Party(f"the admin service at {address}", "--tls", "loraplane-admin --tls-cert", instead)


def etcd_member(endpoint: str) -> Party:
    """The member of etcd at HOST:PORT."""
    return Party(f"etcd at {endpoint}", "--etcd-tls", "its --cert-file")


async def found_trouble(address: str, tls: TlsFiles | None, party: Party) -> HandshakeTrouble | None:
    """The same as `handshake_trouble`, while the event loop goes on; None also if names resolve too slowly."""
    try:
        async with asyncio.timeout(_STEPS * _STEP_SECONDS):
            return await asyncio.to_thread(handshake_trouble, address, tls, party)
    except TimeoutError:
        return None


def handshake_trouble(address: str, tls: TlsFiles | None, party: Party) -> HandshakeTrouble | None:
    """The trouble of a client with these files; None: no trouble with TLS, or nobody who listens.

    Args:
        address: HOST:PORT; of other forms, as ``unix:``, nothing is said.
        tls: None: the client speaks no TLS.
        party: the service, for the words.
    """
    host, _, port = re.sub(r"^(?:dns|ipv4|ipv6):/*", "", address).rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), _STEP_SECONDS) as plain:
            return _without_tls(plain, party) if tls is None else _with_tls(plain, host, tls, party)
    except (OSError, ValueError):
        return None


def _without_tls(plain: socket.socket, party: Party) -> HandshakeTrouble | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        context.wrap_socket(plain).close()
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):  # an alert is TLS, too
            return None
    remedy = f"give {party.flags}-ca with its CA, and {party.flags}-cert and {party.flags}-key if it asks for them"
    return HandshakeTrouble(f"{party.name} speaks TLS, and this side does not", remedy)


def _with_tls(plain: socket.socket, host: str, tls: TlsFiles, party: Party) -> HandshakeTrouble | None:
    context = ssl.create_default_context(cafile=tls.ca)
    context.set_alpn_protocols(["h2"])
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    try:
        with context.wrap_socket(plain, server_hostname=host) as secure:
            # Who takes us speaks first; who does not take our certificate says so only now.
            return None if secure.recv(1) else _refused(tls, party, "")
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(error, host, tls, party)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT" in reason:
            return _refused(tls, party, reason.partition("ALERT_")[2].replace("_", " ").lower())
        if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}:
            remedy = (
                f"start it with {party.own}, or leave out {party.flags}-ca, {party.flags}-cert and {party.flags}-key"
            )
            return HandshakeTrouble(f"{party.name} speaks no TLS", remedy)
        return None


def _refused(tls: TlsFiles, party: Party, alert: str) -> HandshakeTrouble:
    """The service's refusal of our certificate, or of the lack of one."""
    flags = f"{party.flags}-cert and {party.flags}-key"
    if tls.certificate is None:
        remedy = f"give {flags} (cert and key of Tls){party.instead}"
        return HandshakeTrouble(f"{party.name} asks for a client certificate", remedy)
    if ended := _ended(tls.certificate):
        return HandshakeTrouble(f"the certificate {tls.certificate} {ended}", f"give {flags} of a new one")
    told = f" ({alert})" if alert else ""
    return HandshakeTrouble(
        f"{party.name} refuses the certificate {tls.certificate}{told}",
        f"give {flags} of an authority that it knows, and that have not expired",
    )


def _ended(certificate: Path) -> str:
    """Name in a certificate of ours and when it ended; empty: it has not, or the file has none that can be read."""
    from cryptography import x509  # noqa: PLC0415 - for those alone who are refused

    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError):
        return ""
    if (end := found.not_valid_after_utc) > datetime.now(UTC):
        return ""
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        who = ", ".join(str(one.value) for one in names)
    except (x509.ExtensionNotFound, ValueError):
        who = found.subject.rfc4514_string()
    return f"of {who[:_SHOWN_LENGTH]!r} expired on {end:%Y-%m-%d at %H:%M} UTC"


def _of_certificate(error: ssl.SSLCertVerificationError, host: str, tls: TlsFiles, party: Party) -> HandshakeTrouble:
    """The trouble with the certificate of the service."""
    subject = f"the certificate of {party.name}"
    if error.verify_code == _EXPIRED:
        return HandshakeTrouble(f"{subject} has expired", f"put a new one in its place ({party.own})")
    if error.verify_code == _NOT_YET_VALID:
        return HandshakeTrouble(f"{subject} is not valid yet", "compare the clocks of both hosts")
    if error.verify_code in _NO_AUTHORITY:
        known = f"the authorities in {tls.ca}" if tls.ca else "the authorities of this host"
        return HandshakeTrouble(f"{subject} is of none of {known}", f"name the CA that issued it with {party.flags}-ca")
    if error.verify_code in _OTHER_NAME:
        return HandshakeTrouble(f"{subject} is not for {host}", "name it as its certificate does, or issue one for it")
    return HandshakeTrouble(f"{subject} is refused", f"{error.verify_message}; see {party.own}")
