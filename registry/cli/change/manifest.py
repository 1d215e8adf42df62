"""Strict reader of manifests: documents into adapters. Pure.

Every complaint names the file, the document, the path of the field, and what to do about it.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_origin

from google.protobuf.message import Message
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, WithJsonSchema, create_model
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from registry.cli.change.replica_range import schema_with_range, with_range, without_range
from registry.formats.documents import read_documents
from registry.model.errors import InvalidArgument, Reason
from registry.model.messages import Plain, spec_dict, spec_message
from registry.model.records import MAX_TTL_SECONDS, MIN_TTL_SECONDS, AdapterSpec, Labels
from registry.model.stored import Part, fields_at, model_in
from registry.runtime.clock import SPAN_PATTERN, seconds_of, span_text
from registry.v1 import registry_pb2 as pb

API_VERSION = "loraplane/v1"
_SHOWN_PROBLEMS = 5
ModelT = TypeVar("ModelT", bound=BaseModel)


def manifest_name(field: str) -> str:
    """Name in a manifest of a field of the record: ``baseModel`` for ``base_model``; seconds are not said."""
    return to_camel(field.removesuffix("_seconds"))


def _not_in_spec(_labels: object) -> object:
    raise PydanticCustomError("elsewhere", "labels stand in metadata; move them there")


def _as_seconds(ttl: object) -> object:
    return seconds_of(ttl) if isinstance(ttl, str) else ttl


_TTL = Annotated[int, Field(ge=MIN_TTL_SECONDS, le=MAX_TTL_SECONDS)]
_SECONDS = {"type": "integer", "minimum": MIN_TTL_SECONDS, "maximum": MAX_TTL_SECONDS}


class ManifestSpec(AdapterSpec, defer_build=True):
    """Desired state of an adapter; its labels stand in the metadata, and its time to live is a span."""

    labels: Annotated[Labels, BeforeValidator(_not_in_spec)] = Field(default={}, exclude=True)
    ttl_seconds: Annotated[
        _TTL | None,
        BeforeValidator(_as_seconds),
        WithJsonSchema({"anyOf": [{"type": "string", "pattern": SPAN_PATTERN}, _SECONDS, {"type": "null"}]}),
    ] = Field(
        title="Time after its last change until it is deleted; without one it stays",
        default=None,
        description=f"write a number and s, m, h or d, such as 7d, from {MIN_TTL_SECONDS}s to "
        f"{span_text(MAX_TTL_SECONDS)}, or leave it out: then it never ends",
    )


class Metadata(Part, defer_build=True):
    """Identity of the adapter."""

    name: str = Field(title="Name by which requests call it; a part before / is its tenant")
    pool: str = Field(title="Pool of replicas that serve it")
    labels: Labels = Field(default={}, title="Labels by which commands select adapters")


class Manifest(Part, defer_build=True):
    """One adapter as a file describes it."""

    api_version: Literal["loraplane/v1"] = Field(title="Version of this form")
    kind: Literal["Adapter"] = Field(title="Kind of thing that is described")
    metadata: Metadata = Field(title="Identity of the adapter")
    spec: ManifestSpec = Field(title="Desired state of the adapter")

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
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "LoraPlane manifest"}
    return schema_with_range(whole)


def manifest_dict(adapter: pb.Adapter) -> Plain:
    """The manifest that makes this adapter what it is; what has its default is left out."""
    spec = spec_dict(adapter.spec)
    labels = spec.pop("labels")
    if adapter.spec.ttl_seconds > 0:
        spec["ttl_seconds"] = span_text(adapter.spec.ttl_seconds)
    metadata = {"name": adapter.name, "pool": adapter.pool, **({"labels": labels} if labels else {})}
    written = with_range(_said(ManifestSpec, spec))
    return {"apiVersion": API_VERSION, "kind": "Adapter", "metadata": metadata, "spec": written}


def keep_unknown(before: Message, after: Message) -> None:
    """Gives a message the fields of another that this release does not know: a manifest cannot have them."""
    unknown = deepcopy(before)
    for field in before.DESCRIPTOR.fields:
        unknown.ClearField(field.name)
        if field.message_type is not None and not field.is_repeated and has_unknown(getattr(before, field.name)):
            keep_unknown(getattr(before, field.name), getattr(after, field.name))
    after.MergeFrom(unknown)


def has_unknown(message: Message) -> bool:
    """True if a message has fields that this release does not know, at any depth."""
    known = deepcopy(message)
    known.DiscardUnknownFields()
    return known != message


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
    content, problems = without_range(content)
    if problems:
        raise _complaint(place, problems)
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
    written = (one for one, field in section.model_fields.items() if not field.exclude and one != "by_load")
    known = [manifest_name(one) for one in written]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
    return f"unknown field; {hint}"
