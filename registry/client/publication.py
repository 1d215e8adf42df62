"""Settings of an adapter that a program publishes, and the change that they make."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal

from registry.client.adapters import Canaries, strategy_of
from registry.lora.findings import UnfitAdapter, summary
from registry.model.errors import InvalidArgument, Reason
from registry.runtime.clock import seconds_of
from registry.v1 import registry_pb2 as pb


class Keep(Enum):
    """Type of `KEEP`."""

    KEEP = "as it is"

    def __repr__(self) -> str:
        return "KEEP"


# In place of a value: it stays as it is, and has its default where the adapter is new.
KEEP: Final = Keep.KEEP


@dataclass(frozen=True, slots=True)
class Upload:
    """A place of their own for a folder's files, to which they are copied before they are published.

    Attributes:
        to: a folder that the replicas see at the same path, or ``s3://``, ``gs://`` or ``az://BUCKET/KEY``.
        credentials: the file with credentials, as ``loraplane publish --credentials`` takes it; empty: none.
        credential: name of the one to write with; empty: none is shown.
    """

    to: str | os.PathLike[str]
    credentials: str | os.PathLike[str] = ""
    credential: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """An adapter as it is to be from now on, for a change set. What is `KEEP` stays as it is.

    Attributes:
        name: of the adapter; the part before a slash is the tenant.
        source: a directory that the replicas see at the same path, whose digest is computed and pinned; or a URI.
        upload: where the files of a directory are copied first, each version to a place of its own, which is then the
            source; None: the directory itself is.
        digest: manifest digest, ``sha256:`` and 64 hex digits; empty: not pinned where `source` is a URI.
        signature: over the digest, as ``loraplane sign`` prints it; empty: none.
        expect: what these weights have to answer, as ``loraplane expect -o json`` prints it; None: anything.
        base_model: that it was trained on; empty: not said.
        load: ``eager``, or ``lazy``: loaded at the first request.
        priority: higher is loaded first; -1000 to 1000.
        placement: ``{"replicas": 2, "selector": {"zone": "a"}}``, as in a manifest; ``{}``: all replicas.
        prepare: as in a manifest, such as ``{"vision": "drop"}``; ``{}``: the defaults.
        credentials: name of a credential that sidecars know; empty: none.
        labels: for people and filters; None: none.
        canaries: replicas that take new weights first; None: all take them at once.
        description: for people; empty: none.
        enabled: False: it is served nowhere, and all else of it is kept.
        ttl: so long after its last change it is deleted: ``"7d"``, seconds or a timedelta; None: never.
        ttl_from: ``use``: its ttl begins with its last use, where that is later; ``change``: with its last change.
        keep: so many of its generations are served as ``name@generation``, the newest included; None: the newest alone.
        replace: what is `KEEP` gets its default instead.
        etag: refuse unless the adapter has it; empty: no condition.
    """

    name: str
    source: str | os.PathLike[str]
    upload: str | os.PathLike[str] | Upload | None = None
    digest: str = ""
    signature: str = ""
    expect: Mapping[str, Any] | None = None
    base_model: str | Keep = KEEP
    load: Literal["eager", "lazy"] | Keep = KEEP
    priority: int | Keep = KEEP
    placement: Mapping[str, Any] | Keep = KEEP
    prepare: Mapping[str, Any] | Keep = KEEP
    credentials: str | Keep = KEEP
    labels: Mapping[str, str] | Keep | None = KEEP
    canaries: Canaries | Keep | None = KEEP
    description: str | Keep = KEEP
    enabled: bool | Keep = KEEP
    ttl: str | float | timedelta | Keep | None = KEEP
    ttl_from: Literal["change", "use"] | Keep = KEEP
    keep: int | Keep | None = KEEP
    replace: bool = False
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A deletion in a change set. `etag`: refuse unless the adapter has it; empty: no condition."""

    name: str
    etag: str = ""


def wire_of(change: Publication | Withdrawal) -> pb.AdapterChange:
    """One change of a change set. Raises as `change_of`."""
    if isinstance(change, Publication):
        return change_of(change)
    with fitting("name or etag"):
        return pb.AdapterChange(delete=change.name, etag=change.etag)


