from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
ACCESS_FIELD_NUMBER: _ClassVar[int]
access: _descriptor.FieldDescriptor

class AccessRule(_message.Message):
    __slots__ = ("verb", "resource")
    VERB_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    verb: str
    resource: str
    def __init__(self, verb: _Optional[str] = ..., resource: _Optional[str] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("uri", "digest", "signature")
    URI_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    uri: str
    digest: str
    signature: str
    def __init__(self, uri: _Optional[str] = ..., digest: _Optional[str] = ..., signature: _Optional[str] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("replicas", "selector", "by_load")
    class SelectorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    BY_LOAD_FIELD_NUMBER: _ClassVar[int]
    replicas: int
    selector: _containers.ScalarMap[str, str]
    by_load: ByLoad
    def __init__(self, replicas: _Optional[int] = ..., selector: _Optional[_Mapping[str, str]] = ..., by_load: _Optional[_Union[ByLoad, _Mapping]] = ...) -> None: ...

class ByLoad(_message.Message):
    __slots__ = ("max", "per_replica")
    MAX_FIELD_NUMBER: _ClassVar[int]
    PER_REPLICA_FIELD_NUMBER: _ClassVar[int]
    max: int
    per_replica: int
    def __init__(self, max: _Optional[int] = ..., per_replica: _Optional[int] = ...) -> None: ...

class ScaledReplicas(_message.Message):
    __slots__ = ("replicas", "reason", "at")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    replicas: int
    reason: str
    at: str
    def __init__(self, replicas: _Optional[int] = ..., reason: _Optional[str] = ..., at: _Optional[str] = ...) -> None: ...

class Strategy(_message.Message):
    __slots__ = ("canary_replicas", "promote", "max_failures", "soak_seconds")
    CANARY_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_FIELD_NUMBER: _ClassVar[int]
    MAX_FAILURES_FIELD_NUMBER: _ClassVar[int]
    SOAK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    canary_replicas: str
    promote: str
    max_failures: int
    soak_seconds: int
    def __init__(self, canary_replicas: _Optional[str] = ..., promote: _Optional[str] = ..., max_failures: _Optional[int] = ..., soak_seconds: _Optional[int] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("remap", "vision", "dora", "drop")
    REMAP_FIELD_NUMBER: _ClassVar[int]
    VISION_FIELD_NUMBER: _ClassVar[int]
    DORA_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    remap: str
    vision: str
    dora: str
    drop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, remap: _Optional[str] = ..., vision: _Optional[str] = ..., dora: _Optional[str] = ..., drop: _Optional[_Iterable[str]] = ...) -> None: ...

class AdapterSpec(_message.Message):
    __slots__ = ("source", "base_model", "load", "priority", "placement", "prepare", "credentials", "labels", "strategy", "description", "expect", "enabled", "ttl_seconds", "keep", "ttl_from")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EXPECT_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    TTL_FROM_FIELD_NUMBER: _ClassVar[int]
    source: Source
    base_model: str
    load: str
    priority: int
    placement: Placement
    prepare: Prepare
    credentials: str
    labels: _containers.ScalarMap[str, str]
    strategy: Strategy
    description: str
    expect: Expect
    enabled: bool
    ttl_seconds: int
    keep: int
    ttl_from: str
    def __init__(self, source: _Optional[_Union[Source, _Mapping]] = ..., base_model: _Optional[str] = ..., load: _Optional[str] = ..., priority: _Optional[int] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., credentials: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., strategy: _Optional[_Union[Strategy, _Mapping]] = ..., description: _Optional[str] = ..., expect: _Optional[_Union[Expect, _Mapping]] = ..., enabled: bool = ..., ttl_seconds: _Optional[int] = ..., keep: _Optional[int] = ..., ttl_from: _Optional[str] = ...) -> None: ...

class ExpectedAnswer(_message.Message):
    __slots__ = ("prompt", "tokens", "logprobs")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    prompt: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, prompt: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Expect(_message.Message):
    __slots__ = ("answers", "tolerance")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[ExpectedAnswer]
    tolerance: float
    def __init__(self, answers: _Optional[_Iterable[_Union[ExpectedAnswer, _Mapping]]] = ..., tolerance: _Optional[float] = ...) -> None: ...

class CanaryRollout(_message.Message):
    __slots__ = ("stable_generation", "stable_spec", "halted")
    STABLE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    STABLE_SPEC_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    stable_generation: int
    stable_spec: AdapterSpec
    halted: str
    def __init__(self, stable_generation: _Optional[int] = ..., stable_spec: _Optional[_Union[AdapterSpec, _Mapping]] = ..., halted: _Optional[str] = ...) -> None: ...

class Restoration(_message.Message):
    __slots__ = ("principal", "at")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    principal: str
    at: str
    def __init__(self, principal: _Optional[str] = ..., at: _Optional[str] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "pool", "tenant", "generation", "spec", "etag", "updated_at", "updated_by", "request_id", "rollout", "restored_by", "expires_at", "kept_generations", "scaled")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_BY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    RESTORED_BY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    KEPT_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    SCALED_FIELD_NUMBER: _ClassVar[int]
    name: str
    pool: str
    tenant: str
    generation: int
    spec: AdapterSpec
    etag: str
    updated_at: str
    updated_by: str
    request_id: str
    rollout: CanaryRollout
    restored_by: Restoration
    expires_at: str
    kept_generations: _containers.RepeatedScalarFieldContainer[int]
    scaled: ScaledReplicas
    def __init__(self, name: _Optional[str] = ..., pool: _Optional[str] = ..., tenant: _Optional[str] = ..., generation: _Optional[int] = ..., spec: _Optional[_Union[AdapterSpec, _Mapping]] = ..., etag: _Optional[str] = ..., updated_at: _Optional[str] = ..., updated_by: _Optional[str] = ..., request_id: _Optional[str] = ..., rollout: _Optional[_Union[CanaryRollout, _Mapping]] = ..., restored_by: _Optional[_Union[Restoration, _Mapping]] = ..., expires_at: _Optional[str] = ..., kept_generations: _Optional[_Iterable[int]] = ..., scaled: _Optional[_Union[ScaledReplicas, _Mapping]] = ...) -> None: ...

class AdapterChange(_message.Message):
    __slots__ = ("upsert", "delete", "update", "etag", "update_mask")
    UPSERT_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    upsert: Adapter
    delete: str
    update: Adapter
    etag: str
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, upsert: _Optional[_Union[Adapter, _Mapping]] = ..., delete: _Optional[str] = ..., update: _Optional[_Union[Adapter, _Mapping]] = ..., etag: _Optional[str] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class ApplyAdaptersRequest(_message.Message):
    __slots__ = ("pool", "changes", "validate_only", "request_id", "retry", "retry_replica")
    POOL_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    RETRY_REPLICA_FIELD_NUMBER: _ClassVar[int]
    pool: str
    changes: _containers.RepeatedCompositeFieldContainer[AdapterChange]
    validate_only: bool
    request_id: str
    retry: bool
    retry_replica: str
    def __init__(self, pool: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[AdapterChange, _Mapping]]] = ..., validate_only: bool = ..., request_id: _Optional[str] = ..., retry: bool = ..., retry_replica: _Optional[str] = ...) -> None: ...

