"""The records that the admin service writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from registry.lora.base import check_patterns
from registry.lora.signatures import SIGNATURE_PATTERN
from registry.model.base import MAX_TRANSACTION_BYTES, Part, Stored

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
Digest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=2048, pattern=r"^[a-z][a-z0-9+.-]*://[^\s\x00-\x1f]+$")]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
LabelValue = Annotated[str, StringConstraints(max_length=256)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=512)]
ModuleName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[\w.-]+$")]
ModulePattern = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[\w.{},-]+$")]
Width = Annotated[int, Field(ge=1, le=1 << 31)]
Load = Literal["eager", "lazy"]
EngineKind = Literal["vllm", "sglang", "pegainfer", "dynamo", "axolotl"]
EngineNames = Literal["plain", "versioned"]
Count = Annotated[int, Field(ge=1, le=10_000)]
Percent = Annotated[str, StringConstraints(pattern=r"^([1-9][0-9]?|100)%$")]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]
MAX_GENERATION = 2**53 - 1  # the largest that every reader of JSON takes without loss


class Source(Part):
    """Where an adapter's files are.

    `digest` is the manifest digest, None: not pinned. `signature` is over that of what is there, None: not signed.
    """

    uri: Uri
    digest: Digest | None = None
    signature: Annotated[str, StringConstraints(pattern=SIGNATURE_PATTERN)] | None = None


class Placement(Part):
    """On which replicas of the pool an adapter is served: so many of those whose labels have all of `selector`."""

    replicas: Literal["all"] | Count = "all"
    selector: Labels = {}


class Canary(Part):
    """How many of an adapter's replicas take a new version first: a number, or a share such as ``25%``, rounded up."""

    replicas: Count | Percent


class Strategy(Part):
    """How new weights come to an adapter's replicas; an adapter without one gets them everywhere at once.

    `promote` ``auto``: to all once every canary has served them for `soak_seconds`, but for at most `max_failures` that
    refuse them; ``manual``: when somebody says so. More that refuse them, or all, halt it.
    """

    canary: Canary
    promote: Literal["auto", "manual"] = "auto"
    max_failures: Annotated[int, Field(ge=0, le=10_000)] = 0
    soak_seconds: Annotated[int, Field(ge=0, le=7 * 86_400)] = 60


class Prepare(Part):
    """What may be done to an adapter's files before an engine sees them."""

    remap: Literal["auto", "off"] = "auto"
    vision: Literal["reject", "drop", "keep"] = "reject"
    dora: Literal["reject", "strip"] = "reject"


class AdapterSpec(Part):
    """What an operator wants of an adapter. Its change, and nothing else, makes a new generation."""

    source: Source
    base_model: ModelName | None = None
    load: Load = "eager"
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    placement: Placement = Placement()
    prepare: Prepare = Prepare()
    credentials: Annotated[str, StringConstraints(min_length=1, max_length=96)] | None = None
    labels: Labels = {}
    strategy: Strategy | None = None


class CanaryRollout(Part):
    """That only the canaries serve a record's generation yet; all others keep the weights of `stable_spec`.

    Of `stable_spec` only what decides about the weights counts: source, base model, preparation, credentials.
    `halted`: why it goes no further by itself, though it can be promoted by hand; empty: it does.
    """

    stable_generation: Annotated[int, Field(ge=1, le=MAX_GENERATION)]
    stable_spec: AdapterSpec
    halted: str = ""


