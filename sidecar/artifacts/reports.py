"""Reports on artifacts, beside their directories.

They are for people, and for a restarted sidecar. What says that the files of an artifact came of a source is believed
only if a sidecar of this store wrote it, which the report's MAC proves.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry.lora.base import compress, hub_name
from registry.lora.check import base_name_findings
from registry.lora.config import AdapterConfig
from registry.lora.coverage.findings import prepared_modules, stored_findings, unknown_coverage
from registry.lora.coverage.scales import scale_sources
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE, canonical_json
from registry.lora.directory import open_config, open_directory
from registry.lora.findings import AdapterWarning, UnfitAdapter
from registry.lora.safetensors import LENGTH_BYTES
from registry.lora.tensor_names import entry_of
from registry.runtime.local_files import NotAFile, is_shortage, read_file, sync_directory
from registry.sources.base import ArtifactError, Stop, unfit
from sidecar.artifacts.examination import Examination
from sidecar.artifacts.files import locked, write_atomic
from sidecar.artifacts.layout import StoreLayout
from sidecar.artifacts.requests import StageRequest
from sidecar.artifacts.types import Staged

_log = structlog.get_logger()
_SCHEMA = 1
# Warnings that depend on who asks.
_ASKED_ANEW = {"base_name_differs", "engine_coverage_unknown"}
MAX_REPORT_BYTES = 64 << 20
# An id names one content, so that what it was made of never changes.
MAX_SOURCES = 16_384
_KEY_BYTES = 32


class ArtifactReport(BaseModel):
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
        rank: the highest of what stands in the directory.
        modules: patterns of what it changes, see `registry.lora.base.compress`; True: it is an embedding.
        mac: HMAC-SHA256 of all the rest with the store's key, in hexadecimal.
    """

    model_config = ConfigDict(frozen=True)

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
    rank: int = 0
    modules: dict[str, bool] = {}
    mac: str = ""

    def to_bytes(self) -> bytes:
        """The report as canonical JSON."""
        return canonical_json(self.model_dump(by_alias=True)) + b"\n"


def parse_report(content: bytes) -> ArtifactReport | None:
    """A report; None if it is damaged or of another form."""
    try:
        report = ArtifactReport.model_validate_json(content)
    except ValidationError:
        return None
    return report if report.schema_version == _SCHEMA else None


def make_report(order: StageRequest, digest: str, examination: Examination, prepared: str) -> ArtifactReport:
    """The report of one preparation of the source `digest`; `prepared` is the digest of the files that came of it."""
    return ArtifactReport(
        id=order.artifact(digest),
        source=digest,
        prepared=prepared,
        base=order.fingerprint,
        base_model=examination.base_model,
        registry_base_model=order.ref.base_model,
        policy=order.policy.as_dict(),
        renamed=dict(sorted(examination.renamed.items())),
        dropped=examination.dropped,
        config=examination.config,
        warnings=(*examination.warnings, *_name_warnings(examination.base_model, order.ref.base_model)),
        rank=examination.rank,
        modules=examination.modules,
    )


class Reports:
    """The reports of one store, and the key that authenticates them. Safe for threads."""

    def __init__(self, layout: StoreLayout) -> None:
        """Makes the key if there is none that can be used. Raises OSError."""
        self._layout = layout
        with locked(layout.lock("key"), Stop()):
            self._key = _read_key(layout.key) or _make_key(layout)
            sync_directory(layout.root)  # its name, and those of the folders, which another process may have made
        self._sources: dict[str, str] = {}

    def write(self, report: ArtifactReport) -> None:
        """Puts a report in its place, authenticated. Raises OSError."""
        signed = report.model_copy(update={"mac": self._mac(report.to_bytes())})
        temporary = self._layout.temporary(report.id, f"{uuid.uuid4().hex}.report")
        write_atomic(self._layout.report(report.id), signed.to_bytes(), temporary=temporary)

    def read(self, artifact: str) -> ArtifactReport | None:
        """The report that a sidecar of this store wrote of an artifact; None: there is none. Raises OSError."""
        try:
            content = read_file(self._layout.report(artifact), max_bytes=MAX_REPORT_BYTES)
        except (FileNotFoundError, NotAFile):
            return None
        report = parse_report(content)
        if report is None or report.id != artifact:
            return None
        # As it was before it had its MAC.
        unsigned = content.replace(f'"mac":"{report.mac}"'.encode(), b'"mac":""', 1)
        return report if hmac.compare_digest(report.mac.encode(), self._mac(unsigned).encode()) else None

    def source_of(self, artifact: str) -> str:
        """The digest of the source that an artifact was made of; empty: there is no report of it. Raises OSError."""
        if artifact not in self._sources:
            report = self.read(artifact)
            if report is None:
                return ""
            if len(self._sources) >= MAX_SOURCES:
                self._sources.clear()
            self._sources[artifact] = report.source
        return self._sources[artifact]

    def _mac(self, unsigned: bytes) -> str:
        return hmac.digest(self._key, unsigned, "sha256").hex()


