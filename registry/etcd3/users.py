"""Client of etcd's Auth API: users, roles and their permissions."""

from __future__ import annotations

import random

from registry.etcd3 import codec
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.calls import AUTH_IS_OFF, MemberCalls
from registry.etcd3.codec import Method, Req
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import EtcdAccess, KeyPermission, Permission
from registry.etcd3.options import ClientOptions

_HAS_NONE = "password was given for no password user"


class EtcdUsers:
    """Reads and changes users and roles; needs the role root once etcd asks for users. Of one event loop.

    Each method raises `EtcdError`; a change that is not known to be made shows in what is read next.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._calls = MemberCalls(options, random.Random())  # noqa: S311 - jitter, not a secret

    async def is_enabled(self) -> bool:
        """True if etcd asks for users."""
        return (await self._calls.call(codec.AUTH_STATUS, rpc.AuthStatusRequest(), None)).enabled

    async def enable(self) -> None:
        """Makes etcd ask for users; there has to be a user root with the role root."""
        await self._change(codec.ENABLE, rpc.AuthEnableRequest())

    async def read(self) -> EtcdAccess:
        """All users and roles, each read by itself."""
        call = self._calls.call
        users = (await call(codec.USER_LIST, rpc.AuthUserListRequest(), None)).users
        roles = (await call(codec.ROLE_LIST, rpc.AuthRoleListRequest(), None)).roles
        of_users = {one: await call(codec.USER_GET, rpc.AuthUserGetRequest(name=one), None) for one in users}
        of_roles = {one: await call(codec.ROLE_GET, rpc.AuthRoleGetRequest(role=one), None) for one in roles}
        return EtcdAccess(
            {name: frozenset(reply.roles) for name, reply in of_users.items()},
            {name: frozenset(map(_permission, reply.perm)) for name, reply in of_roles.items()},
        )

    async def add_user(self, name: str, password: str | None) -> None:
        """Adds a user; without a password it logs in by the common name of its certificate alone."""
        options = rpc.UserAddOptions(no_password=password is None)
        await self._change(codec.USER_ADD, rpc.AuthUserAddRequest(name=name, password=password, options=options))

    async def remove_user(self, name: str) -> None:
        """Removes a user, whose tokens end with that."""
        await self._change(codec.USER_DELETE, rpc.AuthUserDeleteRequest(name=name))

    async def set_password(self, name: str, password: str) -> None:
        """Changes the password of a user, whose tokens end with that."""
        request = rpc.AuthUserChangePasswordRequest(name=name, password=password)
        await self._change(codec.USER_CHANGE_PASSWORD, request)

    async def takes(self, name: str, password: str) -> bool:
        """False if a user cannot log in so: etcd sets no password of one that was added without, and does not say so.

        While etcd asks for no user nobody can tell, which is True.
        """
        try:
            await self._calls.call(codec.AUTHENTICATE, rpc.AuthenticateRequest(name=name, password=password), None)
        except EtcdError as error:
            if _HAS_NONE in str(error):
                return False
            if AUTH_IS_OFF not in str(error):
                raise
        return True

    async def give(self, user: str, role: str) -> None:
        """Gives a user a role."""
        await self._change(codec.USER_GRANT_ROLE, rpc.AuthUserGrantRoleRequest(user=user, role=role))

    async def add_role(self, name: str) -> None:
        """Adds a role, which permits nothing yet."""
        await self._change(codec.ROLE_ADD, rpc.AuthRoleAddRequest(name=name))

    async def remove_role(self, name: str) -> None:
        """Removes a role, from users who have it as well."""
        await self._change(codec.ROLE_DELETE, rpc.AuthRoleDeleteRequest(role=name))

    async def grant(self, role: str, one: KeyPermission) -> None:
        """Grants a role a permission; it replaces that of the same keys."""
        perm = rpc.Permission(key=one.key, range_end=one.range_end)
        perm.permType = _TYPES[one.permission]
        await self._change(codec.ROLE_GRANT_PERMISSION, rpc.AuthRoleGrantPermissionRequest(name=role, perm=perm))

    async def revoke(self, role: str, one: KeyPermission) -> None:
        """Takes a permission from a role, of whatever kind it is."""
        request = rpc.AuthRoleRevokePermissionRequest(role=role, key=one.key, range_end=one.range_end)
        await self._change(codec.ROLE_REVOKE_PERMISSION, request)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._calls.connections.close()

    async def _change(self, method: Method[Req, rpc.AuthChangeResponse], request: Req) -> None:
        await self._calls.call(method, request, None)


_TYPES = (rpc.Permission.READ, rpc.Permission.WRITE, rpc.Permission.READWRITE)


def _permission(one: rpc.Permission) -> KeyPermission:
    return KeyPermission(one.key, one.range_end, Permission(one.permType))
