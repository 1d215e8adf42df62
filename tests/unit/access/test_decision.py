"""The one decision: roles, scopes, and the tenant in a group's name."""

from __future__ import annotations

from itertools import product

import pytest

from registry.access.decision import grant_of, whole_grant
from registry.access.file import EVERYBODY, read_access
from registry.access.principal import Credential, Principal
from registry.access.questions import AccessQuestion, Resource, Verb
from registry.access.roles import OF_POOLS, OF_TENANTS, ROLES, AccessRole
from registry.model.errors import PermissionDenied

HEAD = "apiVersion: loraplane/v1\nkind: Access\nbindings:\n  - {role: security, users: [root]}\n"
APPLY = Verb.APPLY, Resource.ADAPTERS


def grant(bindings: str, name: str = "ann", *groups: str):
    principal = Principal(name, Credential.TOKEN, frozenset(groups))
    return grant_of(read_access((HEAD + bindings).encode(), "access"), principal)


def scoped(role: AccessRole) -> str:
    tenants = ", tenants: [acme]" if role in OF_TENANTS else ""
    pools = ", pools: [p]" if role in OF_POOLS else ""
    return f"  - {{role: {role}, users: [ann]{tenants}{pools}}}\n"


@pytest.mark.parametrize("role", AccessRole)
def test_a_role_allows_its_actions_in_its_scope_and_nothing_else(role):
    held = grant(scoped(role))
    for action in product(Verb, Resource):
        for pool, tenant in product(["p", "q"], ["acme", "other"]):
            is_in = (role not in OF_POOLS or pool == "p") and (role not in OF_TENANTS or tenant == "acme")
            asked = AccessQuestion(*action, pool, tenant)
            assert (held.by(asked) is not None) == (action in ROLES[role] and is_in), asked
        assert (held.by(AccessQuestion(*action)) is not None) == (action in ROLES[role]), "about whatever it may see"


def test_a_group_and_everybody_have_roles_too():
    bindings = "  - {role: viewer, groups: [team], tenants: ['*']}\n"
    asked = AccessQuestion(Verb.GET, Resource.ADAPTERS, "p", "acme")
    assert grant(bindings, "bob", "team").by(asked)
    assert grant(bindings, "team").by(asked) is None, "a user of that name is not the group"
    assert grant(bindings.replace("team", f'"{EVERYBODY}"'), "bob").by(asked)


@pytest.mark.parametrize(
    ("group", "tenant", "is_theirs"),
    [
        ("ml-acme-publishers", "acme", True),
        ("ml-ACME-publishers", "acme", True),
        ("ml-acme-publishers", "other", False),
        ("ml--publishers", "", False),
        ("ml-publishers", "acme", False),
        ("ml-*-publishers", "acme", False),
        ("ml-a/b-publishers", "a/b", False),
        ("xml-acme-publishers", "acme", False),
        ("ml-acme-publishers2", "acme", False),
    ],
)
def test_one_binding_serves_all_tenants(group, tenant, is_theirs):
    bindings = (
        "  - {role: publisher, groups: ['ml-{tenant}-publishers'], tenants: ['{tenant}'], "
        "sources: ['s3://b/{tenant}/'], credentials: ['{tenant}-*']}\n"
    )
    held = grant(bindings, "bob", group)
    asked = AccessQuestion(*APPLY, "p", tenant, f"s3://b/{tenant}/x", f"{tenant}-key")
    assert (held.by(asked) is not None) == is_theirs


@pytest.mark.parametrize("tenant", ["a.-b", "a" * 70])
def test_a_tenant_that_can_be_no_host_has_the_role_and_no_sources_below_it(tenant):
    """Nobody else's group, and no other binding, may take what somebody holds away; nor may all sources be theirs."""
    held = grant(
        "  - {role: publisher, groups: ['g-{tenant}'], tenants: ['{tenant}'], sources: ['https://{tenant}/']}\n",
        "bob",
        f"g-{tenant}",
    )
    assert held.by(AccessQuestion(*APPLY, "p", tenant))
    for source in (f"https://{tenant}/x/", f"https://{tenant}/", "https://h/x/", "s3://b/x"):
        assert held.by(AccessQuestion(*APPLY, "p", tenant, source)) is None


