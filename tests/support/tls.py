"""Certificates for tests, made with the openssl program."""

from __future__ import annotations

import subprocess
from pathlib import Path

from registry.etcd3.options import TlsFiles

_ENDS = ("key", "csr", "pem", "ext")


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / "ca.pem"
        self._key = folder / "ca.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.certificate)),
        )

    def issue(self, name: str, *, host: str = "IP:127.0.0.1", days: int = 2) -> TlsFiles:
        """A certificate for client and server use, as what its owner needs to speak to others of this authority.

        `days`: until it expires; below 0: it has.
        """
        file = self.folder / name.replace("/", "-")
        key, request, certificate, extensions = (file.with_name(f"{file.name}.{end}") for end in _ENDS)
        subject = "/CN=" + name.replace("/", r"\/")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject),
            *("-keyout", str(key), "-out", str(request)),
        )
        extensions.write_text(f"subjectAltName={host}\nextendedKeyUsage=serverAuth,clientAuth\n")
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", str(days), "-extfile", str(extensions), "-out", str(certificate)),
        )
        return TlsFiles(ca=self.certificate, certificate=certificate, key=key)


def server_flags(server: TlsFiles, *, client_certificates: bool) -> dict[str, str]:
    """etcd's flags for serving clients with this certificate."""
    flags = {"cert-file": str(server.certificate), "key-file": str(server.key)}
    # etcd asks for client certificates as soon as it has an authority to check them against.
    return {**flags, "trusted-ca-file": str(server.ca), "client-cert-auth": "true"} if client_certificates else flags


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
