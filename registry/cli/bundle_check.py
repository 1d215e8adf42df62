"""Check of the bundle beside an adapter's files, as a sidecar would make it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from registry.cli.failure import usage
from registry.lora.directory import entries_of
from registry.lora.findings import Finding
from registry.lora.signing.folder import UnsignableFolder, bundle_in, folder_sha256, statement_in
from registry.lora.signing.forms import BadBundle
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.lora.text import printable, some_of

if TYPE_CHECKING:  # with cryptography, megabytes that few commands need
    from registry.model.signature_policy import SignaturePolicy

MAX_POLICY_BYTES = 1 << 20


def policy_here(file: Path) -> SignaturePolicy:
    """The policy that a sidecar of a host would be given.

    Raises:
        CliError: it cannot be read.
    """
    from registry.model.operator_yaml import OperatorFileInvalid  # noqa: PLC0415 - see above
    from registry.model.signature_policy import read_policy  # noqa: PLC0415 - see above

    try:
        with file.open("rb") as opened:
            return read_policy(opened.read(MAX_POLICY_BYTES + 1), f"--signature-policy {file}")
    except OSError as error:
        raise usage(f"--signature-policy {file} cannot be read: {error.strerror}") from error
    except OperatorFileInvalid as error:
        raise usage(str(error)) from error


def bundle_findings(
    folder: Path, policy: SignaturePolicy, name: str, pool: str, bases: frozenset[str], now: datetime
) -> list[Finding]:
    """The first thing for which a sidecar with that policy would refuse a folder; nothing: it would take it.

    Args:
        folder: the adapter.
        policy: of the sidecars.
        name: that it is to be served under.
        pool: where; empty: it was not said.
        bases: names of the pool's base model, and the fingerprint of its modules.
        now: the moment at which certificates and ends are looked at.

    Raises:
        OSError: a file cannot be read.
    """
    from registry.model.signature_check import (  # noqa: PLC0415 - see above
        SignatureRefused,
        Use,
        absent,
        check_files,
        vouched,
        without_rule,
    )

    rule, content = policy.rule(name), bundle_in(folder)
    try:
        if rule is None:
            raise without_rule(name)
        if content is None and rule.unsigned:
            return []
        if content is None:
            raise absent(name)
        check_files(
            vouched(rule, content, Use(name, pool or "no pool that --pool names", bases), now).signed,
            entries_of(folder),
        )
    except SignatureRefused as error:
        found, _, remedy = error.message.partition("; ")
        return [Finding(error.reason, SIGNATURE_FILE, found, "a signature that counts", remedy)]
    return []


def bundle_notes(folder: Path, *, is_verified: bool) -> list[dict[str, str]]:
    """Warnings about a bundle: whose it is was not asked, or what lies beside it is not signed. Raises OSError."""
    content, notes = bundle_in(folder), list[dict[str, str]]()
    if content is None:
        return notes
    try:
        signed = statement_in(content)
        others = sorted(folder_sha256(folder).keys() - signed.sha256.keys())
    except (BadBundle, UnsignableFolder) as error:
        return [{"reason": "bundle_unread", "message": f"{SIGNATURE_FILE}: {error}"}]
    if not is_verified:
        message = f"nobody asked who signed {SIGNATURE_FILE}: give --signature-policy FILE, as the sidecars have it"
        notes.append({"reason": "bundle_unverified", "message": message})
    if others:
        named = printable(some_of(others, 3))
        message = f"{named} is not signed; no replica reads it, and model_signing refuses the folder: sign anew"
        notes.append({"reason": "files_unsigned", "message": message})
    return notes
