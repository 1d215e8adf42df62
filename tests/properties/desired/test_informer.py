"""Properties of the informer over arbitrary histories."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from registry.etcd3.ops import Event, KeyValue
from sidecar.desired.informer import DesiredState, Informer
from tests.support.records import KEYS, POOL, record

NAMES = ["a", "b", "acme/c", "text"]
changes = st.tuples(
    st.sampled_from(NAMES),
    st.one_of(
        st.none(),
        st.binary(max_size=12),
        st.builds(
            lambda generation, priority, load: (generation, priority, load),
            st.integers(1, 5),
            st.integers(-3, 3),
            st.sampled_from(["eager", "lazy"]),
        ),
    ),
)
histories = st.lists(st.lists(changes, min_size=1, max_size=4, unique_by=lambda change: change[0]), max_size=12)


def event(name: str, what, revision: int) -> Event:
    key = KEYS.adapter(POOL, name)
    if what is None:
        return Event(key, revision, None)
    value = what
    if isinstance(what, tuple):
        generation, priority, load = what
        value = record(name, generation, priority=priority, load=load).to_bytes()
    return Event(key, revision, KeyValue(key, value, 1, revision, 1))


def recorded(state: DesiredState) -> DesiredState:
    """A state by its records alone, without what a process saw of their way."""
    adapters = {key: replace(one, last_good=None, former=None, made=0) for key, one in state.adapters.items()}
    return replace(state, adapters=Map(adapters))


@given(histories, st.data())
def test_events_lists_and_snapshots_lead_to_the_same_state(history, data):
    """R2 replay-equal: however the history arrives, in events or with lists and restarts in between."""
    by_events, mixed = Informer(POOL), Informer(POOL)
    store: dict[bytes, KeyValue] = {}
    for revision, batch in enumerate(history, start=1):
        events = [event(name, what, revision) for name, what in batch]
        by_events.apply(revision, events)
        for one in events:
            store.pop(one.key, None) if one.kv is None else store.update({one.key: one.kv})
        if data.draw(st.booleans()):
            mixed.apply(revision, events)
        else:
            mixed.replace(revision, store.values())
        if data.draw(st.booleans()):
            restarted = Informer(POOL)
            restarted.restore(mixed.state.revision, mixed.raw)
            mixed = restarted
    assert mixed.state.state_hash == by_events.state.state_hash
    assert recorded(mixed.state) == recorded(by_events.state)
    good = by_events.state.adapters.values()
    assert by_events.state.order == tuple(sorted((-adapter.priority, adapter.key) for adapter in good))
    assert not set(by_events.state.adapters) & set(by_events.state.lazy)
