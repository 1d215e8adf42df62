"""Commands that look at an adapter before anything is written: check and digest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from registry.cli import options
from registry.cli.change.addresses import folder_of
from registry.cli.failure import usage
from registry.cli.local_adapters import (
    Looked,
    base_here,
    base_of_pool,
    bundle_findings,
    bundle_notes,
    checked_folder,
    digest_here,
    explain,
    limits_of_pool,
    look,
    policy_here,
    unfit,
)
from registry.cli.session import READ_SECONDS, is_typed, pool_or_only, session_of
from registry.cli.source_reader import FETCH_SECONDS, SourceReader
from registry.cli.views.output import Printer
from registry.client import admin_api as api
from registry.lora.base import BaseModules
from registry.lora.coverage.explain import MatrixFate
from registry.lora.findings import AdapterWarning, Finding
from registry.lora.policy import AdapterLimits, policy_of
from registry.lora.text import printable
from registry.v1 import registry_pb2 as pb

if TYPE_CHECKING:  # with cryptography, megabytes that few commands need
    from registry.model.signature_policy import SignaturePolicy

Source = Annotated[str, options.argument(metavar="DIR|URI", help="The adapter's folder, or the URI of its source.")]


Remap = Annotated[Literal["auto", "off"], options.flag("--remap", help="As prepare.remap of a manifest.")]
Vision = Annotated[Literal["reject", "drop", "keep"], options.flag("--vision", help="As prepare.vision of a manifest.")]


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Flags for reading a source of another host."""

    credentials: options.Credentials = None
    credential: options.Credential = None
    hf_endpoint: options.HfEndpoint = None
    timeout: options.Timeout = None

    def reader(self) -> SourceReader:
        """The chosen reader of sources."""
        return SourceReader(self.credentials, self.hf_endpoint)

    def digest(self, source: str) -> str:
        """The manifest digest of an adapter in a folder of this machine or at a URI.

        Raises:
            CliError: it cannot be had.
        """
        if (folder := folder_of(source)) is not None:
            return digest_here(checked_folder(folder))
        return self.reader().digest(source, self.credential, self.timeout or FETCH_SECONDS)


def folder_at(
    source: str, reader: SourceReader, credential: str | None, timeout: float | None
) -> AbstractContextManager[Path]:
    """A folder of this machine with the adapter of a path or URI, for as long as it is looked at.

    Raises:
        CliError: it cannot be had.
    """
    if (folder := folder_of(source)) is not None:
        return nullcontext(checked_folder(folder))
    return reader.fetched(source, credential, timeout or FETCH_SECONDS)


def digest(context: click.Context, source: Source, *, reading: ReadingOptions) -> None:
    """Print the manifest digest of an adapter, to pin in a record."""
    printer = session_of(context).printer()
    found = reading.digest(source)
    if printer.is_plain:
        printer.plain({"source": source, "digest": found})
    else:
        printer.lines([found])


# A policy, and the name that it is asked about.
Asked = tuple["SignaturePolicy", str]


@dataclass(frozen=True, slots=True)
class SignedAs:
    """A policy of sidecars, and the name that it is asked about."""

    policy: Annotated[
        Path | None,
        options.flag("--signature-policy", metavar="FILE", help="Policy of the sidecars, to verify model.sig with."),
    ] = None
    name: Annotated[
        str | None, options.flag("--name", metavar="NAME", help="Name that it is to be served under, for the policy.")
    ] = None

    def asked(self) -> Asked | None:
        """The policy and the name; None: neither was given.

        Raises:
            CliError: one is given without the other, or the policy cannot be read.
        """
        if self.policy is None and self.name is None:
            return None
        if self.policy is None or self.name is None:
            raise usage("--signature-policy FILE and --name NAME go together: what counts depends on the tenant")
        return policy_here(self.policy), self.name


def _look_at_bundle(
    folder: Path, asked: Asked | None, pool: pb.Pool, base: BaseModules | None
) -> tuple[list[Finding], list[dict[str, str]]]:
    """Findings and warnings about the bundle beside an adapter. Raises CliError: a file cannot be read."""
    try:
        notes = bundle_notes(folder, is_verified=asked is not None)
        if asked is None:
            return [], notes
        bases = frozenset((*pool.base_models, *((*base.names, base.fingerprint) if base else ())))
        return bundle_findings(folder, *asked, pool.name, bases, datetime.now(UTC)), notes
    except OSError as error:
        raise usage(f"cannot read {error.filename or folder}: {error.strerror}") from error


