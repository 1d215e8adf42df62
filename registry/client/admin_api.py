"""Methods of the admin API that clients call, with their types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from registry.v1 import registry_pb2 as pb

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True, slots=True)
class AdminMethod(Generic[Request, Reply]):
    """A method of the admin API, which its request is named after: a call, or a stream of answers."""

    request: type[Request]
    reply: type[Reply]

    @property
    def name(self) -> str:
        """The name in the service."""
        return self.request.DESCRIPTOR.name.removesuffix("Request")


APPLY_ADAPTERS = AdminMethod(pb.ApplyAdaptersRequest, pb.ApplyAdaptersResponse)
GET_ADAPTER = AdminMethod(pb.GetAdapterRequest, pb.Adapter)
LIST_ADAPTERS = AdminMethod(pb.ListAdaptersRequest, pb.ListAdaptersResponse)
WATCH_ADAPTERS = AdminMethod(pb.WatchAdaptersRequest, pb.WatchAdaptersResponse)
LIST_ADAPTER_HISTORY = AdminMethod(pb.ListAdapterHistoryRequest, pb.ListAdapterHistoryResponse)
ROLLBACK_ADAPTER = AdminMethod(pb.RollbackAdapterRequest, pb.ApplyAdaptersResponse)

WATCH_ROLLOUT = AdminMethod(pb.WatchRolloutRequest, pb.Rollout)
PROMOTE_ROLLOUT = AdminMethod(pb.PromoteRolloutRequest, pb.ApplyAdaptersResponse)
ABORT_ROLLOUT = AdminMethod(pb.AbortRolloutRequest, pb.ApplyAdaptersResponse)
WATCH_RESIDENCY = AdminMethod(pb.WatchResidencyRequest, pb.WatchResidencyResponse)

CREATE_POOL = AdminMethod(pb.CreatePoolRequest, pb.Pool)
UPDATE_POOL = AdminMethod(pb.UpdatePoolRequest, pb.Pool)
CONFIRM_REMOVALS = AdminMethod(pb.ConfirmRemovalsRequest, pb.Pool)
GET_POOL = AdminMethod(pb.GetPoolRequest, pb.Pool)
LIST_POOLS = AdminMethod(pb.ListPoolsRequest, pb.ListPoolsResponse)
DELETE_POOL = AdminMethod(pb.DeletePoolRequest, pb.DeletePoolResponse)

LIST_REPLICAS = AdminMethod(pb.ListReplicasRequest, pb.ListReplicasResponse)
GET_REPLICA = AdminMethod(pb.GetReplicaRequest, pb.Replica)
DRAIN_REPLICA = AdminMethod(pb.DrainReplicaRequest, pb.DrainReplicaResponse)
FORGET_REPLICA = AdminMethod(pb.ForgetReplicaRequest, pb.ForgetReplicaResponse)

SET_TENANT = AdminMethod(pb.SetTenantRequest, pb.Tenant)
LIST_TENANTS = AdminMethod(pb.ListTenantsRequest, pb.ListTenantsResponse)
REPAIR_TENANT = AdminMethod(pb.RepairTenantRequest, pb.RepairTenantResponse)

READ_BACKUP = AdminMethod(pb.ReadBackupRequest, pb.ReadBackupResponse)
RESTORE_HISTORY = AdminMethod(pb.RestoreHistoryRequest, pb.RestoreHistoryResponse)
WHO_AM_I = AdminMethod(pb.WhoAmIRequest, pb.WhoAmIResponse)
CHECK_ACCESS = AdminMethod(pb.CheckAccessRequest, pb.CheckAccessResponse)
LIST_CHANGES = AdminMethod(pb.ListChangesRequest, pb.ListChangesResponse)
LIST_AUDIT = AdminMethod(pb.ListAuditRequest, pb.ListAuditResponse)
WATCH_AUDIT = AdminMethod(pb.WatchAuditRequest, pb.WatchAuditResponse)
