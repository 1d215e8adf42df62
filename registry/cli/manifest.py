"""Manifests: what a user writes in a file, read strictly. Pure.

Every complaint names the file, the document, the path of the field, and what to do about it.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from registry.cli.yaml_documents import read_documents
from registry.errors import InvalidArgument, Reason
from registry.lora.signatures import SIGNATURE_PATTERN

API_VERSION = "loraplane/v1"
_SHOWN_PROBLEMS = 5
_ABSOLUTE_FILE = re.compile(r"file:///[^/\s]\S*")
_SHARE = re.compile(r"([1-9][0-9]?|100)%")
_URI = re.compile(r"[a-z][a-z0-9+.-]*://\S+")
_SIGNATURE = re.compile(SIGNATURE_PATTERN)
# What messages take; within that the admin service says what is too much.
_MOST = 2**31 - 1


def _check_uri(uri: str) -> str:
    if uri.startswith("file:") and not _ABSOLUTE_FILE.fullmatch(uri):
        raise PydanticCustomError(
            "uri", "a file: URI must hold an absolute path, since replicas read it; write file:///absolute/path"
        )
    if not _URI.fullmatch(uri):
        raise PydanticCustomError("uri", "must be a URI with a scheme; for a folder write file:///absolute/path")
    return uri


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


def _check_replicas(value: object) -> object:
    if value != "all" and not _is_whole(value, 1):
        raise PydanticCustomError("replicas", "must be all, or a whole number from 1 to 10000")
    return value


def _check_canaries(value: object) -> object:
    if not _is_whole(value, 1) and not (isinstance(value, str) and _SHARE.fullmatch(value)):
        raise PydanticCustomError("canaries", 'must be a whole number from 1 to 10000, or a share from "1%" to "100%"')
    return value


def _check_failures(value: object) -> object:
    if not _is_whole(value, 0):
        raise PydanticCustomError("failures", "must be a whole number from 0 to 10000")
    return value


def _check_soak(value: object) -> object:
    if not _is_whole(value, 0):
        raise PydanticCustomError("soak", "must be a whole number of seconds from 0 to 604800, which is a week")
    return value


def _check_priority(value: int) -> int:
    if not _is_whole(value, -_MOST):
        raise PydanticCustomError("priority", "must be a whole number from -1000 to 1000")
    return value


def _check_signature(signature: str) -> str:
    if not _SIGNATURE.fullmatch(signature):
        raise PydanticCustomError("signature", "must be what loraplane sign prints; leave it out to sign nothing")
    return signature


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Source(_Strict):
    """Where the adapter's files are."""

    uri: Annotated[str, AfterValidator(_check_uri)]
    digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    signature: Annotated[str, AfterValidator(_check_signature)] | None = None


class Placement(_Strict):
    """On how many replicas it is served, and which labels these must have."""

    replicas: Annotated[Literal["all"] | int, BeforeValidator(_check_replicas)] = "all"
    selector: dict[str, str] = {}


class Canary(_Strict):
    """How many replicas take new weights first."""

    replicas: Annotated[int | str, BeforeValidator(_check_canaries)]


class Strategy(_Strict):
    """How new weights come to its replicas. `soak` in seconds."""

    canary: Canary
    promote: Literal["auto", "manual"] = "auto"
    max_failures: Annotated[int, BeforeValidator(_check_failures)] = Field(default=0, alias="maxFailures")
    soak: Annotated[int, BeforeValidator(_check_soak)] = 60


class Prepare(_Strict):
    """What may be done to its files."""

    remap: Literal["auto", "off"] = "auto"
    vision: Literal["reject", "drop", "keep"] = "reject"
    dora: Literal["reject", "strip"] = "reject"


class Spec(_Strict):
    """What is wanted of an adapter."""

    source: Source
    load: Literal["eager", "lazy"] = "eager"
    priority: Annotated[int, AfterValidator(_check_priority)] = 0
    placement: Placement = Placement()
    prepare: Prepare = Prepare()
    base_model: str | None = Field(default=None, alias="baseModel")
    credentials: str | None = None
    strategy: Strategy | None = None


class Metadata(_Strict):
    """Which adapter it is."""

    name: str
    pool: str
    labels: dict[str, str] = {}


class Manifest(_Strict):
    """One adapter as a file describes it."""

    api_version: Literal["loraplane/v1"] = Field(alias="apiVersion")
    kind: Literal["Adapter"]
    metadata: Metadata
    spec: Spec


_SECTIONS: Mapping[tuple[int | str, ...], type[BaseModel]] = {
    (): Manifest,
    ("metadata",): Metadata,
    ("spec",): Spec,
    ("spec", "source"): Source,
    ("spec", "placement"): Placement,
    ("spec", "prepare"): Prepare,
    ("spec", "strategy"): Strategy,
    ("spec", "strategy", "canary"): Canary,
}


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
        return Placed(Manifest.model_validate(content), place)
    except ValidationError as error:
        raise _complaint(place, error.errors(include_url=False)) from error


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


def _complaint(place: str, problems: list[ErrorDetails]) -> InvalidArgument:
    told = [(_path(problem), _phrase(problem)) for problem in problems[:_SHOWN_PROBLEMS]]
    (path, message), *others = told
    rest = "".join(f"; also {path}: {phrase}" for path, phrase in others)
    more = f"; and {len(problems) - len(told)} more" if len(problems) > len(told) else ""
    return InvalidArgument(Reason.INVALID_MANIFEST, f"{message}{rest}{more}", field=f"{place}: {path}")


def _path(problem: ErrorDetails) -> str:
    return ".".join(str(part) for part in problem["loc"]) or "the document"


def _phrase(problem: ErrorDetails) -> str:
    found = _yaml_type(problem["input"])
    match problem["type"]:
        case "missing":
            return "is missing; add it"
        case "extra_forbidden":
            return _unknown_field(problem["loc"])
        case "string_type":
            return f"must be text, found {found}; put it in quotes"
        case "int_type":
            return f"must be a whole number, found {found}"
        case "literal_error":
            return f"must be {problem['ctx']['expected']}, found {reprlib.repr(problem['input'])}"
        case "model_type" | "dict_type":
            return f"must be a mapping (key: value), found {found}"
        case "string_pattern_mismatch":
            return "must be sha256: and 64 hexadecimal digits; leave it out to pin nothing"
        case _:
            return problem["msg"]


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


def _unknown_field(loc: tuple[int | str, ...]) -> str:
    known = _known_fields(loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
    return f"unknown field; {hint}"


def _known_fields(section: tuple[int | str, ...]) -> list[str]:
    return [field.alias or name for name, field in _SECTIONS[section].model_fields.items()]
