"""Registered adapters and published generations as programs see them. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from registry.model.errors import FailedPrecondition, Reason, RegistryError, Unavailable
from registry.model.replica_reasons import RETRY_RULES, RetryClass, is_nowhere, retry_rule, told_commands
from registry.v1 import registry_pb2 as pb


@dataclass(frozen=True, slots=True)
class RegisteredAdapter:
    """An adapter at one of its generations. The rest of its spec is shown by ``loraplane get -o json``.

    Attributes:
        name: as it was written; unique in its pool without regard to case.
        pool: its pool.
        tenant: the part of the name before the slash in lower case, or ``default``.
        generation: rises by one with each change of the spec.
        uri: where its files are.
        digest: ``sha256:`` and 64 hex digits; empty: not pinned.
        base_model: the base model that it was trained on; empty: not said.
        load: ``eager``, or ``lazy``: loaded at the first request.
        priority: higher is loaded first; -1000 to 1000.
        labels: for people and filters.
        etag: guards a change against a race; empty for an earlier generation.
        updated_at: when this generation was made, RFC 3339.
        updated_by: the principal that made it.
        request_id: of the request that made it.
        stable_generation: what all replicas but the canaries serve; None: this generation is for all replicas.
        halted: why the rollout to more replicas than the canaries was halted; empty: it was not.
        restored_by: of an earlier generation, the principal that put it into history from a backup; empty: this store
            had it itself. Of one that was restored everything else is what that principal said.
        restored_at: when, RFC 3339; empty: it was not restored.
        enabled: False: it is served nowhere.
        ttl_seconds: so long after its last change it is deleted; None: never.
        ttl_from: ``use``: its ttl begins with its last use, where that is later; ``change``: with its last change.
        expires_at: about when, RFC 3339; empty: never.
        keep: so many of its generations are served by name, the newest included; None: the newest alone.
        kept_generations: earlier ones that are, as ``name@generation``, the newest first.
        scaled_replicas: what requests made of its number of replicas; None: nothing yet, or that is fixed.
    """

    name: str
    pool: str
    tenant: str
    generation: int
    uri: str
    digest: str
    base_model: str
    load: str
    priority: int
    labels: Mapping[str, str]
    etag: str
    updated_at: str
    updated_by: str
    request_id: str
    stable_generation: int | None
    halted: str
    restored_by: str = ""
    restored_at: str = ""
    enabled: bool = True
    ttl_seconds: int | None = None
    ttl_from: str = "change"
    expires_at: str = ""
    keep: int | None = None
    kept_generations: tuple[int, ...] = ()
    scaled_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class AdapterListing:
    """The adapters of a pool at one revision.

    Attributes:
        adapters: in the order of their names.
        unreadable: names, in lower case, of adapters whose records cannot be read.
        revision: etcd's.
    """

    adapters: tuple[RegisteredAdapter, ...]
    unreadable: tuple[str, ...]
    revision: int


class FoldedAdapters:
    """Folds the responses of a watch into whole listings, or of several, each of which is `begun`."""

    def __init__(self) -> None:
        self._adapters: dict[str, RegisteredAdapter] = {}
        self._unreadable: set[str] = set()
        self._is_in_snapshot = False

    def begun(self) -> None:
        """Notes that the next response is the first of a watch: the one before may have ended amid a listing."""
        self._is_in_snapshot = False

    def take(self, response: pb.WatchAdaptersResponse) -> AdapterListing | None:
        """The listing after a response; None: the next one belongs to it."""
        if response.snapshot and not self._is_in_snapshot:
            self._adapters, self._unreadable = {}, set()
        for event in response.events:
            self._fold(event)
        self._is_in_snapshot = response.snapshot and response.more
        if response.more:
            return None
        adapters = tuple(adapter for _, adapter in sorted(self._adapters.items()))
        return AdapterListing(adapters, tuple(sorted(self._unreadable)), response.revision)

    def _fold(self, event: pb.AdapterEvent) -> None:
        key = (event.put.name or event.deleted or event.unreadable).lower()
        self._unreadable.discard(key)
        match event.WhichOneof("event"):
            case "put":
                self._adapters[key] = adapter_of(event.put)
            case "deleted":
                self._adapters.pop(key, None)
            case "unreadable":
                self._adapters.pop(key, None)
                self._unreadable.add(key)


@dataclass(frozen=True, slots=True)
class AdapterHistory:
    """The generations of an adapter that are kept.

    Attributes:
        generations: the newest first; the present one is included if the adapter exists.
        unreadable: numbers of generations whose records cannot be read.
    """

    generations: tuple[RegisteredAdapter, ...]
    unreadable: tuple[int, ...]


def adapter_of(wire: pb.Adapter) -> RegisteredAdapter:
    """An adapter from its message."""
    spec = wire.spec
    return RegisteredAdapter(
        name=wire.name,
        pool=wire.pool,
        tenant=wire.tenant,
        generation=wire.generation,
        uri=spec.source.uri,
        digest=spec.source.digest,
        base_model=spec.base_model,
        load=spec.load or "eager",
        priority=spec.priority,
        labels=MappingProxyType(dict(spec.labels)),
        etag=wire.etag,
        updated_at=wire.updated_at,
        updated_by=wire.updated_by,
        request_id=wire.request_id,
        stable_generation=wire.rollout.stable_generation if wire.HasField("rollout") else None,
        halted=wire.rollout.halted,
        restored_by=wire.restored_by.principal,
        restored_at=wire.restored_by.at,
        enabled=spec.enabled or not spec.HasField("enabled"),
        ttl_seconds=spec.ttl_seconds if spec.HasField("ttl_seconds") else None,
        ttl_from=spec.ttl_from or "change",
        expires_at=wire.expires_at,
        keep=spec.keep if spec.HasField("keep") else None,
        kept_generations=tuple(wire.kept_generations),
        scaled_replicas=wire.scaled.replicas if wire.HasField("scaled") else None,
    )


def listing_of(pages: Sequence[pb.ListAdaptersResponse]) -> AdapterListing:
    """A listing from all its pages."""
    return AdapterListing(
        tuple(adapter_of(one) for page in pages for one in page.adapters),
        tuple(name for page in pages for name in page.unreadable),
        pages[0].revision,
    )


def history_of(wire: pb.ListAdapterHistoryResponse) -> AdapterHistory:
    """A history from its message."""
    return AdapterHistory(tuple(map(adapter_of, wire.generations)), tuple(wire.unreadable))


@dataclass(frozen=True, slots=True)
class Canaries:
    """New weights come to canaries first.

    Attributes:
        replicas: their number, or a share of the pool such as ``"25%"``, rounded up.
        promote: ``"auto"``: to all once the canaries have served them for `soak_seconds`; ``"manual"``: by hand.
        max_failures: more canaries than this that refuse them halt it.
        soak_seconds: see `promote`.
    """

    replicas: int | str
    promote: Literal["auto", "manual"] = "auto"
    max_failures: int = 0
    soak_seconds: int = 60


@dataclass(frozen=True, slots=True)
class Published:
    """A generation of an adapter that a change made, or found.

    Attributes:
        name: of the adapter.
        pool: its pool.
        generation: its number, which rises by one with each change of the spec.
        uri: where the files are.
        digest: ``sha256:`` and 64 hex digits; empty: not pinned.
        revision: etcd's revision of the change; where nothing changed, one at which all was so already.
        request_id: of the change; found again in audit records, logs and engine calls.
        model: what requests call the adapter; empty: it was not waited for, or nobody told.
        engine_urls: of the engines that serve this generation, as routers are told them; likewise.
    """

    name: str
    pool: str
    generation: int
    uri: str
    digest: str
    revision: int
    request_id: str
    model: str = ""
    engine_urls: tuple[str, ...] = ()


PROOF_HEADER = "x-loraplane-adapter"
_PROOF = re.compile(r"(?P<name>[^@ ]+)@(?P<generation>[1-9][0-9]{0,17}) (?P<digest>sha256:[0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class AnsweredBy:
    """The version whose weights made an engine's answer, as the answer's header says with the plugin in that engine.

    Attributes:
        name: of the adapter.
        generation: its number.
        digest: of its source, ``sha256:`` and 64 hex digits.
    """

    name: str
    generation: int
    digest: str

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> AnsweredBy | None:
        """The version in an answer's headers; None: none, as of the base model, or an engine without the plugin."""
        told = next((value for name, value in headers.items() if name.lower() == PROOF_HEADER), "")
        found = _PROOF.fullmatch(told)
        return cls(found["name"], int(found["generation"]), found["digest"]) if found else None