# Fields of a spec that belong to the weights: what is said of earlier ones does not hold for others.
_OF_WEIGHTS = ("source", "expect")
_FIELD_OF = {"canaries": "strategy", "ttl": "ttl_seconds"}
_KEEPABLE = [one.name for one in fields(Publication) if one.default is KEEP]


def change_of(publication: Publication) -> pb.AdapterChange:
    """The change that a publication is; reads a directory, copies it if wanted, and may take long.

    Raises:
        InvalidArgument: the directory holds no adapter, or a field cannot have such a value.
        RegistryError: see `registry.client.upload.uploading.uploaded`.
    """
    uri, pinned = _located(publication.source, publication.digest)
    if publication.upload is not None:
        uri = _uploaded(publication.source, publication.upload)
    with fitting("signature"):
        spec = pb.AdapterSpec(source=pb.Source(uri=uri, digest=pinned, signature=publication.signature))
    with fitting("expect"):
        spec.MergeFrom(pb.AdapterSpec(expect=publication.expect))
    given = [name for name in _KEEPABLE if getattr(publication, name) is not KEEP]
    for name in given:
        _put(spec, name, getattr(publication, name))
    with fitting("name"):
        adapter = pb.Adapter(name=publication.name, spec=spec)
    with fitting("etag"):
        change = pb.AdapterChange(etag=publication.etag)
    if publication.replace:
        change.upsert.CopyFrom(adapter)
        return change
    change.update.CopyFrom(adapter)
    paths = {*_OF_WEIGHTS, *(_FIELD_OF.get(name, name) for name in given)}
    if publication.ttl is None:
        paths.add("ttl_from")  # without a ttl nothing begins one
    change.update_mask.paths.extend(sorted(paths))
    return change


def _put(spec: pb.AdapterSpec, name: str, value: Any) -> None:  # noqa: ANN401 - each field has a type of its own
    """Gives a spec one of the fields that may be kept; None and empty values are its default."""
    with fitting(name):
        match name:
            case "labels":
                spec.labels.update(_labels(_mapping(value or {}, '{"team": "bi"}')))
            case "canaries":
                spec.MergeFrom(pb.AdapterSpec(strategy=_strategy(value)))
            case "placement":
                spec.placement.MergeFrom(_placement(**_mapping(value, '{"replicas": 2}', {"replicas", "selector"})))
            case "prepare":
                spec.prepare.MergeFrom(pb.Prepare(**_prepare(value)))
            case "ttl":
                spec.MergeFrom(pb.AdapterSpec(ttl_seconds=_seconds(value)))
            case "keep":
                spec.MergeFrom(pb.AdapterSpec(keep=value))
            case _:
                setattr(spec, name, _text(value) if isinstance(getattr(spec, name), str) else value)


def _mapping(value: Any, example: str, known: Collection[str] = ()) -> Mapping[str, Any]:  # noqa: ANN401
    """A mapping as it is. Raises as `fitting` takes it: it is none, or has a key that is not in `known`."""
    if not isinstance(value, Mapping):
        raise TypeError(f"write a mapping such as {example}, not {value!r}")
    if known and (unknown := [key for key in value if key not in known]):
        raise ValueError(f"{unknown[0]!r} is unknown; known here: {', '.join(sorted(known))}")
    return value


def _text(value: Any) -> str:  # noqa: ANN401
    """A text as it is. Raises TypeError: it is none."""
    if not isinstance(value, str):
        raise TypeError(f"write text, not {value!r}")
    return value


def each_of(values: Sequence[str]) -> Sequence[str]:
    """A list of texts as it is. Raises TypeError: it is one text, of which each letter would be one."""
    if isinstance(values, str | bytes):
        raise TypeError(f"write a list such as [{values!r}], not {values!r}")
    return values


def _strategy(canaries: Any) -> pb.Strategy | None:  # noqa: ANN401
    if canaries is not None and not isinstance(canaries, Canaries):
        raise ValueError(f"write Canaries(1), or None, not {canaries!r}")
    return strategy_of(canaries) if canaries is not None else None


def _prepare(value: Any) -> dict[str, Any]:  # noqa: ANN401
    known = {field.name for field in pb.Prepare.DESCRIPTOR.fields}
    given = _mapping(value, '{"vision": "drop"}', known)
    return {key: [*map(_text, each_of(one))] if key == "drop" else _text(one) for key, one in given.items()}


