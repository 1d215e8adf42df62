"""A watch of adapters: nothing twice, nothing lost, whatever becomes of the stream."""

from __future__ import annotations

import json

import grpc

from registry.cli.watching import AdapterFeed, AdapterGone, AdapterPut, AdapterUnreadable
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal

ENOUGH = Refusal(grpc.StatusCode.PERMISSION_DENIED, "ETCD_PERMISSION", "enough")


def put(name: str, etag: str = "1") -> pb.AdapterEvent:
    return pb.AdapterEvent(put=pb.Adapter(name=name, pool="dev", etag=etag))


def gone(name: str) -> pb.AdapterEvent:
    return pb.AdapterEvent(deleted=name)


def answer(revision: int, *events: pb.AdapterEvent, **more: bool) -> pb.WatchAdaptersResponse:
    return pb.WatchAdaptersResponse(revision=revision, events=events, **more)


def told(feed: AdapterFeed, response: pb.WatchAdaptersResponse) -> list[object]:
    return [one.item.name if isinstance(one, AdapterPut) else one for one in feed.take(response)]


def test_a_snapshot_that_broke_off_is_read_again():
    """R2 replay-equal, for who watches from outside: half a state is never taken for the whole."""
    feed = AdapterFeed(None)
    feed.begin()
    assert told(feed, answer(5, put("a"), snapshot=True, more=True)) == ["a"]
    assert feed.start == 0
    feed.begin()
    assert told(feed, answer(6, put("a"), snapshot=True, more=True)) == []
    assert told(feed, answer(6, put("b"), snapshot=True)) == ["b"]
    assert feed.start == 7


def test_what_is_gone_unseen_is_told():
    feed = AdapterFeed(None)
    feed.begin()
    told(feed, answer(5, put("a"), put("B"), put("c"), snapshot=True))
    assert told(feed, answer(6, gone("c"))) == [AdapterGone("c")]
    feed.begin()
    assert told(feed, answer(9, put("a", "8"), put("d"), snapshot=True)) == ["a", "d", AdapterGone("b")]


def test_parts_of_a_change_that_broke_off_are_told_once():
    feed = AdapterFeed(None)
    told(feed, answer(5, put("a"), snapshot=True))
    assert told(feed, answer(6, put("b", "6"), gone("a"), more=True)) == ["b", AdapterGone("a")]
    assert feed.start == 6
    feed.begin()
    assert told(feed, answer(6, put("b", "6"), gone("a"), more=True)) == []
    assert told(feed, answer(6, put("c", "6"))) == ["c"]
    assert feed.start == 7


def test_what_cannot_be_read_is_not_gone():
    feed = AdapterFeed(None)
    told(feed, answer(5, put("A"), put("b"), snapshot=True))
    assert told(feed, answer(6, pb.AdapterEvent(unreadable="a"))) == [AdapterUnreadable("a")]
    assert told(feed, answer(7, pb.AdapterEvent(unreadable="a"), pb.AdapterEvent())) == []
    assert told(feed, answer(8, put("A", "8"))) == ["A"]


def test_one_of_them():
    feed = AdapterFeed("Acme/A")
    assert told(feed, answer(5, put("acme/a"), put("b"), snapshot=True)) == ["acme/a"]
    assert told(feed, answer(6, gone("b"), gone("acme/a"))) == [AdapterGone("acme/a")]


def test_the_command_tells_what_cannot_be_read(cli, admin):
    changes = answer(6, pb.AdapterEvent(unreadable="a"), gone("b"))
    admin.answers["WatchAdapters"] = [[answer(5, put("a"), put("b"), snapshot=True), changes, ENOUGH]]
    assert cli("get", "adapters", "-w").out.splitlines()[-2:] == ["a  unreadable", "b  deleted"]
    lines = [json.loads(line) for line in cli("-o", "json", "get", "adapters", "-w").out.splitlines()]
    assert lines[-2:] == [{"change": "unreadable", "name": "a"}, {"change": "deleted", "name": "b"}]


def test_the_command_begins_anew_after_a_compaction(cli, admin):
    first = [answer(5, put("a"), put("b"), snapshot=True), Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")]
    compacted = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "REVISION_COMPACTED")
    admin.answers["WatchAdapters"] = [first, [compacted], [answer(9, put("a"), snapshot=True), ENOUGH]]
    assert cli("get", "adapters", "-w").out.splitlines()[-1] == "b  deleted"
    assert [one.start_revision for one in admin.asked("WatchAdapters")] == [0, 6, 0]
