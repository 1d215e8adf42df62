"""Whatever a server sends within etcd's promises, over however many connections: each change once, in order, whole."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import event, given
from hypothesis import strategies as st

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.stream import Changed, Mark, Progressed, WatchProtocol

SAFE, UNSAFE = "3.5.30", "3.5.1"
History = list[tuple[int, list[bytes]]]


@st.composite
def histories(draw) -> History:
    """Revisions that touched our keys, with gaps where others wrote, and the keys that each touched."""
    revisions = sorted(draw(st.sets(st.integers(2, 60), max_size=25)))
    return [(at, draw(st.lists(st.binary(max_size=1), min_size=1, max_size=4, unique=True))) for at in revisions]


def events_of(history: History) -> list[rpc.Event]:
    return [rpc.Event(kv=rpc.KeyValue(key=key, mod_revision=at)) for at, keys in history for key in keys]


def response(revision: int, events=(), **fields) -> rpc.WatchResponse:
    return rpc.WatchResponse(header=rpc.ResponseHeader(cluster_id=1, revision=revision), events=events, **fields)


def serve(draw, history: History, start: int, version: str) -> Iterator[rpc.WatchResponse]:
    """One connection: whole revisions from `start` on, in chunks, with old ones, fragments and progress between."""
    end = max((at for at, _ in history), default=1) + 5
    yield response(end, created=True)
    ahead = [one for one in history if one[0] >= start]
    while ahead:
        count = draw(st.integers(1, 4))
        chunk, ahead = ahead[:count], ahead[count:]
        older = [one for one in history if one[0] < chunk[0][0]]
        repeated = draw(st.lists(st.sampled_from(older), max_size=3, unique_by=_revision)) if older else []
        events = events_of(repeated + chunk)
        cut = draw(st.integers(0, len(events) - 1))
        if cut:
            yield response(end, events[:cut], fragment=True)
        yield response(end, events[cut:])
        if draw(st.booleans()):
            honest = ahead[0][0] - 1 if ahead else end
            yield response(honest if version == SAFE else end)


def _revision(one: tuple[int, list[bytes]]) -> int:
    return one[0]


@given(data=st.data(), history=histories(), version=st.sampled_from([SAFE, UNSAFE]))
def test_each_change_once_in_order_and_whole_whatever_breaks(data, history, version):
    """R2 replay-equal: connections break after any response, even between fragments."""
    first = data.draw(st.integers(1, 60), label="mark")
    mark, told = Mark(first, 1, 1), []
    for breaks in [True] * data.draw(st.integers(0, 5), label="broken connections") + [False]:
        protocol = WatchProtocol(mark, endpoint="", server_version=version)
        start = protocol.create_request(b"", b"", in_fragments=True).create_request.start_revision
        responses = list(serve(data.draw, history, start, version))
        kept = data.draw(st.integers(0, len(responses))) if breaks else len(responses)
        for one in responses[:kept]:
            told.extend(protocol.receive(one))
    changes = [(one.revision, [e.key for e in one.events]) for one in told if isinstance(one, Changed)]
    assert changes == [one for one in history if one[0] > first]
    revisions = [one.revision for one in told]
    assert revisions == sorted(set(revisions))
    event(f"{min(len(changes), 5)}+ changes")
    if version == UNSAFE:
        assert not any(isinstance(one, Progressed) for one in told)