def check(
    context: click.Context,
    source: Source,
    *,
    pool: options.Pool = None,
    base_model: Annotated[
        Path | None, options.flag("--base-model", metavar="DIR", help="Directory of the base model, without a pool.")
    ] = None,
    max_rank: Annotated[int | None, options.flag("--max-rank", metavar="N", min=1, help="Highest LoRA rank.")] = None,
    remap: Remap = "auto",
    vision: Vision = "reject",
    dora: Annotated[
        Literal["reject", "strip"], options.flag("--dora", help="As prepare.dora of a manifest.")
    ] = "reject",
    drop: Annotated[
        list[str] | None, options.flag("--drop", metavar="MODULE", help="As prepare.drop of a manifest; repeatable.")
    ] = None,
    is_explained: Annotated[
        bool, options.flag("--explain", help="List each matrix: applied, renamed, reordered, dropped or refused.")
    ] = False,
    signed: SignedAs = SignedAs(),
    reading: ReadingOptions,
) -> None:
    """Check an adapter against a base model: exit 0 if it fits, 4 with all findings if not.

    With --signature-policy also its bundle (model.sig), as a sidecar with that policy would.
    """
    asked = signed.asked()
    base, limits, record = compared_with(context, pool, base_model, max_rank, reading.timeout or READ_SECONDS)
    policy = policy_of({"remap": remap, "vision": vision, "dora": dora, "drop": drop})
    with folder_at(source, reading.reader(), reading.credential, reading.timeout) as folder:
        looked = look(folder, base, limits, policy)
        fates = explain(folder, base, limits, policy) if is_explained else None
        findings, notes = _look_at_bundle(folder, asked, record, base)
    looked = replace(looked, findings=(*looked.findings, *findings))
    _tell(session_of(context).printer(), source, looked, fates, notes, is_compared=base is not None)
    if looked.findings:
        raise unfit(source, looked.findings)


def compared_with(
    context: click.Context,
    pool: str | None,
    base_model: Path | None,
    max_rank: int | None,
    read_seconds: float = READ_SECONDS,
) -> tuple[BaseModules | None, AdapterLimits, pb.Pool]:
    """Base and limits that an adapter must be right for: a pool (None: the only one), or a base model and a rank.

    A base model goes before the variable of a pool, whose record is then empty.

    Raises:
        CliError: both are given, none is and there are several pools, or it cannot be read.
    """
    if base_model is not None and not is_typed(context, "pool"):
        pool = None
    if pool is not None and base_model is not None:
        raise usage("say what to compare it with: --pool P, or --base-model DIR --max-rank N")
    if base_model is not None:
        return base_here(base_model, flag="--base-model"), AdapterLimits(max_rank), pb.Pool()
    with session_of(context).client(read_seconds) as client:
        record = client.unary(api.GET_POOL, pb.GetPoolRequest(name=pool_or_only(client, pool)))
    limits = limits_of_pool(record)
    return base_of_pool(record), AdapterLimits(max_rank or limits.max_rank, limits.target_modules), record


def plain_warnings(warnings: Sequence[AdapterWarning], *, is_compared: bool) -> list[dict[str, str]]:
    """Warnings as they are printed, with one where no base was at hand to compare with."""
    found = [{"reason": warning.reason, "message": warning.message} for warning in warnings]
    if not is_compared:
        message = "names and shapes were not compared: the pool has no base; see pool update --from"
        found.append({"reason": "base_unknown", "message": message})
    return found


def _tell(
    printer: Printer,
    source: str,
    looked: Looked,
    fates: Sequence[MatrixFate] | None,
    notes: Sequence[dict[str, str]],
    *,
    is_compared: bool,
) -> None:
    findings = [finding.as_dict() for finding in looked.findings]
    warnings = [*plain_warnings(looked.warnings, is_compared=is_compared), *notes]
    if printer.is_plain:
        matrices = {} if fates is None else {"matrices": [asdict(one) for one in fates]}
        printer.plain({"source": source, "findings": findings, "warnings": warnings, **matrices})
        return
    if printer.is_table and fates is not None:
        printer.table(["MODULE", "FATE", "NOTE"], ([printable(one.module), one.fate, one.note] for one in fates))
    if printer.is_table and findings:
        columns = ("reason", "key", "found", "expected", "remedy")
        printer.table([name.upper() for name in columns], ([f"{one[name]}" for name in columns] for one in findings))
    printer.lines(f"warning: {one['reason']}: {one['message']}" for one in warnings if printer.is_table)
    if printer.is_table and not findings:
        printer.lines([f"{source} is right"])
    if not printer.is_table:
        printer.lines(f"{one['reason']}" for one in findings)
