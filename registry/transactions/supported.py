"""Refusals of what sidecars or a pool's engine cannot do. Pure.

A later release lifts a line of a table by deleting it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.lora.base import vocabulary_of
from registry.model.engine_kinds import traits_of
from registry.model.errors import InvalidArgument, Reason
from registry.model.records import AdapterSpec, Placement, PoolSpec
from registry.model.source_uri import SourceUriError, kind_of, parse_source, scheme_of

_FILE_REMEDY = "write file:///absolute/path, without a query or fragment (? is %3F, # is %23)"


def check_source(spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument unless sidecars can read the form of the source's URI. Repeats nothing that is secret."""
    uri_field = f"{field}.source.uri"
    try:
        scheme = scheme_of(spec.source.uri)
    except SourceUriError as error:
        raise InvalidArgument(Reason.UNSUPPORTED, str(error), field=uri_field) from None
    try:
        _check_form(scheme, spec.source.uri)
    except SourceUriError as error:
        raise InvalidArgument(Reason.INVALID_FIELD, str(error), field=uri_field) from None
    if spec.credentials is not None and kind_of(scheme) == "folder":
        message = "a file:// source takes no credential; leave it out"
        raise InvalidArgument(Reason.UNSUPPORTED, message, field=f"{field}.credentials")


def _check_form(scheme: str, uri: str) -> None:
    if kind_of(scheme) != "folder":
        parse_source(uri)
    elif not uri.startswith("file:///") or "?" in uri or "#" in uri:
        raise SourceUriError(_FILE_REMEDY)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field of the spec, when it asks for too much, and what to write instead."""

    field: str
    asked: Callable[[AdapterSpec], bool]
    remedy: str


UNSUPPORTED = (
    Unsupported(
        "placement",
        lambda spec: spec.load == "lazy" and spec.placement != Placement(),
        "a lazy adapter is loaded wherever it is asked for; leave it out, or use load: eager",
    ),
    Unsupported(
        "strategy",
        lambda spec: spec.load == "lazy" and spec.strategy is not None,
        "this release loads the newest weights of a lazy adapter wherever it is asked for; leave it out, or use eager",
    ),
)


def check_by_load(spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument unless a number of replicas that follows requests has a range, and nothing beside it."""
    least, by_load = spec.placement.replicas, spec.placement.by_load
    if by_load is None:
        return
    if least == "all":
        message = "a number of replicas that follows requests needs a least one; give min, such as 1"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field=f"{field}.placement.replicas")
    if least > by_load.max:
        message = f"min {least} is more than max {by_load.max}; use a max of at least {least}, or a smaller min"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field=f"{field}.placement.replicas")
    if spec.ttl_seconds is not None:
        message = (
            "a ttl begins anew whenever the record is written, as by each step of a number of replicas that follows "
            "requests; leave the ttl out, or give a fixed number of replicas"
        )
        raise InvalidArgument(Reason.UNSUPPORTED, message, field=f"{field}.ttl_seconds")


def check_ttl_from(spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument if a ttl is to begin with the last use, and there is none."""
    if spec.ttl_from == "use" and spec.ttl_seconds is None:
        message = "there is no ttl that could begin with the last use; give a ttl, such as 7d, or use change"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field=f"{field}.ttl_from")


def check_supported(spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument if the spec asks for what no sidecar of this release does."""
    check_source(spec, field=field)
    check_by_load(spec, field=field)
    check_ttl_from(spec, field=field)
    for entry in UNSUPPORTED:
        if entry.asked(spec):
            raise InvalidArgument(Reason.UNSUPPORTED, entry.remedy, field=f"{field}.{entry.field}")


@dataclass(frozen=True, slots=True)
class Unable:
    """A field of the spec, the pools whose engines cannot do what it asks for, and what to write instead."""

    field: str
    pools: Callable[[PoolSpec], bool]
    asked: Callable[[AdapterSpec], bool]
    remedy: str


UNABLE = (
    Unable(
        "load",
        lambda pool: not traits_of(pool.engine).asks_for_adapters,
        lambda spec: spec.load == "lazy",
        "are {pool.engine}, and have nothing that asks for an adapter when a request names it; use eager",
    ),
    Unable(
        "load",
        lambda pool: pool.engine_names == "versioned",
        lambda spec: spec.load == "lazy",
        "have versioned names, by which a lazy adapter is not found; use eager, or a pool with plain names",
    ),
    Unable(
        "keep",
        lambda pool: pool.engine_names != "versioned",
        lambda spec: spec.keep is not None,
        "have plain names, by which requests ask for the newest generation alone; leave it out, or give the pool "
        "--engine-names versioned",
    ),
    Unable(
        "ttl_from",
        lambda pool: not traits_of(pool.engine).asks_for_adapters,
        lambda spec: spec.ttl_from == "use",
        "are {pool.engine}, and have nothing that tells when an adapter was used; leave it out: then its ttl begins "
        "with its last change",
    ),
    Unable(
        "placement",
        lambda pool: traits_of(pool.engine).is_single_slot,
        lambda spec: spec.placement.replicas != "all" or bool(spec.placement.selector),
        "are {pool.engine}, which answers for an adapter that it does not have from the base model; place it on all",
    ),
)


def check_engine_can(pool: PoolSpec, spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument if the spec asks for what the pool's engines cannot do."""
    for entry in UNABLE:
        if entry.pools(pool) and entry.asked(spec):
            message = f"the engines of pool {pool.name!r} {entry.remedy.format(pool=pool)}"
            raise InvalidArgument(Reason.UNSUPPORTED, message, field=f"{field}.{entry.field}")


def check_expected(pool: PoolSpec, spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument if answers are expected of tokens that the pool's base model does not know."""
    if spec.expect is None or pool.base is None or (known := vocabulary_of(pool.base.modules)) is None:
        return
    tokens = (
        (f"{at}.{part}.{index}", token)
        for at, answer in enumerate(spec.expect.answers)
        for part, numbers in (("prompt", answer.prompt), ("tokens", answer.tokens))
        for index, token in enumerate(numbers)
    )
    where, token = next(((where, token) for where, token in tokens if token >= known), ("", 0))
    if where:
        raise InvalidArgument(
            Reason.INVALID_FIELD,
            f"there is no token {token}: the base model of pool {pool.name!r} knows {known}, numbered from 0; let "
            "loraplane expect DIR --base-model DIR write it, with that base",
            field=f"{field}.expect.answers.{where}",
        )


def check_engine_names(pool: PoolSpec) -> None:
    """Raises InvalidArgument if versioned names cannot work: a new generation is loaded beside the old one."""
    if pool.engine_names == "versioned" and traits_of(pool.engine).is_single_slot:
        message = f"{pool.engine} has one adapter at a time, so no generation can be loaded beside another; use plain"
        raise InvalidArgument(Reason.UNSUPPORTED, message, field="pool.engine_names")
    if pool.engine_names == "versioned" and pool.limits.max_adapters == 1:
        message = "versioned names need room for one adapter more than is served: raise max_adapters, or use plain"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="pool.engine_names")
