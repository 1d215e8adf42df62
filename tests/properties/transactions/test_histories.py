"""Arbitrary changes by racers with old views; the whole history is folded and checked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from registry.model.errors import RegistryError
from registry.model.names import tenant_of
from registry.model.records import AdapterRecord, Canary, PoolLimits, Strategy
from registry.transactions.builder import Settled
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    Change,
    CreatePool,
    DeletePool,
    PromoteRollout,
    Remove,
    RepairTenant,
    RollbackAdapter,
    SetTenant,
    UpdatePool,
)
from tests.support.changes import KEYS, Author, creating, lost_records, upsert
from tests.support.examples import examples
from tests.support.history_check import check_history

NAMES = ["x", "acme/a", "acme/b", "other/a"]
POOLS = ["p", "p", "p", "q"]
no_etag = st.none()
etags = st.sampled_from([None, None, None, None, 0, 5])
names, pools = st.sampled_from(NAMES), st.sampled_from(POOLS)
strategies = st.sampled_from([None, Strategy(canary=Canary(replicas=1)), Strategy(canary=Canary(replicas="50%"))])
upserts = st.builds(upsert, names, st.sampled_from(["v1", "v2", "v3"]), etags, strategy=strategies)
one_change = st.one_of(upserts, upserts, st.builds(Remove, names, no_etag))
applies = st.builds(
    ApplyAdapters,
    pools,
    st.lists(one_change, min_size=1, max_size=3, unique_by=lambda change: change.name).map(tuple),
)
bases = st.sampled_from([("base",), ("base",), ("base", "x")])
changes: st.SearchStrategy[Change] = st.one_of(
    *[applies] * 8,
    *[st.builds(RollbackAdapter, pools, names, st.integers(0, 3), etags)] * 2,
    *[st.builds(kind, pools, names, st.sampled_from([0, 0, 0, 2]), etags) for kind in (PromoteRollout, AbortRollout)],
    st.builds(CreatePool, pools, bases, st.just(PoolLimits())),
    st.builds(UpdatePool, pools, bases, st.builds(PoolLimits, max_rank=st.sampled_from([None, 8])), no_etag),
    st.builds(DeletePool, pools, no_etag),
    st.builds(SetTenant, st.sampled_from(["acme", "default"]), st.sampled_from([None, 1, 2]), no_etag),
)
repairs = st.tuples(st.none(), names)
request_ids = st.sampled_from(["", "", "", "", "", "r1", "r2"])


@dataclass
class Race:
    """What was sent once, so that copies of it can arrive late."""

    author: Author = field(default_factory=Author)
    replies: dict[tuple[str, str], Settled] = field(default_factory=dict)

    def one(self, change: Change, request_id: str, meanwhile: list[tuple[Change | None, str]]) -> None:
        """A racer reads, others change things, or delete one past the admin service (None and its name), it commits."""
        context = self.author.context(change, request_id)
        with suppress(RegistryError):
            view = self.author.view(change, context)
            for other, other_id in meanwhile:
                self.one(other, other_id, []) if other is not None else self.repair(other_id)
            settled = self.author.settle(change, context, view)
            self._note(request_id, context.payload_digest, settled)

    def repair(self, name: str) -> None:
        """An adapter is deleted past the admin service, if it stands, and its tenant is repaired."""
        key, tenant = KEYS.adapter("p", name), tenant_of(name)
        if key in self.author.etcd.kvs:
            self.author.etcd.delete(key)
            self.author.change(RepairTenant(tenant, lost_records(self.author.etcd, tenant)))

    def _note(self, request_id: str, digest: str, settled: Settled) -> None:
        if request_id:
            first = self.replies.setdefault((request_id, digest), settled)
            assert settled == first, "W3: another reply to the same request"


steps = st.lists(
    st.tuples(changes, request_ids, st.lists(st.one_of(*[st.tuples(changes, request_ids)] * 4, repairs), max_size=3)),
    min_size=1,
    max_size=20,
)


@examples(300)
@given(steps)
def test_every_revision_keeps_the_promises(race):
    """W2 atomic-set, W3 idempotent, W5 quota-never, W6 one-digest, W7 audit-complete, over any interleaving."""
    at = Race()
    for pool in sorted(set(POOLS)):
        at.one(creating(pool), "", [])
    for change, request_id, meanwhile in race:
        at.one(change, request_id, meanwhile)
    check_history(KEYS, at.author.etcd.history)
    check_stable(at.author.etcd.history)


def check_stable(history) -> None:
    """W6: what all but canaries serve is always a generation that was for all, at first or by a promotion."""
    for_all = set()
    for _, events in history:
        records = [
            (event.key, AdapterRecord.parse(event.kv.value))
            for event in events
            if event.kv and event.key.startswith(KEYS.records()[1])
        ]
        for key, record in records:
            if record.rollout is None:
                for_all.add((key, record.generation, record.spec.model_dump_json()))
            else:
                stable = record.rollout
                assert (key, stable.stable_generation, stable.stable_spec.model_dump_json()) in for_all
