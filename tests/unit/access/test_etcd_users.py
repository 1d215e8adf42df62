"""Users of etcd: what is granted, which steps lead there, and what is too much."""

from __future__ import annotations

import pytest

from registry.access.etcd_users import (
    ADMIN,
    AUDITOR,
    AddRole,
    AddUser,
    Excess,
    GiveRole,
    GrantKeys,
    RemoveRole,
    RemoveUser,
    RevokeKeys,
    SetPassword,
    access_steps,
    enabling_steps,
    excess,
    removing_steps,
    replica_user,
    wanted,
)
from registry.etcd3.ops import EtcdAccess, KeyPermission, Permission
from registry.model.keys import Keys

KEYS = Keys("/p")
R1 = replica_user("q", "r1")
READ, WRITE, BOTH = Permission.READ, Permission.WRITE, Permission.READWRITE


def keys(first: str, kind: Permission = READ, end: str = "") -> KeyPermission:
    return KeyPermission(first.encode(), end.encode(), kind)


def access(*permissions: KeyPermission, user: str = "u", role: str = "x") -> EtcdAccess:
    return EtcdAccess({user: frozenset({role})}, {role: frozenset(permissions)})


def told(role: str) -> set[str]:
    return set(map(str, wanted(KEYS, [("q", "r1")]).roles[role]))


def test_each_role_has_what_its_processes_need():
    """A4 own-keys: what a sidecar writes is of its own replica."""
    assert told(R1) == {
        *(
            "readwrite /p/replicas/q/r1",
            "readwrite /p/status/q/r1",
            "readwrite /p/left/q/r1",
            "readwrite /p/drains/q/r1",
        ),
        *("read /p/pools/q", "read /p/meta", "read /p/adapters/q/*", "read /p/replicas/q/*", "read /p/status/q/*"),
        "read /p/history/q/*",
    }
    written = "adapters audit clock drains history left members pools requests tenants".split()
    assert told(ADMIN) == {"read /p/*", "write /p/meta", *(f"write /p/{kind}/*" for kind in written)}
    assert told(AUDITOR) == {f"read /p/{kind}/*" for kind in "audit adapters drains history pools tenants".split()}
    assert wanted(KEYS, ()).users == {ADMIN: frozenset({ADMIN}), AUDITOR: frozenset({AUDITOR})}


def test_steps_grant_first_revoke_last_and_end():
    want = access(keys("/p/a", BOTH), keys("/p/b"))
    first = [AddRole("x"), GrantKeys("x", keys("/p/a", BOTH)), GrantKeys("x", keys("/p/b")), AddUser("u")]
    assert list(access_steps(EtcdAccess(), want, renewed={"u"})) == [*first, GiveRole("u", "x")]
    present = EtcdAccess({"u": frozenset({"y"})}, {"x": frozenset({keys("/p/a"), keys("/p/c")})})
    assert list(access_steps(present, want, renewed={"u"})) == [
        GrantKeys("x", keys("/p/a", BOTH)),
        GrantKeys("x", keys("/p/b")),
        SetPassword("u"),
        GiveRole("u", "x"),
        RevokeKeys("x", keys("/p/c")),
    ]
    assert access_steps(want, want) == ()
    words = "add role x; grant x: read /p/b; add user u; give u the role x; set a new password of u"
    steps = AddRole("x"), GrantKeys("x", keys("/p/b")), AddUser("u"), GiveRole("u", "x"), SetPassword("u")
    assert "; ".join(map(str, steps)) == words
    assert str(RevokeKeys("x", keys("/p/c", WRITE, "/p/d"))) == "revoke from x: write /p/c*"


OWN = (keys("/p/a/", READ, "/p/a0"), keys("/p/s", BOTH))


@pytest.mark.parametrize(
    ("has", "is_too_much"),
    [
        (keys("/p/a/", READ, "/p/a0"), False),
        (keys("/p/a/b"), False),
        (keys("/p/a/b", READ, "/p/a/c"), False),
        (keys("/p/s", WRITE), False),
        (keys("/p/a/b", WRITE), True),
        (keys("/p/a/b", BOTH), True),
        (keys("/p/a0"), True),
        (keys("/p/a"), True),
        (keys("/p/a/", READ, "/p/b"), True),
        (keys("/p/s", READ, "/p/s0"), True),
        (keys("/p/t"), True),
        (keys("/p/a/b", READ, "\0"), True),
        (keys("/a", READ, "\0"), True),
        (keys("\0", BOTH, "\0"), True),
        (keys("/a", READ, "/p/0"), True),
        (keys("/a", READ, "/p/"), False),
        (keys("/q"), False),
        (keys("/q", READ, "/r"), False),
    ],
)
def test_what_is_too_much(has, is_too_much):
    found = excess(access(has), access(*OWN), b"/p/")
    assert found == ((Excess("u", "x", has),) if is_too_much else ())


def test_strangers_have_no_need_and_root_may_all():
    whole = keys("/p/", BOTH, "/p0")
    assert excess(access(whole, user="root"), EtcdAccess(), b"/p/") == ()
    found = excess(EtcdAccess({"u": frozenset({"root", "y"})}, {"y": frozenset({whole})}), EtcdAccess(), b"/p/")
    assert list(map(str, found)) == [
        "u: may do everything by the role root, and does not need it",
        "u: may readwrite /p/* by the role y, and does not need it",
    ]


def test_before_etcd_asks_for_users_somebody_is_root():
    assert list(map(str, enabling_steps(EtcdAccess()))) == ["add user root", "give root the role root"]
    assert list(map(str, enabling_steps(EtcdAccess({"root": frozenset()}, {})))) == ["give root the role root"]
    assert enabling_steps(EtcdAccess({"root": frozenset({"root"})}, {})) == ()


def test_users_of_replicas_that_are_gone_are_removed_with_their_roles():
    """A4 own-keys: of this prefix alone, and nobody who is not a replica. A role that outlived its user goes, too."""
    r2, r3, other, odd = (replica_user("q", name) for name in ("r2", "r3", "r4", "r5"))
    there = wanted(KEYS, [("q", name) for name in ("r1", "r2", "r3")])
    elsewhere = wanted(Keys("/other"), [("q", "r4")])
    users = {**there.users, other: frozenset({other}), odd: frozenset(), "root": frozenset({"root"})}
    roles = {**there.roles, other: elsewhere.roles[other]}
    del users[r3]
    steps = removing_steps(EtcdAccess(users, roles), KEYS, {("q", "r1")})
    assert steps == (RemoveUser(r2), RemoveUser(odd), RemoveRole(r2), RemoveRole(r3))
    assert [str(one) for one in steps[1:3]] == [f"remove user {odd}", f"remove role {r2}"]
    assert removing_steps(there, KEYS, {("q", "r1"), ("q", "r2"), ("q", "r3")}) == ()