class AdapterResult(_message.Message):
    __slots__ = ("outcome", "adapter")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[AdapterResult.Outcome]
        CREATED: _ClassVar[AdapterResult.Outcome]
        UPDATED: _ClassVar[AdapterResult.Outcome]
        UNCHANGED: _ClassVar[AdapterResult.Outcome]
        DELETED: _ClassVar[AdapterResult.Outcome]
    OUTCOME_UNSPECIFIED: AdapterResult.Outcome
    CREATED: AdapterResult.Outcome
    UPDATED: AdapterResult.Outcome
    UNCHANGED: AdapterResult.Outcome
    DELETED: AdapterResult.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    outcome: AdapterResult.Outcome
    adapter: Adapter
    def __init__(self, outcome: _Optional[_Union[AdapterResult.Outcome, str]] = ..., adapter: _Optional[_Union[Adapter, _Mapping]] = ...) -> None: ...

class ApplyAdaptersResponse(_message.Message):
    __slots__ = ("results", "revision", "request_id")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AdapterResult]
    revision: int
    request_id: str
    def __init__(self, results: _Optional[_Iterable[_Union[AdapterResult, _Mapping]]] = ..., revision: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class GetAdapterRequest(_message.Message):
    __slots__ = ("pool", "name")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ("pool", "page_size", "page_token", "filter")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    pool: str
    page_size: int
    page_token: str
    filter: str
    def __init__(self, pool: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., filter: _Optional[str] = ...) -> None: ...

class ListAdaptersResponse(_message.Message):
    __slots__ = ("adapters", "next_page_token", "revision", "unreadable")
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    next_page_token: str
    revision: int
    unreadable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., revision: _Optional[int] = ..., unreadable: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchAdaptersRequest(_message.Message):
    __slots__ = ("pool", "start_revision")
    POOL_FIELD_NUMBER: _ClassVar[int]
    START_REVISION_FIELD_NUMBER: _ClassVar[int]
    pool: str
    start_revision: int
    def __init__(self, pool: _Optional[str] = ..., start_revision: _Optional[int] = ...) -> None: ...

class AdapterEvent(_message.Message):
    __slots__ = ("put", "deleted", "unreadable")
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    put: Adapter
    deleted: str
    unreadable: str
    def __init__(self, put: _Optional[_Union[Adapter, _Mapping]] = ..., deleted: _Optional[str] = ..., unreadable: _Optional[str] = ...) -> None: ...

class WatchAdaptersResponse(_message.Message):
    __slots__ = ("revision", "events", "snapshot", "more")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    events: _containers.RepeatedCompositeFieldContainer[AdapterEvent]
    snapshot: bool
    more: bool
    def __init__(self, revision: _Optional[int] = ..., events: _Optional[_Iterable[_Union[AdapterEvent, _Mapping]]] = ..., snapshot: bool = ..., more: bool = ...) -> None: ...

class ListAdapterHistoryRequest(_message.Message):
    __slots__ = ("pool", "name")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListAdapterHistoryResponse(_message.Message):
    __slots__ = ("generations", "unreadable")
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    generations: _containers.RepeatedCompositeFieldContainer[Adapter]
    unreadable: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generations: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., unreadable: _Optional[_Iterable[int]] = ...) -> None: ...

