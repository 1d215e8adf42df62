"""The in-memory store of the pure tests carries transactions out as a real etcd does."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.etcd3.ops import (
    Compare,
    Delete,
    KeyValue,
    Put,
    Range,
    RangeResult,
    Relation,
    SortTarget,
    Target,
    Txn,
    TxnResult,
    none_in,
    prefix_end,
    unwritten_since,
)
from tests.support.etcd import Cluster, one_member
from tests.support.memory_etcd import MemoryEtcd

KEYS = [b"a", b"b", b"d/1", b"d/2"]
keys, values = st.sampled_from(KEYS), st.sampled_from([b"1", b"2"])
relations = st.sampled_from(Relation)
revisions = st.integers(0, 12)
compares = st.one_of(
    st.builds(Compare, keys, st.sampled_from([Target.VERSION, Target.MOD, Target.CREATE]), relations, revisions),
    st.builds(Compare, keys, st.just(Target.VALUE), relations, values),
    st.just(none_in(b"d/")),
    st.builds(unwritten_since, st.just(b"d/"), revisions),
    st.builds(Compare, st.just(b"d/"), st.just(Target.VALUE), relations, values, st.just(prefix_end(b"d/"))),
)
ranges = st.one_of(
    st.builds(Range, keys, keys_only=st.booleans()),
    st.builds(
        Range,
        st.just(b"d/"),
        st.just(prefix_end(b"d/")),
        limit=st.integers(0, 2),
        count_only=st.booleans(),
        descending_by=st.sampled_from([None, SortTarget.MOD, SortTarget.KEY]),
    ),
)
writes = st.one_of(st.builds(Put, keys, values), st.builds(Delete, keys))


def sets(ops):
    """Operations as etcd takes them: no key written twice, and reads only after writes to see them."""
    return st.lists(ops, max_size=3, unique_by=lambda op: op.key).map(tuple)


txns = st.builds(
    lambda compare, success, reads, failure: Txn(compare, success + reads, failure),
    st.lists(compares, max_size=2).map(tuple),
    sets(writes),
    st.lists(ranges, max_size=2).map(tuple),
    st.lists(ranges, max_size=2).map(tuple),
)


def below(prefix: bytes, txn: Txn, base: int) -> Txn:
    """The transaction under a prefix of its own, its revisions counted from `base`."""
    dated = {Target.MOD, Target.CREATE}

    def moved(part):
        end = prefix + part.range_end if getattr(part, "range_end", b"") else b""
        shifted = {"key": prefix + part.key} | ({} if isinstance(part, Put) else {"range_end": end})
        if isinstance(part, Compare) and part.target in dated and part.value:
            shifted["value"] = part.value + base
        return replace(part, **shifted)

    return Txn(*(tuple(moved(part) for part in parts) for parts in (txn.compare, txn.success, txn.failure)))


def seen(result: TxnResult, prefix: bytes, base: int) -> list[object]:
    """What a reply tells, with revisions counted from `base` and keys without the prefix."""

    def plain(kv: KeyValue) -> KeyValue:
        created, modified = kv.create_revision - base, kv.mod_revision - base
        return replace(kv, key=kv.key.removeprefix(prefix), create_revision=created, mod_revision=modified)

    shown: list[object] = [result.succeeded, result.revision - base]
    for response in result.responses:
        if isinstance(response, RangeResult):
            shown.append((tuple(map(plain, response.kvs)), response.more, response.count, response.revision - base))
        else:
            shown.append(response)
    return shown


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Iterator[Cluster]:
    """A member of this module's own: every revision counts, also that of a lease's end."""
    with one_member(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@settings(max_examples=60, deadline=None)
@given(st.lists(txns, min_size=1, max_size=8))
def test_same_replies(alone, sequence):
    """Every transaction of a sequence gets the same reply from both."""
    prefix = f"/{uuid.uuid4().hex}/".encode()

    async def play() -> None:
        client = alone.patient()
        try:
            memory, base = MemoryEtcd(), (await client.range(Range(prefix))).revision - 1
            for txn in sequence:
                real = await client.txn(below(prefix, txn, base))
                assert seen(real, prefix, base) == seen(memory.txn(txn), b"", 0)
        finally:
            await client.aclose()

    asyncio.run(play())