def test_of_two_groups_each_has_its_own_tenant_and_the_parts_are_never_put_together():
    held = grant(
        "  - {role: publisher, groups: ['g-{tenant}'], tenants: ['{tenant}'], sources: ['s3://{tenant}/']}\n",
        "bob",
        "g-abc",
        "g-def",
    )
    for tenant, bucket in product(["abc", "def"], repeat=2):
        assert (held.by(AccessQuestion(*APPLY, "p", tenant, f"s3://{bucket}/x")) is not None) == (tenant == bucket)


def test_two_bindings_of_one_caller_are_not_put_together():
    held = grant(
        "  - {role: publisher, users: [ann], tenants: [acme], pools: [p]}\n"
        "  - {role: viewer, users: [ann], tenants: ['*'], pools: ['*']}\n"
    )
    assert held.by(AccessQuestion(*APPLY, "q", "acme")) is None
    assert held.by(AccessQuestion(*APPLY, "p", "other")) is None
    found = held.by(AccessQuestion(*APPLY, "p", "ACME"))
    assert (found.number, found.role, str(found)) == (2, AccessRole.PUBLISHER, "publisher by binding 2")


@pytest.mark.parametrize(
    ("prefix", "source", "is_below"),
    [
        ("s3://b/a/", "s3://b/a/x", True),
        ("s3://b/a", "s3://b/ab", False),
        ("s3://b/a/", "s3://b/a/../c", False),
        ("s3://b", "s3://c/x", False),
        ("s3://b", "gs://b/x", False),
        ("file:///srv/a", "file:///srv/a/x", True),
        ("file:///srv/a", "file:///srv/a", True),
        ("file:///srv/a", "file:///srv/ab", False),
        ("file:///srv/a", "file:///srv/a/../b", False),
        ("file:///srv/a", "file:///srv/a/%2e%2e/b", False),
        ("file:///srv/a", "file:///srv//a/x", True),
        ("file:///srv/a", "file://host/srv/a", False),
        ("file:///srv/a", "/srv/a", False),
        ("https://h/a/", "https://h/a/x/", True),
        ("https://h/a/", "https://h:8443/a/x/", False),
        ("hf://org", "hf://org/repo@" + "a" * 40, True),
        ("hf://org", "hf://orga/repo@" + "a" * 40, False),
    ],
)
def test_new_adapters_come_from_below_the_sources_of_the_binding(prefix, source, is_below):
    held = grant(f"  - {{role: publisher, users: [ann], tenants: ['*'], sources: ['{prefix}']}}\n")
    assert (held.by(AccessQuestion(*APPLY, "p", "acme", source)) is not None) == is_below


def test_a_credential_is_refused_unless_the_binding_names_it():
    held = grant("  - {role: publisher, users: [ann], tenants: ['*']}\n")
    asked = [AccessQuestion(*APPLY, "p", "acme", "s3://b/x", name) for name in (None, "team-a")]
    assert [held.by(one) is not None for one in asked] == [True, False]


def test_one_of_several_questions_is_enough_and_a_refusal_names_the_roles_that_would_do_and_what_was_asked():
    asked = AccessQuestion(*APPLY, "p", "acme"), AccessQuestion(Verb.RETRY, Resource.ADAPTERS, "p", "acme")
    assert grant("  - {role: operator, users: [ann]}\n").check_any(*asked).role is AccessRole.OPERATOR
    with pytest.raises(PermissionDenied) as caught:
        grant(scoped(AccessRole.VIEWER)).check_any(*asked)
    assert caught.value.message.startswith(
        "you may not apply adapters in pool 'p' of tenant 'acme'; the role publisher or restorer allows it: "
        "`loraplane auth whoami` lists yours"
    )
    named = {"pool": "p", "tenant": "acme"}
    assert caught.value.metadata == {"verb": "apply", "resource": "adapters", "roles": "publisher,restorer", **named}


