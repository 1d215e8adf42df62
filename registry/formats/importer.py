"""Importer: documents of another system into manifests. Pure.

The table of the kinds says what a field means (`registry.formats.kinds`), so a field that it does not know cannot get
lost without a word: a document is walked whole, and what no row takes is told by its path. No value of a field that
does not map is told, since it may be a secret. What `apply` would refuse is left out, and told too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from registry.formats.addresses import SourceLeavesTree, source_of
from registry.formats.documents import Document, read_documents
from registry.formats.shapes import FieldMeaning, FieldRow, ImportChoices, Imported, ImportKind, ImportShape
from registry.model.errors import InvalidArgument, Reason
from registry.model.names import check_adapter_name, check_segment, name_key
from registry.model.source_uri import SourceUriError

_API_VERSION = "loraplane/v1"
_LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_MAX_LABELS, _MAX_LABEL_CHARACTERS = 64, 256
_MAX_REPLICAS = 10_000
_LABEL_FORM = "at most 64 labels, keys of 63 characters, values of 256"
_UNKNOWN = "no field of a manifest takes it"
_TYPES: Mapping[type, str] = {str: "text", bool: "true or false", int: "a whole number", dict: "a mapping"}
_WANTED: Mapping[FieldMeaning, type] = {
    FieldMeaning.LABELS: dict,
    FieldMeaning.REPLICAS: int,
    FieldMeaning.ENABLED: bool,
}


_TAKEN = frozenset(FieldMeaning) - {FieldMeaning.PASSED, FieldMeaning.UNMAPPED}


@dataclass(slots=True)
class _Record:
    """Fields of one adapter, or of all of a document: the value of each meaning, and what does not map.

    `ranks`: where in the table the row of a value stands; the first row of a meaning counts.
    """

    place: str
    values: dict[FieldMeaning, object] = field(default_factory=dict)
    ranks: dict[FieldMeaning, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hindrance: str = ""

    def take(self, row: FieldRow, rank: int, path: str, value: object) -> None:
        """Takes the value of a field. Raises InvalidArgument: it is of another type."""
        if row.meaning is FieldMeaning.UNMAPPED and value not in row.only:
            self.notes.append(f"{self.place}: {path}: does not map: {row.remark or _UNKNOWN}")
        elif row.meaning is FieldMeaning.PASSED and row.only and value not in row.only:
            self.hindrance = f"{path}: only {' and '.join(row.only)} can be imported"
        elif row.meaning in _TAKEN and value is not None and value != "":
            wanted = _WANTED.get(row.meaning, str)
            if type(value) is not wanted:
                raise _wrong(f"{self.place}: {path}", f"must be {_TYPES[wanted]}, found {_type_name(value)}")
            if rank <= self.ranks.get(row.meaning, rank):
                self.values[row.meaning], self.ranks[row.meaning] = value, rank

    def text(self, meaning: FieldMeaning) -> str:
        """The text of a meaning; empty: it is not said."""
        return str(self.values.get(meaning, ""))

    @property
    def name(self) -> str:
        """The adapter's name. Raises InvalidArgument: it has none."""
        if name := self.text(FieldMeaning.NAME):
            return name
        raise _wrong(self.place, "an adapter has no name; give it one")


def _wrong(where: str, message: str, reason: Reason = Reason.INVALID_MANIFEST) -> InvalidArgument:
    return InvalidArgument(reason, message, field=where)


def _type_name(value: object) -> str:
    return _TYPES.get(type(value), "a list" if isinstance(value, list) else f"a {type(value).__name__}")


def import_text(kind: ImportKind, text: str, file: str, choices: ImportChoices) -> Imported:
    """The manifests that documents stand for.

    Raises:
        InvalidArgument: a document is of another kind, a field has another type, an adapter stands twice, a path leads
            out of its tree, or no adapter has a pool; the field says where.
    """
    found = [(one.content, one.place) for one in read_documents(text, file)]
    return import_documents(kind, [pair for one in found for pair in _objects(*one)], choices)


def import_documents(kind: ImportKind, documents: Sequence[tuple[object, str]], choices: ImportChoices) -> Imported:
    """The same of documents that were read already, each with its place."""
    records: list[_Record] = []
    gone: list[_Record] = []
    notes: list[str] = []
    for content, place in documents:
        shape, value, where = _shaped(kind, content, place)
        shared = _Record(where)
        _collect(shared, shape, value, "", "")
        notes += shared.notes if shape.items else ()
        records += _items(shape, shape.items, value, shared)
        gone += _items(shape, shape.gone, value, shared) if shape.gone else ()
    return _imported(records, gone, notes, choices)


def _objects(content: object, place: str) -> Iterator[tuple[object, str]]:
    """A document, or the items of a list of Kubernetes objects."""
    kind = content.get("kind") if isinstance(content, dict) else None
    if isinstance(content, dict) and str(kind).endswith("List") and isinstance(content.get("items"), list):
        yield from ((one, f"{place}: items[{number}]") for number, one in enumerate(content["items"]))
    else:
        yield content, place


