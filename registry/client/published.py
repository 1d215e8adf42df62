"""What a program knows of an adapter that it published, and how far its replicas are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from registry.errors import FailedPrecondition, Reason, RegistryError, Unavailable
from registry.v1 import registry_pb2 as pb


@dataclass(frozen=True, slots=True)
class Canaries:
    """New weights come to canaries first.

    Attributes:
        replicas: how many: a number, or a share such as ``"25%"``, rounded up.
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
    """A generation of an adapter in the registry.

    Attributes:
        revision: etcd's revision of the change; where nothing changed, one at which all was so already.
        request_id: of the change; found again in audit records, logs and engine calls.
    """

    name: str
    pool: str
    generation: int
    uri: str
    digest: str
    revision: int
    request_id: str


def published_of(response: pb.ApplyAdaptersResponse) -> Published:
    """What a change set of one upsert came to."""
    adapter = response.results[0].adapter
    return Published(
        adapter.name,
        adapter.pool,
        adapter.generation,
        adapter.spec.source.uri,
        adapter.spec.source.digest,
        response.revision,
        response.request_id,
    )


def strategy_of(canaries: Canaries) -> pb.Strategy:
    """The same on the wire."""
    return pb.Strategy(
        canary_replicas=str(canaries.replicas),
        promote=canaries.promote,
        max_failures=canaries.max_failures,
        soak_seconds=canaries.soak_seconds,
    )


def not_served(published: Published, last: pb.Rollout | None) -> RegistryError | None:
    """Why a generation is not served by all who should; None: it is.

    Args:
        published: what is waited for.
        last: the newest that was heard of it within the time; None: nothing.
    """
    what = f"{published.name} generation {published.generation}"
    repeat = {"request_id": published.request_id}
    if last is None:
        return Unavailable(Reason.DEADLINE_EXCEEDED, f"{what}: nothing was heard of it in time", metadata=repeat)
    if last.done and not last.failure:
        return None
    counted = [one for one in last.replicas if one.canary or not last.HasField("canary")]
    behind = {one.replica: _why(one) for one in counted if one.state != pb.RolloutReplica.SERVING}
    told = "; ".join(f"{replica}: {why}" for replica, why in sorted(behind.items()))
    if last.done:
        message = " - ".join(part for part in (f"{what}: {last.failure}", last.canary.halted, told) if part)
        return FailedPrecondition(Reason.ROLLOUT_FAILED, message, metadata=behind)
    message = f"{what} is not served in time: {told or last.waiting}"
    return Unavailable(Reason.DEADLINE_EXCEEDED, message, metadata=behind | repeat)


def _why(replica: pb.RolloutReplica) -> str:
    state = pb.RolloutReplica.State.Name(replica.state).lower()
    return " - ".join(part for part in (state, replica.reason, replica.message) if part)
