"""The records that the admin service writes.

The `title` of a field says what it means; its `description` what to write there, which ends complaints about it.
"""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer

from registry.lora.base import check_patterns
from registry.lora.signatures import SIGNATURE_PATTERN
from registry.model.expected_answers import Expect
from registry.model.names import check_engine_host, label_text
from registry.model.status import ByLoad, ReportedEvidence, ScaledReplicas
from registry.model.stored import Number, Part, Stored

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
Digest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=2048, pattern=r"^[a-z][a-z0-9+.-]*://[^\s\x00-\x1f]+$")]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
LabelValue = Annotated[str, StringConstraints(max_length=256)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=512)]
ModuleName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[\w.-]+$")]
EngineHost = Annotated[str, StringConstraints(min_length=1, max_length=300), AfterValidator(check_engine_host)]
ModulePattern = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[\w.{},-]+$")]
Width = Annotated[int, Field(ge=1, le=1 << 31)]
Load = Literal["eager", "lazy"]
# Any name: a pool of a kind whose driver is not installed, or is no more, stays as it is.
EngineKind = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
EngineNames = Literal["plain", "versioned"]
Proving = Literal["effect", "off"]
Role = Literal["prefill", "decode"]
Count = Annotated[int, Field(ge=1, le=10_000)]
Percent = Annotated[str, StringConstraints(pattern=r"^([1-9][0-9]?|100)%$")]
Labels = Annotated[
    dict[LabelKey, LabelValue],
    Field(
        max_length=64,
        description="use at most 64 labels, keys of 1 to 63 letters, digits and . _ / -, values of at most 256 "
        "characters",
    ),
]
# The shortest that the controller can keep to, and ten years; generations by name: as many as a record has room for.
MIN_TTL_SECONDS, MAX_TTL_SECONDS = 10, 315_360_000
MIN_KEEP, MAX_KEEP = 2, 32
MAX_GENERATION = 2**53 - 1  # the largest that every reader of JSON takes without loss
# How far a restored generation may be above the one before it; and the first, as of one a second for 30 years.
MAX_RESTORED_STEP, MAX_RESTORED_FIRST = 1000, 1_000_000_000


class SourceSpec(Part):
    """Place of an adapter's files.

    `digest` is the manifest digest, None: not pinned. `signature` is over that of what is there, None: not signed.
    """

    uri: Uri = Field(
        title="Folder, object, file or repository that holds the adapter",
        description="write scheme://path of at most 2048 characters without spaces; for a folder write file:///absolute/path",
    )
    digest: Digest | None = Field(
        title="Digest of the files, which pins them: other bytes are refused",
        default=None,
        description='write "sha256:" and 64 lower-case hex digits, or leave it out',
    )
    signature: Annotated[str, StringConstraints(pattern=SIGNATURE_PATTERN)] | None = Field(
        title="Signature over the digest", default=None, description="write what loraplane sign prints, or leave it out"
    )


class Placement(Part):
    """On which replicas of the pool an adapter is served: so many of those whose labels have all of `selector`.

    With `by_load` `replicas` is the least number, and the present one follows requests."""

    replicas: Literal["all"] | Count = Field(
        title="Number of replicas that serve it, or all",
        default="all",
        description="use all, or a whole number from 1 to 10000",
    )
    selector: Labels = Field(
        title="Labels that these have", default={}, description="use at most 64 labels that replicas have, as in labels"
    )
    by_load: ByLoad | None = Field(title="Number of replicas that follows requests", default=None)

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """As earlier releases write it, where it asks for nothing that they do not know."""
        written: dict[str, object] = handler(self)
        if self.by_load is None:
            written.pop("by_load", None)
        return written


class Canary(Part):
    """Replicas of an adapter that take a new version first: a number, or a share such as ``25%``, rounded up."""

    replicas: Count | Percent = Field(
        title="Number of replicas that get a new version first, or a share of them, rounded up",
        description='use a whole number from 1 to 10000, or a share from "1%" to "100%"',
    )


