"""docs/roles.md from the table of roles: what each may do. As a program: writes it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from registry.access.methods import METHODS
from registry.access.roles import OF_POOLS, OF_TENANTS, ROLES, AccessRole

PAGE = Path(__file__).parents[2] / "docs" / "roles.md"
_HEAD = """# Roles

What each role of an [access file](security.md) may do. A binding says for which tenants and pools.
This page is written by `make docs` from `registry/access/roles.py`.

| role | bound to | may |
|---|---|---|
"""
_METHODS_HEAD = """
| method | role |
|---|---|
"""


def page() -> str:
    """The page."""
    rows = "".join(f"| {role} | {_bound_to(role)} | {_actions(role)} |\n" for role in AccessRole)
    methods = "".join(f"| {method} | {_roles_of(method)} |\n" for method in sorted(METHODS))
    return _HEAD + rows + _METHODS_HEAD + methods


def _bound_to(role: AccessRole) -> str:
    scopes = [name for name, of in (("tenants", OF_TENANTS), ("pools", OF_POOLS)) if role in of]
    return ", ".join(scopes) or "everything"


def _actions(role: AccessRole) -> str:
    verbs: dict[str, list[str]] = defaultdict(list)
    for verb, resource in sorted(ROLES[role]):
        verbs[verb].append(resource)
    return "; ".join(f"{verb} {', '.join(resources)}" for verb, resources in verbs.items())


def _roles_of(method: str) -> str:
    return ", ".join(role for role in AccessRole if METHODS[method] in ROLES[role])


if __name__ == "__main__":
    PAGE.write_text(page())
