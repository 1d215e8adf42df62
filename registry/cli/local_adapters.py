"""Adapters and base models that this machine can read: their digest, their check, their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from registry.cli.failure import CliError, Exit, Failure, not_found, refused, usage
from registry.errors import Reason
from registry.lora.base import BaseModules, compress, expand
from registry.lora.base_directory import BaseUnreadable, read_base
from registry.lora.directory import check_files, digest_of, examine_directory
from registry.lora.findings import AdapterWarning, Finding, UnfitAdapter, summary
from registry.lora.policy import Limits, Policy
from registry.v1 import registry_pb2 as pb


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at an adapter showed."""

    findings: Sequence[Finding]
    warnings: Sequence[AdapterWarning] = ()


def folder_of(source: str) -> Path | None:
    """The folder of this machine that a path or a file:// URI names; None: it is somewhere else."""
    if "://" not in source:
        return Path(source)
    parts = urlsplit(source)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in {"", "localhost"} else None


def readable_folder(source: str) -> Path:
    """The folder that a path or URI names.

    Raises:
        CliError: it is not of this machine, or not there.
    """
    folder = folder_of(source)
    if folder is None:
        raise refused(Reason.UNSUPPORTED, f"{source} is not of this machine; fetch it, and name the folder")
    if not folder.is_dir():
        raise not_found(Reason.ADAPTER_NOT_FOUND, f"there is no folder {folder}")
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


def look(folder: Path, base: BaseModules | None, limits: Limits, policy: Policy) -> Looked:
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


def unfit(place: str, findings: Sequence[Finding]) -> CliError:
    """An adapter that no replica would serve."""
    metadata = {"finding": findings[0].reason, "findings": str(len(findings))}
    message = f"{findings[0].reason}: {summary(findings)}"
    return CliError(Failure(Exit.REFUSED, Reason.ADAPTER_UNFIT, message, place, metadata))


def base_here(directory: Path, names: Sequence[str] = ()) -> BaseModules:
    """The modules of a base model's directory.

    Raises:
        CliError: it does not tell them.
    """
    try:
        return read_base(directory, tuple(names))
    except BaseUnreadable as error:
        raise refused(Reason.INVALID_FIELD, str(error)) from error


def base_message(base: BaseModules) -> pb.BaseShapes:
    """A base model as a pool's record describes it."""
    modules = [
        pb.BaseModule(pattern=pattern, outputs=outputs, inputs=inputs)
        for pattern, (outputs, inputs) in compress(base.modules).items()
    ]
    return pb.BaseShapes(modules=modules, fingerprint=base.fingerprint, names=base.names)


def base_of_pool(pool: pb.Pool) -> BaseModules | None:
    """A pool's base model; None: its record does not say."""
    if not pool.HasField("base"):
        return None
    modules = {one.pattern: (one.outputs, one.inputs) for one in pool.base.modules}
    return BaseModules(expand(modules), tuple(pool.base.names))


def limits_of_pool(pool: pb.Pool) -> Limits:
    """What a pool's replicas can serve."""
    return Limits(pool.limits.max_rank or None, tuple(pool.limits.target_modules) or None)