class Strategy(Part):
    """Strategy by which new weights come to an adapter's replicas; an adapter without one gets them everywhere at once.

    `promote` ``auto``: to all once every canary has served them for `soak_seconds`, but for at most `max_failures` that
    refuse them; ``manual``: when somebody says so. More that refuse them, or all, halt it.
    """

    canary: Canary = Field(title="Replicas that get a new version first")
    promote: Literal["auto", "manual"] = Field(
        title="auto: to all once the canaries have served it; manual: when somebody says so",
        default="auto",
        description="use auto or manual",
    )
    max_failures: int = Field(
        title="Number of canaries that may refuse it; more, or all, halt the rollout",
        default=0,
        ge=0,
        le=10_000,
        description="use a whole number from 0 to 10000",
    )
    soak_seconds: int = Field(
        title="Seconds for which every canary serves it before all others get it",
        default=60,
        ge=0,
        le=7 * 86_400,
        description="use a whole number of seconds from 0 to 604800, which is a week",
    )


class Prepare(Part):
    """Changes allowed to an adapter's files before an engine sees them."""

    remap: Literal["auto", "off"] = Field(
        title="Renaming of modules with known other names", default="auto", description="use auto or off"
    )
    vision: Literal["reject", "drop", "keep"] = Field(
        title="Fate of matrices for a vision part", default="reject", description="use reject, drop or keep"
    )
    dora: Literal["reject", "strip"] = Field(
        title="Fate of DoRA's magnitudes", default="reject", description="use reject or strip"
    )
    drop: Annotated[list[ModuleName], Field(max_length=64)] = Field(
        title="Modules to leave out", default=[], description="name at most 64 modules to leave out, e.g. mlp.gate"
    )


class AdapterSpec(Part):
    """Desired state of an adapter. Its change, and nothing else, makes a new generation, but for those of `LIFE`.

    `ttl_seconds`: so long after its record was last written, or with `ttl_from` ``use`` last used, it is deleted; None:
    never. `keep`: so many of its generations are served by their names, the newest included; None: the newest alone.
    """

    source: SourceSpec = Field(
        title="Place of its files", description="an adapter needs a source with a uri, e.g. file:///adapters/sql"
    )
    base_model: ModelName | None = Field(
        default=None, title="Name of the base model that it was trained on, where the pool has several"
    )
    load: Load = Field(
        title="eager: loaded everywhere; lazy: where it is asked for", default="eager", description="use eager or lazy"
    )
    priority: Annotated[int, Field(ge=-1000, le=1000)] = Field(
        title="Rank where room is short: the highest is loaded first",
        default=0,
        description="use a whole number from -1000 to 1000",
    )
    placement: Placement = Field(default=Placement(), title="Replicas that serve it")
    prepare: Prepare = Field(default=Prepare(), title="Changes allowed to its files before an engine sees them")
    credentials: Annotated[str, StringConstraints(min_length=1, max_length=96)] | None = Field(
        default=None, title="Name of the credential, known to sidecars, with which the source is read"
    )
    labels: Labels = {}
    strategy: Strategy | None = Field(
        title="Way of a new version to the replicas; without one, all get it at once",
        default=None,
        description="a strategy needs canary.replicas; beside it may stand promote, maxFailures and soak",
    )
    description: Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^\P{Cc}*$")] | None = Field(
        title="Words for people, shown by describe",
        default=None,
        description="write at most 1024 characters in one line, without control characters, or leave it out",
    )
    expect: Expect | None = Field(
        title="Answers that an engine has to give with it before its name is bound",
        default=None,
        description="let loraplane expect DIR --base-model DIR write it, or leave it out",
    )
    enabled: bool = Field(
        title="False: served nowhere", default=True, description="use true, or false to have it served nowhere"
    )
    ttl_seconds: Annotated[int, Field(ge=MIN_TTL_SECONDS, le=MAX_TTL_SECONDS)] | None = Field(
        title="Time after its last change until it is deleted; without one it stays",
        default=None,
        description=f"use a whole number of seconds from {MIN_TTL_SECONDS} to {MAX_TTL_SECONDS}, which is ten years; "
        "without one it never ends",
    )
    ttl_from: Literal["change", "use"] | None = Field(
        title="Begin of its ttl: last change, or use", default=None, description="use change or use; without it: change"
    )
    keep: Annotated[int, Field(ge=MIN_KEEP, le=MAX_KEEP)] | None = Field(
        title="Number of generations that are served by name, the newest included; without one, the newest alone",
        default=None,
        description=f"use a whole number from {MIN_KEEP} to {MAX_KEEP}, the newest generation included, or leave it "
        "out: then only the newest is served",
    )

    @property
    def weights_and_serving(self) -> AdapterSpec:
        """Everything but how long it and its generations live: what makes a generation."""
        return self.model_copy(update=dict.fromkeys(LIFE)) if any(self.life.values()) else self

    @property
    def life(self) -> dict[str, object]:
        """Fields of `LIFE`: how long it and its generations live."""
        return {name: getattr(self, name) for name in LIFE}


