"""Principals: whose request ids are whose, and the role of whom no access file knows."""

from __future__ import annotations

import pytest

from registry.access.principal import ANONYMOUS, Credential, Principal, operator


@pytest.mark.parametrize(
    ("principal", "space", "role"),
    [
        (ANONYMOUS, "", "unauthenticated"),
        (operator("ann"), "operator:ann", "operator"),
        (Principal("ci:a/b", Credential.TOKEN), "token:ci%3Aa%2Fb", "token"),
        (Principal("loraplane-admin", Credential.SERVICE), "conductor:loraplane-admin", "conductor"),
    ],
)
def test_request_ids_belong_to_a_name_as_its_credential_has_it(principal, space, role):
    """W3 idempotent: nobody is answered with what somebody else asked."""
    assert (principal.space, principal.usual_role) == (space, role)


def test_groups_are_no_part_of_whose_they_are():
    assert Principal("a", Credential.TOKEN, frozenset({"g"})).space == Principal("a", Credential.TOKEN).space