def revision_of(response: pb.ApplyAdaptersResponse) -> int:
    """The revision of a change set; where nothing changed, that of the last change of what it is about.

    The reply to one that changed nothing has a later one, at which nothing of the pool did, and which nobody who
    follows the pool would come to.
    """
    told = [one.adapter.etag for one in response.results if one.outcome == pb.AdapterResult.UNCHANGED]
    if len(told) < len(response.results) or not all(told):
        return response.revision
    return max(map(int, told), default=response.revision)


def published_of(response: pb.ApplyAdaptersResponse) -> tuple[Published, ...]:
    """Generations of a change set, without what it deleted."""
    revision = revision_of(response)
    there = [one.adapter for one in response.results if one.outcome != pb.AdapterResult.DELETED]
    return tuple(
        Published(
            adapter.name,
            adapter.pool,
            adapter.generation,
            adapter.spec.source.uri,
            adapter.spec.source.digest,
            revision,
            response.request_id,
        )
        for adapter in there
    )


def strategy_of(canaries: Canaries) -> pb.Strategy:
    """The same on the wire."""
    return pb.Strategy(
        canary_replicas=str(canaries.replicas),
        promote=canaries.promote,
        max_failures=canaries.max_failures,
        soak_seconds=canaries.soak_seconds,
    )


