"""Presence and status, as sidecars report them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from registry.model.errors import RegistryError
from registry.model.stored import MAX_STATUS_BYTES, Number, Part, Stored

# As many as leave a status small. All replicas report the same names first, so that these can be compared.
MAX_FOUND = 256
# What is served is told before what is not: names of usual length for a few thousand fit in a status.
MAX_SERVES = 4096
MAX_LEAVING = 256
MAX_EARLIER = 2048
MAX_LOADS = 256
MAX_USES = 4096
# Far more than any engine runs and queues.
MAX_PER_REPLICA = 1_000_000
MAX_IN_FLIGHT = 1e9
# Of an engine, as a pool's `max_adapters`.
MAX_CAPACITY = 1_000_000


class ReportedDeclines(Part):
    """The adapters that a replica declines for one reason, by their ids: see `registry.model.placement`.

    `by` tells the limit of the replica's own that they are beyond, as a digest.
    """

    by: Annotated[str, StringConstraints(max_length=64)]
    adapters: Annotated[list[Annotated[str, StringConstraints(max_length=64)]], Field(max_length=4096)]


DeclinesByReason = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], ReportedDeclines], Field(max_length=64)
]


class RememberedDeclines(Stored):
    """The same, as a replica keeps it for its next process."""

    declines: DeclinesByReason = {}


class Presence(Stored):
    """Sign that a sidecar lives. `owner` tells its process' host and store, `incarnation` the process itself.

    `capacity`: how many adapters its engine can hold at once; None: it is not known; 0: it has been away for a while.
    `version`: of the sidecar; empty: it is of a release that does not say.
    `leaving`: it drains (guarantee R20): placement, rollouts and residency leave it out.
    `engine_url`: the engine's address for routers; empty: it is the one of its status.
    `declines`: adapters that are placed by number and that it refuses for good by limits of its own, by reason.
    `seat`: what one process of a host or pod has, and only the next has too once it is dead; empty: it has none.
    `ephemeral`: its name is not to come back once it is gone; another of its kind takes its place.
    `by_reports`: its sidecar places adapters among those alone that report, see `registry.model.placement`.
    """

    pool: str
    replica: str
    incarnation: str
    owner: str
    labels: dict[str, str] = {}
    capacity: Annotated[int, Field(ge=0, le=MAX_CAPACITY)] | None = None
    started_at: str
    version: str = ""
    leaving: bool = False
    engine_url: str = ""
    declines: DeclinesByReason = {}
    seat: str = ""
    ephemeral: bool = False
    by_reports: bool = False


def presence_of(value: bytes) -> Presence | None:
    """The presence in a value of etcd; None: it cannot be read."""
    try:
        return Presence.parse(value)
    except RegistryError:
        return None


def host_of(owner: str) -> str:
    """The host in a presence's `owner`, by its boot id; empty: it does not say."""
    host = owner.partition(":")[0]
    return "" if host == "unknown-boot" else host


class LeftReplica(Stored):
    """Note that the process of a sidecar ended in order, so that nobody is to wait for it. `at` is RFC 3339."""

    pool: str
    replica: str
    incarnation: str
    at: str


class LastKnown(Part):
    """Facts of a replica that is gone, as it told them last; empty or 0: it did not, or they could not be read.

    `engine_url`: of its engine, for routers. `engine`: its kind and version. `version`: of the sidecar.
    """

    engine_url: str = ""
    host: str = ""
    observed_revision: Number = 0
    engine: str = ""
    version: str = ""


class DrainOrder(Stored):
    """An operator's order to a replica: to drain, or to serve again. `at` is RFC 3339, `by` the principal."""

    pool: str
    replica: str
    drain: bool
    at: str
    by: str


class RememberedReplica(Part):
    """A replica that was ready and lived within the last day.

    `last_seen` (RFC 3339) is when it was found gone; empty: it lives. `last_known`: of one that is gone; None: nothing.
    `incarnation`: of its process that lived last; empty: not known. `ephemeral`: as its presence says. `joined_at`
    (RFC 3339): when such a one was found first, as long as it has taken nobody's place; empty: it has, or is none.
    """

    labels: dict[str, str] = {}
    incarnation: str = ""
    last_seen: str = ""
    ephemeral: bool = False
    joined_at: str = ""
    last_known: LastKnown | None = None


class RememberedReplicas(Stored):
    """The replicas of a pool that were ready and lived within the last day, by name. The admin service writes it."""

    max_bytes = MAX_STATUS_BYTES
    members: dict[str, RememberedReplica] = {}


class ReportedLimits(Part):
    """Limits that the engine tells; None: it tells none."""

    max_loras: Number | None = None
    max_cpu_loras: Number | None = None
    max_lora_rank: Number | None = None
    target_modules: list[str] | None = None


