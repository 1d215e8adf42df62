"""The outside of one sidecar: what its parts are wired over."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from registry.etcd3.client import Client
from registry.model.keys import Keys
from registry.model.status import Presence
from registry.runtime.clock import Clock
from sidecar.artifacts.types import GRACE_SECONDS, ArtifactStore
from sidecar.engines.driver import Engine
from sidecar.loop.lease_collector import KEEP_SECONDS, LeasedStore, StoreRounds
from sidecar.plan.readiness import USUAL_RULE, ReadyRule
from sidecar.plan.types import RoundReport
from sidecar.resolver.demand import IDLE_SECONDS
from sidecar.resolver.resolver import Resolver

# An engine that is restarted has loaded its model by then, unless that is large.
GIVE_UP_SECONDS = 60.0


class ReplicaStore(ArtifactStore, LeasedStore, Protocol):
    """A host's artifacts, as one replica uses them."""

    def take_over(self) -> None:
        """Reads anew what the last process of this replica leased, once it has ended. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside of one sidecar: who it is, what it reaches, and how long it keeps what nobody uses.

    Attributes:
        presence: the replica, its pool, its labels, and the incarnation of this process.
        client: reaches etcd; whoever made it closes it.
        keys: of the registry in etcd.
        engine: the driver; whoever made it closes it.
        store: of the host; whoever made it closes it.
        maintenance: rounds of work on that store.
        place: names the store in the log; replicas that share a store say the same.
        state: the replica's own directory, for the snapshot.
        clock: time and chance.
        answer: has the engine's questions answered until it is cancelled; None: the engine asks nobody.
        on_round: is told of each round once all parts were; None: nobody else is.
        grace_seconds: see `DrainTracker`.
        idle_seconds: see `ResidentSet`.
        keep_seconds: see `LeaseCollector`.
        ready_rule: for a replica whose engine refuses adapters.
        give_up_seconds: see `ShareGuard`.
        base: the sidecar's own folder of the base model; None: it has none.
        insecure: what this sidecar bears unprotected on the network.
        http: see `ReplicaStatus.http`.
        certificates: files of certificates, by the flags that name them.
    """

    presence: Presence
    client: Client
    keys: Keys
    engine: Engine
    store: ReplicaStore
    maintenance: StoreRounds
    place: str
    state: Path
    clock: Clock
    answer: Callable[[Resolver], Coroutine[Any, Any, None]] | None = None
    on_round: Callable[[RoundReport], None] | None = None
    grace_seconds: float = GRACE_SECONDS
    idle_seconds: float = IDLE_SECONDS
    keep_seconds: float = KEEP_SECONDS
    ready_rule: ReadyRule = USUAL_RULE
    give_up_seconds: float = GIVE_UP_SECONDS
    base: Path | None = None
    insecure: tuple[str, ...] = ()
    http: str = ""
    certificates: Mapping[str, Path] = field(default_factory=dict)
