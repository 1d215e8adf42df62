"""From replies to messages on the wire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

from registry.model.keys import last_part
from registry.model.messages import adapter_message, pool_message, retired_message, tenant_message
from registry.model.names import is_engine_allowed
from registry.model.records import AdapterOutcome, AdapterRecord, ChangeReply
from registry.model.status import host_of, presence_of
from registry.model.stored import read_json
from registry.rollout.expected import AbsentReplica, LackingReplicas
from registry.store.pages import Page, PageToken
from registry.store.reader import History, ReplicaValues
from registry.transactions.builder import Settled
from registry.transactions.decode import Present
from registry.v1 import registry_pb2 as pb

ChangedT = TypeVar("ChangedT", pb.DrainReplicaResponse, pb.RestoreHistoryResponse)
# Of what may be very many.
_NAMED_AT_MOST = 20
_OUTCOMES = {
    "created": pb.AdapterResult.CREATED,
    "updated": pb.AdapterResult.UPDATED,
    "unchanged": pb.AdapterResult.UNCHANGED,
    "deleted": pb.AdapterResult.DELETED,
}


def present_adapter(present: Present[AdapterRecord]) -> pb.Adapter:
    """An adapter as it is now."""
    return adapter_message(present.record, present.revision)


def applied(settled: Settled, pool: str, request_id: str) -> pb.ApplyAdaptersResponse:
    """The reply to a change set, a rollback, or the end of a rollout."""
    results = [_result(outcome, pool, settled) for outcome in settled.reply.adapters]
    return pb.ApplyAdaptersResponse(results=results, revision=settled.revision, request_id=request_id)


def _result(outcome: AdapterOutcome, pool: str, settled: Settled) -> pb.AdapterResult:
    if outcome.record is None:
        shown = pb.Adapter(name=outcome.name, pool=pool)
    else:
        shown = adapter_message(outcome.record, _etag(outcome, settled))
    return pb.AdapterResult(outcome=_OUTCOMES[outcome.outcome], adapter=shown)


def _etag(of: AdapterOutcome | ChangeReply, settled: Settled) -> int:
    """The revision of the last change of a thing, which may be this one."""
    return settled.revision if of.etag is None else of.etag


def settled_pool(settled: Settled) -> pb.Pool:
    """The reply to a change of a pool; empty for a deletion."""
    record = settled.reply.pool
    return pool_message(record, _etag(settled.reply, settled)) if record else pb.Pool()


def changed(kind: type[ChangedT], settled: Settled) -> ChangedT:
    """The reply that tells only whether something was written, and at which revision."""
    return kind(changed=settled.reply.etag is None, revision=settled.revision)


def settled_tenant(settled: Settled) -> pb.Tenant:
    """The reply to the setting of a quota."""
    record = settled.reply.tenant
    return tenant_message(record, _etag(settled.reply, settled)) if record else pb.Tenant()


def repaired(settled: Settled) -> pb.RepairTenantResponse:
    """The reply to a repair."""
    retired = [adapter_message(outcome.record, 0) for outcome in settled.reply.adapters if outcome.record]
    return pb.RepairTenantResponse(
        tenant=settled_tenant(settled), retired=retired, changed=settled.reply.etag is None, revision=settled.revision
    )


def backup(page: Page, prefix: str, token: str) -> pb.ReadBackupResponse:
    """Values as they are stored. Their keys are told without the `prefix` of this service."""
    begin = len(prefix) + 1
    records = [
        pb.StoredRecord(key=kv.key[begin:].decode(errors="backslashreplace"), value=kv.value, etag=str(kv.mod_revision))
        for kv in page.kvs
    ]
    return pb.ReadBackupResponse(records=records, next_page_token=token, revision=page.revision)


def history(found: History) -> pb.ListAdapterHistoryResponse:
    """An adapter's generations, the newest first."""
    now = [present_adapter(found.present)] if found.present else []
    earlier = [retired_message(record) for record in found.retired]
    return pb.ListAdapterHistoryResponse(generations=[*now, *earlier], unreadable=found.unreadable)


def replica(pool_name: str, values: ReplicaValues) -> pb.Replica:
    """A live replica; a presence that cannot be read still shows that it lives."""
    presence = presence_of(values.presence.value)
    status_json, withheld = _status(values)
    advertised = presence.engine_url if presence is not None else ""
    if advertised:
        withheld = "" if _is_allowed(advertised, values.engine_hosts) else advertised
    shown = pb.Replica(name=last_part(values.presence.key), pool=pool_name, status_json=status_json)
    shown.withheld_engine_url = withheld
    if presence is not None:
        shown.labels.update(presence.labels)
        shown.incarnation = presence.incarnation
        shown.started_at = presence.started_at
        shown.version = presence.version
        shown.leaving = presence.leaving
        shown.engine_url = "" if withheld else advertised
        shown.host = host_of(presence.owner)
    return shown


def _status(values: ReplicaValues) -> tuple[str, str]:
    """A status, without the engine's URL if the pool does not allow that; and the URL then."""
    status_json = values.status.value.decode(errors="replace") if values.status else ""
    if values.engine_hosts == ():
        return status_json, ""
    try:
        status = read_json(status_json)
    except ValueError:
        return status_json, ""
    engine = status.get("engine") if isinstance(status, dict) else None
    url = str(engine.get("url") or "") if isinstance(engine, dict) else ""
    if isinstance(engine, dict) and url and not _is_allowed(url, values.engine_hosts):
        return json.dumps({**status, "engine": {**engine, "url": ""}}), url.encode(errors="replace").decode()
    return json.dumps(status), ""  # as it was read: of a key that stands twice, others may take the other


def _is_allowed(url: str, engine_hosts: tuple[str, ...] | None) -> bool:
    return engine_hosts == () or is_engine_allowed(url, engine_hosts or ())


def unknown_pools(found: Mapping[str, list[str]]) -> list[pb.UnknownPool]:
    """Pools that do not exist, with the names of the replicas that are of them."""
    return [
        pb.UnknownPool(name=pool, replicas=len(names), names=names[:_NAMED_AT_MOST])
        for pool, names in islice(found.items(), _NAMED_AT_MOST)
    ]


def lacking(found: LackingReplicas, engine_hosts: tuple[str, ...] | None) -> pb.ListReplicasResponse:
    """Replicas that are expected and do not live, in the fields of the last page of a listing.

    `engine_hosts`: see `registry.transactions.decode.engine_hosts_of`.
    """
    return pb.ListReplicasResponse(
        missing=[_missing(one, engine_hosts) for one in found.named],
        lacking=found.count,
        groups=[
            pb.GroupPresence(expected=pb.ReplicaGroup(labels=one.labels, replicas=one.expected), live=one.live)
            for one in found.groups
        ],
    )


def _missing(one: AbsentReplica, engine_hosts: tuple[str, ...] | None) -> pb.MissingReplica:
    known = one.known
    return pb.MissingReplica(
        name=one.name,
        labels=one.labels,
        last_seen=one.last_seen,
        engine_url=known.engine_url if _is_allowed(known.engine_url, engine_hosts) else "",
        host=known.host,
        observed_revision=known.observed_revision,
        engine=known.engine,
        version=known.version,
    )


def token(next_page: PageToken | None, listing: str) -> str:
    """A page token as text; empty for none."""
    return next_page.encode(listing) if next_page else ""
