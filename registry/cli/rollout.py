"""Following rollouts until they are done or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from registry.cli.client import AdminClient
from registry.cli.failure import CliError, CommandFailure, Exit, unavailable
from registry.cli.views.messages import meanwhile, state_name
from registry.client import admin_api as api
from registry.client.adapters import NOWHERE, commands_of, counted_in, is_nowhere_in
from registry.lora.text import some_of
from registry.model.errors import Reason
from registry.residency.health import STUCK
from registry.v1 import registry_pb2 as pb

_AT_ONCE = 16
# Even after the deadline each rollout is looked at once, so that all that is pending can be named.
_LOOK_SECONDS = 2.0
_PAUSE_SECONDS = 0.2
# What keeps it from coming is looked at once more: a replica may not have heard yet that it is mended.
_HEARD_SECONDS = 2.0
# Of many that are not served, so many are told of; each may name many replicas.
_TOLD = 5
# Of replicas in the same state, so many are named.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class RolloutTarget:
    """A generation that replicas should come to serve; 0: the present one.

    `min_ready`: so many suffice; 0: it takes all that should serve it. `goes_back`: its files are of an earlier
    generation, so that they do not come by themselves if nobody has them.
    """

    pool: str
    name: str
    generation: int
    min_ready: int = 0
    goes_back: bool = False

    def is_served(self, rollout: pb.Rollout) -> bool:
        """True if so many serve it that nobody waits for the others."""
        serving = sum(one.state == pb.RolloutReplica.SERVING for one in rollout.replicas)
        is_present = rollout.failure in {"", "replicas_failed"} and not rollout.HasField("canary")
        return is_present and 0 < self.min_ready <= serving


@dataclass(frozen=True, slots=True)
class FollowedRollout:
    """Progress of a rollout when it was last seen; None: it was never seen."""

    target: RolloutTarget
    rollout: pb.Rollout | None


REMEDY = "raise the engines' --max-cpu-loras or the pool's --max-adapters, delete others, or apply some with load: lazy"


def cannot_come(target: RolloutTarget, rollout: pb.Rollout) -> bool:
    """True if whoever does not serve it will not, unless something else is changed."""
    if target.goes_back and is_nowhere_in(rollout):
        return True
    behind = [one for one in counted_in(rollout) if one.state != pb.RolloutReplica.SERVING]
    stuck = [one for one in behind if one.state == pb.RolloutReplica.PENDING and one.reason in STUCK]
    failed = [one for one in behind if one.state == pb.RolloutReplica.FAILED]
    return bool(stuck) and len(stuck) + len(failed) == len(behind)


Seen = Callable[[RolloutTarget, pb.Rollout], None]


def follow_all(
    client: AdminClient, targets: Sequence[RolloutTarget], timeout_seconds: float, seen: Seen
) -> list[FollowedRollout]:
    """Follows each rollout until it is done, all until one deadline. `seen` is called from several threads.

    Raises:
        CliError: a rollout cannot be followed at all, e.g. since there is no such adapter.
    """
    end = time.monotonic() + timeout_seconds
    with ThreadPoolExecutor(max_workers=max(1, min(_AT_ONCE, len(targets)))) as pool:
        try:
            return list(pool.map(lambda target: _follow(client, target, end, seen), targets))
        except BaseException:  # an interrupt, a reader that left
            # The other threads would follow their streams until the deadline.
            pool.shutdown(wait=False, cancel_futures=True)
            client.close()
            raise


def look(client: AdminClient, target: RolloutTarget) -> pb.Rollout | None:
    """Progress of a rollout now; None if that could not be seen in time."""
    return _follow(client, target, time.monotonic(), lambda _target, _rollout: None).rollout


def _follow(client: AdminClient, target: RolloutTarget, end: float, seen: Seen) -> FollowedRollout:
    request = pb.WatchRolloutRequest(pool=target.pool, name=target.name, generation=target.generation)
    last: pb.Rollout | None = None
    is_stuck = False
    while True:
        try:
            for rollout in client.stream(api.WATCH_ROLLOUT, request, _remaining(end)):
                last, was_stuck, is_stuck = rollout, is_stuck, cannot_come(target, rollout)
                seen(target, rollout)
                is_over = rollout.done or (is_stuck and was_stuck) or time.monotonic() > end
                if is_over or target.is_served(rollout):
                    return FollowedRollout(target, rollout)
                if is_stuck:
                    break
        except CliError as error:
            if not client.may_pass(error):
                raise
        if time.monotonic() > end:
            return FollowedRollout(target, last)
        time.sleep(_HEARD_SECONDS if is_stuck else _PAUSE_SECONDS)


def _remaining(end: float) -> float:
    left = end - time.monotonic()
    return left if left > _LOOK_SECONDS / 10 else _LOOK_SECONDS


def check_served(followed: Iterable[FollowedRollout]) -> None:
    """Returns if every rollout succeeded.

    Raises:
        CliError: exit 7 if any was refused for good or cannot come, else exit 6 if any is still pending.
    """
    everything = [one for one in followed if one.rollout is None or not one.target.is_served(one.rollout)]
    failed = [one for one in everything if one.rollout is not None and one.rollout.done and one.rollout.failure]
    if failed:
        raise CliError(CommandFailure(Exit.ROLLOUT_FAILED, Reason.ROLLOUT_FAILED, _told(failed)))
    stuck = [one for one in everything if one.rollout is not None and cannot_come(one.target, one.rollout)]
    nowhere = [one for one in stuck if one.rollout is not None and is_nowhere_in(one.rollout)]
    if nowhere:
        message = f"{_told(nowhere)}; {NOWHERE}"
        raise CliError(CommandFailure(Exit.ROLLOUT_FAILED, Reason.ROLLOUT_FAILED, message))
    if stuck:
        message = f"{_told(stuck)}; there is no room for it, and waiting brings none: {REMEDY}"
        raise CliError(CommandFailure(Exit.ROLLOUT_FAILED, Reason.ROLLOUT_FAILED, message))
    pending = [one for one in everything if one.rollout is None or not one.rollout.done]
    if pending:
        raise unavailable(Reason.DEADLINE_EXCEEDED, f"not served in time: {_told(pending)}")


def _told(followed: Sequence[FollowedRollout]) -> str:
    """The first of them, each with what helps, and where the others are found."""
    told = "; ".join(part for one in followed[:_TOLD] for part in (describe(one), _commands(one)) if part)
    if len(followed) <= _TOLD:
        return told
    pools = " ".join(f"--pool {pool}" for pool in dict.fromkeys(one.target.pool for one in followed))
    return f"{told}; and {len(followed) - _TOLD} more: loraplane get adapters {pools} --sort-by STATE"


def _commands(followed: FollowedRollout) -> str:
    return commands_of(followed.rollout, followed.target.pool) if followed.rollout else ""


def describe(followed: FollowedRollout) -> str:
    """Replicas that do not serve it, and why, in one line."""
    rollout = followed.rollout
    if rollout is None:
        return f"{followed.target.name}: no report on it"
    counted = counted_in(rollout)
    behind = [one for one in counted if one.state != pb.RolloutReplica.SERVING]
    names: dict[str, list[str]] = {}
    for one in behind:
        names.setdefault(_behind(one), []).append(one.replica)
    who = "; ".join(f"{some_of(replicas, _NAMED)} {state}" for state, replicas in names.items())
    told = _told_of(rollout, followed.target, f"{len(counted) - len(behind)} of {len(counted)}")
    return f"{rollout.name} generation {rollout.generation}: {told}" + (f" ({who})" if who else "")


def _told_of(rollout: pb.Rollout, target: RolloutTarget, served: str) -> str:
    """Progress; `served` says how many of those that count serve it."""
    if rollout.failure:
        return f"{rollout.failure} - {rollout.canary.halted}" if rollout.canary.halted else rollout.failure
    if not rollout.HasField("canary") or (rollout.done and not rollout.replicas):  # the latter is disabled
        what = f"{served} replicas serve it" if rollout.replicas else rollout.waiting
        return "; ".join(filter(None, [what, rollout.note]))
    if rollout.done:
        return f"{rollout.note}: loraplane rollout promote {rollout.name} --pool {target.pool}"
    return f"{served} canaries serve it, the others generation {rollout.canary.stable_generation}; {rollout.waiting}"


def _behind(replica: pb.RolloutReplica) -> str:
    """State of a replica that does not serve it, in words that follow its name."""
    why = " - ".join(part for part in (replica.reason, replica.message) if part)
    what = f"{state_name(replica)}" + (f": {why}" if why else "")
    if serving := meanwhile(replica):
        return f"{serving}, generation {replica.generation} {what}"
    return what
