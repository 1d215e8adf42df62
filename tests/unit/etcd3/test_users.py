"""Users and roles of etcd: what is asked of it, and what its answers say."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from registry.etcd3 import codec
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.calls import AUTH_IS_OFF
from registry.etcd3.errors import EtcdInvalidArgument, EtcdUnavailable
from registry.etcd3.ops import EtcdAccess, KeyPermission, Permission
from registry.etcd3.options import ClientOptions
from registry.etcd3.users import EtcdUsers

WRITES = KeyPermission(b"a", b"b", Permission.READWRITE)
PERM = rpc.Permission(key=b"a", range_end=b"b", permType=rpc.Permission.READWRITE)
SECRET = "x"  # noqa: S105 - of nobody
NO_PASSWORD = rpc.UserAddOptions(no_password=True)


async def users(call: AsyncMock) -> EtcdUsers:
    made = EtcdUsers(ClientOptions(("a:1",)))
    made._calls = SimpleNamespace(call=call)  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    ("change", "of", "method", "request_"),
    [
        ("enable", (), codec.ENABLE, rpc.AuthEnableRequest()),
        ("add_user", ("u", SECRET), codec.USER_ADD, rpc.AuthUserAddRequest(name="u", password=SECRET, options={})),
        ("add_user", ("u", None), codec.USER_ADD, rpc.AuthUserAddRequest(name="u", options=NO_PASSWORD)),
        ("remove_user", ("u",), codec.USER_DELETE, rpc.AuthUserDeleteRequest(name="u")),
        (
            "set_password",
            ("u", SECRET),
            codec.USER_CHANGE_PASSWORD,
            rpc.AuthUserChangePasswordRequest(name="u", password=SECRET),
        ),
        ("give", ("u", "r"), codec.USER_GRANT_ROLE, rpc.AuthUserGrantRoleRequest(user="u", role="r")),
        ("add_role", ("r",), codec.ROLE_ADD, rpc.AuthRoleAddRequest(name="r")),
        ("remove_role", ("r",), codec.ROLE_DELETE, rpc.AuthRoleDeleteRequest(role="r")),
        (
            "grant",
            ("r", WRITES),
            codec.ROLE_GRANT_PERMISSION,
            rpc.AuthRoleGrantPermissionRequest(name="r", perm=PERM),
        ),
        (
            "revoke",
            ("r", WRITES),
            codec.ROLE_REVOKE_PERMISSION,
            rpc.AuthRoleRevokePermissionRequest(role="r", key=b"a", range_end=b"b"),
        ),
    ],
)
async def test_each_change_is_asked_of_etcd_once_as_it_is_meant(change, of, method, request_):
    """A2 deny-by-default: a user that is removed, and a permission that is taken, are so in etcd."""
    call = AsyncMock()
    await getattr(await users(call), change)(*of)
    call.assert_awaited_once_with(method, request_, None)


@pytest.mark.parametrize(
    ("error", "takes"),
    [
        (None, True),
        (EtcdInvalidArgument("password was given for no password user"), False),
        (EtcdInvalidArgument(AUTH_IS_OFF), True),
    ],
)
async def test_whoever_was_added_without_a_password_takes_none(error, takes):
    """etcd sets one without a word, and lets nobody in by it."""
    assert await (await users(AsyncMock(side_effect=error))).takes("u", SECRET) is takes


async def test_what_etcd_does_not_tell_is_not_known():
    with pytest.raises(EtcdUnavailable):
        await (await users(AsyncMock(side_effect=EtcdUnavailable("no way", maybe_applied=False)))).takes("u", SECRET)


async def test_all_users_and_roles_are_read_each_with_what_it_has():
    answers = {
        codec.USER_LIST: rpc.AuthUserListResponse(users=["u", "v"]),
        codec.ROLE_LIST: rpc.AuthRoleListResponse(roles=["r"]),
        codec.AUTH_STATUS: rpc.AuthStatusResponse(enabled=True),
        codec.ROLE_GET: rpc.AuthRoleGetResponse(perm=[PERM]),
    }

    async def call(method: object, request: object, _: None) -> object:
        if isinstance(request, rpc.AuthUserGetRequest):
            return rpc.AuthUserGetResponse(roles=["r"] if request.name == "u" else [])
        return answers[method]  # type: ignore[index]

    asked = await users(AsyncMock(side_effect=call))
    assert await asked.read() == EtcdAccess({"u": frozenset({"r"}), "v": frozenset()}, {"r": frozenset({WRITES})})
    assert await asked.is_enabled()