class RollbackAdapterRequest(_message.Message):
    __slots__ = ("pool", "name", "to_generation", "etag", "validate_only", "request_id", "restored")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TO_GENERATION_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    to_generation: int
    etag: str
    validate_only: bool
    request_id: str
    restored: bool
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ..., to_generation: _Optional[int] = ..., etag: _Optional[str] = ..., validate_only: bool = ..., request_id: _Optional[str] = ..., restored: bool = ...) -> None: ...

class WatchRolloutRequest(_message.Message):
    __slots__ = ("pool", "name", "generation")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    generation: int
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class PromoteRolloutRequest(_message.Message):
    __slots__ = ("pool", "name", "generation", "etag", "validate_only", "request_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    generation: int
    etag: str
    validate_only: bool
    request_id: str
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ..., etag: _Optional[str] = ..., validate_only: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class AbortRolloutRequest(_message.Message):
    __slots__ = ("pool", "name", "generation", "etag", "validate_only", "request_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    generation: int
    etag: str
    validate_only: bool
    request_id: str
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ..., etag: _Optional[str] = ..., validate_only: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class RolloutReplica(_message.Message):
    __slots__ = ("replica", "state", "reason", "message", "canary", "generation", "serving_generation")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[RolloutReplica.State]
        PENDING: _ClassVar[RolloutReplica.State]
        SERVING: _ClassVar[RolloutReplica.State]
        FAILED: _ClassVar[RolloutReplica.State]
        UNKNOWN: _ClassVar[RolloutReplica.State]
    STATE_UNSPECIFIED: RolloutReplica.State
    PENDING: RolloutReplica.State
    SERVING: RolloutReplica.State
    FAILED: RolloutReplica.State
    UNKNOWN: RolloutReplica.State
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SERVING_GENERATION_FIELD_NUMBER: _ClassVar[int]
    replica: str
    state: RolloutReplica.State
    reason: str
    message: str
    canary: bool
    generation: int
    serving_generation: int
    def __init__(self, replica: _Optional[str] = ..., state: _Optional[_Union[RolloutReplica.State, str]] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., canary: bool = ..., generation: _Optional[int] = ..., serving_generation: _Optional[int] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("name", "generation", "replicas", "done", "failure", "waiting", "canary", "note")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    replicas: _containers.RepeatedCompositeFieldContainer[RolloutReplica]
    done: bool
    failure: str
    waiting: str
    canary: CanaryRollout
    note: str
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[RolloutReplica, _Mapping]]] = ..., done: bool = ..., failure: _Optional[str] = ..., waiting: _Optional[str] = ..., canary: _Optional[_Union[CanaryRollout, _Mapping]] = ..., note: _Optional[str] = ...) -> None: ...

class WatchResidencyRequest(_message.Message):
    __slots__ = ("pool", "name", "detail")
    class Detail(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REPLICAS: _ClassVar[WatchResidencyRequest.Detail]
        COUNTS: _ClassVar[WatchResidencyRequest.Detail]
        REPLICAS_AND_COUNTS: _ClassVar[WatchResidencyRequest.Detail]
        COUNTS_BY_REPLICA: _ClassVar[WatchResidencyRequest.Detail]
    REPLICAS: WatchResidencyRequest.Detail
    COUNTS: WatchResidencyRequest.Detail
    REPLICAS_AND_COUNTS: WatchResidencyRequest.Detail
    COUNTS_BY_REPLICA: WatchResidencyRequest.Detail
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    detail: WatchResidencyRequest.Detail
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ..., detail: _Optional[_Union[WatchResidencyRequest.Detail, str]] = ...) -> None: ...

