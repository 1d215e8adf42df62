"""Questions that only the outcome of a change can put. Pure.

A roll-back names no source, a retry may hold another spec, and an update of a pool may loosen what it requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from registry.access.methods import METHODS
from registry.access.questions import AccessQuestion, Resource, Verb
from registry.model.audit import AuditChange
from registry.model.names import tenant_of

Value = Mapping[str, object]
# Limits of a pool that hold others back: who may write adapters, or run pools, cannot loosen them (guarantee A3).
REQUIRED = frozenset({"require_signature", "require_digest", "prove"})


def outcome_questions(
    method: str, pool: str | None, changes: Iterable[AuditChange]
) -> Iterator[tuple[AccessQuestion, ...]]:
    """Questions of a change by what it does; of each tuple one has to be allowed.

    `pool`: in which pool; None: the change is about tenants.
    """
    verb, resource = METHODS[method]
    for one in changes:
        before, after = one.before or {}, one.after or {}
        if one.kind in {"adapter", "history"}:
            yield _of_adapter(verb, resource, pool, one.name, before, after)
        elif one.kind == "pool":
            yield from _of_pool(verb, resource, one.name, before, after)
        elif one.kind == "tenant":
            yield (AccessQuestion(verb, resource, tenant=one.name),)
        else:
            yield (AccessQuestion(verb, resource, pool),)


def _of_adapter(
    verb: Verb, resource: Resource, pool: str | None, name: str, before: Value, after: Value
) -> tuple[AccessQuestion, ...]:
    tenant, was, now = tenant_of(name), _part(before, "spec"), _part(after, "spec")
    if verb not in {Verb.APPLY, Verb.ROLLBACK}:
        return (AccessQuestion(verb, resource, pool, tenant),)
    if now and was == now and verb is Verb.APPLY:
        return AccessQuestion(verb, resource, pool, tenant), AccessQuestion(Verb.RETRY, resource, pool, tenant)
    source, credentials = _text(_part(now, "source"), "uri"), _text(now, "credentials")
    if now and (source, credentials) != (_text(_part(was, "source"), "uri"), _text(was, "credentials")):
        return (AccessQuestion(verb, resource, pool, tenant, source, credentials),)
    return (AccessQuestion(verb, resource, pool, tenant),)


def _of_pool(
    verb: Verb, resource: Resource, name: str, before: Value, after: Value
) -> Iterator[tuple[AccessQuestion, ...]]:
    if verb is Verb.UPDATE:
        yield from _of_update(name, before, after)
        return
    yield (AccessQuestion(verb, resource, name),)
    # A pool that is deleted can be made anew, and a new one requires nothing: that is a way to loosen, too.
    proves_nothing = verb is Verb.CREATE and _part(after, "limits").get("prove") == "off"
    if proves_nothing or (verb is Verb.DELETE and _holds_back(before)):
        yield (AccessQuestion(Verb.REQUIRE, resource, name),)


def _of_update(name: str, before: Value, after: Value) -> Iterator[tuple[AccessQuestion, ...]]:
    was, now = _part(before, "limits"), _part(after, "limits")
    required = {field for field in REQUIRED if was.get(field) != now.get(field)}
    if required:
        yield (AccessQuestion(Verb.REQUIRE, Resource.POOLS, name),)
    if _without(before) != _without(after) or not required:
        yield (AccessQuestion(Verb.UPDATE, Resource.POOLS, name),)


def _holds_back(pool: Value) -> bool:
    """True if a pool has a limit of `REQUIRED`; one whose record cannot be read may have any."""
    limits = pool.get("limits")
    return not isinstance(limits, dict) or any(limits.get(field) is True for field in REQUIRED)


def _without(pool: Value) -> Value:
    limits = {field: value for field, value in _part(pool, "limits").items() if field not in REQUIRED}
    return {**pool, "limits": limits}


def _part(value: Value, field: str) -> Value:
    found = value.get(field)
    return found if isinstance(found, dict) else {}


def _text(value: Value, field: str) -> str | None:
    found = value.get(field)
    return found if isinstance(found, str) else None