def _read_key(path: Path) -> bytes | None:
    """The key, if nobody else can have read or written it; None: there is none, or it was set aside. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_shortage(error):
            raise
        _set_key_aside(path, str(error))
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o007:
            _set_key_aside(path, "it is not a file of this user alone")
            return None
        # Kubernetes opens all files of a volume to its fsGroup, which is in the trust domain of the store.
        os.fchmod(descriptor, 0o600)
        key = os.read(descriptor, _KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) == _KEY_BYTES:
        return key
    _set_key_aside(path, "it is damaged")
    return None


def _set_key_aside(path: Path, problem: str) -> None:
    aside = path.with_name(f"{path.name}.set-aside-{uuid.uuid4().hex[:8]}")
    path.rename(aside)
    consequence = "what was changed when it was prepared is fetched again"
    _log.error("store_key_set_aside", file=str(aside), problem=problem, consequence=consequence)


def _make_key(layout: StoreLayout) -> bytes:
    """The caller holds the lock of the key."""
    key, temporary = secrets.token_bytes(_KEY_BYTES), layout.temporary("key", uuid.uuid4().hex)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        os.fchmod(descriptor, 0o600)
        file.write(key)
        os.fsync(descriptor)
    temporary.rename(layout.key)
    return key


def staged_by(layout: StoreLayout, order: StageRequest, report: ArtifactReport) -> Staged:
    """Contents of the store by its report; some warnings depend on who asks, and on the base.

    Raises:
        ArtifactError: ``artifact_damaged``, an engine does not apply all of it, or it is of another base.
        OSError: its configuration is missing or cannot be read.
    """
    kept = (one for one in report.warnings if one.reason not in _ASKED_ANEW)
    directory = layout.adapter(order.artifact(report.source))
    try:
        config = open_config(directory)
    except UnfitAdapter as error:
        raise damaged(directory) from error
    return _staged(directory, order, report.source, config, report.modules, kept)


# A tenth of a second to read; adapters of a dense model have a fifth of it.
MAX_QUICK_BYTES = 512 << 10


def is_quick_to_look(layout: StoreLayout, artifact: str) -> bool:
    """True if `look` reads little, or meets at once what is wrong."""
    directory = layout.adapter(artifact)
    try:
        with (directory / WEIGHTS_FILE).open("rb") as file:
            header_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
        return max(header_bytes, (directory / CONFIG_FILE).stat().st_size) <= MAX_QUICK_BYTES
    except OSError:
        return True


def look(layout: StoreLayout, order: StageRequest, digest: str) -> Staged:
    """The same by the files themselves, where there is no report that can be believed; it has no warnings then.

    Raises:
        ArtifactError: ``artifact_damaged``, or as `staged_by`.
        OSError: a file is missing or cannot be read.
    """
    directory = layout.adapter(order.artifact(digest))
    try:
        opened = open_directory(directory)
    except UnfitAdapter as error:
        raise damaged(directory) from error
    modules = compress(prepared_modules(entry_of(tensor) for tensor in opened.header.tensors))
    return _staged(directory, order, digest, opened.config, modules, ())


def _staged(
    directory: Path,
    order: StageRequest,
    digest: str,
    config: AdapterConfig,
    modules: Mapping[str, bool],
    reported: Iterable[AdapterWarning],
) -> Staged:
    """Report on a staged artifact; its coverage and its base's name are judged by what is known now."""
    base_model = config.base_model_name_or_path
    if findings := [*base_name_findings(base_model, order.base), *stored_findings(modules, order.base)]:
        raise unfit(findings)
    return Staged(
        order.artifact(digest),
        str(directory),
        digest,
        config.highest_rank,
        (*reported, *unknown_coverage(order.base), *_name_warnings(base_model, order.ref.base_model)),
        tuple(modules),
        scales=scale_sources(config, modules),
    )


def damaged(directory: Path) -> ArtifactError:
    """Refusal of an artifact that is not as it was written and that an engine may be reading."""
    message = (
        f"{directory} was damaged since it was written, as were the copies of it that were fetched since; "
        "check the disk, and who writes to the store"
    )
    return ArtifactError("artifact_damaged", message)


def _name_warnings(base_model: str | None, registry_base_model: str | None) -> tuple[AdapterWarning, ...]:
    """Warning where the registry and the adapter call the base by different names. The adapter decides."""
    if registry_base_model is None or hub_name(registry_base_model) == hub_name(base_model or ""):
        return ()
    message = f"the record says base model {registry_base_model!r}, the adapter's own configuration {base_model!r}"
    return (AdapterWarning("base_name_differs", f"{message}, which decides"),)
