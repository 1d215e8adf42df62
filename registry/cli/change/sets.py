"""Sets of changes, sent in one transaction or in several."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import Message

from registry.cli.change.manifest import manifest_name
from registry.cli.client import AdminClient
from registry.cli.failure import CliError, CommandFailure, Exit, refused, with_remedy
from registry.client import admin_api as api
from registry.model.errors import Reason
from registry.model.names import MAX_REQUEST_ID_CHARACTERS
from registry.v1 import registry_pb2 as pb

# The admin service takes messages of 4 MiB.
_MAX_SENT = 2000
_MAX_SENT_BYTES = 3 << 20
# Between the request id of a set and the number of a part of it.
_PART = ":part"
_FIELD = re.compile(r"changes\[(\d+)\](?:\.(?:upsert|update|delete))?\.?(.*)")
_MANIFEST_FIELDS = {"name": "metadata.name", "pool": "metadata.pool", "spec.labels": "metadata.labels"}


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one adapter, and where the user wrote it.

    `is_local`: its source was given as a path of this machine. `before`: the adapter until then, if it was read.
    """

    pool: str
    wire: pb.AdapterChange
    place: str
    is_local: bool = False
    before: pb.Adapter | None = None


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Changes of one pool that go in one transaction."""

    pool: str
    changes: tuple[Change, ...]
    request_id: str


@dataclass(frozen=True, slots=True)
class Applied:
    """A transaction that was carried out, or found right in a dry run."""

    batch: ChangeBatch
    response: pb.ApplyAdaptersResponse


@dataclass(frozen=True, slots=True)
class NotApplied:
    """A transaction that was not, or may not have been, carried out."""

    batch: ChangeBatch
    failure: CommandFailure


Outcome = Applied | NotApplied


def apply_atomic(
    client: AdminClient, changes: Sequence[Change], request_id: str, *, dry_run: bool, retry: str | None = None
) -> Applied:
    """Sends all changes as one transaction. `retry`: have what failed tried at once, see `ApplyOrder`.

    Raises:
        CliError: they are for several pools, or the admin service refused them.
    """
    check_one_transaction(changes)
    batches = by_pool(changes, request_id)
    try:
        return _send(client, batches[0], dry_run=dry_run, retry=retry)
    except CliError as error:
        if error.failure.reason in {Reason.TOO_MANY_CHANGES, Reason.TOO_LARGE}:
            remedy = "split the documents, or give --no-atomic to use several transactions"
            raise CliError(with_remedy(error.failure, remedy)) from error
        raise


def check_one_transaction(changes: Sequence[Change]) -> None:
    """Refuses, before any source is read, what can certainly not be one transaction.

    Raises:
        CliError: the changes are for several pools, or for none, or are more than one message takes.
    """
    pools = list(dict.fromkeys(change.pool for change in changes))
    if len(pools) != 1:
        raise refused(
            Reason.UNSUPPORTED,
            f"one transaction changes one pool, and these documents are for {', '.join(pools)}; split them, or give "
            "--no-atomic",
        )
    if len(changes) > _MAX_SENT:
        raise refused(
            Reason.TOO_MANY_CHANGES,
            f"{len(changes)} changes are more than one transaction takes; give --no-atomic to use several, or split "
            "the documents",
        )


def apply_split(
    client: AdminClient,
    changes: Sequence[Change],
    request_id: str,
    *,
    dry_run: bool,
    retry: str | None = None,
    apart: bool = False,
) -> list[Outcome]:
    """Sends the changes in as many transactions as it takes, and goes on after one was refused.

    `apart`: what is refused is halved until nothing but what is refused by itself is left out. After one that found no
    answer the rest is not tried, since that would only wait as long again for each.
    """
    waiting = deque(part for batch in by_pool(changes, request_id) for part in _sendable(batch))
    outcomes: list[Outcome] = []
    while waiting:
        batch = waiting.popleft()
        try:
            outcomes.append(_send(client, batch, dry_run=dry_run, retry=retry))
        except CliError as error:
            parts = _parts(batch, error.failure, apart=apart)
            waiting.extendleft(reversed(parts))
            if not parts:
                outcomes.append(NotApplied(batch, error.failure))
            if error.failure.exit is Exit.UNAVAILABLE:
                outcomes.extend(NotApplied(one, error.failure) for one in waiting)
                break
    return outcomes


def by_pool(changes: Iterable[Change], request_id: str) -> list[ChangeBatch]:
    """One batch for each pool. The first has the request id itself, the others it and their number."""
    pools: dict[str, list[Change]] = {}
    for change in changes:
        pools.setdefault(change.pool, []).append(change)
    return [
        ChangeBatch(pool, tuple(members), request_id if number == 1 else derived_id(f"{request_id}:pool{number}"))
        for number, (pool, members) in enumerate(pools.items(), start=1)
    ]


def split(batch: ChangeBatch, size: int) -> list[ChangeBatch]:
    """The batch in parts of at most `size` changes; their request ids follow from its own.

    A part that has to be split once more is halved at least, so that there are few levels of parts.
    """
    if _PART in batch.request_id:
        size = min(size, (len(batch.changes) + 1) // 2)
    starts = range(0, len(batch.changes), size)
    return _numbered(batch, [batch.changes[start : start + size] for start in starts])


def _sendable(batch: ChangeBatch) -> list[ChangeBatch]:
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


def _numbered(batch: ChangeBatch, parts: Sequence[Sequence[Change]]) -> list[ChangeBatch]:
    """The parts, each with an id that is the same whenever the same set is sent with the same id."""
    between = "." if _PART in batch.request_id else _PART
    return [
        ChangeBatch(batch.pool, tuple(part), derived_id(f"{batch.request_id}{between}{number}"))
        for number, part in enumerate(parts, start=1)
    ]


def derived_id(request_id: str) -> str:
    """The id of a part of a request; where it would be too long, with a digest in the place of its end."""
    if len(request_id) <= MAX_REQUEST_ID_CHARACTERS:
        return request_id
    digest = hashlib.sha256(request_id.encode()).hexdigest()[:32]
    return f"{request_id[: MAX_REQUEST_ID_CHARACTERS - 64]}{_PART}-{digest}"


def step_id(request_id: str, step: str, asked: Sequence[Message]) -> str:
    """The id of a step that follows from what stands: another run, whose plan may be another, never sends it for more.

    It goes by what is asked, not by its place among the steps of a run.
    """
    told = b"".join(one.SerializeToString(deterministic=True) for one in asked)
    return derived_id(f"{request_id}:{step}:{hashlib.sha256(told).hexdigest()[:32]}")


def step_of_changes(request_id: str, step: str, changes: Iterable[Change]) -> str:
    """The same for changes."""
    return step_id(request_id, step, [pb.ApplyAdaptersRequest(pool=one.pool, changes=[one.wire]) for one in changes])


def _parts(batch: ChangeBatch, failure: CommandFailure, *, apart: bool) -> list[ChangeBatch]:
    """Smaller batches if the failure says that this one was too large and how many changes fit; else none.

    `apart`: halves also of one that was refused for what it has otherwise.
    """
    count, fits = len(batch.changes), failure.metadata.get("max_changes", "")
    if failure.reason == Reason.TOO_MANY_CHANGES and fits.isdecimal():
        return split(batch, int(fits)) if 0 < int(fits) < count else []
    return split(batch, (count + 1) // 2) if apart and failure.is_of_request and count > 1 else []


def _send(client: AdminClient, batch: ChangeBatch, *, dry_run: bool, retry: str | None) -> Applied:
    request = pb.ApplyAdaptersRequest(
        pool=batch.pool,
        changes=[change.wire for change in batch.changes],
        validate_only=dry_run,
        request_id=batch.request_id,
        retry=retry is not None,
        retry_replica=retry,
    )
    try:
        return Applied(batch, client.unary(api.APPLY_ADAPTERS, request))
    except CliError as error:
        raise CliError(placed(error.failure, batch)) from error


def placed(failure: CommandFailure, batch: ChangeBatch) -> CommandFailure:
    """The failure with its field as the user wrote it: ``changes[1].upsert.spec.load`` is somebody's document."""
    if failure.field == "pool" and batch.changes:
        return with_pool_field(failure, batch.changes[0])
    match = _FIELD.fullmatch(failure.field or "")
    if match is None or int(match[1]) >= len(batch.changes):
        return failure
    place, path = batch.changes[int(match[1])].place, match[2]
    field = f"{place}: {_manifest_field(path)}" if path else place
    return replace(failure, field=field)


def _manifest_field(path: str) -> str:
    return _MANIFEST_FIELDS.get(path) or ".".join(map(manifest_name, path.split(".")))


def with_pool_field(failure: CommandFailure, change: Change) -> CommandFailure:
    """A failure that is about the pool of a change, with its field as the user wrote it."""
    is_document = change.wire.WhichOneof("change") == "upsert"
    return replace(failure, field=f"{change.place}: {_MANIFEST_FIELDS['pool'] if is_document else 'pool'}")
