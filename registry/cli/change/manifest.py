"""Strict reader of manifests: YAML documents into adapters and pools. Pure.

No key may stand twice, and no word becomes a boolean by surprise.

Every complaint names the file, the document, the path of the field, and what to do about it.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, create_model
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from registry.model.errors import InvalidArgument, Reason
from registry.model.messages import Plain, spec_dict, spec_message
from registry.model.records import AdapterSpec, Labels
from registry.model.stored import Part, fields_at, model_in
from registry.v1 import registry_pb2 as pb

# The parser written in C is ten times faster, but not in every build of PyYAML.
_Base: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: `number` counts from 1, `line` is where it starts."""

    file: str
    number: int
    line: int
    content: object

    @property
    def place(self) -> str:
        return f"{self.file}: document {self.number} (line {self.line})"


_TEXT = "tag:yaml.org,2002:str"


class _TooDeep(Exception):
    """Something is nested so deeply that the parser, which recurses in C, would crash further on."""


class _Loader(_Base):  # type: ignore[misc, valid-type]
    """Safe, refuses a key that stands twice, and reads only true and false as booleans: `remap: off` is text."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in _Base.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    # The parser calls these two for tags that hang on where a node stands, of which there are none here.
    def descend_resolver(self, _parent: yaml.Node | None, _index: object) -> None:
        """Counts how deep the parser is, as it goes into a node. Raises _TooDeep."""
        self._depth += 1
        if self._depth > _MAX_DEPTH + 1:  # the innermost is a value
            raise _TooDeep

    def ascend_resolver(self) -> None:
        """Counts the same, as the parser leaves a node."""
        self._depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """A value. What looks like a date or a number, and is none, is refused with its place."""
        if node.tag == _TEXT and isinstance(node, yaml.ScalarNode):
            return node.value  # most of a manifest is text, and the way through all constructors is long
        try:
            value: object = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            what = node.tag.rpartition(":")[2]
            problem = f"this is written as a {what}, and is none; put text in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error
        return value


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Hashable, object]:
    _check_keys(node)
    return {key.value: loader.construct_object(value, deep=True) for key, value in node.value}


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT:
            raise yaml.MarkedYAMLError(problem="a key must be text; put it in quotes", problem_mark=key.start_mark)
        if key.value in seen:
            raise yaml.MarkedYAMLError(
                problem=f"the key {key.value!r} stands twice; remove one", problem_mark=key.start_mark
            )
        seen.add(key.value)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")


def read_documents(text: str, file: str) -> list[Document]:
    """All documents of `text` that hold something. `file` names it in messages.

    Raises:
        InvalidArgument: it is not YAML, a key stands twice, or there is no document in it.
    """
    documents = [one for one in _documents(text, file) if one.content is not None]
    if not documents:
        raise InvalidArgument(
            Reason.INVALID_MANIFEST,
            "is empty; write at least one document with apiVersion, kind, metadata and spec",
            field=file,
        )
    return documents


def _documents(text: str, file: str) -> Iterator[Document]:
    number = 1
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            yield Document(file, number, node.start_mark.line + 1, loader.construct_document(node))
            number += 1
    except yaml.YAMLError as error:
        raise InvalidArgument(Reason.INVALID_MANIFEST, _problem(error), field=_place(file, number, error)) from error
    except _TooDeep as error:
        message = "is nested too deeply; make it flatter"
        raise InvalidArgument(Reason.INVALID_MANIFEST, message, field=file) from error


def _place(file: str, number: int, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{file}: document {number}{where}"


def _problem(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
    remedy = "; indent with spaces, and put text that begins with a sign in quotes" if "any token" in problem else ""
    return " ".join(f"not a YAML manifest: {problem}{remedy}".split())


API_VERSION = "loraplane/v1"
_SHOWN_PROBLEMS = 5
ModelT = TypeVar("ModelT", bound=BaseModel)


def manifest_name(field: str) -> str:
    """Name in a manifest of a field of the record: ``baseModel`` for ``base_model``; seconds are not said."""
    return to_camel(field.removesuffix("_seconds"))


def _not_in_spec(_labels: object) -> object:
    raise PydanticCustomError("elsewhere", "labels stand in metadata; move them there")


class ManifestSpec(AdapterSpec, defer_build=True):
    """Desired state of an adapter; its labels stand in the metadata."""

    labels: Annotated[Labels, BeforeValidator(_not_in_spec)] = Field(default={}, exclude=True)


class Metadata(Part, defer_build=True):
    """Identity of the adapter."""

    name: str
    pool: str
    labels: Labels = {}


class Manifest(Part, defer_build=True):
    """One adapter as a file describes it."""

    api_version: Literal["loraplane/v1"]
    kind: Literal["Adapter"]
    metadata: Metadata
    spec: ManifestSpec

    def message(self) -> pb.Adapter:
        """The message that it describes."""
        spec = spec_message(self.spec.model_copy(update={"labels": self.metadata.labels}))
        return pb.Adapter(name=self.metadata.name, pool=self.metadata.pool, spec=spec)


def _as_written(kind: type[ModelT]) -> type[ModelT]:
    """The same model with a manifest's names for its fields, and without any that this release does not know."""
    changed: dict[str, Any] = {
        name: (field.annotation and _replaced(field.annotation, inner), field)
        for name, field in kind.model_fields.items()
        if (inner := model_in(field.annotation)) is not None
    }
    # Of all these models one is used by itself, and what is not used is not built.
    strict = {"extra": "forbid", "alias_generator": manifest_name, "defer_build": True}
    return create_model(kind.__name__, __base__=kind, __cls_kwargs__=strict, __doc__=kind.__doc__, **changed)


