"""What a history shows of each of its revisions."""

from __future__ import annotations

from registry.model.keys import last_part
from sidecar.desired.informer import record_hash
from tests.support.changes import KEYS, POOL
from tests.support.checkers.index import HistoryIndex
from tests.unit.verify.conftest import author, steps_of
from tests.unit.verify.written import POOL_RECORD, TWO, Written, adapter

__all__ = ["author"]


def test_what_is_known_of_each_revision():
    """R2, R9, W4: stories of adapters and pools, statuses, and what a key had before."""
    history = Written()
    key = "/t/adapters/p/acme%2Fa"
    history.write(history.whole(None, adapter()))
    history.write({"status/p/r1": b"says"})
    history.write(history.whole(adapter(), None, count=0))
    history.write({"status/p/r1": None})
    history.write({"pools/p": None, "adapters/q/c": b"?"})
    index = history.index()
    stood = [index.adapter_at("p", "acme%2Fa", revision) for revision in range(7)]
    assert stood == [None, None, adapter(), adapter(), None, None, None]
    assert index.adapter_at("q", "c", 6) == {"unreadable": "?"}
    assert index.adapter_at("q", "acme%2Fa", 3) is None
    assert [index.base_models_at("p", revision) for revision in (0, 1, 5, 6)] == [set(), {"base"}, {"base"}, set()]
    assert index.base_models_at("q", 3) == set()
    assert index.statuses == {3: b"says"}
    assert [index.before(key, revision) for revision in range(1, 6)] == [None, 0, None, 2, None]
    assert (index.revision, index.first_revision) == (6, 0)
    hashes = [index.hash_at("p", revision) for revision in range(7)]
    assert hashes[:2] + hashes[4:] == [0] * 5
    assert hashes[2] == hashes[3] != 0


def test_what_stood_when_the_history_begins():
    """R2, R4, R11: each record at its own revision."""
    history = Written()
    history.write(history.whole(None, adapter()))
    history.write(history.whole(adapter(), adapter(generation=2, spec=TWO)))
    history.write(history.whole(None, adapter("acme/b"), count=2))
    history.write(history.whole(adapter("acme/b"), None, count=1))
    base = history.base()
    index = HistoryIndex(KEYS).replay([base])
    assert index.adapters == {("p", "acme%2Fa"): [(3, adapter(generation=2, spec=TWO))]}
    assert index.pool_stories == {"p": [(1, POOL_RECORD)]}
    assert index.hash_at("p", 5) == history.index().hash_at("p", 5)
    assert [index.knows("p", key) for key in ("acme%2Fa", "acme%2Fb", "acme%2Fc")] == [True, True, False]
    assert not index.knows("q", "acme%2Fa")


def test_the_hash_of_a_pool_is_what_a_sidecar_says_of_the_same_records(author):
    """R2: after each revision, with what came, was replaced and went."""
    index = HistoryIndex(KEYS).replay(steps_of(author))
    assert index.hash_at(POOL, 1) == 0
    stands: dict[str, int] = {}
    for revision, events in author.etcd.history:
        for event in (one for one in events if b"/adapters/" in one.key):
            key = last_part(event.key)
            stands.pop(key, None)
            stands |= {key: record_hash(key, revision, event.kv.value)} if event.kv else {}
        assert index.hash_at(POOL, revision) == sum(stands.values()) % (1 << 256), revision
    assert len(stands) == 1
