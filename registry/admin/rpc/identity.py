"""Handlers for callers who ask who they are and what they may do."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeVar

from registry.access.control import AccessControl
from registry.access.decision import Grant, HeldRole
from registry.access.principal import CREDENTIAL_KINDS, Credential, Principal
from registry.access.questions import BY_ADAPTER, AccessQuestion, Resource, Verb
from registry.access.roles import roles_for
from registry.admin.rpc.calls import CallContext
from registry.admin.rpc.interceptor import Unary
from registry.model.errors import InvalidArgument, Reason, Unavailable
from registry.model.names import tenant_of
from registry.store.reader import Reader
from registry.v1 import registry_pb2 as pb

# Of names in bindings so many are looked up.
_MOST_NAMES = 200
Word = TypeVar("Word", Verb, Resource)


class Identity:
    """Handlers: each takes a request and its call. `access` None: everybody may do everything."""

    def __init__(self, access: AccessControl | None, reader: Reader) -> None:
        self._access = access
        self._reader = reader

    def by_method(self) -> Mapping[str, Unary[Any, Any]]:
        """Each handler by the name of its method."""
        return {"WhoAmI": self._who_am_i, "CheckAccess": self._check_access}

    async def _who_am_i(self, _: pb.WhoAmIRequest, call: CallContext) -> pb.WhoAmIResponse:
        held = call.grant.held if call.grant else ()
        return pb.WhoAmIResponse(
            access_digest=self._access.digest if self._access else "",
            access_trouble=self._access.trouble if self._access else "",
            principal=call.principal.name,
            credential=CREDENTIAL_KINDS[call.principal.credential],
            groups=sorted(call.principal.groups),
            roles=[_held(one) for one in held],
            access_unknown=await self._unknown(call),
        )

    async def _unknown(self, call: CallContext) -> list[pb.UnknownBound]:
        """Names in bindings of what is not there; none where etcd does not tell, or the caller may not know."""
        may_know = call.grant is not None and call.grant.by(AccessQuestion(Verb.CHECK, Resource.ACCESS)) is not None
        if self._access is None or not may_know:
            return []
        found = []
        try:
            for number, kind, name in islice(self._access.named(), _MOST_NAMES):
                if not await self._reader.is_named(kind, name, call.deadline):
                    found.append(pb.UnknownBound(binding=number, kind=kind, name=name))
        except Unavailable:
            return []
        return found

    async def _check_access(self, request: pb.CheckAccessRequest, call: CallContext) -> pb.CheckAccessResponse:
        """Raises PermissionDenied: the caller may not ask about somebody else."""
        asked = _question(request)
        roles = [role.value for role in roles_for((asked.verb, asked.resource))]
        grant = self._grant(request, call)
        if grant is None or asked.resource is Resource.ACCESS:
            return pb.CheckAccessResponse(allowed=True, roles=roles)
        held = grant.by(asked)
        if held is None:
            return pb.CheckAccessResponse(roles=roles)
        return pb.CheckAccessResponse(allowed=True, role=held.role, binding=held.number, roles=roles)

    def _grant(self, request: pb.CheckAccessRequest, call: CallContext) -> Grant | None:
        """All that the one who is asked about may do; None: everything."""
        if self._access is None or call.grant is None or not (request.user or request.groups):
            return call.grant
        call.grant.check_any(AccessQuestion(Verb.CHECK, Resource.ACCESS))
        return self._access.grant(Principal(request.user, Credential.TOKEN, frozenset(request.groups)))


def _held(one: HeldRole) -> pb.HeldRole:
    return pb.HeldRole(
        role=one.role,
        binding=one.number,
        tenants=one.tenants.words if one.tenants else (),
        pools=one.pools.words,
        sources=[source.removesuffix("/") for source in one.sources],
        credentials=one.credentials.words,
    )


def _known(kind: type[Word], text: str, field: str) -> Word:
    try:
        return kind(text)
    except ValueError as error:
        message = f"{text[:40]!r} is no {field}; use one of {', '.join(kind)}"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field=field) from error


def _question(request: pb.CheckAccessRequest) -> AccessQuestion:
    """Raises InvalidArgument: there is no such verb or resource."""
    verb, resource = _known(Verb, request.verb, "verb"), _known(Resource, request.resource, "resource")
    name, pool = request.name or None, request.pool or None
    if resource in BY_ADAPTER:
        tenant = tenant_of(name) if name else None
        return AccessQuestion(verb, resource, pool, tenant, request.source or None, request.credentials or None)
    if resource is Resource.TENANTS:
        return AccessQuestion(verb, resource, tenant=name)
    return AccessQuestion(verb, resource, name if resource is Resource.POOLS else pool)