def _shaped(kind: ImportKind, content: object, place: str) -> tuple[ImportShape, object, str]:
    """The shape that a document has, its content, and its place."""
    if not isinstance(content, dict):
        raise _wrong(place, f"must be a mapping, found {_type_name(content)}; expected {kind.system}")
    for shape in kind.shapes:
        if shape.kind and content.get("kind") == shape.kind and _group(content) == shape.group:
            return _opened(kind, shape, content, place)
        if shape.root and shape.root in content:
            return shape, content, place
    found = f"of the kind {content['kind']!r}" if isinstance(content.get("kind"), str) else "of no kind that is known"
    raise _wrong(place, f"is {found[:100]}, expected {kind.system}; loraplane import --help lists the others")


def _group(content: Mapping[str, object]) -> str:
    group, slash, _ = str(content.get("apiVersion", "")).partition("/")
    return group if slash else ""


def _opened(
    kind: ImportKind, shape: ImportShape, content: dict[str, object], place: str
) -> tuple[ImportShape, object, str]:
    """A ConfigMap with what its texts hold."""
    data = content.get("data")
    if not (shape.embedded or shape.lists):
        return shape, content, place
    if not isinstance(data, dict):
        raise _wrong(f"{place}: data", "is missing; give the ConfigMap whole, with -o yaml")
    read = {key: _read(value, f"{place}: data.{key}") for key, value in data.items()}
    if shape.lists:
        lists = {key: [_item(item) for item in _list(read.get(key), f"{place}: data.{key}")] for key in shape.lists}
        return shape, {**content, "data": {**data, **lists}}, place
    for key, value in read.items():
        if isinstance(value, dict) and shape.embedded in value:
            (inner,) = (one for one in kind.shapes if one.root == shape.embedded)
            return inner, value, f"{place}: data.{key}"
    raise _wrong(f"{place}: data", f"has no text with the key {shape.embedded}; expected {kind.system}")


def _read(value: object, where: str) -> object:
    """The YAML in a text."""
    if not isinstance(value, str):
        raise _wrong(where, f"must be text, found {_type_name(value)}")
    documents: list[Document] = read_documents(value, where) if value.strip() else []
    return documents[0].content if documents else None