def _seconds(ttl: str | float | timedelta | None) -> int | None:
    """The ttl in whole seconds, rounded up. Raises ValueError: it is no time."""
    if ttl is None:
        return None
    if isinstance(ttl, str):
        return seconds_of(ttl)
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(seconds, bool) or not math.isfinite(seconds):
        raise ValueError(f'{ttl!r} is no time: write "7d", a number of seconds, a timedelta, or None')
    return math.ceil(seconds)


def _placement(
    *, replicas: int | str | Mapping[str, int] = "all", selector: Mapping[str, str] | None = None
) -> pb.Placement:
    selector = _labels(_mapping(selector or {}, '{"zone": "a"}'), "placement.selector")
    if isinstance(replicas, Mapping):
        if replicas.keys() != {"min", "max", "perReplica"}:
            raise ValueError('replicas: use {"min": 2, "max": 8, "perReplica": 50}, a number, or "all"')
        by_load = pb.ByLoad(max=replicas["max"], per_replica=replicas["perReplica"])
        return pb.Placement(replicas=replicas["min"], selector=selector, by_load=by_load)
    if replicas in ("all", None):
        return pb.Placement(selector=selector)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 1 <= replicas < 1 << 32:
        raise ValueError('replicas: use "all", or a whole number from 1 to 10000')
    return pb.Placement(replicas=replicas, selector=selector)


def _labels(labels: Mapping[Any, Any], place: str = "labels") -> Mapping[str, str]:
    """The labels as they are. Raises InvalidArgument: one is no text, which is named with its type."""
    for key, value in labels.items():
        if not isinstance(key, str):
            message = f"the name of the label {key!r} is of type {type(key).__name__}; labels have names of text"
            raise InvalidArgument(Reason.INVALID_FIELD, message, field=place)
        if not isinstance(value, str):
            message = f"the label {key!r} is of type {type(value).__name__}; labels are text: write {str(value)[:80]!r}"
            raise InvalidArgument(Reason.INVALID_FIELD, message, field=f"{place}.{key}")
    return labels


@contextmanager
def fitting(field: str) -> Iterator[None]:
    """Raises InvalidArgument where a message does not take a value: a number too large, text with half a letter."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InvalidArgument(Reason.INVALID_FIELD, str(error), field=field) from error


def _located(source: str | os.PathLike[str], digest: str) -> tuple[str, str]:
    """The URI and the digest to write down."""
    if isinstance(source, str) and "://" in source:
        return source, digest
    folder = Path(source).absolute()  # a replica knows no working directory of ours
    found = _digest(folder)
    if digest and digest != found:
        raise InvalidArgument(Reason.INVALID_FIELD, f"{folder} has the digest {found}, not {digest}", field="digest")
    return folder.as_uri(), found


def _uploaded(source: str | os.PathLike[str], upload: str | os.PathLike[str] | Upload) -> str:
    if isinstance(source, str) and "://" in source:
        raise InvalidArgument(Reason.INVALID_FIELD, "a folder can be uploaded; source is a URI", field="upload")
    # Only who uploads needs clients of object stores.
    from registry.client.upload.uploading import uploaded  # noqa: PLC0415

    return uploaded(Path(source).absolute(), upload if isinstance(upload, Upload) else Upload(upload))


def _digest(folder: Path) -> str:
    # Only who publishes a directory needs what reads adapters.
    from registry.lora.directory import check_files, digest_of  # noqa: PLC0415

    try:
        if not folder.is_dir():
            is_there = folder.exists()
            why = f"{folder} is no folder" if is_there else f"no such folder: {folder}; nothing was published"
            raise InvalidArgument(Reason.INVALID_FIELD, why, field="source")
        check_files(folder)
        return digest_of(folder)
    except UnfitAdapter as error:
        raise InvalidArgument(Reason.ADAPTER_UNFIT, summary(error.findings), field="source") from error
    except OSError as error:
        raise InvalidArgument(
            Reason.INVALID_FIELD, f"cannot read {folder}: {error.strerror}", field="source"
        ) from error
