"""Members of etcd as the admin service sees them, told of or listed by etcd.

Whoever asks is told of each member once. What nobody could find out is never told as well: a member that answers, and
tells no more to the service's user, is "denied". A member that etcd lists under an address of its own network may be
well although it is not reached from here, so that it is "unseen" and not "down".
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from registry.etcd3.client import Client, ListedMember, MemberDown, MemberStatus
from registry.etcd3.errors import EtcdError, EtcdPermissionDenied
from registry.v1 import registry_pb2 as pb

# Of one look; the listing and the members of --etcd have as much, and then those that etcd lists besides.
LOOK_SECONDS = 2.0
Told = MemberStatus | MemberDown


async def look_at_members(client: Client) -> list[pb.EtcdMember]:
    """Each member's state now, those of ``--etcd`` first; within twice `LOOK_SECONDS`."""
    told, listed = await asyncio.gather(client.status(timeout_seconds=LOOK_SECONDS), _listed(client))
    others = [] if any(map(_is_denied, told)) else _not_told(listed, told)
    more = await asyncio.gather(*(_look_for(client, one) for one in others))
    return [*map(_message, told), *more]


async def _listed(client: Client) -> tuple[ListedMember, ...]:
    """Members as etcd lists them; none where it does not tell us: the members that we know say why, or are enough."""
    try:
        return await client.members(timeout_seconds=LOOK_SECONDS)
    except EtcdError:
        return ()


def _not_told(listed: tuple[ListedMember, ...], told: tuple[Told, ...]) -> list[ListedMember]:
    """Members that none of these is, by number or by address."""
    numbers = {one.member_id for one in told if isinstance(one, MemberStatus)}
    endpoints = {one.endpoint for one in told}
    return [one for one in listed if one.member_id not in numbers and not endpoints.intersection(_endpoints(one))]


async def _look_for(client: Client, member: ListedMember) -> pb.EtcdMember:
    """Member that etcd lists, where it says that it is; another that answers there is not it."""
    name = member.name or f"{member.member_id:x}"
    endpoints = _endpoints(member)
    found = await asyncio.gather(*(client.status_of(one, LOOK_SECONDS) for one in endpoints))
    for one in found:
        if _is_denied(one) or (isinstance(one, MemberStatus) and one.member_id == member.member_id):
            return _message(one)
    endpoint = endpoints[0] if endpoints else name
    message = f"etcd lists {name}" if endpoints else f"etcd lists {name}, which has not started yet"
    return pb.EtcdMember(endpoint=endpoint, state="unseen", message=message)


def _endpoints(member: ListedMember) -> list[str]:
    """HOST:PORT of each of its addresses."""
    return [urlsplit(url).netloc for url in member.urls]


def _is_denied(one: Told) -> bool:
    return isinstance(one, MemberDown) and isinstance(one.error, EtcdPermissionDenied)


def _message(one: Told) -> pb.EtcdMember:
    if isinstance(one, MemberStatus):
        return pb.EtcdMember(endpoint=one.endpoint, state="up" if one.leader_id else "no_leader")
    return pb.EtcdMember(endpoint=one.endpoint, state="denied" if _is_denied(one) else "down", message=str(one.error))
