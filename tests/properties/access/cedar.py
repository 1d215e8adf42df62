"""Translation of an access file to policies of Cedar, from what docs/security.md says, for the principals of a case.

A policy knows no {tenant}: for each user and group of the case that a word with it stands for there is a policy of its
own. Nor does it know URIs: what a source is below is looked up in the case, which has its sources in one spelling.
`like` looks at case, so tenants are lower-cased on both sides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import cedarpy

from registry.access.principal import Principal
from registry.access.questions import AccessQuestion
from registry.access.roles import ROLES, AccessRole, Action

EVERYBODY = "loraplane:authenticated"
_TENANT = r"([A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]{0,94}[A-Za-z0-9])"
# A binding as it stands in the file.
Written = Mapping[str, Any]


class Cedar:
    """Judge of the questions of one case.

    Args:
        bindings: of the access file.
        principals: whoever may ask.
        spelled: source as it is asked for to the one spelling of the same, with ``/`` at its end; None: it is none.
        roles: actions of each.
    """

    def __init__(
        self,
        bindings: Sequence[Written],
        principals: Sequence[Principal],
        spelled: Mapping[str, str | None],
        roles: Mapping[AccessRole, Collection[Action]] = ROLES,
    ) -> None:
        policies = [text for number, one in enumerate(bindings, 1) for text in _policies(number, one, principals)]
        self._policies = cedarpy.PolicySet.from_str("\n".join(policies))
        self._entities = cedarpy.Entities.from_json_str(json.dumps([*_actions(roles), *_users(principals)]))
        self._spelled = spelled

    def allowing(self, asked: Iterable[tuple[Principal, AccessQuestion]]) -> list[set[int]]:
        """Numbers of the bindings that allow each question; none: it is refused."""
        requests = [self._request(*one) for one in asked]
        answers = cedarpy.is_authorized_batch(requests, self._policies, self._entities)
        assert [one.diagnostics.errors for one in answers if one.diagnostics.errors] == []
        found = [{int(number) for number in one.diagnostics.id_annotations_by_reason.values()} for one in answers]
        assert [one.allowed for one in answers] == [bool(numbers) for numbers in found]
        return found

    def _request(self, principal: Principal, asked: AccessQuestion) -> dict[str, Any]:
        named = {"pool": asked.pool, "tenant": asked.tenant, "credentials": asked.credentials}
        context = {part: value for part, value in named.items() if value is not None}
        if asked.tenant is not None:
            context["tenant"] = asked.tenant.lower()
        if asked.source is not None:
            context["source"] = self._spelled[asked.source] or ""
        return {
            "principal": {"type": "User", "id": principal.name},
            "action": {"type": "Action", "id": f"{asked.verb} {asked.resource}"},
            "resource": {"type": "Service", "id": "admin"},
            "context": context,
        }


def _policies(number: int, binding: Written, principals: Sequence[Principal]) -> Iterator[str]:
    users = {one.name for one in principals}
    groups = {EVERYBODY}.union(*(one.groups for one in principals))
    for field, names, whoever in (("users", users, "== User"), ("groups", groups, "in Group")):
        for word in binding.get(field, ()):
            for name, tenant in _meant(word, names):
                head = f'principal {whoever}::{_quoted(name)}, action in Action::"{binding["role"]}", resource'
                yield f'@id("{number}") permit({head}) when {{ {_scope(binding, tenant)} }};'


def _meant(word: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names that a word of a binding stands for, each with the tenant that it holds."""
    before, placeholder, after = word.partition("{tenant}")
    if not placeholder:
        yield word, ""
        return
    for name in names:
        found = re.fullmatch(re.escape(before) + _TENANT + re.escape(after), name)
        if found and ".." not in found[1]:
            yield name, found[1].lower()


def _scope(binding: Written, tenant: str) -> str:
    def some(part: str, patterns: Iterable[str]) -> str:
        either = " || ".join(f"context.{part} like {one}" for one in patterns) or "false"
        return f"(!(context has {part}) || {either})"

    def names(field: str) -> list[str]:
        words = [word.replace("{tenant}", tenant) for word in binding.get(field, ())]
        return [_quoted(word.lower() if field == "tenants" else word) for word in words]

    parts = [some("credentials", names("credentials"))] if binding["role"] == "publisher" else []
    if "pools" in binding:
        parts.append(some("pool", names("pools")))
    if "tenants" in binding:
        parts.append(some("tenant", names("tenants")))
    if binding.get("sources"):
        below = (word.replace("{tenant}", tenant).rstrip("/") + "/" for word in binding["sources"])
        parts.append(some("source", [_quoted(one).replace("*", "\\*")[:-1] + '*"' for one in below]))
    return " && ".join(parts) or "true"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _entity(kind: str, name: str, parents: Iterable[tuple[str, str]]) -> dict[str, Any]:
    above = [{"type": of, "id": parent} for of, parent in parents]
    return {"uid": {"type": kind, "id": name}, "attrs": {}, "parents": above}


def _users(principals: Iterable[Principal]) -> Iterator[dict[str, Any]]:
    for one in principals:
        yield _entity("User", one.name, [("Group", group) for group in {*one.groups, EVERYBODY}])


def _actions(roles: Mapping[AccessRole, Collection[Action]]) -> Iterator[dict[str, Any]]:
    for verb, resource in {action for actions in roles.values() for action in actions}:
        may = [("Action", role) for role in roles if (verb, resource) in roles[role]]
        yield _entity("Action", f"{verb} {resource}", may)
