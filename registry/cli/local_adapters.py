"""Adapters and base models on this machine: digest, check, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from registry.cli.change.addresses import is_here
from registry.cli.failure import CliError, CommandFailure, Exit, not_found, refused, usage
from registry.lora.base import BaseModules, compress, expand
from registry.lora.base_directory import BaseUnreadable, read_base
from registry.lora.check import examine
from registry.lora.coverage.explain import MatrixFate, explained
from registry.lora.coverage.findings import EngineEvidence
from registry.lora.directory import check_files, digest_of, examine_directory, open_directory
from registry.lora.findings import AdapterWarning, Finding, UnfitAdapter, summary
from registry.lora.policy import AdapterLimits, Policy
from registry.model.engine_kinds import applying_kind
from registry.model.errors import Reason
from registry.v1 import registry_pb2 as pb


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
