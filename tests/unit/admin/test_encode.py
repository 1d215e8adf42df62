"""Replicas as they are shown."""

from __future__ import annotations

import json

import pytest

from registry.admin.rpc.encode import replica
from registry.etcd3.ops import KeyValue
from registry.model.status import Presence
from registry.store.reader import ReplicaValues
from registry.v1 import registry_pb2 as pb


def shown(status: bytes | None, hosts: tuple[str, ...] | None) -> pb.Replica:
    presence = KeyValue(b"/replicas/p/r1", b"?", 1, 1, 1, 7)
    return replica("p", ReplicaValues(presence, KeyValue(b"s", status, 1, 1, 1, 7) if status else None, hosts))


def test_a_status_is_shown_as_it_was_written_where_any_engine_is_allowed():
    written = b'{"engine": {"url":"http://evil.test"} , "a": 1}'
    assert shown(written, ()).status_json == written.decode()


@pytest.mark.parametrize("url", ["http://evil.test:8000", "\\ud800", "http://10.0.0.1@evil.test"])
@pytest.mark.parametrize("hosts", [("10.0.0.0/8",), None])
def test_the_url_of_an_engine_that_is_not_allowed_is_told_apart(url, hosts):
    """X2: also where the pool's record cannot be read."""
    one = shown(f'{{"engine": {{"url": "{url}", "kind": "vllm"}}, "a": 1}}'.encode(), hosts)
    assert json.loads(one.status_json) == {"engine": {"url": "", "kind": "vllm"}, "a": 1}
    assert one.withheld_engine_url == url.replace("\\ud800", "?")


@pytest.mark.parametrize(
    ("advertised", "engine_url", "withheld"),
    [("http://10.0.0.1", "http://10.0.0.1", ""), ("http://evil.test", "", "http://evil.test")],
)
def test_the_address_for_routers_is_the_one_that_counts(advertised, engine_url, withheld):
    """X2, R20: the sidecar's own way to its engine may be one that nobody else could go."""
    presence = Presence(
        pool="p", replica="r1", incarnation="i", owner="o", started_at="t", engine_url=advertised
    ).to_bytes()
    values = ReplicaValues(
        KeyValue(b"/replicas/p/r1", presence, 1, 1, 1, 7),
        KeyValue(b"s", b'{"engine": {"url": "http://127.0.0.1"}}', 1, 1, 1, 7),
        ("10.0.0.0/8",),
    )
    one = replica("p", values)
    assert (one.engine_url, one.withheld_engine_url) == (engine_url, withheld)
    assert json.loads(one.status_json) == {"engine": {"url": ""}}


def test_of_a_key_that_stands_twice_only_what_was_looked_at_is_shown():
    """X2: another reader may take the other."""
    one = shown(b'{"engine": {"url": "http://evil.test", "url": "http://10.0.0.1"}}', ("10.0.0.0/8",))
    assert (one.status_json, one.withheld_engine_url) == ('{"engine": {"url": "http://10.0.0.1"}}', "")


@pytest.mark.parametrize("status", [None, b"?", b"[]", b'{"engine": 1}', b"{}", b'{"engine": {"url": null}}'])
def test_what_names_no_engine(status):
    one = shown(status, ("10.0.0.0/8",))
    assert (one.status_json.encode(), one.withheld_engine_url) == (status or b"", "")
