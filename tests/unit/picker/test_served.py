"""A pool as the picker knows it: addresses of engines, and the generations that names had before."""

from __future__ import annotations

import pytest

from registry.client.residency import PoolResidency
from registry.picker.served import (
    PickEndpoint,
    ReadyReplica,
    SeenGeneration,
    engine_address,
    names_to_resolve,
    seen_since,
)
from tests.unit.picker.worlds import adapter, place, pool


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1", "10.0.0.1:80"),
        ("https://[fd00::1]/v1", "[fd00::1]:443"),
        ("http://engine.svc:8000", "10.1.2.3:8000"),
        ("http://six:8000", "[fd00::2]:8000"),
        ("http://nowhere:8000", ""),
        ("http://10.0.0.1:x", ""),
        ("ftp://10.0.0.1", ""),
        ("http://:8000", ""),
        ("", ""),
    ],
)
def test_an_engine_is_known_by_address_and_port(url, address):
    found = pool(adapter(place(1, engine_url=url)), resolved={"engine.svc": "10.1.2.3", "six": "fd00::2"})
    assert [one.address for one in found.endpoints(found.residency.adapters["sql"])] == [address][: bool(address)]


def test_only_names_are_looked_up():
    urls = ("http://10.0.0.1:8000", "http://a:1", "", "http://:1")
    residency = PoolResidency(1, {"sql": adapter(*(place(at, engine_url=url) for at, url in enumerate(urls)))})
    ready = [ReadyReplica("r", "http://b"), ReadyReplica("s", "http://[::1]:1")]
    assert names_to_resolve(residency, ready) == {"a", "b"}
    assert engine_address("http://a") == engine_address("http://a:80")


def test_endpoints_are_derived_once():
    one = pool(adapter(place(1, loaded=False, reason="leaving"), load="lazy"))
    found = one.endpoints(one.residency.adapters["sql"])
    assert found == (PickEndpoint("10.0.0.1:8000", "r1", "sql", 1, is_loaded=False, is_leaving=True),)
    assert one.endpoints(one.residency.adapters["sql"]) is found
    lazy = pool(adapter(place(1), place(2, loaded=False), load="lazy"))
    assert [each.is_loaded for each in lazy.endpoints(lazy.residency.adapters["sql"])] == [True, False]
    kept = pool(adapter(place(1, earlier=(3,), reason="leaving"), place(2, earlier=(3,)), place(3, earlier=(2,))))
    earlier = kept.keeping(kept.residency.adapters["sql"], 3)
    assert [(each.replica, each.model, each.is_leaving) for each in earlier] == [
        ("r1", "sql@3", True),
        ("r2", "sql@3", False),
    ]
    eager = pool(adapter(place(1, loaded=False)))
    assert [each.is_loaded for each in eager.endpoints(eager.residency.adapters["sql"])] == [True], "as good as loaded"
    assert [endpoint.replica for endpoint in pool(ready=(ReadyReplica("r1", "x"),)).base_endpoints] == []


def test_generations_that_ended_are_remembered_until_a_name_goes():
    first = PoolResidency(3, {"sql": adapter(generation=1), "law": adapter(name="law")})
    second = PoolResidency(8, {"sql": adapter(generation=2), "law": first.adapters["law"], "new": adapter(name="new")})
    seen = seen_since({}, first, second)
    assert seen == {"sql": (SeenGeneration(1, 3),)}
    assert seen_since({}, first, PoolResidency(8, {"sql": adapter(place(1))})) == {}, "it has not ended"
    known = pool(adapter(generation=2), revision=8, seen=seen)
    sql = known.residency.adapters["sql"]
    assert [known.least_generation(sql, revision) for revision in (1, 3, 4, 8)] == [1, 1, 2, 2]
    assert seen_since(seen, second, PoolResidency(9, {})) == {}
    assert seen_since(seen, second, PoolResidency(9, {"sql": adapter(generation=1)})) == seen
    assert seen_since(seen, second, PoolResidency(7, {"sql": adapter(generation=1)})) == {}, "a store that was restored"
    for generation in range(3, 15):
        before, second = second, PoolResidency(generation * 10, {"sql": adapter(generation=generation)})
        seen = seen_since(seen, before, second)
    assert (len(seen["sql"]), seen["sql"][-1]) == (8, SeenGeneration(13, 130))