class AdapterRecord(Stored):
    """One adapter at one generation. `request_id` is that of the change which made the generation.

    `rollout` None: the generation is for all replicas that serve the adapter.
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


class RetiredRecord(AdapterRecord):
    """An earlier generation, as history keeps it, with the request that replaced or deleted it."""

    retired_by_request: str
    deleted: bool


class PoolLimits(Part):
    """Limits that hold on every replica of a pool; None: no limit.

    `target_modules` are those that its engines apply adapters to, as their ``--lora-target-modules`` says.
    `require_signature`: only what was signed with a key that the sidecars know is served.
    `require_digest`: no change may leave an adapter without the digest of its source.
    """

    max_rank: Annotated[int, Field(ge=1, le=512)] | None = None
    max_adapters: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    target_modules: Annotated[list[ModuleName], Field(min_length=1, max_length=256)] | None = None
    require_signature: bool = False
    require_digest: bool = False


def _expandable(modules: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    check_patterns(modules)
    return modules


class BaseShapes(Part):
    """The modules of a pool's base model, with ``{0-31}`` for layers that are alike: see `registry.lora.base`.

    `names`: what an adapter may call its base; empty: anything.
    """

    modules: Annotated[
        dict[ModulePattern, tuple[Width, Width]], Field(min_length=1, max_length=4096), AfterValidator(_expandable)
    ]
    fingerprint: Digest
    names: Annotated[list[ModelName], Field(max_length=32)] = []


class PoolSpec(Stored):
    """A pool: the replicas that serve one base model. `base_models` are the names under which they serve it.

    `removals_confirmed_revision`: for lists of the pool up to this revision an operator vouches (guarantee R15).
    `base` are its modules, which adapters are compared with; None: what each replica was given.
    `engine` is the kind of its engines. `engine_names` ``versioned``: engines serve ``name@generation``, a name of its
    own for each generation.
    """

    name: str
    base_models: Annotated[list[ModelName], Field(min_length=1, max_length=32)]
    limits: PoolLimits = PoolLimits()
    removals_confirmed_revision: Annotated[int, Field(ge=0)] = 0
    base: BaseShapes | None = None
    engine: EngineKind = "vllm"
    engine_names: EngineNames = "plain"


class TenantRecord(Stored):
    """A tenant's quota and how much of it is used; `max_adapters` None: no quota."""

    name: str
    max_adapters: Annotated[int, Field(ge=1)] | None = None
    adapters: Annotated[int, Field(ge=0)] = 0


class AdapterOutcome(Part):
    """What a change set did to one adapter.

    Attributes:
        name: as the adapter's record has it.
        record: as it is now, or was before it was deleted; None: what was deleted could not be read.
        etag: etcd's revision of that record; None: the revision of the change.
    """

    outcome: Literal["created", "updated", "unchanged", "deleted"]
    name: str
    record: AdapterRecord | None
    etag: int | None


class ChangeReply(Part):
    """What a change did, without its revision, which nobody knows before it is committed.

    `etag` is that of `pool` or `tenant`; None: the revision of the change.
    """

    adapters: list[AdapterOutcome] = []
    pool: PoolSpec | None = None
    tenant: TenantRecord | None = None
    etag: int | None = None


class RequestRecord(Stored):
    """That a request was settled: the digest of its payload, and its reply. The revision is the record's own.

    `reply` None: it was refused after its outcome had been unknown, and the record keeps what was sent then from
    taking effect later.
    """

    max_bytes = MAX_TRANSACTION_BYTES
    payload_digest: str
    reply: ChangeReply | None


class AuditChange(Part):
    """One value before and after a change, as it stands in etcd; None: absent."""

    kind: Literal["adapter", "pool", "tenant"]
    name: str
    before: dict[str, object] | None
    after: dict[str, object] | None


class Removed(Part):
    """When and by whom a record was deleted without its bookkeeping, since etcd was out of space."""

    revision: Annotated[int, Field(ge=1)]
    at: str
    by: str


class AuditRecord(Stored):
    """Who changed what. There is exactly one for each revision that changes desired state.

    `removed`: the change itself was made earlier, by breaking the glass, and this record accounts for it.
    """

    max_bytes = MAX_TRANSACTION_BYTES
    at: str
    principal: str
    role: str
    request_id: str
    method: str
    changes: list[AuditChange]
    removed: Removed | None = None


class Meta(Stored):
    """The store itself. `epoch` is random, made once: another epoch is another store."""

    epoch: str
    created_at: str