class ResidenceCount(_message.Message):
    __slots__ = ("replicas", "state", "reason", "wanted_state", "wanted_reason")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WANTED_STATE_FIELD_NUMBER: _ClassVar[int]
    WANTED_REASON_FIELD_NUMBER: _ClassVar[int]
    replicas: int
    state: RolloutReplica.State
    reason: str
    wanted_state: RolloutReplica.State
    wanted_reason: str
    def __init__(self, replicas: _Optional[int] = ..., state: _Optional[_Union[RolloutReplica.State, str]] = ..., reason: _Optional[str] = ..., wanted_state: _Optional[_Union[RolloutReplica.State, str]] = ..., wanted_reason: _Optional[str] = ...) -> None: ...

class AdapterCount(_message.Message):
    __slots__ = ("adapters", "state", "reason", "wanted_state", "wanted_reason")
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WANTED_STATE_FIELD_NUMBER: _ClassVar[int]
    WANTED_REASON_FIELD_NUMBER: _ClassVar[int]
    adapters: int
    state: RolloutReplica.State
    reason: str
    wanted_state: RolloutReplica.State
    wanted_reason: str
    def __init__(self, adapters: _Optional[int] = ..., state: _Optional[_Union[RolloutReplica.State, str]] = ..., reason: _Optional[str] = ..., wanted_state: _Optional[_Union[RolloutReplica.State, str]] = ..., wanted_reason: _Optional[str] = ...) -> None: ...

class ReplicaResidency(_message.Message):
    __slots__ = ("replica", "counts", "loaded")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    replica: str
    counts: _containers.RepeatedCompositeFieldContainer[AdapterCount]
    loaded: int
    def __init__(self, replica: _Optional[str] = ..., counts: _Optional[_Iterable[_Union[AdapterCount, _Mapping]]] = ..., loaded: _Optional[int] = ...) -> None: ...

class Residence(_message.Message):
    __slots__ = ("replica", "engine_url", "labels", "model", "generation", "state", "reason", "loaded", "last_used", "wanted_generation", "wanted_state", "wanted_reason", "earlier_generations")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_FIELD_NUMBER: _ClassVar[int]
    WANTED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    WANTED_STATE_FIELD_NUMBER: _ClassVar[int]
    WANTED_REASON_FIELD_NUMBER: _ClassVar[int]
    EARLIER_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    replica: str
    engine_url: str
    labels: _containers.ScalarMap[str, str]
    model: str
    generation: int
    state: RolloutReplica.State
    reason: str
    loaded: bool
    last_used: str
    wanted_generation: int
    wanted_state: RolloutReplica.State
    wanted_reason: str
    earlier_generations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, replica: _Optional[str] = ..., engine_url: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., model: _Optional[str] = ..., generation: _Optional[int] = ..., state: _Optional[_Union[RolloutReplica.State, str]] = ..., reason: _Optional[str] = ..., loaded: bool = ..., last_used: _Optional[str] = ..., wanted_generation: _Optional[int] = ..., wanted_state: _Optional[_Union[RolloutReplica.State, str]] = ..., wanted_reason: _Optional[str] = ..., earlier_generations: _Optional[_Iterable[int]] = ...) -> None: ...

class AdapterResidency(_message.Message):
    __slots__ = ("name", "generation", "load", "replicas", "note", "counts", "halted", "pool_replicas")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    POOL_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    load: str
    replicas: _containers.RepeatedCompositeFieldContainer[Residence]
    note: str
    counts: _containers.RepeatedCompositeFieldContainer[ResidenceCount]
    halted: str
    pool_replicas: int
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., load: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[Residence, _Mapping]]] = ..., note: _Optional[str] = ..., counts: _Optional[_Iterable[_Union[ResidenceCount, _Mapping]]] = ..., halted: _Optional[str] = ..., pool_replicas: _Optional[int] = ...) -> None: ...

