"""What was done to an artifact, beside its directory and never inside: for people, and for a restarted sidecar."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry.lora.config import AdapterConfig
from registry.lora.directory import Examined, open_directory
from registry.lora.findings import AdapterWarning, UnfitAdapter
from registry.lora.keys import entry_of
from registry.lora.manifest import FileEntry, canonical_json, manifest_digest
from registry.sources.errors import ArtifactError
from sidecar.artifacts.layout import Layout
from sidecar.artifacts.orders import Order
from sidecar.artifacts.types import Staged

_SCHEMA = 1


class Report(BaseModel):
    """A report as it stands on disk.

    Attributes:
        id: the prepared id.
        source: manifest digest of what was fetched.
        prepared: manifest digest of what stands in the directory.
        base: fingerprint of the base model's modules; None: not known.
        base_model: what the adapter's own configuration calls its base.
        registry_base_model: what the record said that first asked for it.
        policy: what was allowed to be done, and the version of the code that did it.
        renamed: old to new names of tensors.
        dropped: tensors that were left out.
        config: fields of adapter_config.json that were changed.
        warnings: reason and sentence.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    schema_version: Annotated[int, Field(alias="schema")] = _SCHEMA
    id: str
    source: str
    prepared: str
    base: str | None
    base_model: str | None
    registry_base_model: str | None
    policy: dict[str, object]
    renamed: dict[str, str] = {}
    dropped: tuple[str, ...] = ()
    config: dict[str, object] = {}
    warnings: tuple[AdapterWarning, ...] = ()

    def to_bytes(self) -> bytes:
        """The report as canonical JSON."""
        return canonical_json(self.model_dump(by_alias=True)) + b"\n"


def parse_report(content: bytes) -> Report | None:
    """A report; None if it is damaged or of another form."""
    try:
        report = Report.model_validate_json(content)
    except ValidationError:
        return None
    return report if report.schema_version == _SCHEMA else None


def make_report(order: Order, digest: str, examined: Examined, prepared: list[FileEntry]) -> Report:
    """The report of one preparation of the source `digest`; `prepared` are the files that came of it."""
    verdict = examined.verdict
    base_model = examined.opened.config.base_model_name_or_path
    return Report(
        id=order.artifact(digest),
        source=digest,
        prepared=manifest_digest(prepared),
        base=order.fingerprint,
        base_model=base_model,
        registry_base_model=order.ref.base_model,
        policy=order.policy.as_dict(),
        renamed=dict(sorted(verdict.changes.renamed.items())),
        dropped=verdict.changes.dropped,
        config=dict(verdict.changes.config),
        warnings=(*verdict.warnings, *_name_warnings(base_model, order.ref.base_model)),
    )


def look(layout: Layout, order: Order, digest: str) -> Staged:
    """What stands in the store for an order, by its own files; the report only adds its warnings.

    Raises:
        ArtifactError: ``artifact_damaged``.
        OSError: a file is missing or cannot be read.
    """
    artifact = order.artifact(digest)
    directory = layout.adapter(artifact)
    try:
        opened = open_directory(directory)
    except UnfitAdapter as error:
        raise damaged(directory) from error
    names = (entry_of(tensor).module for tensor in opened.header.tensors)
    targets = frozenset(name.rpartition(".")[2] for name in names)
    return staged_as(layout, order, digest, opened.config, targets, _warnings_of(layout.report(artifact)))


def staged_as(
    layout: Layout,
    order: Order,
    digest: str,
    config: AdapterConfig,
    targets: frozenset[str],
    reported: Iterable[AdapterWarning],
) -> Staged:
    """What stands in the store, of whose report these are the warnings; those about names depend on who asks."""
    artifact = order.artifact(digest)
    kept = (one for one in reported if one.reason != "base_name_differs")
    warnings = (*kept, *_name_warnings(config.base_model_name_or_path, order.ref.base_model))
    return Staged(artifact, str(layout.adapter(artifact)), digest, config.highest_rank, targets, warnings)


def damaged(directory: Path) -> ArtifactError:
    """What an artifact is that is not as it was written and that an engine may be reading."""
    message = (
        f"{directory} was damaged since it was written; it is fetched again once no engine reads it any more, "
        "restart the engines of this host to hurry that; check the disk"
    )
    return ArtifactError("artifact_damaged", message, permanent=False)


def _warnings_of(path: Path) -> tuple[AdapterWarning, ...]:
    try:
        report = parse_report(path.read_bytes())
    except FileNotFoundError:
        report = None
    return report.warnings if report else ()


def _name_warnings(base_model: str | None, registry_base_model: str | None) -> tuple[AdapterWarning, ...]:
    """What to say where the registry and the adapter call the base by different names. The adapter decides."""
    if registry_base_model is None or registry_base_model == base_model:
        return ()
    message = f"the record says base model {registry_base_model!r}, the adapter's own configuration {base_model!r}"
    return (AdapterWarning("base_name_differs", f"{message}, which decides"),)
