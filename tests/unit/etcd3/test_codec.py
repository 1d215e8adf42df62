"""Between our values and etcd's messages."""

from __future__ import annotations

import pytest

from registry.etcd3 import codec
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.ops import (
    Compare,
    Delete,
    DeleteResult,
    Event,
    KeyValue,
    Put,
    PutResult,
    Range,
    RangeResult,
    Relation,
    SortTarget,
    Target,
    Txn,
    absent,
    mod_is,
    none_between,
    none_in,
    prefix_end,
    unwritten_since,
)

BELOW = {"key": b"k/", "range_end": b"k0"}
ABSENT = {"target": "CREATE", "result": "EQUAL", "create_revision": 0}
COMPARES: list[tuple[Compare, dict[str, object]]] = [
    (mod_is(b"k", 7), {"key": b"k", "target": "MOD", "result": "EQUAL", "mod_revision": 7}),
    (absent(b"k"), {"key": b"k", **ABSENT}),
    (none_in(b"k/"), BELOW | ABSENT),
    (none_between(b"k", b"m"), {"key": b"k", "range_end": b"m", **ABSENT}),
    (unwritten_since(b"k/", 7), {**BELOW, "target": "MOD", "result": "LESS", "mod_revision": 8}),
]


@pytest.mark.parametrize(("compare", "message"), COMPARES, ids=str)
def test_compares(compare, message):
    assert list(codec.txn_request(Txn((compare,), ())).compare) == [rpc.Compare(**message)]


def test_operations_of_both_branches():
    txn = Txn((), (Put(b"k", b"v", 5), Delete(b"d", b"e")), (Range(b"k"),))
    request = codec.txn_request(txn)
    assert list(request.success) == [
        rpc.RequestOp(request_put=rpc.PutRequest(key=b"k", value=b"v", lease=5)),
        rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=b"d", range_end=b"e")),
    ]
    assert list(request.failure) == [rpc.RequestOp(request_range=rpc.RangeRequest(key=b"k"))]


def test_a_pinned_range_in_a_transaction_is_refused():
    with pytest.raises(ValueError, match="diverge"):
        codec.txn_request(Txn((), (), (Range(b"k", revision=3),)))


@pytest.mark.parametrize(
    "txn",
    [
        Txn((), (Range(b"k"),)),
        Txn((), (Range(b"k"), Range(b"a", b"z", count_only=True))),
        Txn((), (Range(b"k"),), (Range(b"l"),)),
        Txn((mod_is(b"k", 1),), ()),
        Txn((), (Put(b"k", b""),), (Range(b"k"),)),
        Txn((mod_is(b"k", 1),), (Range(b"k"),), (Delete(b"k"),)),
    ],
)
def test_etcd_never_takes_a_transaction_for_one_that_only_reads(txn):
    """X2 unbreakable: the caller of such a one ends an old member by leaving. This is how etcd tells them apart."""
    request = codec.txn_request(txn)
    ops = [*request.success, *request.failure]
    assert any(op.WhichOneof("request") != "request_range" for op in ops)
    assert all(op.WhichOneof("request") for op in ops)
    assert len(request.success) == len(txn.success), "no more than etcd's limit on operations allows"


@pytest.mark.parametrize(
    ("txn", "writes"),
    [
        (Txn((), ()), False),
        (Txn((), (Range(b"k"),), (Range(b"k"),)), False),
        (Txn((), (Put(b"k", b""),)), True),
        (Txn((), (), (Delete(b"k"),)), True),
    ],
)
def test_what_could_change_the_store(txn, writes):
    assert codec.writes(txn) is writes


def test_events():
    kv = rpc.KeyValue(key=b"k", value=b"v", create_revision=1, mod_revision=2, version=3)
    assert codec.event(rpc.Event(type="PUT", kv=kv)) == Event(b"k", 2, KeyValue(b"k", b"v", 1, 2, 3))
    gone = rpc.Event(type="DELETE", kv=rpc.KeyValue(key=b"k", mod_revision=4))
    assert codec.event(gone) == Event(b"k", 4, None)


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"a/", b"a0"), (b"a\xff", b"b"), (b"a\xff\xff", b"b"), (b"\xfe", b"\xff")]
)
def test_prefix_end(prefix, end):
    assert prefix_end(prefix) == end


@pytest.mark.parametrize("prefix", [b"", b"\xff", b"\xff\xff"])
def test_a_prefix_without_an_end(prefix):
    with pytest.raises(ValueError, match="0xff"):
        prefix_end(prefix)


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("relation", Relation)
def test_each_target_and_relation_goes_under_its_own_name(target, relation):
    value = b"v" if target is Target.VALUE else 5
    message = codec.txn_request(Txn((Compare(b"k", target, relation, value),), ())).compare[0]
    assert rpc.Compare.CompareTarget.Name(message.target) == target.name
    assert rpc.Compare.CompareResult.Name(message.result) == relation.name
    assert getattr(message, message.WhichOneof("target_union")) == value


def test_what_a_broken_call_of_each_method_may_have_done():
    """W8 no-false-fail: a transaction that writes, changes of users; a lease that nobody knows of expires by itself."""
    methods = [one for one in vars(codec).values() if isinstance(one, codec.Method)]
    users = "UserAdd UserDelete UserChangePassword UserGrantRole AuthEnable".split()
    users += "RoleAdd RoleDelete RoleGrantPermission RoleRevokePermission".split()
    expected = [codec.TXN.path, *(f"/etcdserverpb.Auth/{name}" for name in users)]
    assert [one.path for one in methods if one.writes] == expected
    assert [one.path for one in methods if one.streams] == [codec.LEASE_KEEPALIVE.path]
    assert len(methods) == 24
    assert codec.READ_TXN.path == codec.TXN.path


@pytest.mark.parametrize("target", SortTarget)
def test_a_range_is_linearizable_and_says_all_it_was_told(target):
    op = Range(b"a", b"b", limit=3, revision=9, keys_only=True, count_only=True, descending_by=target)
    request = codec.range_request(op)
    assert (request.key, request.range_end, request.limit, request.revision) == (b"a", b"b", 3, 9)
    assert (request.keys_only, request.count_only, request.serializable) == (True, True, False)
    assert rpc.RangeRequest.SortTarget.Name(request.sort_target) == target.name
    assert request.sort_order == rpc.RangeRequest.DESCEND
    assert codec.range_request(Range(b"a")) == rpc.RangeRequest(key=b"a")


def test_results_carry_the_revision_of_the_whole_reply():
    kv = rpc.KeyValue(key=b"k", value=b"v", create_revision=1, mod_revision=2, version=3, lease=4)
    response = rpc.TxnResponse(
        header=rpc.ResponseHeader(revision=9),
        succeeded=True,
        responses=[
            rpc.ResponseOp(response_range=rpc.RangeResponse(kvs=[kv], more=True, count=8)),
            rpc.ResponseOp(response_put=rpc.PutResponse()),
            rpc.ResponseOp(response_delete_range=rpc.DeleteRangeResponse(deleted=6)),
            rpc.ResponseOp(response_txn=rpc.TxnResponse(header=rpc.ResponseHeader(), succeeded=True)),
        ],
    )
    result = codec.txn_result(response)
    assert (result.succeeded, result.revision) == (True, 9)
    found = RangeResult(9, (KeyValue(b"k", b"v", 1, 2, 3, 4),), more=True, count=8)
    assert result.responses == (found, PutResult(), DeleteResult(6))