class WatchResidencyResponse(_message.Message):
    __slots__ = ("revision", "adapters", "gone", "snapshot", "more", "replicas")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterResidency]
    gone: _containers.RepeatedScalarFieldContainer[str]
    snapshot: bool
    more: bool
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaResidency]
    def __init__(self, revision: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[AdapterResidency, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ..., snapshot: bool = ..., more: bool = ..., replicas: _Optional[_Iterable[_Union[ReplicaResidency, _Mapping]]] = ...) -> None: ...

class PoolLimits(_message.Message):
    __slots__ = ("max_rank", "max_adapters", "target_modules", "require_signature", "require_digest", "engine_hosts", "expected_replicas", "expected_groups", "roles", "prove")
    MAX_RANK_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENGINE_HOSTS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    PROVE_FIELD_NUMBER: _ClassVar[int]
    max_rank: int
    max_adapters: int
    target_modules: _containers.RepeatedScalarFieldContainer[str]
    require_signature: bool
    require_digest: bool
    engine_hosts: _containers.RepeatedScalarFieldContainer[str]
    expected_replicas: int
    expected_groups: _containers.RepeatedCompositeFieldContainer[ReplicaGroup]
    roles: _containers.RepeatedScalarFieldContainer[str]
    prove: str
    def __init__(self, max_rank: _Optional[int] = ..., max_adapters: _Optional[int] = ..., target_modules: _Optional[_Iterable[str]] = ..., require_signature: bool = ..., require_digest: bool = ..., engine_hosts: _Optional[_Iterable[str]] = ..., expected_replicas: _Optional[int] = ..., expected_groups: _Optional[_Iterable[_Union[ReplicaGroup, _Mapping]]] = ..., roles: _Optional[_Iterable[str]] = ..., prove: _Optional[str] = ...) -> None: ...

class ReplicaGroup(_message.Message):
    __slots__ = ("labels", "replicas")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LABELS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.ScalarMap[str, str]
    replicas: int
    def __init__(self, labels: _Optional[_Mapping[str, str]] = ..., replicas: _Optional[int] = ...) -> None: ...

class BaseModule(_message.Message):
    __slots__ = ("pattern", "outputs", "inputs")
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    outputs: int
    inputs: int
    def __init__(self, pattern: _Optional[str] = ..., outputs: _Optional[int] = ..., inputs: _Optional[int] = ...) -> None: ...

class Rename(_message.Message):
    __slots__ = ("old", "new")
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    old: str
    new: str
    def __init__(self, old: _Optional[str] = ..., new: _Optional[str] = ...) -> None: ...

class EngineEvidence(_message.Message):
    __slots__ = ("engine", "architecture", "applied", "taken", "parts", "beginnings", "ends")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    BEGINNINGS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    engine: str
    architecture: str
    applied: _containers.RepeatedScalarFieldContainer[str]
    taken: _containers.RepeatedScalarFieldContainer[str]
    parts: _containers.RepeatedCompositeFieldContainer[Rename]
    beginnings: _containers.RepeatedCompositeFieldContainer[Rename]
    ends: _containers.RepeatedCompositeFieldContainer[Rename]
    def __init__(self, engine: _Optional[str] = ..., architecture: _Optional[str] = ..., applied: _Optional[_Iterable[str]] = ..., taken: _Optional[_Iterable[str]] = ..., parts: _Optional[_Iterable[_Union[Rename, _Mapping]]] = ..., beginnings: _Optional[_Iterable[_Union[Rename, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[Rename, _Mapping]]] = ...) -> None: ...

class BaseShapes(_message.Message):
    __slots__ = ("modules", "fingerprint", "names", "architecture", "tied", "head_size", "evidence", "layout", "weights")
    MODULES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    TIED_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    modules: _containers.RepeatedCompositeFieldContainer[BaseModule]
    fingerprint: str
    names: _containers.RepeatedScalarFieldContainer[str]
    architecture: str
    tied: bool
    head_size: int
    evidence: EngineEvidence
    layout: str
    weights: str
    def __init__(self, modules: _Optional[_Iterable[_Union[BaseModule, _Mapping]]] = ..., fingerprint: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., architecture: _Optional[str] = ..., tied: bool = ..., head_size: _Optional[int] = ..., evidence: _Optional[_Union[EngineEvidence, _Mapping]] = ..., layout: _Optional[str] = ..., weights: _Optional[str] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("name", "base_models", "limits", "etag", "removals_confirmed_revision", "base", "engine", "engine_names")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BASE_MODELS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    REMOVALS_CONFIRMED_REVISION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_NAMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    base_models: _containers.RepeatedScalarFieldContainer[str]
    limits: PoolLimits
    etag: str
    removals_confirmed_revision: int
    base: BaseShapes
    engine: str
    engine_names: str
    def __init__(self, name: _Optional[str] = ..., base_models: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[PoolLimits, _Mapping]] = ..., etag: _Optional[str] = ..., removals_confirmed_revision: _Optional[int] = ..., base: _Optional[_Union[BaseShapes, _Mapping]] = ..., engine: _Optional[str] = ..., engine_names: _Optional[str] = ...) -> None: ...

class CreatePoolRequest(_message.Message):
    __slots__ = ("pool", "request_id", "validate_only", "restored")
    POOL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    pool: Pool
    request_id: str
    validate_only: bool
    restored: bool
    def __init__(self, pool: _Optional[_Union[Pool, _Mapping]] = ..., request_id: _Optional[str] = ..., validate_only: bool = ..., restored: bool = ...) -> None: ...

class UpdatePoolRequest(_message.Message):
    __slots__ = ("pool", "request_id", "validate_only", "update_mask", "restored")
    POOL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    pool: Pool
    request_id: str
    validate_only: bool
    update_mask: _field_mask_pb2.FieldMask
    restored: bool
    def __init__(self, pool: _Optional[_Union[Pool, _Mapping]] = ..., request_id: _Optional[str] = ..., validate_only: bool = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., restored: bool = ...) -> None: ...

class ConfirmRemovalsRequest(_message.Message):
    __slots__ = ("name", "revision", "etag", "request_id", "validate_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: int
    etag: str
    request_id: str
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[int] = ..., etag: _Optional[str] = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class GetPoolRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListPoolsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "show_unknown", "show_etcd")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHOW_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    SHOW_ETCD_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    show_unknown: bool
    show_etcd: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., show_unknown: bool = ..., show_etcd: bool = ...) -> None: ...

class ListPoolsResponse(_message.Message):
    __slots__ = ("pools", "next_page_token", "unreadable", "admin_version", "admin_insecure", "unknown", "etcd")
    POOLS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    ADMIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADMIN_INSECURE_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    ETCD_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    next_page_token: str
    unreadable: _containers.RepeatedScalarFieldContainer[str]
    admin_version: str
    admin_insecure: _containers.RepeatedScalarFieldContainer[str]
    unknown: _containers.RepeatedCompositeFieldContainer[UnknownPool]
    etcd: _containers.RepeatedCompositeFieldContainer[EtcdMember]
    def __init__(self, pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., unreadable: _Optional[_Iterable[str]] = ..., admin_version: _Optional[str] = ..., admin_insecure: _Optional[_Iterable[str]] = ..., unknown: _Optional[_Iterable[_Union[UnknownPool, _Mapping]]] = ..., etcd: _Optional[_Iterable[_Union[EtcdMember, _Mapping]]] = ...) -> None: ...

class EtcdMember(_message.Message):
    __slots__ = ("endpoint", "state", "message")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    state: str
    message: str
    def __init__(self, endpoint: _Optional[str] = ..., state: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class UnknownPool(_message.Message):
    __slots__ = ("name", "replicas", "names")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    replicas: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., replicas: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class DeletePoolRequest(_message.Message):
    __slots__ = ("name", "etag", "request_id", "validate_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    request_id: str
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class DeletePoolResponse(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("name", "pool", "labels", "incarnation", "status_json", "started_at", "version", "leaving", "engine_url", "host", "withheld_engine_url")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_JSON_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    name: str
    pool: str
    labels: _containers.ScalarMap[str, str]
    incarnation: str
    status_json: str
    started_at: str
    version: str
    leaving: bool
    engine_url: str
    host: str
    withheld_engine_url: str
    def __init__(self, name: _Optional[str] = ..., pool: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., incarnation: _Optional[str] = ..., status_json: _Optional[str] = ..., started_at: _Optional[str] = ..., version: _Optional[str] = ..., leaving: bool = ..., engine_url: _Optional[str] = ..., host: _Optional[str] = ..., withheld_engine_url: _Optional[str] = ...) -> None: ...

class ListReplicasRequest(_message.Message):
    __slots__ = ("pool", "page_size", "page_token")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pool: str
    page_size: int
    page_token: str
    def __init__(self, pool: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListReplicasResponse(_message.Message):
    __slots__ = ("replicas", "next_page_token", "missing", "lacking", "groups")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    next_page_token: str
    missing: _containers.RepeatedCompositeFieldContainer[MissingReplica]
    lacking: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupPresence]
    def __init__(self, replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., missing: _Optional[_Iterable[_Union[MissingReplica, _Mapping]]] = ..., lacking: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupPresence, _Mapping]]] = ...) -> None: ...

class GroupPresence(_message.Message):
    __slots__ = ("expected", "live")
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    expected: ReplicaGroup
    live: int
    def __init__(self, expected: _Optional[_Union[ReplicaGroup, _Mapping]] = ..., live: _Optional[int] = ...) -> None: ...

class MissingReplica(_message.Message):
    __slots__ = ("name", "labels", "last_seen", "engine_url", "host", "observed_revision", "engine", "version")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_REVISION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.ScalarMap[str, str]
    last_seen: str
    engine_url: str
    host: str
    observed_revision: int
    engine: str
    version: str
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., last_seen: _Optional[str] = ..., engine_url: _Optional[str] = ..., host: _Optional[str] = ..., observed_revision: _Optional[int] = ..., engine: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class ForgetReplicaRequest(_message.Message):
    __slots__ = ("pool", "name", "validate_only")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    validate_only: bool
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class ForgetReplicaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetReplicaRequest(_message.Message):
    __slots__ = ("pool", "name")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DrainReplicaRequest(_message.Message):
    __slots__ = ("pool", "name", "undrain", "request_id", "validate_only")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNDRAIN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    undrain: bool
    request_id: str
    validate_only: bool
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ..., undrain: bool = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class DrainReplicaResponse(_message.Message):
    __slots__ = ("changed", "revision")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    revision: int
    def __init__(self, changed: bool = ..., revision: _Optional[int] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("name", "max_adapters", "adapters", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_adapters: int
    adapters: int
    etag: str
    def __init__(self, name: _Optional[str] = ..., max_adapters: _Optional[int] = ..., adapters: _Optional[int] = ..., etag: _Optional[str] = ...) -> None: ...

class SetTenantRequest(_message.Message):
    __slots__ = ("tenant", "request_id", "validate_only")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    request_id: str
    validate_only: bool
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("tenants", "next_page_token", "unreadable")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[Tenant]
    next_page_token: str
    unreadable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenants: _Optional[_Iterable[_Union[Tenant, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., unreadable: _Optional[_Iterable[str]] = ...) -> None: ...

class RepairTenantRequest(_message.Message):
    __slots__ = ("name", "request_id", "validate_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class RepairTenantResponse(_message.Message):
    __slots__ = ("tenant", "retired", "changed", "revision")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    retired: _containers.RepeatedCompositeFieldContainer[Adapter]
    changed: bool
    revision: int
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., retired: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., changed: bool = ..., revision: _Optional[int] = ...) -> None: ...

class ReadBackupRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class StoredRecord(_message.Message):
    __slots__ = ("key", "value", "etag")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    etag: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., etag: _Optional[str] = ...) -> None: ...

class ReadBackupResponse(_message.Message):
    __slots__ = ("records", "next_page_token", "revision")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[StoredRecord]
    next_page_token: str
    revision: int
    def __init__(self, records: _Optional[_Iterable[_Union[StoredRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class RestoreHistoryRequest(_message.Message):
    __slots__ = ("pool", "name", "generations", "last", "request_id", "validate_only")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    pool: str
    name: str
    generations: _containers.RepeatedScalarFieldContainer[bytes]
    last: bytes
    request_id: str
    validate_only: bool
    def __init__(self, pool: _Optional[str] = ..., name: _Optional[str] = ..., generations: _Optional[_Iterable[bytes]] = ..., last: _Optional[bytes] = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class RestoreHistoryResponse(_message.Message):
    __slots__ = ("changed", "revision")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    revision: int
    def __init__(self, changed: bool = ..., revision: _Optional[int] = ...) -> None: ...

class ListChangesRequest(_message.Message):
    __slots__ = ("pool", "since", "page_size", "page_token")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pool: str
    since: str
    page_size: int
    page_token: str
    def __init__(self, pool: _Optional[str] = ..., since: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class RecordedChange(_message.Message):
    __slots__ = ("at", "principal", "role", "request_id", "method", "kind", "name", "action", "generation", "fields", "note", "values")
    AT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    at: str
    principal: str
    role: str
    request_id: str
    method: str
    kind: str
    name: str
    action: str
    generation: int
    fields: _containers.RepeatedScalarFieldContainer[str]
    note: str
    values: _containers.RepeatedCompositeFieldContainer[ChangedValue]
    def __init__(self, at: _Optional[str] = ..., principal: _Optional[str] = ..., role: _Optional[str] = ..., request_id: _Optional[str] = ..., method: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., action: _Optional[str] = ..., generation: _Optional[int] = ..., fields: _Optional[_Iterable[str]] = ..., note: _Optional[str] = ..., values: _Optional[_Iterable[_Union[ChangedValue, _Mapping]]] = ...) -> None: ...

class ChangedValue(_message.Message):
    __slots__ = ("path", "before_json", "after_json")
    PATH_FIELD_NUMBER: _ClassVar[int]
    BEFORE_JSON_FIELD_NUMBER: _ClassVar[int]
    AFTER_JSON_FIELD_NUMBER: _ClassVar[int]
    path: str
    before_json: str
    after_json: str
    def __init__(self, path: _Optional[str] = ..., before_json: _Optional[str] = ..., after_json: _Optional[str] = ...) -> None: ...

class ListChangesResponse(_message.Message):
    __slots__ = ("changes", "next_page_token", "unreadable")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[RecordedChange]
    next_page_token: str
    unreadable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, changes: _Optional[_Iterable[_Union[RecordedChange, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., unreadable: _Optional[_Iterable[str]] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("pool", "since", "about", "principal", "page_size", "page_token")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pool: str
    since: str
    about: str
    principal: str
    page_size: int
    page_token: str
    def __init__(self, pool: _Optional[str] = ..., since: _Optional[str] = ..., about: _Optional[str] = ..., principal: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("entries", "next_page_token", "unreadable", "revision")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    next_page_token: str
    unreadable: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., unreadable: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ...) -> None: ...

class WatchAuditRequest(_message.Message):
    __slots__ = ("pool", "about", "principal", "start_revision")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    START_REVISION_FIELD_NUMBER: _ClassVar[int]
    pool: str
    about: str
    principal: str
    start_revision: int
    def __init__(self, pool: _Optional[str] = ..., about: _Optional[str] = ..., principal: _Optional[str] = ..., start_revision: _Optional[int] = ...) -> None: ...

class WatchAuditResponse(_message.Message):
    __slots__ = ("entries", "revision", "unreadable")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    revision: int
    unreadable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ..., revision: _Optional[int] = ..., unreadable: _Optional[_Iterable[str]] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("id", "revision", "at", "pool", "principal", "credential", "fingerprint", "peer", "user_agent", "role", "bindings", "request_id", "method", "changes", "denial", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    USER_AGENT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    DENIAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    revision: int
    at: str
    pool: str
    principal: str
    credential: str
    fingerprint: str
    peer: str
    user_agent: str
    role: str
    bindings: _containers.RepeatedScalarFieldContainer[int]
    request_id: str
    method: str
    changes: _containers.RepeatedCompositeFieldContainer[AuditedChange]
    denial: AuditDenial
    reason: str
    def __init__(self, id: _Optional[str] = ..., revision: _Optional[int] = ..., at: _Optional[str] = ..., pool: _Optional[str] = ..., principal: _Optional[str] = ..., credential: _Optional[str] = ..., fingerprint: _Optional[str] = ..., peer: _Optional[str] = ..., user_agent: _Optional[str] = ..., role: _Optional[str] = ..., bindings: _Optional[_Iterable[int]] = ..., request_id: _Optional[str] = ..., method: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[AuditedChange, _Mapping]]] = ..., denial: _Optional[_Union[AuditDenial, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class AuditedChange(_message.Message):
    __slots__ = ("kind", "name", "action", "before_json", "after_json")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_JSON_FIELD_NUMBER: _ClassVar[int]
    AFTER_JSON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    action: str
    before_json: str
    after_json: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., action: _Optional[str] = ..., before_json: _Optional[str] = ..., after_json: _Optional[str] = ...) -> None: ...

class AuditDenial(_message.Message):
    __slots__ = ("reason", "message", "tenant", "times")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    tenant: str
    times: int
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., tenant: _Optional[str] = ..., times: _Optional[int] = ...) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("access_digest", "principal", "credential", "groups", "roles", "access_trouble", "access_unknown")
    ACCESS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    ACCESS_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    ACCESS_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    access_digest: str
    principal: str
    credential: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    roles: _containers.RepeatedCompositeFieldContainer[HeldRole]
    access_trouble: str
    access_unknown: _containers.RepeatedCompositeFieldContainer[UnknownBound]
    def __init__(self, access_digest: _Optional[str] = ..., principal: _Optional[str] = ..., credential: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., roles: _Optional[_Iterable[_Union[HeldRole, _Mapping]]] = ..., access_trouble: _Optional[str] = ..., access_unknown: _Optional[_Iterable[_Union[UnknownBound, _Mapping]]] = ...) -> None: ...

class UnknownBound(_message.Message):
    __slots__ = ("binding", "kind", "name")
    BINDING_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    binding: int
    kind: str
    name: str
    def __init__(self, binding: _Optional[int] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class HeldRole(_message.Message):
    __slots__ = ("role", "binding", "tenants", "pools", "sources", "credentials")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    role: str
    binding: int
    tenants: _containers.RepeatedScalarFieldContainer[str]
    pools: _containers.RepeatedScalarFieldContainer[str]
    sources: _containers.RepeatedScalarFieldContainer[str]
    credentials: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, role: _Optional[str] = ..., binding: _Optional[int] = ..., tenants: _Optional[_Iterable[str]] = ..., pools: _Optional[_Iterable[str]] = ..., sources: _Optional[_Iterable[str]] = ..., credentials: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckAccessRequest(_message.Message):
    __slots__ = ("verb", "resource", "pool", "name", "source", "credentials", "user", "groups")
    VERB_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    verb: str
    resource: str
    pool: str
    name: str
    source: str
    credentials: str
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, verb: _Optional[str] = ..., resource: _Optional[str] = ..., pool: _Optional[str] = ..., name: _Optional[str] = ..., source: _Optional[str] = ..., credentials: _Optional[str] = ..., user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckAccessResponse(_message.Message):
    __slots__ = ("allowed", "role", "binding", "roles")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    role: str
    binding: int
    roles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, allowed: bool = ..., role: _Optional[str] = ..., binding: _Optional[int] = ..., roles: _Optional[_Iterable[str]] = ...) -> None: ...
