"""The command import: adapters of other systems as manifests."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from registry.cli import options
from registry.cli.change.documents import read_text
from registry.cli.change.manifest import manifest_of
from registry.cli.failure import CliError, Exit, failure_of, refused, usage
from registry.cli.session import session_of
from registry.cli.views.get import note
from registry.formats.folders import CONFIG, META, AdapterFolder, folders_document, paths_of
from registry.formats.importer import import_documents, import_text
from registry.formats.kinds import KINDS
from registry.formats.shapes import ImportChoices, Imported, ImportKind
from registry.model.errors import InvalidArgument, Reason
from registry.runtime.local_files import read_followed

_MAX_SMALL_FILE_BYTES = 1 << 20
_MAX_FOLDERS = 100_000


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Flags that say what the other system's records do not."""

    pool: Annotated[
        str | None,
        options.flag(
            "--pool", metavar="POOL", help="Pool of all adapters (default: the one named as their base model)."
        ),
    ] = None
    pool_of: Annotated[
        list[str] | None,
        options.flag("--pool-of", metavar="BASE=POOL", help="Pool of the adapters of a base model (repeatable)."),
    ] = None
    source: Annotated[
        str | None,
        options.flag("--source", metavar="URI", help="Source of adapters that say none; {name} stands for the name."),
    ] = None
    rewrite: Annotated[
        list[str] | None,
        options.flag("--rewrite", metavar="FROM=TO", help="Put another beginning to sources (repeatable)."),
    ] = None

    def choices(self) -> ImportChoices:
        """Choices out of these flags. Raises CliError: one is not of its form."""
        pools = options.pairs("--pool-of ", self.pool_of or ())
        return ImportChoices(self.pool, pools, self.source, options.pairs("--rewrite ", self.rewrite or (), "FROM=TO"))


def import_(
    context: click.Context,
    kind: Annotated[str, options.argument(metavar="KIND", help=f"The system: {', '.join(KINDS)}.")],
    file: Annotated[
        str, options.argument(metavar="FILE", help="Its records as YAML or JSON, or its folder; - is stdin.")
    ],
    *,
    given: ImportOptions = ImportOptions(),
    strict: Annotated[bool, options.flag("--strict", help="Exit 1 if anything does not map or is left out.")] = False,
) -> None:
    """Print adapters of another system as the manifests that apply takes.

    Each field that does not map, and each adapter that is left out, is named on standard error. Nothing is asked of the
    admin service. docs/coming-from.md has the kinds, and what becomes of their fields.
    """
    if kind not in KINDS:
        raise usage(f"import: {kind[:60]!r} is not known; use one of {', '.join(KINDS)}")
    try:
        found = _import(KINDS[kind], file, given.choices())
        for content, place in found.manifests:
            manifest_of(content, place)
    except InvalidArgument as error:
        raise CliError(failure_of(error)) from error
    for one in found.notes:
        note(one)
    for where, name in found.gone:
        note(f"to delete: loraplane delete {name} --pool {where} --ignore-not-found")
    if not (found.manifests or found.gone):
        why = "what was said before has the reasons" if found.notes else f"expected {KINDS[kind].system}"
        message = f"has no adapter that can be imported; {why}"
        raise refused(Reason.INVALID_MANIFEST, message, field=file)
    session_of(context).printer().documents(content for content, _ in found.manifests)
    if strict and found.notes:
        raise click.exceptions.Exit(Exit.INTERNAL)


def _import(kind: ImportKind, file: str, choices: ImportChoices) -> Imported:
    if not kind.files:
        return import_text(kind, read_text(file, "import"), file, choices)
    if file != "-" and Path(file).is_dir():
        root = Path(file).resolve()
        document = folders_document(None if choices.source else str(root), _folders(root, kind.files), file)
    else:
        document = folders_document(None, paths_of(read_text(file, "import"), file), file)
    return import_documents(kind, [(document, file)], choices)


def _folders(root: Path, files: Collection[str]) -> list[AdapterFolder]:
    """The adapters in a folder, by their names, but for what is hidden.

    Raises:
        CliError: it has none, or one of them cannot be read, or is a link that leads out of the folder.
    """
    try:
        with os.scandir(root) as entries:
            names = sorted(one.name for one in entries if not one.name.startswith(".") and one.is_dir())
        if len(names) > _MAX_FOLDERS:
            raise usage(f"{root} has more than {_MAX_FOLDERS} folders; name one that has fewer, or give paths by lines")
        return [_folder(root, name, files) for name in names if (root / name / CONFIG).is_file()]
    except OSError as error:
        raise usage(f"cannot read {error.filename}: {error.strerror}; name a folder that can be read") from error


def _folder(root: Path, name: str, files: Collection[str]) -> AdapterFolder:
    if not (root / name / CONFIG).resolve().is_relative_to(root):
        raise usage(f"{root / name} leads out of {root}; name the folder that has its files")
    texts = [_small(root / name / one) if one in files else None for one in (CONFIG, META)]
    return AdapterFolder(name, *texts)


def _small(path: Path) -> str | None:
    if not path.is_file():
        return None
    return read_followed(path, max_bytes=_MAX_SMALL_FILE_BYTES).decode(errors="replace")
