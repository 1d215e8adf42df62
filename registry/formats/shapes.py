"""Forms of imported records: fields of other systems, and what each means. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class FieldMeaning(StrEnum):
    """Meaning of another system's field: the field of a manifest that takes it, or that none does."""

    NAME = "metadata.name"
    LABELS = "metadata.labels"
    POOL = "metadata.pool"
    BASE = "spec.baseModel"
    SOURCE = "spec.source.uri"
    CREDENTIAL = "spec.credentials"
    REPLICAS = "spec.placement.replicas"
    ENABLED = "left out where it is false"
    PASSED = "passed over"
    UNMAPPED = "does not map"


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field of another system.

    Attributes:
        path: keys with dots between them, ``[]`` for each item of a list; below the item where the shape has items.
        meaning: of several with one meaning, the first that is there counts.
        remark: what to know of it; where it does not map, what to do instead.
        only: values besides which one that is passed over keeps its adapter out; with which one that does not map needs
            no word. Empty: any, or none.
    """

    path: str
    meaning: FieldMeaning
    remark: str = ""
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportShape:
    """One form in which a system writes its adapters.

    Attributes:
        rows: its fields. What has no row does not map.
        kind: of a Kubernetes object; empty: it is none, and `root` is its first key.
        group: of that object's apiVersion; empty: the core's.
        root: the key by which a file that is no object is known.
        items: path of the list that has the adapters; empty: a document is one adapter.
        gone: path of the list of those that are to go; empty: there is none.
        embedded: the object's `data` has a text of the shape with this root.
        lists: the keys of `data` whose text is a list in YAML.
    """

    rows: tuple[FieldRow, ...]
    kind: str = ""
    group: str = ""
    root: str = ""
    items: str = ""
    gone: str = ""
    embedded: str = ""
    lists: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportKind:
    """A system that adapters come from.

    Attributes:
        name: as the command line has it.
        system: its name for people, with the record that is read.
        shapes: the forms that its records have.
        get: a command that prints them; empty: a file of one's own is read.
        remarks: what else to know who comes from there, a sentence each.
        files: it is a folder with a folder for each adapter, in which these are read; empty: it is not.
    """

    name: str
    system: str
    shapes: tuple[ImportShape, ...]
    get: str = ""
    remarks: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportChoices:
    """Choices of whoever imports.

    Attributes:
        pool: for all adapters; None: it follows from their base.
        pools: of a base model's adapters, by its name.
        source: of adapters that say none, ``{name}`` standing for theirs; None: they cannot be had.
        rewrites: beginnings of sources, and what to put in their place.
    """

    pool: str | None = None
    pools: Mapping[str, str] | None = None
    source: str | None = None
    rewrites: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """Outcome of an import.

    Attributes:
        manifests: plain values, each with the place that it was read from.
        gone: pool and name of adapters that are to be deleted.
        notes: a line for each field that does not map, and for each adapter that is left out.
    """

    manifests: tuple[tuple[dict[str, object], str], ...]
    gone: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
