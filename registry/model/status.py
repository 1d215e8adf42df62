"""What sidecars report: presence and status."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from registry.model.base import MAX_STATUS_BYTES, Part, Stored

# As many as leave a status small. All replicas report the same names first, so that these can be compared.
MAX_FOUND = 256
MAX_LEAVING = 256


class Presence(Stored):
    """That a sidecar lives. `owner` tells its process' host and store, `incarnation` the process itself.

    `capacity`: how many adapters its engine can hold at once; None: it is not known.
    """

    pool: str
    replica: str
    incarnation: str
    owner: str
    labels: dict[str, str] = {}
    capacity: int | None = None
    started_at: str


class EngineLimits(Part):
    """What the engine says of its limits; None: it does not say."""

    max_loras: int | None = None
    max_cpu_loras: int | None = None
    max_lora_rank: int | None = None
    target_modules: list[str] | None = None


class EngineStatus(Part):
    """The engine as it was last observed; `incarnation` is empty while it is out of reach.

    `swap` says how the weights behind a name are replaced: ``plugin``, without a gap, ``pipelined``, ``refused``, or
    ``unproven``: at once, and read only afterwards.
    `names` says what it calls an adapter: ``plain``, its name, or ``versioned``, ``name@generation``.
    """

    kind: str
    version: str
    url: str
    base_models: list[str]
    incarnation: str
    limits: EngineLimits = EngineLimits()
    swap: str = ""
    names: str = "plain"


class Served(Part):
    """The served set: how many names, and the hash over (name, generation, digest) of all of them."""

    count: Annotated[int, Field(ge=0)]
    hash: str


class Resident(Part):
    """A lazy adapter that was asked for and is loaded now, and when it was last used, to the minute."""

    name: str
    generation: int
    last_used: str


class Lazy(Part):
    """The lazy adapters of the pool: how many, and whether this replica can serve them at the first request."""

    count: int = 0
    servable: bool = False
    reason: str = ""
    resident: list[Resident] = []


class Pending(Part):
    """A name that is not served yet."""

    name: str
    generation: int
    reason: str
    request_id: str = ""


class Failed(Part):
    """A name that was refused or could not be loaded. `retry_at` None: not before something changes."""

    name: str
    generation: int
    reason: str
    message: str
    attempts: int
    retry_at: str | None
    request_id: str = ""


class Warned(Part):
    """Something that somebody should know of an adapter that is served all the same; no name: of all of them."""

    name: str
    generation: int
    reason: str
    message: str


class Found(Part):
    """A name that is served although its record has no digest, and the digest that this replica found."""

    name: str
    generation: int
    digest: str


class Leaving(Part):
    """A name that others are to serve, and that this replica serves until they do; of which generation."""

    name: str
    generation: int


class ReplicaStatus(Stored):
    """Everything that a replica says of itself, true at `observed_revision`.

    `stale`: etcd is out of reach or the observation of the engine is old. `omitted` counts the pending and failed
    names that did not fit: while it is not 0, a name's absence from both lists proves nothing.
    `found` are the first `MAX_FOUND` of the names whose records have no digest, which replicas can disagree about;
    `found_omitted` counts the others.
    `leaving` are the first `MAX_LEAVING` of the names that the replica serves although they are not its own any more.
    `members` is the digest of the live replicas (see `registry.model.placement`) among which the replica found its own
    share; empty: it did not look at them, since no adapter of the pool is placed by number. `weights` is the digest of
    the weights that they had in it.
    `note` says in one sentence why the replica is not ready. `held` says why etcd's newest list is not followed, and
    what to do (guarantee R15); empty: it is.
    """

    max_bytes = MAX_STATUS_BYTES
    replica: str
    pool: str
    engine: EngineStatus
    observed_revision: int
    ready: bool
    stale: bool
    served: Served
    pending: list[Pending]
    failed: list[Failed]
    warnings: list[Warned] = []
    omitted: int = 0
    found: list[Found] = []
    found_omitted: int = 0
    leaving: list[Leaving] = []
    lazy: Lazy = Lazy()
    members: str = ""
    weights: str = ""
    note: str = ""
    held: str = ""
    last_request_id: str = ""
    updated_at: str
