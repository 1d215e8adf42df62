"""Parts of answers that a caller may see, by the decision that refuses calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from registry.access.methods import METHODS
from registry.access.questions import AccessQuestion, Resource, Verb
from registry.access.roles import Action
from registry.admin.rpc.calls import CallContext
from registry.model.names import tenant_of
from registry.model.stored import read_json
from registry.runtime.clock import Deadline
from registry.store.pages import everything
from registry.store.reader import Reader
from registry.v1 import registry_pb2 as pb

# Of a status: sentences, which may name anybody's adapters.
_SENTENCES = ("note", "held", "degraded", "omitted_reason", "last_request_id")
_ADAPTERS = Verb.GET, Resource.ADAPTERS
_NAMES_AT_ONCE = 100
Value = Mapping[str, object]


def seen_adapters(call: CallContext, pool: str, action: Action | None = None) -> Callable[[str], bool]:
    """Tells, by its name, whether the caller sees an adapter of a pool; `action`: if not that of the method."""
    return everything if call.grant is None else call.grant.sees(action or METHODS[call.method], pool)


def seen_pools(call: CallContext, action: Action | None = None) -> Callable[[str], bool]:
    """Tells, by its name, whether the caller sees a pool; `action`: as in `seen_adapters`."""
    grant, asked = call.grant, action or METHODS[call.method]
    return everything if grant is None else lambda pool: grant.by(AccessQuestion(*asked, pool)) is not None


async def seen_names(reader: Reader, call: CallContext, deadline: Deadline, action: Action, most: int) -> Sequence[str]:
    """Names of pools that the caller sees, sorted: of more than `most`, so many. Raises RegistryError."""
    found, token, is_seen = list[str](), None, seen_pools(call, action)
    while len(found) < most:
        page = await reader.pools(min(most, _NAMES_AT_ONCE), token, deadline, is_seen)
        found += [one.record.name for one in page.records]
        if (token := page.token) is None:
            break
    return sorted(found)[:most]


def seen_tenants(call: CallContext) -> Callable[[str], bool]:
    """Tells, by its name, whether the caller sees a tenant."""
    grant, action = call.grant, METHODS[call.method]
    return everything if grant is None else lambda tenant: grant.by(AccessQuestion(*action, tenant=tenant)) is not None


def seen_changes(call: CallContext, pool: str) -> Callable[[pb.RecordedChange], bool]:
    """Tells whether the caller sees what was done."""
    adapters, tenants = seen_adapters(call, pool), seen_tenants(call)

    def is_seen(one: pb.RecordedChange) -> bool:
        if one.kind in {"adapter", "history"}:
            return adapters(one.name)
        return one.kind != "tenant" or tenants(one.name)

    return is_seen


def sees_whole(call: CallContext, pool: str | None = None) -> bool:
    """True if the caller sees what is done to everything in a pool, or, without one, in each, whatever its name."""
    return call.grant is None or call.grant.covers(AccessQuestion(*METHODS[call.method], pool))


class AuditSight:
    """Parts of the audit that a caller sees; of what names no tenant, or no pool, only who sees all of them."""

    def __init__(self, call: CallContext) -> None:
        self._grant, self._action = call.grant, METHODS[call.method]

    def change(self, pool: str, one: pb.AuditedChange) -> bool:
        """True if the caller sees what was done; `pool` empty: it was done to a tenant."""
        if one.kind in {"adapter", "history"}:
            return self.whole(pool, tenant_of(one.name))
        if one.kind == "tenant":
            return self._grant is None or self._grant.by(AccessQuestion(*self._action, tenant=one.name)) is not None
        return self._grant is None or self._grant.by(AccessQuestion(*self._action, pool or one.name)) is not None

    def whole(self, pool: str, tenant: str = "") -> bool:
        """True if the caller sees all that is about these; empty: whatever it is about."""
        asked = AccessQuestion(*self._action, pool or None, tenant or None)
        return self._grant is None or self._grant.covers(asked)


def seen_status(call: CallContext, replica: pb.Replica) -> pb.Replica:
    """The same replica; of its status the adapters that the caller sees, and no sentences unless these are all."""
    if call.grant is None or call.grant.covers(AccessQuestion(*_ADAPTERS, replica.pool)) or not replica.status_json:
        return replica
    try:
        status = read_json(replica.status_json)
    except ValueError:
        status = None
    is_seen = seen_adapters(call, replica.pool, _ADAPTERS)
    kept = _kept(status, is_seen)
    if isinstance(kept, dict):
        if isinstance(served := kept.get("served"), dict) and "hash" in served:
            served["hash"] = ""  # of all names: whoever guesses the others' could make sure
        replica.status_json = json.dumps({**kept, **{field: "" for field in _SENTENCES if field in kept}})
    else:
        replica.status_json = ""
    return replica


def _kept(value: object, is_seen: Callable[[str], bool]) -> object:
    """A value without what names an adapter that is not seen: objects by their name, and pairs that begin with one."""
    match value:
        case dict():
            return {field: _kept(one, is_seen) for field, one in value.items()}
        case list():
            return [_kept(one, is_seen) for one in value if _names_seen(one, is_seen)]
    return value


def _names_seen(value: object, is_seen: Callable[[str], bool]) -> bool:
    match value:
        case {"name": str(name)} | [str(name), int()]:
            return bool(name) and is_seen(name)  # without one it is about the whole, as the sentences are
        case {"name": _}:
            return False
    return True
