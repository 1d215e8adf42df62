"""Sending changes: all in one transaction, or, where that is allowed, in as many as it takes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from registry.cli.client import Client
from registry.cli.failure import CliError, Exit, Failure, refused, with_remedy
from registry.errors import Reason
from registry.v1 import registry_pb2 as pb

# The admin service takes messages of 4 MiB.
_MAX_SENT = 2000
_MAX_SENT_BYTES = 3 << 20
_FIELD = re.compile(r"changes\[(\d+)\](?:\.(?:upsert|delete))?\.?(.*)")
_MANIFEST_FIELDS = {
    "name": "metadata.name",
    "pool": "metadata.pool",
    "spec.labels": "metadata.labels",
    "spec.base_model": "spec.baseModel",
    "spec.strategy.max_failures": "spec.strategy.maxFailures",
    "spec.strategy.soak_seconds": "spec.strategy.soak",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one adapter, and where the user wrote it."""

    pool: str
    wire: pb.AdapterChange
    place: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one pool that go in one transaction."""

    pool: str
    changes: tuple[Change, ...]
    request_id: str


@dataclass(frozen=True, slots=True)
class Applied:
    """A transaction that was carried out, or found right in a dry run."""

    batch: Batch
    response: pb.ApplyAdaptersResponse


@dataclass(frozen=True, slots=True)
class NotApplied:
    """A transaction that was not, or may not have been, carried out."""

    batch: Batch
    failure: Failure


Outcome = Applied | NotApplied


def apply_atomic(client: Client, changes: Sequence[Change], request_id: str, *, dry_run: bool) -> Applied:
    """Sends all changes as one transaction.

    Raises:
        CliError: they are for several pools, or the admin service refused them.
    """
    batches = by_pool(changes, request_id)
    if len(batches) != 1:
        pools = ", ".join(batch.pool for batch in batches)
        raise refused(
            Reason.UNSUPPORTED,
            f"one transaction changes one pool, and these documents are for {pools}; split them, or give --no-atomic",
        )
    try:
        return _send(client, batches[0], dry_run=dry_run)
    except CliError as error:
        if error.failure.reason in {Reason.TOO_MANY_CHANGES, Reason.TOO_LARGE}:
            remedy = "split the documents, or give --no-atomic to use several transactions"
            raise CliError(with_remedy(error.failure, remedy)) from error
        raise


def apply_split(client: Client, changes: Sequence[Change], request_id: str, *, dry_run: bool) -> list[Outcome]:
    """Sends the changes in as many transactions as it takes, and goes on after one was refused.

    After one that found no answer the rest is not tried, since that would only wait as long again for each.
    """
    waiting = deque(part for batch in by_pool(changes, request_id) for part in _sendable(batch))
    outcomes: list[Outcome] = []
    while waiting:
        batch = waiting.popleft()
        try:
            outcomes.append(_send(client, batch, dry_run=dry_run))
        except CliError as error:
            parts = _parts(batch, error.failure)
            waiting.extendleft(reversed(parts))
            if not parts:
                outcomes.append(NotApplied(batch, error.failure))
            if error.failure.exit is Exit.UNAVAILABLE:
                outcomes.extend(NotApplied(one, error.failure) for one in waiting)
                break
    return outcomes


def by_pool(changes: Iterable[Change], request_id: str) -> list[Batch]:
    """One batch for each pool. The first has the request id itself, the others it and their number."""
    pools: dict[str, list[Change]] = {}
    for change in changes:
        pools.setdefault(change.pool, []).append(change)
    return [
        Batch(pool, tuple(members), request_id if number == 1 else f"{request_id}:pool{number}")
        for number, (pool, members) in enumerate(pools.items(), start=1)
    ]


def split(batch: Batch, size: int) -> list[Batch]:
    """The batch in parts of at most `size` changes; their request ids follow from its own."""
    starts = range(0, len(batch.changes), size)
    return _numbered(batch, [batch.changes[start : start + size] for start in starts])


def _sendable(batch: Batch) -> list[Batch]:
    """The batch, in parts if it may exceed what the admin service takes in one message."""
    parts: list[list[Change]] = [[]]
    size_bytes = 0
    for change in batch.changes:
        size_bytes += change.wire.ByteSize()
        if parts[-1] and (len(parts[-1]) == _MAX_SENT or size_bytes > _MAX_SENT_BYTES):
            parts.append([])
            size_bytes = change.wire.ByteSize()
        parts[-1].append(change)
    return _numbered(batch, parts) if len(parts) > 1 else [batch]


def _numbered(batch: Batch, parts: Sequence[Sequence[Change]]) -> list[Batch]:
    return [
        Batch(batch.pool, tuple(part), f"{batch.request_id}:part{number}") for number, part in enumerate(parts, start=1)
    ]


def _parts(batch: Batch, failure: Failure) -> list[Batch]:
    """Smaller batches if the failure says that this one was too large and how many changes fit; else none."""
    fits = failure.metadata.get("max_changes", "")
    if failure.reason != Reason.TOO_MANY_CHANGES or not fits.isdecimal():
        return []
    return split(batch, int(fits)) if 0 < int(fits) < len(batch.changes) else []


def _send(client: Client, batch: Batch, *, dry_run: bool) -> Applied:
    request = pb.ApplyAdaptersRequest(
        pool=batch.pool,
        changes=[change.wire for change in batch.changes],
        validate_only=dry_run,
        request_id=batch.request_id,
    )
    try:
        return Applied(batch, client.apply(request))
    except CliError as error:
        raise CliError(placed(error.failure, batch)) from error


def placed(failure: Failure, batch: Batch) -> Failure:
    """The failure with its field as the user wrote it: ``changes[1].upsert.spec.load`` is somebody's document."""
    if failure.field == "pool" and batch.changes:
        return with_pool_field(failure, batch.changes[0])
    match = _FIELD.fullmatch(failure.field or "")
    if match is None or int(match[1]) >= len(batch.changes):
        return failure
    place, path = batch.changes[int(match[1])].place, match[2]
    field = f"{place}: {_MANIFEST_FIELDS.get(path, path)}" if path else place
    return replace(failure, field=field)


def with_pool_field(failure: Failure, change: Change) -> Failure:
    """A failure that is about the pool of a change, with its field as the user wrote it."""
    is_document = change.wire.WhichOneof("change") == "upsert"
    return replace(failure, field=f"{change.place}: {_MANIFEST_FIELDS['pool'] if is_document else 'pool'}")
