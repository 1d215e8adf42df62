"""Users and roles of etcd for each process of LoraPlane. Pure.

A sidecar may write its own presence, status, note of leaving and the order to drain it, and nothing else; so whoever
takes one over cannot change what others serve. It may write that order because etcd lets nobody end a lease with keys
that he may not write, and the order hangs on the lease of its presence. An admin service may write everything but what
sidecars say of themselves. etcd cannot forbid everything: any user may grant and renew leases, and ask for the status
of a member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from registry.etcd3.ops import EtcdAccess, KeyPermission, Permission, prefix_end
from registry.model.keys import Keys

ADMIN, AUDITOR = "loraplane-admin", "loraplane-auditor"
_REPLICA = "loraplane-replica:"
_ROOT = "root"


def replica_user(pool: str, replica: str) -> str:
    """Name of the user and of the role of a replica: also the common name of its certificate for etcd."""
    return f"{_REPLICA}{pool}/{replica}"


def replicas_in(present: EtcdAccess) -> tuple[tuple[str, str], ...]:
    """Pools and names of the replicas that have a user."""
    parts = (one.removeprefix(_REPLICA).partition("/") for one in sorted(present.users) if one.startswith(_REPLICA))
    return tuple((pool, replica) for pool, slash, replica in parts if slash)


def wanted(keys: Keys, replicas: Iterable[tuple[str, str]]) -> EtcdAccess:
    """Users and roles for admin services, readers of the audit, and these replicas (pool and name)."""
    roles = {ADMIN: frozenset(_of_admin(keys)), AUDITOR: frozenset(_of_auditor(keys))}
    roles |= {replica_user(*one): frozenset(_of_replica(keys, *one)) for one in replicas}
    return EtcdAccess({name: frozenset({name}) for name in roles}, roles)


def _of_replica(keys: Keys, pool: str, replica: str) -> Iterator[KeyPermission]:
    own = keys.replica(pool, replica), keys.status(pool, replica), keys.left(pool, replica), keys.drain(pool, replica)
    yield from (KeyPermission(key, b"", Permission.READWRITE) for key in own)
    yield from (KeyPermission(key, b"", Permission.READ) for key in (keys.pool(pool), keys.meta()))
    for prefix in (keys.adapters(pool), keys.replicas(pool), keys.statuses(pool), keys.history_in(pool)):
        yield KeyPermission(prefix, prefix_end(prefix), Permission.READ)


def _of_admin(keys: Keys) -> Iterator[KeyPermission]:
    whole = f"{keys.prefix}/".encode()
    yield KeyPermission(whole, prefix_end(whole), Permission.READ)
    for prefix in keys.written_by_admin():
        yield KeyPermission(prefix, prefix_end(prefix), Permission.WRITE)
    yield KeyPermission(keys.meta(), b"", Permission.WRITE)


def _of_auditor(keys: Keys) -> Iterator[KeyPermission]:
    for prefix in (keys.audits(), *keys.audited()):
        yield KeyPermission(prefix, prefix_end(prefix), Permission.READ)


@dataclass(frozen=True, slots=True)
class _OfName:
    """A change of one user or role."""

    words: ClassVar[str]
    name: str

    def __str__(self) -> str:
        return f"{self.words} {self.name}"


class AddRole(_OfName):
    """A role that permits nothing yet."""

    words = "add role"


class AddUser(_OfName):
    """A user without a role yet."""

    words = "add user"


class SetPassword(_OfName):
    """A new password for a user who is there."""

    words = "set a new password of"


class RemoveUser(_OfName):
    """A user whose replica is gone."""

    words = "remove user"


class RemoveRole(_OfName):
    """The role of a user who is removed."""

    words = "remove role"


@dataclass(frozen=True, slots=True)
class _OfKeys:
    """A change of what a role permits."""

    words: ClassVar[str]
    role: str
    permission: KeyPermission

    def __str__(self) -> str:
        return f"{self.words} {self.role}: {self.permission}"


class GrantKeys(_OfKeys):
    """A permission that a role gets."""

    words = "grant"


class RevokeKeys(_OfKeys):
    """A permission that a role loses."""

    words = "revoke from"


@dataclass(frozen=True, slots=True)
class GiveRole:
    """A role that a user gets."""

    user: str
    role: str

    def __str__(self) -> str:
        return f"give {self.user} the role {self.role}"


AccessStep = AddRole | GrantKeys | RevokeKeys | AddUser | GiveRole | SetPassword | RemoveUser | RemoveRole


def access_steps(present: EtcdAccess, want: EtcdAccess, renewed: Collection[str] = ()) -> tuple[AccessStep, ...]:
    """Changes that lead there. Nobody who works loses a permission before the new one is there.

    `renewed`: users who get a new password if they are there.
    """
    return (*_granted(present, want), *_given(present, want, renewed), *_revoked(present, want))


def removing_steps(
    present: EtcdAccess, keys: Keys, replicas: Collection[tuple[str, str]]
) -> tuple[RemoveUser | RemoveRole, ...]:
    """Changes that take users and roles away from replicas below this prefix that are none of these."""
    gone = [replica_user(*one) for one in replicas_in(present) if one not in replicas]
    gone += [one for one in present.roles if one.startswith(_REPLICA) and one not in {*gone, *present.users}]
    ours = [one for one in gone if _is_below(keys, present.roles.get(one, frozenset()))]
    users = [RemoveUser(one) for one in ours if one in present.users]
    return (*users, *(RemoveRole(one) for one in ours if one in present.roles))


def _is_below(keys: Keys, permissions: Iterable[KeyPermission]) -> bool:
    """True if a role is of this prefix: one etcd may have several, each with replicas of the same names."""
    return all(one.key.startswith(f"{keys.prefix}/".encode()) for one in permissions)


def enabling_steps(present: EtcdAccess) -> tuple[AccessStep, ...]:
    """Changes after which etcd can be made to ask for users: somebody has to be root."""
    want = EtcdAccess({_ROOT: frozenset({_ROOT})}, {})
    return tuple(_given(present, want, ()))


def _granted(present: EtcdAccess, want: EtcdAccess) -> Iterator[AccessStep]:
    for role, permissions in want.roles.items():
        if role not in present.roles:
            yield AddRole(role)
        yield from (GrantKeys(role, one) for one in sorted(permissions - present.roles.get(role, frozenset())))


def _given(present: EtcdAccess, want: EtcdAccess, renewed: Collection[str]) -> Iterator[AccessStep]:
    for user, roles in want.users.items():
        if user not in present.users:
            yield AddUser(user)
        elif user in renewed:
            yield SetPassword(user)
        yield from (GiveRole(user, role) for role in sorted(roles - present.users.get(user, frozenset())))


def _revoked(present: EtcdAccess, want: EtcdAccess) -> Iterator[AccessStep]:
    for role, permissions in want.roles.items():
        kept = {(one.key, one.range_end) for one in permissions}
        spare = sorted(present.roles.get(role, frozenset()) - permissions)
        yield from (RevokeKeys(role, one) for one in spare if (one.key, one.range_end) not in kept)


@dataclass(frozen=True, slots=True)
class Excess:
    """A user who may do more than is needed. `permission` None: everything."""

    user: str
    role: str
    permission: KeyPermission | None

    def __str__(self) -> str:
        return f"{self.user}: may {self.permission or 'do everything'} by the role {self.role}, and does not need it"


def excess(present: EtcdAccess, want: EtcdAccess, prefix: bytes) -> tuple[Excess, ...]:
    """Permissions below a prefix that users have and do not need; the user root may have all."""
    return tuple(_excess(present, want, prefix))


def _excess(present: EtcdAccess, want: EtcdAccess, prefix: bytes) -> Iterator[Excess]:
    for user, roles in sorted(present.users.items()):
        needed = [one for role in want.users.get(user, ()) for one in want.roles[role]]
        for role in sorted(roles if user != _ROOT else ()):
            if role == _ROOT:
                yield Excess(user, role, None)
            for one in sorted(present.roles.get(role, ())):
                if _meets(one, prefix) and not any(_covers(own, one) for own in needed):
                    yield Excess(user, role, one)


def _meets(one: KeyPermission, prefix: bytes) -> bool:
    """True if a permission is about any key below a prefix."""
    if not one.range_end:
        return one.key.startswith(prefix)
    return one.key < prefix_end(prefix) and (one.range_end == b"\0" or one.range_end > prefix)


def _covers(own: KeyPermission, other: KeyPermission) -> bool:
    if own.permission not in {Permission.READWRITE, other.permission}:
        return False
    if not own.range_end:
        return not other.range_end and own.key == other.key
    last = other.range_end or other.key + b"\0"
    return own.key <= other.key and other.range_end != b"\0" and last <= own.range_end
