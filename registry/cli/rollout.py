"""Following rollouts until they are done or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from registry.cli.client import Client
from registry.cli.failure import CliError, Exit, Failure
from registry.cli.rpc_errors import rpc_failure
from registry.cli.wire import state_name
from registry.client.refusals import worth_repeating
from registry.errors import Reason
from registry.v1 import registry_pb2 as pb

_AT_ONCE = 16
# Even after the deadline each rollout is looked at once, so that all that is pending can be named.
_LOOK_SECONDS = 2.0
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Target:
    """A generation that replicas should come to serve; 0: the present one."""

    pool: str
    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class Followed:
    """How far a rollout was when it was last seen; None: it was never seen."""

    target: Target
    rollout: pb.Rollout | None


Seen = Callable[[Target, pb.Rollout], None]


def follow_all(client: Client, targets: Sequence[Target], timeout_seconds: float, seen: Seen) -> list[Followed]:
    """Follows each rollout until it is done, all until one deadline. `seen` is called from several threads.

    Raises:
        CliError: a rollout cannot be followed at all, e.g. since there is no such adapter.
    """
    end = time.monotonic() + timeout_seconds
    with ThreadPoolExecutor(max_workers=max(1, min(_AT_ONCE, len(targets)))) as pool:
        try:
            return list(pool.map(lambda target: _follow(client, target, end, seen), targets))
        except (CliError, KeyboardInterrupt):
            # The other threads would follow their streams until the deadline.
            pool.shutdown(wait=False, cancel_futures=True)
            client.close()
            raise


def look(client: Client, target: Target) -> pb.Rollout | None:
    """How far a rollout is now; None if that could not be seen in time."""
    return _follow(client, target, time.monotonic(), lambda _target, _rollout: None).rollout


def _follow(client: Client, target: Target, end: float, seen: Seen) -> Followed:
    last: pb.Rollout | None = None
    while True:
        try:
            for rollout in client.watch_rollout(_request(target), _remaining(end)):
                last = rollout
                seen(target, rollout)
                if rollout.done or time.monotonic() > end:
                    return Followed(target, rollout)
        except grpc.RpcError as error:
            if not worth_repeating(error):
                raise CliError(rpc_failure(error, client.address)) from error
        if time.monotonic() > end:
            return Followed(target, last)
        time.sleep(_PAUSE_SECONDS)


def _request(target: Target) -> pb.WatchRolloutRequest:
    return pb.WatchRolloutRequest(pool=target.pool, name=target.name, generation=target.generation)


def _remaining(end: float) -> float:
    left = end - time.monotonic()
    return left if left > _LOOK_SECONDS / 10 else _LOOK_SECONDS


def check_served(followed: Iterable[Followed]) -> None:
    """Returns if every rollout succeeded.

    Raises:
        CliError: exit 7 if any was refused for good, else exit 6 if any is still pending at the deadline.
    """
    everything = list(followed)
    failed = [one for one in everything if one.rollout is not None and one.rollout.done and one.rollout.failure]
    if failed:
        raise CliError(Failure(Exit.ROLLOUT_FAILED, Reason.ROLLOUT_FAILED, _told(failed)))
    pending = [one for one in everything if one.rollout is None or not one.rollout.done]
    if pending:
        raise CliError(Failure(Exit.UNAVAILABLE, Reason.DEADLINE_EXCEEDED, f"not served in time: {_told(pending)}"))


def _told(followed: Sequence[Followed]) -> str:
    return "; ".join(describe(one) for one in followed)


def describe(followed: Followed) -> str:
    """Who does not serve it, and why, in one line."""
    rollout = followed.rollout
    if rollout is None:
        return f"{followed.target.name}: nothing was heard of it"
    counted = [one for one in rollout.replicas if one.canary] if rollout.HasField("canary") else rollout.replicas
    behind = [one for one in counted if one.state != pb.RolloutReplica.SERVING]
    who = ", ".join(_behind(one) for one in behind)
    told = _told_of(rollout, followed.target, f"{len(counted) - len(behind)} of {len(counted)}")
    return f"{rollout.name} generation {rollout.generation}: {told}" + (f" ({who})" if who else "")


def _told_of(rollout: pb.Rollout, target: Target, served: str) -> str:
    """How far it is; `served` says how many of those that count serve it."""
    if rollout.failure:
        return f"{rollout.failure} - {rollout.canary.halted}" if rollout.canary.halted else rollout.failure
    if not rollout.HasField("canary"):
        what = f"{served} replicas serve it" if rollout.replicas else rollout.waiting
        return f"{what}; {rollout.note}" if rollout.note else what
    if rollout.done:
        return f"{rollout.note}: loraplane rollout promote {rollout.name} --pool {target.pool}"
    return f"{served} canaries serve it, the others generation {rollout.canary.stable_generation}; {rollout.waiting}"


def _behind(replica: pb.RolloutReplica) -> str:
    why = " - ".join(part for part in (replica.reason, replica.message) if part)
    return f"{replica.replica} {state_name(replica)}" + (f": {why}" if why else "")
