"""Publishes a trained adapter: converts, checks, and puts it in place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from registry.client.upload.destination import Destination, put
from registry.lora.base import BaseModules
from registry.lora.base_directory import names_of
from registry.lora.digest import FILES, WEIGHTS_FILE
from registry.lora.directory import Opened, check_files, digest_of, entries_of, examine_directory, open_directory
from registry.lora.findings import AdapterWarning, CannotPublish, UnfitAdapter
from registry.lora.policy import AdapterLimits
from registry.lora.safetensors import not_finite
from registry.lora.signing.bundle import bundle_in, statement_in
from registry.lora.signing.forms import BadBundle
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.runtime.program import install_remedy
from registry.sources.credentials import HeldCredential
from registry.tools.convert.options import ConversionOptions, ModuleOutcome, Task, base_doubts, impossible, task_of


@dataclass(frozen=True, slots=True)
class Compared:
    """Base and limits that the adapter must be right for.

    Attributes:
        modules: of the base model; None: not known.
        directory: of the base model, where its numbers are; None: not at hand.
        limits: of the replicas.
    """

    modules: BaseModules | None
    directory: Path | None
    limits: AdapterLimits


@dataclass(frozen=True, slots=True)
class PublishedFiles:
    """Files at the destination; `outcomes` are empty where the files are those of the training, unchanged."""

    digest: str
    outcomes: Sequence[ModuleOutcome]
    warnings: Sequence[AdapterWarning]
    was_there: bool


def publish(
    source: Path,
    there: Destination,
    compared: Compared,
    options: ConversionOptions,
    initial: Path | None,
    held: HeldCredential | None,
) -> PublishedFiles:
    """Publishes an adapter's folder.

    Raises:
        UnfitAdapter: no replica would serve it, and no arithmetic helps.
        CannotPublish: it cannot be made what is wanted, or not be written.
        DestinationTaken: something else is there.
        ArtifactError: ``credential_unavailable``.
        OSError: a file cannot be read or written.
    """
    opened = _opened(source)
    task = task_of(opened, compared.modules, options)
    if findings := [*task.verdict.findings, *impossible(task, opened)]:
        raise UnfitAdapter(findings)
    with TemporaryDirectory(prefix="loraplane-publish-") as folder:
        out = Path(folder)
        if task:
            outcomes = _converted(source, out, opened, task, options, compared.directory, initial)
        else:
            outcomes = []
            for name in FILES:
                shutil.copyfile(source / name, out / name)
        left = [] if _carried(source, out) else [_LEFT_BUNDLE]
        examined = examine_directory(out, compared.modules, compared.limits, options.policy)
        warnings = [*examined.verdict.warnings, *_base_doubts(task, opened, compared.directory), *left]
        is_new = put(out, there, held)
        return PublishedFiles(digest_of(out), outcomes, warnings, not is_new)


def _base_doubts(task: Task, opened: Opened, base: Path | None) -> list[AdapterWarning]:
    if base is None or not task.needs_base:
        return []
    with _readable_base(base):
        return base_doubts(task, opened, names_of(base))


def _opened(source: Path) -> Opened:
    check_files(source)
    opened = open_directory(source)
    with (source / WEIGHTS_FILE).open("rb") as file:
        findings = not_finite(file, opened.start, opened.header.tensors)
    if findings:
        raise UnfitAdapter(findings)
    return opened


_LEFT_BUNDLE = AdapterWarning(
    "bundle_left_out",
    f"{SIGNATURE_FILE} is over other files than those that are published; sign these: loraplane sign DIR --key KEY.pem",
)


def _carried(source: Path, out: Path) -> bool:
    """Copies the bundle too; False if there is one and it is not over what is published."""
    content = bundle_in(source)
    if content is None:
        return True
    try:
        signed = statement_in(content)
    except BadBundle:
        return False
    if any(signed.sha256.get(one.path) != one.sha256 for one in entries_of(out)):
        return False
    (out / SIGNATURE_FILE).write_bytes(content)
    return True


def _converted(
    source: Path,
    out: Path,
    opened: Opened,
    task: Task,
    options: ConversionOptions,
    base: Path | None,
    initial: Path | None,
) -> list[ModuleOutcome]:
    if task.needs_base and base is None:
        raise CannotPublish("the base model's own numbers are needed for this; give its directory with --base-model")
    with torch_or_remedy():
        from registry.tools.convert import arithmetic, converter, stored  # noqa: PLC0415 - torch is an extra
    first = None
    if task.init is not None:
        first = arithmetic.kept(initial) if initial is not None else arithmetic.computed(task.init.lower())
    numbers = None
    if task.needs_base and base is not None:
        with _readable_base(base):
            numbers = converter.BaseWeights(stored.places_of_base(base), first)
    return converter.convert(source, out, opened, task, options, numbers)


@contextmanager
def _readable_base(base: Path) -> Iterator[None]:
    try:
        yield
    except (UnfitAdapter, ValueError) as error:
        raise CannotPublish(f"{base} cannot be read as a base model: {error}; name one in safetensors") from error


@contextmanager
def torch_or_remedy() -> Iterator[None]:
    """Raises CannotPublish with what to install where torch, PEFT or what these need are missing."""
    try:
        yield
    except ImportError as error:
        raise CannotPublish(install_remedy(error, "publish")) from error