# Fields of a spec that are none of a generation's: a change of these alone makes none, and none brings them back.
LIFE = ("ttl_seconds", "ttl_from", "keep")


class CanaryRollout(Part):
    """Rollout in which only the canaries serve a record's generation yet; all others keep the weights of `stable_spec`.

    Of `stable_spec` only what decides about the weights counts: source, base model, preparation, credentials, `expect`.
    `halted`: why it goes no further by itself, though it can be promoted by hand; empty: it does.
    """

    stable_generation: Annotated[int, Field(ge=1, le=MAX_GENERATION)]
    stable_spec: AdapterSpec
    halted: str = ""


class KeptGeneration(Part):
    """An earlier generation that is served by its name; of `spec` counts what decides about the weights."""

    generation: Annotated[int, Field(ge=1, le=MAX_GENERATION)]
    spec: AdapterSpec


class AskedRetry(Part):
    """Request for another try of what failed; `replica` empty: on all of them."""

    request_id: str
    replica: str = ""


class AdapterRecord(Stored):
    """One adapter at one generation. `request_id` is that of the change which made the generation.

    `scaled`: what its requests made of its number of replicas; None: nothing yet, or its placement is not by load.
    `rollout` None: the generation is for all replicas that serve the adapter. `retry` None: nobody asked for one.
    `expires_at`: when its time to live is over by the clock of who wrote this, RFC 3339, for people: the controller of
    rollouts goes by no wall clock (`registry.rollout.expiry`). None: never.
    `kept`: earlier generations that are served beside it, the newest first: what `spec.keep` reaches of them.
    """

    name: str
    pool: str
    tenant: str
    generation: Annotated[int, Field(ge=1, le=MAX_GENERATION)]
    spec: AdapterSpec
    updated_at: str
    updated_by: str
    request_id: str = ""
    rollout: CanaryRollout | None = None
    retry: AskedRetry | None = None
    expires_at: str | None = None
    kept: list[KeptGeneration] = []
    scaled: ScaledReplicas | None = None


class Restoration(Part):
    """Principal who put a generation into history from a backup, and when (RFC 3339)."""

    principal: str
    at: str


class RetiredRecord(AdapterRecord):
    """An earlier generation, as history keeps it, with the request that replaced or deleted it.

    `restored_by` None: this store had the generation itself. Otherwise all else in it is somebody's word.
    """

    retired_by_request: str
    deleted: bool
    restored_by: Restoration | None = None


class ReplicaGroup(Part):
    """So many replicas that have all of these labels."""

    labels: Annotated[Labels, Field(min_length=1)] = Field(
        description="name 1 to 64 labels that replicas have, keys of 1 to 63 characters, values of at most 256"
    )
    replicas: Annotated[int, Field(ge=1, le=1_000_000)] = Field(description="use a whole number from 1 to 1000000")


def _disjoint(groups: list[ReplicaGroup]) -> list[ReplicaGroup]:
    """The groups as they are. Raises ValueError: a replica could be of two, and would count twice."""
    for one, other in combinations(groups, 2):
        if all(other.labels.get(key, value) == value for key, value in one.labels.items()):
            raise ValueError(f"a replica can have both {label_text(one.labels)} and {label_text(other.labels)}")
    return groups


def _distinct(roles: list[Role]) -> list[Role]:
    """The roles as they are. Raises ValueError: one stands there twice."""
    if len(set(roles)) < len(roles):
        raise ValueError("a role stands there twice")
    return roles


