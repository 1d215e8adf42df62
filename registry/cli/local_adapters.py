"""Adapters and base models on this machine: digest, check, bundle, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from registry.cli.change.addresses import is_here
from registry.cli.failure import CliError, CommandFailure, Exit, not_found, refused, usage
from registry.lora.base import BaseModules, compress, expand
from registry.lora.base_directory import BaseUnreadable, read_base
from registry.lora.check import examine
from registry.lora.coverage.explain import MatrixFate, explained
from registry.lora.coverage.findings import EngineEvidence
from registry.lora.directory import check_files, digest_of, entries_of, examine_directory, open_directory
from registry.lora.findings import AdapterWarning, Finding, UnfitAdapter, summary
from registry.lora.policy import AdapterLimits, Policy
from registry.lora.signing.bundle import UnsignableFolder, bundle_in, folder_sha256, statement_in
from registry.lora.signing.forms import BadBundle
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.lora.text import printable, some_of
from registry.model.engine_kinds import applying_kind
from registry.model.errors import Reason
from registry.v1 import registry_pb2 as pb

if TYPE_CHECKING:  # with cryptography, megabytes that few commands need
    from registry.model.signature_policy import SignaturePolicy

MAX_POLICY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Looked:
    """Results of a look at an adapter."""

    findings: Sequence[Finding]
    warnings: Sequence[AdapterWarning] = ()


def checked_folder(folder: Path) -> Path:
    """The same folder, which is there.

    Raises:
        CliError: it is not.
    """
    if not is_here(folder):
        raise not_found(Reason.ADAPTER_NOT_FOUND, f"there is no folder {folder}; name one with an adapter, or a URI")
    return folder


def digest_here(folder: Path) -> str:
    """The manifest digest of an adapter's folder.

    Raises:
        CliError: its files are not there, or cannot be read.
    """
    try:
        check_files(folder)
        return digest_of(folder)
    except UnfitAdapter as error:
        raise unfit(str(folder), error.findings) from error
    except OSError as error:
        raise usage(f"cannot read {folder}: {error.strerror}") from error


def look(folder: Path, base: BaseModules | None, limits: AdapterLimits, policy: Policy) -> Looked:
    """Everything that is wrong with an adapter's folder.

    Raises:
        CliError: it cannot be read.
    """
    try:
        check_files(folder)
        return Looked((), examine_directory(folder, base, limits, policy).verdict.warnings)
    except UnfitAdapter as error:
        return Looked(error.findings)
    except OSError as error:
        raise usage(f"cannot read {folder}: {error.strerror}") from error


def explain(folder: Path, base: BaseModules | None, limits: AdapterLimits, policy: Policy) -> list[MatrixFate]:
    """Fate of each matrix of an adapter's folder; nothing where its files are none.

    Raises:
        CliError: it cannot be read.
    """
    try:
        opened = open_directory(folder)
    except UnfitAdapter:
        return []
    except OSError as error:
        raise usage(f"cannot read {folder}: {error.strerror}") from error
    tensors = opened.header.tensors
    return explained(tensors, examine(opened.config, tensors, base, limits, policy), base)


def unfit(place: str, findings: Sequence[Finding]) -> CliError:
    """An adapter that no replica would serve."""
    metadata = {"finding": findings[0].reason, "findings": str(len(findings))}
    message = f"{findings[0].reason}: {summary(findings)}"
    return CliError(CommandFailure(Exit.REFUSED, Reason.ADAPTER_UNFIT, message, place, metadata))


def base_here(directory: Path, names: Sequence[str] = (), *, flag: str = "--from") -> BaseModules:
    """The modules of a base model's directory, which `flag` names.

    Raises:
        CliError: it does not tell them.
    """
    try:
        return read_base(directory, tuple(names))
    except BaseUnreadable as error:
        remedy = "name the folder of the base model, with its config.json"
        raise refused(Reason.INVALID_FIELD, f"{error}; {remedy}", field=flag) from error


def base_message(base: BaseModules) -> pb.BaseShapes:
    """A base model as a pool's record describes it."""
    modules = [
        pb.BaseModule(pattern=pattern, outputs=outputs, inputs=inputs)
        for pattern, (outputs, inputs) in compress(base.modules).items()
    ]
    return pb.BaseShapes(
        modules=modules,
        fingerprint=base.fingerprint,
        names=base.names,
        architecture=base.architecture,
        tied=base.is_tied,
        head_size=base.head_size,
        layout=base.layout,
        weights=base.weights,
    )


def base_of_pool(pool: pb.Pool) -> BaseModules | None:
    """A pool's base model; None: its record does not say."""
    if not pool.HasField("base"):
        return None
    told = pool.base
    modules = expand({one.pattern: (one.outputs, one.inputs) for one in told.modules})
    return BaseModules(
        modules,
        tuple(told.names),
        architecture=told.architecture or None,
        is_tied=told.tied,
        head_size=told.head_size or None,
        engine=applying_kind(pool.engine or "vllm"),
        evidence=evidence_of(told.evidence) if told.HasField("evidence") else None,
        layout=told.layout or None,
        weights=told.weights or None,
    )


def evidence_of(said: pb.EngineEvidence) -> EngineEvidence:
    """Modules that an engine of a pool said it applies."""
    parts, beginnings, ends = (
        tuple((one.old, one.new) for one in rules) for rules in (said.parts, said.beginnings, said.ends)
    )
    applied, taken = tuple(said.applied), tuple(said.taken)
    return EngineEvidence(said.engine, said.architecture, applied, taken, parts, beginnings, ends)


def limits_of_pool(pool: pb.Pool) -> AdapterLimits:
    """Limits of a pool's replicas."""
    return AdapterLimits(pool.limits.max_rank or None, tuple(pool.limits.target_modules) or None)


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