def test_a_refusal_repeats_no_more_of_a_name_than_one_may_have():
    """R16 bounded: names are asked about before they are checked."""
    with pytest.raises(PermissionDenied) as caught:
        grant(scoped(AccessRole.VIEWER)).check_any(AccessQuestion(*APPLY, "p" * 1_000_000, "t" * 1_000_000))
    assert len(caught.value.message) < 500


def test_whole_lists_are_filtered_by_the_same_decision():
    held = grant("  - {role: viewer, users: [ann], tenants: [acme], pools: [p]}\n")
    action = Verb.LIST, Resource.ADAPTERS
    for pool, seen in (("p", ["acme/a", "ACME/b"]), ("q", [])):
        is_seen = held.sees(action, pool)
        assert [name for name in ("acme/a", "other/a", "plain", "ACME/b") if is_seen(name)] == seen
    assert not held.covers(AccessQuestion(*action, "p"))
    everything = grant("  - {role: viewer, users: [ann], tenants: ['*'], pools: [p]}\n")
    assert [everything.covers(AccessQuestion(*action, pool)) for pool in "pq"] == [True, False]
    assert grant("  - {role: operator, users: [ann]}\n").covers(AccessQuestion(*action, "q"))


def test_the_hosts_administrator_may_do_everything():
    held = whole_grant()
    asked = AccessQuestion(*APPLY, "p", "acme", "s3://b/x", "c")
    assert str(held.by(asked)) == "publisher as the host's administrator"
    assert all(held.by(AccessQuestion(*action, "p", "acme")) for actions in ROLES.values() for action in actions)


@pytest.mark.parametrize(
    ("pool", "tenant", "credentials", "is_allowed"),
    [
        ("p", "acme", "key", True),
        ("p", "ACME", "key", True),
        ("P", "acme", "key", False),
        ("p", "acme", "KEY", False),
        ("p", "acme", None, True),
        ("p", "acme", "team-a", True),
        ("p", "acme", "other", False),
    ],
)
def test_pools_and_credentials_are_others_in_another_case_and_tenants_are_not(pool, tenant, credentials, is_allowed):
    """A2 deny-by-default: two pools may have names that differ in case alone; a credential is one that is named."""
    held = grant("  - {role: publisher, users: [ann], tenants: [Acme], pools: [p], credentials: [key, team-*]}\n")
    asked = AccessQuestion(*APPLY, pool, tenant, "s3://b/1", credentials)
    assert (held.by(asked) is not None) is is_allowed


def test_who_restores_puts_adapters_back_with_the_credentials_that_they_had():
    held = grant("  - {role: restorer, users: [ann]}\n")
    found = held.by(AccessQuestion(*APPLY, "p", "acme", "s3://b/x", "team-key"))
    assert found is not None
    assert found.role is AccessRole.RESTORER


@pytest.mark.parametrize(
    ("more", "pool", "tenant", "covered"),
    [
        (", tenants: ['*']", None, None, True),
        (", tenants: [acme]", None, None, False),
        (", tenants: [acme]", "p", "acme", True),
        (", tenants: [acme]", "p", "other", False),
        (", tenants: ['*'], pools: [p]", None, "acme", False),
        (", tenants: ['*'], pools: [p]", "p", "acme", True),
    ],
)
def test_what_names_no_pool_or_no_tenant_is_for_those_who_have_all(more, pool, tenant, covered):
    """A2 deny-by-default: it may be about anybody."""
    held = grant(f"  - {{role: auditor, users: [ann]{more}}}\n")
    assert held.covers(AccessQuestion(Verb.LIST, Resource.AUDIT, pool, tenant)) == covered
    of_no_tenants = grant("  - {role: router, users: [ann]}\n")
    assert of_no_tenants.covers(AccessQuestion(Verb.GET, Resource.RESIDENCY))