def _replaced(annotation: Any, inner: type[BaseModel]) -> Any:  # noqa: ANN401 - a type, one that may be left out, a list
    written = _as_written(inner)
    if get_origin(annotation) is list:
        return list[written]  # type: ignore[valid-type] # a type that is made here
    return written if annotation is inner else written | None


_WRITTEN = _as_written(Manifest)


def manifest_schema() -> Plain:
    """The JSON schema of a manifest, for editors and `explain`; what takes nothing but null also may be left out."""
    schema = _WRITTEN.model_json_schema(by_alias=True)
    del schema["$defs"]["ManifestSpec"]["properties"]["labels"]  # they stand in the metadata
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "LoraPlane manifest"}


def manifest_dict(adapter: pb.Adapter) -> Plain:
    """The manifest that makes this adapter what it is; what has its default is left out."""
    spec = spec_dict(adapter.spec)
    labels = spec.pop("labels")
    metadata = {"name": adapter.name, "pool": adapter.pool, **({"labels": labels} if labels else {})}
    return {"apiVersion": API_VERSION, "kind": "Adapter", "metadata": metadata, "spec": _said(ManifestSpec, spec)}


def _said(kind: type[BaseModel], values: Mapping[str, Any]) -> Plain:
    """Values of a record under a manifest's names for their fields, without those that need not be said."""
    said: Plain = {}
    for name, value in values.items():
        field = kind.model_fields[name]
        inner = model_in(field.annotation)
        written = _said_of(inner, value) if inner is not None and value is not None else value
        if field.is_required() or written not in (None, {}, [], field.default):
            said[manifest_name(name)] = written
    return said


def _said_of(kind: type[BaseModel], value: Any) -> object:  # noqa: ANN401 - what the field of such a model holds
    return [_said(kind, one) for one in value] if isinstance(value, list) else _said(kind, value)


@dataclass(frozen=True, slots=True)
class Placed:
    """A manifest and where it stands, e.g. ``adapters.yaml: document 2 (line 14)``."""

    manifest: Manifest
    place: str


