"""Reader of TLS files that are replaced while a program runs; of all programs."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from registry.etcd3.options import TlsFiles

# A replacement may come between two looks at the files; more than this is somebody who writes all the time.
_LOOKS = 3
# Of one file; all authorities of the web have a quarter of a megabyte.
MAX_PEM_BYTES = 16 << 20


class Pem(NamedTuple):
    """Contents of TLS files, in the order of ``grpc.ssl_channel_credentials``; None: there is no such file."""

    ca: bytes | None
    key: bytes | None
    certificate: bytes | None


class TlsUnusable(Exception):
    """A TLS file cannot be read, or does not fit the others; the message names it, and says why. `file`: its path."""

    def __init__(self, file: Path, message: str) -> None:
        super().__init__(message)
        self.file = file


class TlsReader:
    """Reads TLS files for each connection, so that they may be replaced while connections are made, in whatever way.

    A replacement is taken as a whole: while a file cannot be read, or the certificate is new and its key is not, what
    fitted last is used.

    Args:
        files: may be replaced at any time.
        tell: is called once for each trouble with what fitted before.
    """

    def __init__(self, files: TlsFiles, tell: Callable[[TlsUnusable], None]) -> None:
        self._files = files
        self._tell = tell
        self._taken: Pem | None = None
        self._trouble = ""

    def newest(self) -> Pem:
        """The files, or what fitted last.

        Raises:
            TlsUnusable: they cannot be used, and none could before.
        """
        try:
            self._taken, trouble = self._read(), ""
        except TlsUnusable as error:
            if self._taken is None:
                raise
            trouble = str(error)
            if trouble != self._trouble:
                self._tell(error)
        self._trouble = trouble
        return self._taken

    def _read(self) -> Pem:
        """Contents of the files before they were checked, which is by their paths, and still is."""
        found = _contents(self._files)
        for _ in range(_LOOKS):
            if found == self._taken:
                return found
            _check(self._files)
            before, found = found, _contents(self._files)
            if found == before:
                return found
        file = self._files.certificate or self._files.ca or Path()
        raise TlsUnusable(file, f"{file} changes with each look at it")


@dataclass(frozen=True, slots=True)
class CertificateSpan:
    """Time for which the certificate in the file of a flag is valid."""

    flag: str
    begins: datetime
    ends: datetime


def certificate_spans(files: Mapping[str, Path]) -> list[CertificateSpan]:
    """Certificates of files, by the flags that name them; a file that has none at present is left out.

    Of a certificate with those behind it the first, which is ours; of authorities the one that lasts longest: while
    they are replaced, their file has the old one too.
    """
    return [span for flag, file in files.items() if (span := _span(flag, file)) is not None]


def _span(flag: str, file: Path) -> CertificateSpan | None:
    from cryptography import x509  # noqa: PLC0415 - for those alone who have certificates

    try:
        found = x509.load_pem_x509_certificates(_content(file) or b"")
    except (TlsUnusable, ValueError):
        return None  # whoever uses the file says why it cannot
    one = max(found, key=lambda one: one.not_valid_after_utc) if flag.endswith("-ca") else found[0]
    return CertificateSpan(flag, one.not_valid_before_utc, one.not_valid_after_utc)


def end_of(certificate: bytes) -> datetime:
    """Time at which a certificate, as PEM, ends. Raises ValueError: it is none."""
    from cryptography import x509  # noqa: PLC0415 - for those alone who have certificates

    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _contents(files: TlsFiles) -> Pem:
    ca, certificate, key = map(_content, (files.ca, files.certificate, files.key))
    return Pem(ca, key, certificate)


def _content(file: Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_PEM_BYTES + 1)
    except OSError as error:
        raise TlsUnusable(file, f"cannot read {file}: {error.strerror}") from error
    if len(content) > MAX_PEM_BYTES:
        raise TlsUnusable(file, f"{file} has more than {MAX_PEM_BYTES} bytes; name a file of certificates, or a key")
    return content


def _check(files: TlsFiles) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files.certificate is not None:
        try:
            context.load_cert_chain(files.certificate, files.key, password="")  # nobody is there to be asked for one
        except OSError as error:
            message = f"{files.certificate} is no certificate that fits the key {files.key}: {error.strerror}"
            raise TlsUnusable(files.certificate, message) from error
    if files.ca is not None:
        try:
            context.load_verify_locations(files.ca)
        except OSError as error:
            raise TlsUnusable(files.ca, f"{files.ca} is no file of certificates: {error.strerror}") from error