def _list(value: object, where: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(where, f"must be a list, found {_type_name(value)}")
    return value


def _item(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


def _items(shape: ImportShape, path: str, content: object, shared: _Record) -> Iterator[_Record]:
    """A record for each item of a list, with what is said of all; without a list, of the document itself."""
    if not path:
        yield shared
        return
    for key in path.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    for number, item in enumerate(_list(content, f"{shared.place}: {path}")):
        own = _Record(shared.place)
        if not isinstance(item, dict):
            raise _wrong(f"{shared.place}: {path}[{number}]", f"must be a mapping, found {_type_name(item)}")
        _collect(own, shape, item, f"{path}[]", f"{path}[{number}]")
        own.values = {**shared.values, **own.values}
        yield own


def _collect(record: _Record, shape: ImportShape, value: object, pattern: str, path: str) -> None:
    """Takes every field below a path, down to the ones that the table has or that nothing below is of it."""
    if pattern in {shape.items, shape.gone} and pattern:
        return  # each item has a record of its own
    if isinstance(value, dict) and any(row.path.startswith(f"{pattern}." if pattern else "") for row in shape.rows):
        for key, inner in value.items():
            dot = "." if pattern else ""
            _collect(record, shape, inner, f"{pattern}{dot}{key}", f"{path}{dot}{key}")
        return
    rank, row = next(((rank, row) for rank, row in enumerate(shape.rows) if row.path == pattern), (0, None))
    record.take(row or _above(shape, pattern), rank, path, value)


def _above(shape: ImportShape, pattern: str) -> FieldRow:
    """The row of the nearest field above, which speaks for what has none: it passes it over, or says a remedy."""
    above = [
        row
        for row in shape.rows
        if pattern.startswith(f"{row.path}.") and row.meaning in {FieldMeaning.PASSED, FieldMeaning.UNMAPPED}
    ]
    return max(above, key=lambda row: len(row.path), default=FieldRow(pattern, FieldMeaning.UNMAPPED))


def _imported(
    records: Sequence[_Record], gone: Sequence[_Record], notes: list[str], choices: ImportChoices
) -> Imported:
    leaving = {_key(one, choices): one for one in gone}
    seen: dict[tuple[str, str], str] = {}
    manifests: list[tuple[dict[str, object], str]] = []
    for one in records:
        notes += one.notes
        try:
            manifest = _manifest(one, choices, notes, leaving)
        except _LeftOut as error:
            notes.append(_left_out(one, f"{error}"))
            continue
        key = _key(one, choices)
        if key in seen:
            message = f"{one.name!r} is described in {seen[key]} already; remove one"
            raise _wrong(one.place, message, Reason.DUPLICATE_NAME)
        seen[key] = one.place
        manifests.append((manifest, one.place))
    away = _away(leaving, records, choices, notes) if leaving else ()
    return Imported(tuple(manifests), tuple(away), tuple(notes))


def _away(
    leaving: Mapping[tuple[str, str], _Record], records: Sequence[_Record], choices: ImportChoices, notes: list[str]
) -> Iterator[tuple[str, str]]:
    """Pool and name of what is to go and is not also to be there. Of what can be nowhere here a note is made."""
    wanted = {_key(one, choices) for one in records}
    for key, one in leaving.items():
        try:
            check_adapter_name(one.name)
        except InvalidArgument as error:
            notes.append(_left_out(one, error.message))
            continue
        if key not in wanted:
            yield key[0], one.name


def _left_out(one: _Record, why: str) -> str:
    return f"{one.place}: {one.name!r} is left out: {why}"


class _LeftOut(Exception):
    """An adapter cannot be had as it is; the message says why, and what to do."""


def _manifest(
    one: _Record, choices: ImportChoices, notes: list[str], leaving: Collection[tuple[str, str]]
) -> dict[str, object]:
    """The manifest of one adapter. Raises _LeftOut: it is not to be there, or `apply` would refuse it."""
    if leaving and _key(one, choices) in leaving:
        raise _LeftOut("it is to be there, and not to be there")
    if one.hindrance or one.values.get(FieldMeaning.ENABLED) is False:
        raise _LeftOut(one.hindrance or "it is switched off there")
    spec: dict[str, object] = {"source": {"uri": _uri(one, choices)}}
    for key, meaning in (("baseModel", FieldMeaning.BASE), ("credentials", FieldMeaning.CREDENTIAL)):
        if text := one.text(meaning):
            spec[key] = text
    if FieldMeaning.REPLICAS in one.values:
        spec["placement"] = {"replicas": _replicas(one)}
    metadata: dict[str, object] = {"name": one.name, "pool": _pool(one, choices)}
    if labels := _labels(one, notes):
        metadata["labels"] = labels
    return {"apiVersion": _API_VERSION, "kind": "Adapter", "metadata": metadata, "spec": spec}


def _uri(one: _Record, choices: ImportChoices) -> str:
    try:
        check_adapter_name(one.name)
        return source_of(_source(one, choices), choices.rewrites or {})
    except InvalidArgument as error:
        raise _LeftOut(error.message) from error
    except SourceUriError as error:
        raise _LeftOut(f"its source: {error}") from error
    except SourceLeavesTree as error:
        raise _wrong(f"{one.place}: {one.name}", str(error)) from error


def _source(one: _Record, choices: ImportChoices) -> str:
    if said := one.text(FieldMeaning.SOURCE):
        return said
    if choices.source is None:
        raise _LeftOut("it says no source; --source 'file:///adapters/{name}' says where the files are")
    return choices.source.replace("{name}", one.name)


def _replicas(one: _Record) -> int:
    number = one.values[FieldMeaning.REPLICAS]
    if not isinstance(number, int) or not 1 <= number <= _MAX_REPLICAS:
        raise _LeftOut(f"its number of replicas is not from 1 to {_MAX_REPLICAS}")
    return number


def _labels(one: _Record, notes: list[str]) -> dict[str, str]:
    """The labels that a manifest takes; of the others a note is made."""
    found = one.values.get(FieldMeaning.LABELS)
    kept: dict[str, str] = {}
    for key, value in found.items() if isinstance(found, dict) else ():
        fits = isinstance(value, str) and len(value) <= _MAX_LABEL_CHARACTERS and _LABEL_KEY.fullmatch(key)
        if fits and len(kept) < _MAX_LABELS:
            kept[key] = value
        else:
            notes.append(f"{one.place}: metadata.labels.{key}: does not map: {_LABEL_FORM}")
    return kept


def _key(one: _Record, choices: ImportChoices) -> tuple[str, str]:
    """Pool and key of an adapter. Raises InvalidArgument: it has no name, or no pool."""
    key = name_key(one.name)
    return _pool(one, choices), key


def _pool(one: _Record, choices: ImportChoices) -> str:
    """The pool of an adapter. Raises InvalidArgument: none is said, and none follows."""
    base = one.text(FieldMeaning.BASE)
    pool = choices.pool or (choices.pools or {}).get(base) or one.text(FieldMeaning.POOL) or _pool_named_after(base)
    try:
        check_segment(pool, field="--pool")
    except InvalidArgument as error:
        message = "no pool is said, and none follows from a base model; give --pool POOL, or --pool-of BASE=POOL"
        raise _wrong(one.place, message) from error
    return pool


def _pool_named_after(base: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", base.rpartition("/")[2].lower()).strip("-._")