def read_manifests(text: str, file: str) -> list[Placed]:
    """All manifests of `text`. `file` names it in messages.

    Raises:
        InvalidArgument: any of them is not right; the field says where.
    """
    return [manifest_of(document.content, document.place) for document in read_documents(text, file)]


def manifest_of(content: object, place: str) -> Placed:
    """The manifest that plain values, as YAML or arguments give them, describe.

    Raises:
        InvalidArgument: it is not right; the field says where.
    """
    try:
        manifest = _WRITTEN.model_validate(content)
    except ValidationError as error:
        raise _complaint(place, _problems(error)) from error
    uri = manifest.spec.source.uri
    if uri.startswith("file:") and not uri.startswith("file:///"):
        message = "a file: URI must hold an absolute path, since replicas read it; write file:///absolute/path"
        raise _complaint(place, {"spec.source.uri": message})
    return Placed(manifest, place)


def check_unique(manifests: Iterable[Placed]) -> None:
    """Raises InvalidArgument if two manifests describe one adapter."""
    seen: dict[tuple[str, str], str] = {}
    for placed in manifests:
        name = placed.manifest.metadata.name
        first = seen.setdefault((placed.manifest.metadata.pool, name.lower()), placed.place)
        if first != placed.place:
            raise InvalidArgument(
                Reason.DUPLICATE_NAME,
                f"{name!r} is described in {first} already, and upper and lower case make no difference; remove one",
                field=f"{placed.place}: metadata.name",
            )


def _complaint(place: str, problems: Mapping[str, str]) -> InvalidArgument:
    (path, message), *others = list(problems.items())[:_SHOWN_PROBLEMS]
    rest = "".join(f"; also {path}: {phrase}" for path, phrase in others)
    left = len(problems) - 1 - len(others)
    more = f"; and {left} more" if left else ""
    return InvalidArgument(Reason.INVALID_MANIFEST, f"{message}{rest}{more}", field=f"{place}: {path}")


def _problems(error: ValidationError) -> dict[str, str]:
    """Faults of each field, by its path."""
    problems: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        loc = problem["loc"]
        fields = list(fields_at(_WRITTEN, loc))
        remedy = (fields[-1].description if fields else None) or problem["msg"]
        is_choice = len(loc) > len(fields) and _takes_several_types(fields)
        path = ".".join(map(str, loc[: len(fields)] if is_choice else loc)) or "the document"
        problems.setdefault(path, remedy if is_choice else _phrase(problem, fields, remedy))
    return problems


def _takes_several_types(fields: Sequence[FieldInfo]) -> bool:
    """True if the last of some fields takes values of several types, of each of which pydantic complains."""
    annotation = fields[-1].annotation if fields else None
    return get_origin(annotation) in {Union, UnionType} and model_in(annotation) is None


def _phrase(problem: ErrorDetails, fields: Sequence[FieldInfo], remedy: str) -> str:
    found = _yaml_type(problem["input"])
    match problem["type"]:
        case "missing":
            return "is missing; add it"
        case "extra_forbidden":
            return _unknown_field(str(problem["loc"][-1]), fields)
        case "string_type":
            return f"must be text, found {found}; put it in quotes"
        case "int_type":
            return f"found {found}; {remedy}"
        case "literal_error":
            return f"must be {problem['ctx']['expected']}, found {reprlib.repr(problem['input'])}"
        case "model_type" | "dict_type":
            return f"must be a mapping (key: value), found {found}"
        case "elsewhere":
            return problem["msg"]
        case _:
            return remedy


def _yaml_type(value: object) -> str:
    names: Mapping[type, str] = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
        type(None): "nothing",
    }
    return names.get(type(value), f"a {type(value).__name__}")


def _unknown_field(name: str, fields: Sequence[FieldInfo]) -> str:
    section = (model_in(fields[-1].annotation) if fields else None) or _WRITTEN
    known = [manifest_name(one) for one, field in section.model_fields.items() if not field.exclude]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
    return f"unknown field; {hint}"