def has_failed(replica: pb.RolloutReplica) -> bool:
    """True if the replica could not serve the generation when it tried, and may try it again later."""
    is_tried_again = bool(replica.message) and replica.reason in RETRY_RULES
    is_pending = replica.state == pb.RolloutReplica.PENDING
    return replica.state == pb.RolloutReplica.FAILED or (is_pending and is_tried_again)


# What a roll-back ends with that cannot succeed.
NOWHERE = (
    "no replica has the files of the generation that it goes back to, and neither has its source: put them back, and "
    "it goes on by itself, or go to another generation"
)


def counted_in(rollout: pb.Rollout) -> list[pb.RolloutReplica]:
    """Replicas that a rollout is waited for: while it has canaries, these alone."""
    return [one for one in rollout.replicas if one.canary or not rollout.HasField("canary")]


def is_nowhere_in(rollout: pb.Rollout) -> bool:
    """True if those who are to serve a generation say that neither they nor its source have its files."""
    return is_nowhere(one.reason for one in counted_in(rollout))


def commands_of(rollout: pb.Rollout, pool: str) -> str:
    """Remedy for those that failed to serve a generation, for messages; empty: nobody did."""
    behind = [one for one in rollout.replicas if one.reason and has_failed(one) and not _goes_on(one)]
    return told_commands({one.reason: one.replica for one in reversed(behind)}, rollout.name, pool)


def _goes_on(replica: pb.RolloutReplica) -> bool:
    is_under_way = retry_rule(replica.reason).retry is RetryClass.AT_ONCE
    return is_under_way and replica.state == pb.RolloutReplica.PENDING


def retry_id(request_id: str) -> str:
    """The id of the request for another try that one upsert may lead to, so that it too is made once."""
    return f"retry-{uuid.uuid5(uuid.NAMESPACE_OID, request_id)}"


def not_served(
    awaited: Published | RegisteredAdapter, last: pb.Rollout | None, *, goes_back: bool = False
) -> RegistryError | None:
    """The reason why not all replicas that should serve a generation do; None: they do.

    Args:
        awaited: the generation.
        last: the newest that was heard of it within the time; None: nothing.
        goes_back: its files are of an earlier generation, and do not come by themselves.
    """
    what = f"{awaited.name} generation {awaited.generation}"
    repeat = {"request_id": awaited.request_id}
    if last is None:
        return Unavailable(Reason.DEADLINE_EXCEEDED, f"{what}: no report on it in time", metadata=repeat)
    if last.done and not last.failure:
        return None
    behind = {one.replica: _why(one) for one in counted_in(last) if one.state != pb.RolloutReplica.SERVING}
    told = "; ".join(f"{replica}: {why}" for replica, why in sorted(behind.items()))
    commands = commands_of(last, awaited.pool)
    remedy = f"; {commands}" if commands else ""
    if last.done:
        message = " - ".join(part for part in (f"{what}: {last.failure}", last.canary.halted, told) if part)
        return FailedPrecondition(Reason.ROLLOUT_FAILED, message + remedy, metadata=behind)
    if goes_back and is_nowhere_in(last):
        message = f"{what}: {NOWHERE}; {told}"
        return FailedPrecondition(Reason.ROLLOUT_FAILED, message + remedy, metadata=behind)
    message = f"{what} is not served in time: {told or last.waiting}{remedy}"
    return Unavailable(Reason.DEADLINE_EXCEEDED, message, metadata=behind | repeat)


def _why(replica: pb.RolloutReplica) -> str:
    state = pb.RolloutReplica.State.Name(replica.state).lower()
    kept = replica.serving_generation if replica.HasField("serving_generation") else None
    meanwhile = "" if kept is None else f"serving generation {kept}" if kept else "serving an earlier generation"
    return " - ".join(part for part in (state, replica.reason, replica.message, meanwhile) if part)
