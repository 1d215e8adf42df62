"""Signing of adapters: a bundle beside the files, or a signature for a record."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import click

from registry.cli import options
from registry.cli.change.addresses import folder_of
from registry.cli.commands.check import ReadingOptions, Source
from registry.cli.failure import usage
from registry.cli.local_adapters import checked_folder, digest_here
from registry.cli.session import session_of
from registry.cli.views.output import Printer
from registry.lora.signing.bundle import IGNORED, UnsignableFolder, folder_sha256
from registry.lora.signing.statement import (
    MAX_PATTERNS,
    SIGNATURE_FILE,
    UNBOUND,
    SignatureBinding,
    SignedFiles,
    read_moment,
    write_statement,
    zulu,
)

MAX_KEY_BYTES = 1 << 16
_ONLY_BUNDLES = (
    "is for an ECDSA key, whose bundle can say it; openssl ecparam -genkey -name prime256v1 -noout makes one"
)


@dataclass(frozen=True, slots=True)
class SigningOptions:
    """Limits that a bundle binds, and the signer's certificates."""

    certificate: Annotated[
        Path | None,
        options.flag("--certificate", metavar="FILE", help="Certificate of the key in PEM, then those above it."),
    ] = None
    name: Annotated[
        list[str] | None,
        options.flag("--name", metavar="GLOB", help="Names that it may be served under, with *; repeatable."),
    ] = None
    bind_pool: Annotated[
        list[str] | None,
        # Nobody is to bind what they did not type.
        options.flag("--pool", envvar=None, metavar="GLOB", help="Pools that it may be served in, with *; repeatable."),
    ] = None
    base: Annotated[
        str | None,
        options.flag("--base", metavar="B", help="Base that it may be served on: a name, or sha256:… of its modules."),
    ] = None
    not_after: Annotated[
        str | None,
        options.flag("--not-after", metavar="T", help="Last day or moment, e.g. 2027-06-30 or 2027-06-30T12:00:00Z."),
    ] = None

    def given(self) -> Iterable[str]:
        """Flags that were given."""
        flags = ("--certificate", "--name", "--pool", "--base", "--not-after")
        values = (self.certificate, self.name, self.bind_pool, self.base, self.not_after)
        return (flag for flag, value in zip(flags, values, strict=True) if value)

    def binding(self) -> SignatureBinding:
        """Limits that were asked for.

        Raises:
            CliError: a flag has a value that it cannot have.
        """
        for flag, patterns in (("--name", self.name or ()), ("--pool", self.bind_pool or ())):
            if len(patterns) > MAX_PATTERNS or not all(patterns):
                raise usage(f"{flag} takes 1 to {MAX_PATTERNS} patterns, none of them empty")
        return SignatureBinding(tuple(self.name or ()), tuple(self.bind_pool or ()), self.base, self._end())

    def _end(self) -> datetime | None:
        try:
            return read_moment(self.not_after) if self.not_after else None
        except ValueError:
            form = "must be a day or a moment with its zone, e.g. 2027-06-30 or 2027-06-30T12:00:00Z"
            raise usage(f"--not-after {self.not_after!r} {form}") from None


def sign(
    context: click.Context,
    source: Source,
    *,
    key: Annotated[
        Path, options.flag("--key", metavar="FILE", help="Private key in PEM, without password: ECDSA, or Ed25519.")
    ],
    signing: SigningOptions = SigningOptions(),
    reading: ReadingOptions,
) -> None:
    """Sign an adapter's folder into a bundle (model.sig), as model_signing does.

    With an Ed25519 key, print a signature for source.signature of its manifest instead, as earlier releases did.
    """
    from registry.lora.signing.keys import is_ec_key  # noqa: PLC0415 - megabytes that no other command needs

    printer, private = session_of(context).printer(), _content(key, "--key")
    if is_ec_key(private):
        _sign_folder(printer, source, private, key, signing)
        return
    if flag := next(iter(signing.given()), None):
        raise usage(f"{flag} {_ONLY_BUNDLES}")
    digest = reading.digest(source)
    _print_signature(printer, source, digest, private, key)


def _content(file: Path, flag: str) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_KEY_BYTES)
    except OSError as error:
        raise usage(f"{flag} {file} cannot be read: {error.strerror}") from error


def _print_signature(printer: Printer, source: str, digest: str, private: bytes, key: Path) -> None:
    from registry.lora.ed25519 import BadKey  # noqa: PLC0415 - megabytes that no other command needs
    from registry.lora.ed25519 import sign as signature_of  # noqa: PLC0415 - see above

    try:
        signature = signature_of(digest, private)
    except BadKey as error:
        raise usage(f"--key {key}: {error}") from error
    if printer.is_plain:
        printer.plain({"source": source, "digest": digest, "signature": signature})
    else:
        printer.lines([signature])


def _sign_folder(printer: Printer, source: str, private: bytes, key: Path, signing: SigningOptions) -> None:
    from registry.lora.ed25519 import BadKey  # noqa: PLC0415 - megabytes that no other command needs
    from registry.lora.signing.keys import sign_statement  # noqa: PLC0415 - see above

    binding = signing.binding()
    folder = folder_of(source)
    if folder is None:
        raise usage(f"{source} is no folder of this machine, and the bundle goes beside the files: name the folder")
    digest = digest_here(checked_folder(folder))
    files = _files_of(folder)
    statement = write_statement(SignedFiles(folder.resolve().name, files, binding), IGNORED)
    chain = _content(signing.certificate, "--certificate") if signing.certificate else b""
    try:
        bundle = sign_statement(statement, private, chain)
    except BadKey as error:
        raise usage(f"--key {key}: {error}") from error
    written = _write(folder, bundle)
    if printer.is_plain:
        printer.plain({"source": source, "digest": digest, "bundle": str(written), "files": sorted(files)})
        return
    printer.lines([f"{written} is over {len(files)} files{_told(binding)}"] if printer.is_table else [str(written)])


def _files_of(folder: Path) -> dict[str, str]:
    try:
        return folder_sha256(folder)
    except UnsignableFolder as error:
        raise usage(str(error)) from error
    except OSError as error:
        raise usage(f"cannot read {error.filename or folder}: {error.strerror}") from error


def _write(folder: Path, bundle: bytes) -> Path:
    """The bundle, whole at every moment, so that nobody fetches half of one."""
    written = folder / SIGNATURE_FILE
    arriving = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        arriving.write_bytes(bundle)
        arriving.rename(written)
    except OSError as error:
        arriving.unlink(missing_ok=True)
        raise usage(f"cannot write {written}: {error.strerror}") from error
    return written


def _told(binding: SignatureBinding) -> str:
    if binding == UNBOUND:
        return ", for any name, pool and base, and without an end"
    parts = [
        f"as {', '.join(binding.names)}" if binding.names else "",
        f"in {', '.join(binding.pools)}" if binding.pools else "",
        f"on {binding.base}" if binding.base else "",
        f"until {zulu(binding.not_after)}" if binding.not_after else "",
    ]
    return ", " + " ".join(filter(None, parts))
