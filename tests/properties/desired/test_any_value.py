"""A sidecar's watchers over a store in which anything stands under the keys that they follow."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from registry.etcd3.ops import Event, KeyValue
from registry.model.records import PoolSpec
from registry.runtime.clock import Clock
from registry.runtime.process import Repeats
from sidecar.desired.informer import Informer
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.members import Attendance
from sidecar.desired.pool import PoolWatcher
from sidecar.desired.pool_cache import PoolCache
from sidecar.desired.watcher import request_of
from tests.support.hostile import spoiled
from tests.support.records import KEYS, POOL, put, record
from tests.support.residency_world import presence

RECORDS = list(spoiled(record("a", placement={"replicas": 2, "selector": {"zone": "a"}}).to_bytes()))
POOLS = list(spoiled(PoolSpec(name=POOL, base_models=["base"]).to_bytes()))
PRESENCES = list(spoiled(presence("r1", labels={"zone": "a"}, capacity=3).to_bytes()))


def test_adapters() -> None:
    """R14 nack, X2: a value that cannot be followed is refused by name, and what it replaced stays."""
    informer = Informer(POOL)
    informer.apply(1, [put("good", 1)])
    for revision, value in enumerate(RECORDS, 2):
        events = (put("a", revision, value),)
        informer.apply(revision, events)
        assert "good" in informer.state.adapters
        assert isinstance(request_of(events), str)
        again = Informer(POOL)
        again.restore(revision, informer.raw)
        assert again.state.state_hash == informer.state.state_hash


@given(st.binary(max_size=40), st.sampled_from(RECORDS))
def test_any_adapters_key(rest: bytes, value: bytes) -> None:
    """R14, X2."""
    informer, key = Informer(POOL), KEYS.adapters(POOL) + rest
    informer.apply(2, [Event(key, 2, KeyValue(key, value, 2, 2, 1))])
    informer.apply(3, [Event(key, 3, None)])
    assert informer.state.count == 0


def test_the_pool_and_its_members() -> None:
    """R14, X2: the last good record stays in force; a presence that cannot be read is of no member."""
    mailbox = Mailbox()
    with TemporaryDirectory() as folder:
        cache = PoolCache(KEYS, POOL, mailbox, Journal(Path(folder)))
        watcher = PoolWatcher(None, KEYS, cache, Clock(random.Random(0)))  # type: ignore[arg-type]
        mailbox.post(cache.with_pool(mailbox.snapshot, PoolSpec(name=POOL, base_models=["base"]).to_bytes()))
        for revision, value in enumerate(POOLS, 2):
            watcher._note(KeyValue(KEYS.pool(POOL), value, 1, revision, 1), is_doubtful=False)
            assert mailbox.snapshot.pool is not None
            assert 0 <= watcher.confirmed_revision < 1 << 63
    for value in PRESENCES:
        kv, attendance = KeyValue(KEYS.replica(POOL, "r1"), value, 1, 1, 1), Attendance(Repeats())
        attendance.note("r1", kv)
        attendance.prove("r1", kv, None)
        member = attendance.members.get("r1")
        assert member is None or member.capacity is None or 0 <= member.capacity < 1 << 63
