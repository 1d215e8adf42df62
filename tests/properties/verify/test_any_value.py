"""The replay checker over histories in which anything stands under any key."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.etcd3.ops import Event, KeyValue
from registry.tools.verify.history import HistoryBase, Revision
from tests.support.changes import KEYS, POOL, upsert
from tests.support.checkers.index import HistoryIndex
from tests.support.checkers.replay import check_replicas
from tests.support.examples import examples
from tests.support.hostile import RAW, dumped, mutations, spoiled
from tests.support.residency_world import presence
from tests.unit.checkers.story import Story


def told() -> Story:
    """A history in which each kind of key is written, and the log of its sidecar."""
    story = Story()
    story.start()
    story.author.etcd.put(KEYS.replica(POOL, "r1"), presence("r1").to_bytes())
    story.author.etcd.put(KEYS.meta(), b'{"schema":1,"epoch":"e","created_at":"t"}')
    at = story.write(upsert("acme/a"))
    at = story.write(upsert("acme/a", "v2"))
    story.look(a="1", whole=True)
    story.say(at)
    return story


STORY = told()
KINDS = sorted(
    {
        event.key.decode().removeprefix(KEYS.prefix).split("/")[1]
        for _, many in STORY.author.etcd.history
        for event in many
    }
)


def _last(kind: str) -> KeyValue:
    """The newest value of a kind of key."""
    prefix = f"{KEYS.prefix}/{kind}".encode()
    found = [event.kv for _, many in STORY.author.etcd.history for event in many if event.key.startswith(prefix)]
    return [kv for kv in found if kv is not None][-1]


def survives(kind: str, value: bytes) -> None:
    """Checks the history with this value after all others, instead of the last of its kind, and at its beginning."""
    good = _last(kind)
    steps = [Revision(revision, events) for revision, events in STORY.author.etcd.history]
    revision = STORY.author.etcd.revision + 1
    bad = KeyValue(good.key, value, good.create_revision, revision, good.version + 1, good.lease)
    after = [
        *steps,
        Revision(revision, (Event(good.key, revision, bad),)),
        Revision(revision + 1, (Event(good.key, revision + 1, None),)),
    ]
    instead = [
        Revision(
            step.revision,
            tuple(
                Event(one.key, one.mod_revision, KeyValue(one.key, value, 1, one.mod_revision, 1))
                if one.key == good.key and one.kv is not None
                else one
                for one in step.events
            ),
        )
        for step in steps
    ]
    begun = [HistoryBase(revision, (bad,)), Revision(revision + 1, (Event(good.key, revision + 1, good),))]
    for history in (after, instead, begun):
        index = HistoryIndex(KEYS).replay(history)
        check_replicas(index, POOL, [("r1.log", STORY.lines)], [])
        assert all(str(one) for one in index.findings)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_key_with_each_hostile_value(kind: str) -> None:
    """X2 unbreakable: a value that ends the checker would hide everything that it is there to find."""
    for value in spoiled(_last(kind).value):
        survives(kind, value)


@examples(200)
@given(st.sampled_from(KINDS), st.data())
def test_any_json_under_any_key(kind: str, data: st.DataObject) -> None:
    """X2."""
    survives(kind, dumped(data.draw(mutations(json.loads(_last(kind).value)))))


@given(st.sampled_from(KINDS), st.binary(max_size=100) | st.sampled_from(RAW))
def test_any_bytes_under_any_key(kind: str, value: bytes) -> None:
    """X2."""
    survives(kind, value)


@given(st.sampled_from([*KINDS, "", "x"]), st.text(max_size=12), st.booleans())
def test_any_key(kind: str, rest: str, is_put: bool) -> None:
    """X2: keys that no program of ours makes are nobody's."""
    key = f"{KEYS.prefix}/{kind}{rest}".encode(errors="surrogatepass")
    survives_events(Event(key, 9, KeyValue(key, b"{}", 9, 9, 1) if is_put else None))


def survives_events(event: Event) -> None:
    """Checks a history of this one event."""
    index = HistoryIndex(KEYS).replay([Revision(9, (event,)), Revision(10, (Event(event.key, 10, None),))])
    check_replicas(index, POOL, [], [])
    if event.kv is not None:
        HistoryIndex(KEYS).replay([HistoryBase(9, (event.kv,)), Revision(10, (Event(event.key, 10, None),))])
