"""Each cell of roles, methods and scope: what docs/roles.md says, by Cedar, is what is decided; and if not, it shows.

A cell is a role, a method, the own or a foreign pool, and the own or a foreign tenant. A mutant loosens one cell, as
little as a binding can, and the comparison has to notice each.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from registry.access.decision import Grant, grant_of
from registry.access.file import read_access
from registry.access.methods import METHODS
from registry.access.principal import Credential, Principal
from registry.access.questions import AccessQuestion
from registry.access.roles import OF_POOLS, OF_TENANTS, AccessRole, Action
from registry.model.names import NamePatterns
from tests.properties.access.cedar import Cedar
from tests.support.roles_page import PAGE

ANN = Principal("ann", Credential.CERTIFICATE)
OWN, EVERY = ("p", "acme"), NamePatterns(("*",))
SCOPES = [(pool, tenant) for pool in ("p", "q") for tenant in ("acme", "other")]


def written() -> Mapping[AccessRole, set[Action]]:
    """Actions of each role by the methods that the page names: the page, not the table that it is made from."""
    found: dict[AccessRole, set[Action]] = defaultdict(set)
    for line in PAGE.read_text().partition("| method | role |")[2].splitlines():
        _, method, roles, *_ = [*map(str.strip, line.split("|")), "", ""]
        for role in filter(None, roles.split(", ")) if method in METHODS else ():
            found[AccessRole(role)].add(METHODS[method])
    return found


def bindings(role: AccessRole) -> list[dict[str, object]]:
    scope = {"tenants": ["acme"]} if role in OF_TENANTS else {}
    scope |= {"pools": ["p"]} if role in OF_POOLS else {}
    return [{"role": role.value, "users": ["ann"], **scope}, {"role": "security", "users": ["root"]}]


def granted(role: AccessRole) -> Grant:
    whole = {"apiVersion": "loraplane/v1", "kind": "Access", "bindings": bindings(role)}
    return grant_of(read_access(json.dumps(whole).encode(), "access"), ANN)


def questions() -> Iterator[AccessQuestion]:
    for action in dict.fromkeys(METHODS.values()):
        yield from (AccessQuestion(*action, pool, tenant) for pool, tenant in SCOPES)


def judged(role: AccessRole) -> dict[AccessQuestion, bool]:
    """Each question of a role by Cedar."""
    asked = list(questions())
    told = Cedar(bindings(role), [ANN], {}, written()).allowing((ANN, one) for one in asked)
    return {one: bool(numbers) for one, numbers in zip(asked, told, strict=True)}


def differs(grant: Grant, cells: Mapping[AccessQuestion, bool]) -> bool:
    return any((grant.by(one) is not None) != is_allowed for one, is_allowed in cells.items())


def loosened(grant: Grant, cell: AccessQuestion) -> Grant:
    """The same, and this cell allowed: the action alone, and no wider than the cell asks for."""
    [held, *_] = grant.held
    foreign_pool, foreign_tenant = cell.pool != OWN[0], cell.tenant != OWN[1]
    wider = replace(
        held,
        actions=frozenset({(cell.verb, cell.resource)}),
        pools=EVERY if foreign_pool else held.pools,
        tenants=EVERY if foreign_tenant and held.tenants is not None else held.tenants,
    )
    return replace(grant, held=(*grant.held, wider))


@pytest.mark.parametrize("role", AccessRole)
def test_each_cell_that_is_loosened_is_noticed(role):
    """A2 deny-by-default: of what the page does not allow nothing can become allowed unseen."""
    grant, cells = granted(role), judged(role)
    assert not differs(grant, cells)
    refused = [one for one, is_allowed in cells.items() if not is_allowed]
    assert len(refused) >= 40
    for cell in refused:
        mutant = loosened(grant, cell)
        assert mutant.by(cell) is not None, f"{cell} is not loosened"
        assert differs(mutant, cells), cell


@pytest.mark.parametrize("role", AccessRole)
def test_each_cell_that_is_taken_away_is_noticed(role):
    grant, cells = granted(role), judged(role)
    [held] = grant.held
    for action in held.actions & {*METHODS.values()}:
        assert differs(replace(grant, held=(replace(held, actions=held.actions - {action}),)), cells), action