class PoolLimits(Part):
    """Limits that hold on every replica of a pool; None: no limit.

    `target_modules` are those that its engines apply adapters to, as their ``--lora-target-modules`` says.
    `require_signature`: only what was signed with a key that the sidecars know is served.
    `require_digest`: no change may leave an adapter without the digest of its source.
    `engine_hosts`: what the URLs of its engines may name (`registry.model.names.is_engine_allowed`); empty: anything.
    `expected_replicas`: how many replicas the pool is to have; None: those that lived within the last day.
    `expected_groups`: how many with which labels, see `registry.rollout.expected`.
    `prove`: whether an engine with our plugin is asked if an adapter has an effect before its name is bound.
    `roles`: an adapter counts as served only where a replica of each of these is to serve it.
    """

    max_rank: Annotated[int, Field(ge=1, le=512)] | None = Field(
        default=None, description="use a whole number from 1 to 512, or 0 for no limit"
    )
    max_adapters: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="use a whole number from 1 to 1000000, or 0 for no limit"
    )
    target_modules: Annotated[list[ModuleName], Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="name at most 256 modules, e.g. q_proj"
    )
    require_signature: bool = False
    require_digest: bool = False
    engine_hosts: Annotated[list[EngineHost], Field(max_length=64)] = Field(
        default=[], description="name at most 64 hosts and networks, e.g. 10.0.0.0/8, *.engines.svc or vllm-0:8000"
    )
    expected_replicas: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="use a whole number from 1 to 1000000, or 0 for those that lived within the last day"
    )
    expected_groups: Annotated[list[ReplicaGroup], Field(max_length=32), AfterValidator(_disjoint)] = Field(
        default=[],
        description="name at most 32 groups, of which each two have other values of a label, e.g. zone=a and zone=b",
    )
    prove: Proving = Field(default="effect", description="use effect or off")
    roles: Annotated[list[Role], Field(max_length=2), AfterValidator(_distinct)] = Field(
        default=[], description="use prefill, decode, or both of them"
    )


def _expandable(modules: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    check_patterns(modules)
    return modules


class BaseShapes(Part):
    """The modules of a pool's base model, with ``{0-31}`` for layers that are alike: see `registry.lora.base`.

    `names`: what an adapter may call its base; empty: anything. `architecture`: the class that its config.json names;
    None: not known. `tied`: its head is its embedding. `head_size`: outputs of an attention head. `evidence`: what an
    engine of the pool said that it applies of adapters; None: none was asked. `layout` and `weights`: digests of the
    tensors that its files have, and of a sample of their numbers; None: they were not read.
    """

    modules: Annotated[
        dict[ModulePattern, tuple[Width, Width]], Field(min_length=1, max_length=4096), AfterValidator(_expandable)
    ]
    fingerprint: Digest
    names: Annotated[list[ModelName], Field(max_length=32)] = []
    architecture: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,128}$")] | None = None
    tied: bool = False
    head_size: Width | None = None
    evidence: ReportedEvidence | None = None
    layout: Digest | None = None
    weights: Digest | None = None


class PoolSpec(Stored):
    """A pool: the replicas that serve one base model. `base_models` are the names under which they serve it.

    `removals_confirmed_revision`: for lists of the pool up to this revision an operator vouches (guarantee R15).
    `base` are its modules, which adapters are compared with; None: what each replica was given.
    `engine` is the kind of its engines. `engine_names` ``versioned``: engines serve ``name@generation``, a name of its
    own for each generation.
    """

    name: str
    base_models: list[ModelName] = Field(
        min_length=1, max_length=32, description="give 1 to 32 names of 1 to 512 characters"
    )
    limits: PoolLimits = PoolLimits()
    removals_confirmed_revision: Number = 0
    base: BaseShapes | None = Field(
        default=None, description="let loraplane pool create --from DIR read the base model's modules"
    )
    engine: EngineKind = Field(default="vllm", description="name a kind of engine that is driven, such as vllm")
    engine_names: EngineNames = Field(default="plain", description="use plain or versioned")


class TenantRecord(Stored):
    """A tenant's quota and how much of it is used; `max_adapters` None: no quota."""

    name: str
    max_adapters: Annotated[Number, Field(ge=1)] | None = None
    adapters: Number = 0


class AdapterOutcome(Part):
    """Effect of a change set on one adapter.

    Attributes:
        name: as the adapter's record has it.
        record: as it is now, or was before it was deleted; None: what was deleted could not be read.
        etag: etcd's revision of that record; None: the revision of the change.
    """

    outcome: Literal["created", "updated", "unchanged", "deleted"]
    name: str
    record: AdapterRecord | None
    etag: Number | None


class ChangeReply(Part):
    """Effect of a change, without its revision, which nobody knows before it is committed.

    `etag` is that of `pool` or `tenant`; None: the revision of the change.
    """

    adapters: list[AdapterOutcome] = []
    pool: PoolSpec | None = None
    tenant: TenantRecord | None = None
    etag: Number | None = None


class Meta(Stored):
    """The store itself. `epoch` is random, made once: another epoch is another store."""

    epoch: str
    created_at: str
