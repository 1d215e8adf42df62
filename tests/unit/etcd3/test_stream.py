"""The rules of one watch stream, response by response."""

from __future__ import annotations

import pytest

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.errors import Compacted, OtherCluster
from registry.etcd3.stream import Changed, Mark, Progressed, WatchProtocol, progress_is_safe

CLUSTER = 77


def protocol(revision: int = 10, *, version: str = "3.5.30", cluster_id: int = CLUSTER) -> WatchProtocol:
    return WatchProtocol(Mark(revision, cluster_id, 2), endpoint="here:1", server_version=version)


def response(revision: int, *changes: tuple[int, bytes], cluster_id: int = CLUSTER, **fields) -> rpc.WatchResponse:
    events = [rpc.Event(type="PUT", kv=rpc.KeyValue(key=key, mod_revision=at)) for at, key in changes]
    header = rpc.ResponseHeader(cluster_id=cluster_id, revision=revision)
    return rpc.WatchResponse(header=header, events=events, **fields)


def told(reflections) -> list[tuple[int, list[bytes]]]:
    assert all(isinstance(one, Changed) for one in reflections)
    return [(one.revision, [event.key for event in one.events]) for one in reflections]


def test_the_stream_starts_at_the_mark_and_asks_for_progress_but_not_for_old_values():
    create = protocol(10).create_request(b"a", b"b", in_fragments=False).create_request
    assert (create.key, create.range_end, create.start_revision) == (b"a", b"b", 10)
    assert create.progress_notify


def test_an_empty_store_is_watched_from_its_first_revision():
    assert protocol(0).create_request(b"a", b"b", in_fragments=False).create_request.start_revision == 1


def test_the_created_header_moves_nothing():
    """The header of `created` is ahead of events that are still to come."""
    stream = protocol(10)
    assert stream.receive(response(50, created=True)) == []
    assert told(stream.receive(response(50, (11, b"a")))) == [(11, [b"a"])]


def test_all_changes_of_a_revision_are_one():
    """W2 atomic-set, on the way to a replica."""
    changes = protocol(10).receive(response(12, (11, b"a"), (11, b"b"), (12, b"a")))
    assert told(changes) == [(11, [b"a", b"b"]), (12, [b"a"])]


def test_what_is_not_above_the_mark_is_dropped():
    """R1 monotonic: repeated and time-travelling events never arrive."""
    stream = protocol(10)
    assert told(stream.receive(response(11, (9, b"a"), (10, b"b"), (11, b"c")))) == [(11, [b"c"])]
    assert stream.receive(response(11, (11, b"c"))) == []


def test_the_last_revision_of_a_fragment_waits_for_the_next_one():
    """W2, R16: all before it leave at once, so that no more than a revision is kept of a message of any size."""
    stream = protocol(10)
    assert stream.receive(response(11, (11, b"a"), fragment=True)) == []
    assert stream.receive(response(30)) == [], "progress in between must not jump over the fragments"
    assert stream.receive(response(11, (11, b"b"), fragment=True)) == []
    assert told(stream.receive(response(12, (11, b"c"), (12, b"a"), (13, b"b"), fragment=True))) == [
        (11, [b"a", b"b", b"c"]),
        (12, [b"a"]),
    ]
    assert stream.receive(response(30)) == []
    assert told(stream.receive(response(13, (13, b"c")))) == [(13, [b"b", b"c"])]
    assert stream.receive(response(30)) == [Progressed(30)]


def test_a_stream_is_asked_for_in_fragments_only_where_that_is_needed():
    asked = [protocol(10).create_request(b"a", b"b", in_fragments=needed).create_request for needed in (False, True)]
    assert [one.fragment for one in asked] == [False, True]


def test_progress_moves_the_mark_on_a_safe_server():
    stream = protocol(10)
    assert stream.receive(response(15)) == [Progressed(15)]
    assert stream.receive(response(15)) == []
    assert stream.receive(response(14)) == []
    assert stream.receive(response(15, (15, b"a"))) == []


def test_progress_is_not_believed_on_an_old_server():
    """There it can overtake events, which would then be taken for old ones."""
    stream = protocol(10, version="3.5.1")
    assert stream.receive(response(15)) == []
    assert told(stream.receive(response(15, (12, b"a")))) == [(12, [b"a"])]


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.3.99", False),
        ("3.4.24", False),
        ("3.4.25", True),
        ("3.5.0", False),
        ("3.5.7", False),
        ("3.5.8", True),
        ("3.6.0", True),
        ("3.6.0-rc.1", True),
        ("4.0.0", True),
        ("", False),
        ("3.6", False),
        ("unknown", False),
    ],
)
def test_which_servers_are_safe(version, safe):
    assert progress_is_safe(version) is safe


def test_canceled_is_seen_before_created():
    """Both are set when a watch is refused at once."""
    with pytest.raises(Compacted) as caught:
        protocol().receive(response(50, created=True, canceled=True, compact_revision=40))
    assert caught.value.compact_revision == 40


def test_a_member_of_another_cluster_is_not_listened_to():
    with pytest.raises(OtherCluster):
        protocol().receive(response(50, (11, b"a"), cluster_id=78))


@pytest.mark.parametrize(
    ("now", "back"),
    [
        (Mark(10, CLUSTER, 2), False),
        (Mark(11, CLUSTER, 3), False),
        (Mark(9, CLUSTER, 3), True),
        (Mark(11, CLUSTER, 1), True),
        (Mark(11, 78, 3), True),
    ],
)
def test_what_counts_as_going_back(now, back):
    """R15 brake: fewer revisions, an earlier term, or another identity."""
    assert Mark(10, CLUSTER, 2).went_back(now) is back