ReportedName = Annotated[str, StringConstraints(max_length=512)]
ReportedNames = Annotated[list[ReportedName], Field(max_length=4096)]
ReportedRenames = Annotated[list[tuple[ReportedName, ReportedName]], Field(max_length=64)]


class ReportedEvidence(Part):
    """Modules that an engine says it applies: see `registry.lora.coverage.findings`."""

    engine: ReportedName
    architecture: ReportedName
    applied: ReportedNames
    taken: ReportedNames
    parts: ReportedRenames = []
    beginnings: ReportedRenames = []
    ends: ReportedRenames = []


class EngineStatus(Part):
    """The engine as it was last observed; `incarnation` is empty while it is out of reach.

    `swap` says how the weights behind a name are replaced: ``plugin``, without a gap, ``pipelined``, ``refused``, or
    ``unproven``: at once, and read only afterwards.
    `names` says what it calls an adapter: ``plain``, its name, or ``versioned``, ``name@generation``.
    `evidence`: what it says that it applies of adapters; None: it does not say.
    `highest_rank`: of what it is to hold and was brought in; None: nothing was.
    `max_model_len`: tokens of the longest context that it takes; None: it does not say.
    """

    kind: str
    version: str
    url: str
    base_models: list[str]
    incarnation: str
    limits: ReportedLimits = ReportedLimits()
    swap: str = ""
    names: str = "plain"
    evidence: ReportedEvidence | None = None
    highest_rank: Number | None = None
    max_model_len: Number | None = None


class Served(Part):
    """The served set: how many names, and the hash over (name, generation, digest) of all of them.

    `seen_at`: the engine cannot be looked at, and this is what it served then; empty: it is what it serves now.
    """

    count: Number
    hash: str
    seen_at: str = ""


class Resident(Part):
    """A lazy adapter that was asked for and is loaded now, and when it was last used, to the minute."""

    name: str
    generation: Number
    last_used: str


class Lazy(Part):
    """The lazy adapters of the pool: how many, and whether this replica can serve them at the first request."""

    count: Number = 0
    servable: bool = False
    reason: str = ""
    resident: list[Resident] = []


class Pending(Part):
    """A name that is not served yet."""

    name: str
    generation: Number
    reason: str
    request_id: str = ""


class Failed(Part):
    """A name that was refused or could not be loaded. `retry_at` None: not before something changes.

    `settled`: rollouts take it for an answer although it is tried again.
    """

    name: str
    generation: Number
    reason: str
    message: str
    attempts: Number
    retry_at: str | None
    request_id: str = ""
    settled: bool = False


class Warned(Part):
    """Something that somebody should know of an adapter that is served all the same; no name: of all of them."""

    name: str
    generation: Number
    reason: str
    message: str


class Found(Part):
    """A name that is served although its record has no digest, and the digest that this replica found."""

    name: str
    generation: Number
    digest: str


class Leaving(Part):
    """A name that others are to serve, and that this replica serves until they do; of which generation."""

    name: str
    generation: Number


class Kept(Part):
    """A pending or failed name that the engine answers to all the same, with the weights of a generation.

    `generation` 0: an earlier one, of which nothing is known any more, since the sidecar was restarted. `counted`: it
    is among `served` too, as the last good generation of a record that cannot be followed.
    """

    name: str
    generation: Number
    counted: bool = False


class ReportedStore(Part):
    """Bytes that a replica's store still takes, with what engines of its host may be reading.

    `room_bytes`: what may still be staged, once all is removed that no engine reads. `in_use_bytes`: what stays then.
    `largest_bytes`: of the largest artifact. `bound`: what ends the room first, ``disk`` or ``budget``.
    `damaged`: artifacts whose bytes are not those that were written, and that engines may be reading.
    """

    room_bytes: Number
    in_use_bytes: Number
    largest_bytes: Number
    bound: str
    damaged: Number = 0


class ReportedCertificate(Part):
    """Certificate that a sidecar uses, by the flag that names its file; times in RFC 3339."""

    flag: str
    begins: str
    ends: str


class ReportedEvent(Part):
    """One of the newest events of a replica, as its sidecar's ``/events`` has it, its message cut.

    `name` empty: it is about the replica as a whole.
    """

    at: str
    event: str
    name: str = ""
    generation: Number = 0
    reason: str = ""
    message: str = ""


class AdapterLoad(Part):
    """Requests for an adapter that were with the engine at once, waiting ones too, on average over a minute."""

    name: str
    in_flight: Annotated[float, Field(ge=0, le=MAX_IN_FLIGHT)]


class ByLoad(Part):
    """Number of replicas by requests: at least the placement's, and so many that each has `per_replica` at once."""

    max: Annotated[int, Field(ge=1, le=10_000)] = Field(
        title="Number of replicas at most", description="use a whole number from 1 to 10000"
    )
    per_replica: Annotated[int, Field(ge=1, le=MAX_PER_REPLICA)] = Field(
        title="Requests that one replica is to have at once, on average over a minute, waiting ones too",
        description=f"use a whole number from 1 to {MAX_PER_REPLICA}",
    )


