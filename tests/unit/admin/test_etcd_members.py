"""What an admin service tells of etcd's members: each once, and nothing that it could not find out."""

from __future__ import annotations

from typing import Any, cast

import pytest

from registry.admin.etcd_members import look_at_members
from registry.etcd3.client import ListedMember, MemberDown, MemberStatus
from registry.etcd3.errors import EtcdPermissionDenied, EtcdUnavailable
from registry.v1 import registry_pb2 as pb
from tests.support.played_admin import Served, served


def up(endpoint: str, number: int, leader: int = 1) -> MemberStatus:
    return MemberStatus(endpoint, "3.6.14", 7, number, leader, 1, 1, 1)


def away(endpoint: str) -> MemberDown:
    return MemberDown(endpoint, EtcdUnavailable("no answer", maybe_applied=False))


def denied(endpoint: str) -> MemberDown:
    return MemberDown(endpoint, EtcdPermissionDenied("for root alone"))


class Etcd:
    """A client whose members are these: those of --etcd, as listed, and those that answer elsewhere."""

    def __init__(self, told: list[Any], listed: list[ListedMember] | None, *elsewhere: Any) -> None:
        self.told, self.listed = tuple(told), listed
        self.elsewhere = {one.endpoint: one for one in elsewhere}

    async def status(self, *, timeout_seconds: float) -> tuple[Any, ...]:
        return self.told

    async def members(self, *, timeout_seconds: float) -> tuple[ListedMember, ...]:
        if self.listed is None:
            raise EtcdPermissionDenied("for root alone")
        return tuple(self.listed)

    async def status_of(self, endpoint: str, timeout_seconds: float) -> Any:
        return self.elsewhere.get(endpoint, away(endpoint))


TWO = ListedMember(2, "two", ("http://b:1",))


@pytest.mark.parametrize(
    ("etcd", "told"),
    [
        (Etcd([up("a:1", 1)], [ListedMember(1, "one", ("http://other-name:1",))]), {"a:1": "up"}),
        (Etcd([up("a:1", 1, 0), away("b:1")], [TWO]), {"a:1": "no_leader", "b:1": "down"}),
        (Etcd([up("a:1", 1)], [TWO]), {"a:1": "up", "b:1": "unseen"}),
        (Etcd([up("a:1", 1)], [TWO], up("b:1", 2)), {"a:1": "up", "b:1": "up"}),
        (Etcd([up("a:1", 1)], [TWO], up("b:1", 3)), {"a:1": "up", "b:1": "unseen"}),
        (Etcd([up("a:1", 1)], [TWO], denied("b:1")), {"a:1": "up", "b:1": "denied"}),
        (Etcd([up("a:1", 1)], [ListedMember(0xAB, "", ())]), {"a:1": "up", "ab": "unseen"}),
        (Etcd([denied("a:1")], [TWO]), {"a:1": "denied"}),
        (Etcd([up("a:1", 1)], None), {"a:1": "up"}),
    ],
    ids=[
        *("one", "no answer", "listed alone", "listed and up", "another there", "listed and denied", "not started"),
        *("a denied one may be the listed one", "no list"),
    ],
)
async def test_each_member_is_told_of_once_by_what_is_known_of_it(etcd, told):
    found = await look_at_members(cast("Any", etcd))
    assert {one.endpoint: one.state for one in found} == told
    assert all(one.message for one in found if one.state in {"down", "unseen", "denied"})


@served
async def test_members_are_told_with_the_last_page_where_they_are_asked_for(served: Served):
    """The played etcd lists nobody, so that its one member is all there is."""
    await served.make_pool()
    found = await served.call("ListPools", pb.ListPoolsRequest(show_etcd=True))
    assert [(one.endpoint, one.state) for one in found.etcd] == [("m0", "up")]
    assert not (await served.call("ListPools", pb.ListPoolsRequest())).etcd