class ScaledReplicas(Part):
    """Present number of replicas of an adapter that is placed by load, the reason, and since when (RFC 3339)."""

    replicas: Annotated[int, Field(ge=1, le=10_000)]
    reason: str
    at: str


class ReportedLoad(Part):
    """Load by adapter, of those whose number of replicas follows it: the first `MAX_LOADS`, the busiest first.

    Those without any are left out; `omitted` counts the others that do not stand here.
    """

    adapters: list[AdapterLoad] = []
    omitted: Number = 0


def tell_seconds(ttl_seconds: int) -> float:
    """Time after which a replica tells uses anew, for the shortest ttl that begins with one."""
    return min(300.0, max(5.0, ttl_seconds / 16))


class ReportedUses(Part):
    """Last uses of the adapters whose ttl begins with it, by revisions of the store, all of which uses came before.

    Told is every use before `until` was written. `since`: before it any may have been used. `names`: used since then.
    """

    since: Number
    until: Number
    names: Annotated[list[tuple[str, Number]], Field(max_length=MAX_USES)] = []


class ReplicaStatus(Stored):
    """Everything that a replica says of itself, true at `observed_revision`.

    `stale`: etcd is out of reach or the observation of the engine is old. `omitted` counts the pending and failed
    names that did not fit: while it is not 0, a name's absence from both lists proves nothing, and `serves` has every
    name that is served as desired, with its generation; None: these are not told.
    `omitted_reason`: of all of these; empty: they have several, or it is not told.
    `pending_count` and `failed_count` count all of these names, listed or not; None: a sidecar that does not say.
    `kept` are the pending and failed names that the engine answers to all the same.
    `earlier` are the first `MAX_EARLIER` of the earlier generations that the engine answers to beside these, by name:
    what `AdapterSpec.keep` reaches.
    `found` are the first `MAX_FOUND` of the names whose records have no digest, which replicas can disagree about;
    `found_omitted` counts the others.
    `removing` counts the names that the engine lists, or may list yet, and that are on their way out.
    `leaving` are the first `MAX_LEAVING` of the names that the replica serves although they are not its own any more.
    `members` is the digest of the live replicas (see `registry.model.placement`) among which the replica found its own
    share; empty: it did not look at them, since no adapter of the pool is placed by number. `weights` is the digest of
    the weights that they had in it.
    `note` says in one sentence why the replica is not ready. `held` says why etcd's newest list is not followed, and
    what to do (guarantee R15); empty: it is. `degraded` says that the engine refuses more than a share of what it
    should serve, and why; empty: it does not. `insecure`: what the sidecar bears unprotected on the network, each with
    the remedy, since it was started with ``--insecure``. `http`: HOST:PORT of the sidecar's own port, with ``https://``
    before it where it has TLS; empty: it is not known under which it is reached. `store`: how full that is, as of the
    last write of something else; None: not known. `certificates`: those that the sidecar uses.
    `events`: the newest, the oldest first, as of the last write of something else. `load`: requests at once for the
    adapters whose number of replicas follows them; None: nothing counts them there, or there are no such adapters.
    `uses`: of the adapters whose ttl begins with the last use; None: nothing knows them there, or there are none.
    """

    max_bytes = MAX_STATUS_BYTES
    replica: str
    pool: str
    engine: EngineStatus
    observed_revision: Number
    ready: bool
    stale: bool
    served: Served
    pending: list[Pending]
    failed: list[Failed]
    warnings: list[Warned] = []
    omitted: Number = 0
    omitted_reason: str = ""
    pending_count: Number | None = None
    failed_count: Number | None = None
    kept: list[Kept] = []
    earlier: list[tuple[str, Number]] = []
    serves: list[tuple[str, Number]] | None = None
    found: list[Found] = []
    found_omitted: Number = 0
    removing: Number = 0
    leaving: list[Leaving] = []
    lazy: Lazy = Lazy()
    members: str = ""
    weights: str = ""
    note: str = ""
    held: str = ""
    degraded: str = ""
    insecure: list[str] = []
    http: str = ""
    store: ReportedStore | None = None
    certificates: list[ReportedCertificate] = []
    events: list[ReportedEvent] = []
    load: ReportedLoad | None = None
    uses: ReportedUses | None = None
    last_request_id: str = ""
    updated_at: str

    @property
    def answered(self) -> int:
        """Number of names that the engine answers to, those of `kept` too."""
        return self.served.count + self.kept_count

    @property
    def kept_count(self) -> int:
        """Number of these that have other weights than they should."""
        return sum(not one.counted for one in self.kept)
