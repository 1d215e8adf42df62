"""The decision of the picker: a name goes to an engine that serves it, or nowhere."""

from __future__ import annotations

from collections import Counter
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.client.residency import State
from registry.model.replica_reasons import LEAVING
from registry.picker.decide import Chosen, Denied, PickRequest, pick
from registry.picker.served import SeenGeneration
from tests.unit.picker.worlds import adapter, place, pool

TWO = pool(adapter(place(1), place(2)))


def picked(model, *pools, loads=None, chance=0.0, **request):
    return pick(PickRequest(model, **request), pools or (TWO,), loads or {}, chance)


def where(model, *pools, **more):
    found = picked(model, *pools, **more)
    assert isinstance(found, Chosen), found
    return found.endpoint.replica, found.model


def refusal(model, *pools, **more):
    found = picked(model, *pools, **more)
    assert isinstance(found, Denied), found
    return found.status, found.code, found.retry_seconds


def test_a_name_that_nobody_serves_is_404_and_never_the_bases_answer():
    """R5 no-silent-base: neither an unknown name nor one that no replica has is sent on."""
    assert refusal("nope") == (404, "model_not_found", 0)
    pending = pool(adapter(place(1, state=State.PENDING)))
    assert refusal("sql", pending) == (404, "model_not_found", 1)
    assert refusal("sql@7") == (404, "model_not_found", 1)


def test_until_the_registry_answered_nothing_is_known():
    assert pick(PickRequest("sql"), (), {}, 0.0) == Denied(
        503, "registry_not_known", "the picker has not heard from the registry yet; repeat the request", 1
    )


def test_the_least_loaded_is_chosen_and_of_equals_one_by_chance():
    assert where("sql", loads={"10.0.0.1:8000": 3}) == ("r2", "")
    assert where("sql", loads={"10.0.0.2:8000": 0.5}) == ("r1", "")
    assert {where("sql", chance=chance)[0] for chance in (0.0, 0.49)} == {"r1"}
    assert where("sql", chance=0.999999)[0] == "r2"


def test_the_name_that_the_engine_knows_is_asked_for():
    versioned = pool(adapter(place(1, model="sql@3", generation=3), generation=3))
    assert where("sql", versioned) == ("r1", "sql@3")
    assert where("sql@3", versioned) == ("r1", "")
    assert where("SQL") == ("r1", "sql")


def test_a_generation_that_is_kept_is_asked_for_by_its_name_alone():
    """R5: and a request without a number goes to the newest."""
    kept = place(1, model="sql@3", generation=3, earlier=(2, 1))
    nowhere = place(3, engine_url="", model="sql@3", generation=3, earlier=(2,))
    versioned = pool(adapter(kept, place(2, model="sql@3", generation=3), nowhere, generation=3))
    assert where("sql@2", versioned) == ("r1", "")
    assert where("SQL@1", versioned) == ("r1", "sql@1")
    assert {where("sql", versioned, chance=chance)[1] for chance in (0.0, 0.4, 0.9)} == {"sql@3"}
    assert refusal("sql@4", versioned) == (404, "model_not_found", 1)


@pytest.mark.parametrize("name", ["acme/tiny:8b:sql", "acme/tiny:8b|sql", "acme/tiny:8b:sql@1", "acme/tiny:8b:SQL"])
def test_an_alias_is_the_adapter_behind_the_base(name):
    """Of a base, too, whose name begins with that of another one."""
    assert where(name) == ("r1", "sql")
    assert where(name, pool(adapter(place(1)), bases=frozenset({"acme/tiny", "acme/tiny:8b"}))) == ("r1", "sql")


@pytest.mark.parametrize(
    "name",
    [
        "other:sql",
        "acme/tiny:8b:nope",
        "acme/tiny",
        "sql@x",
        "@1",
        "sql@\u0661",
        "sql@" + "1" * 20,
        "sql@" + "1" * 5000,
    ],
)
def test_what_only_looks_like_an_alias_or_a_generation_is_unknown(name):
    assert refusal(name)[0] == 404
    assert isinstance(pick(PickRequest("acme/tiny:8b:sql"), (TWO,), {}, 0.0, separators=""), Denied)


def test_a_name_of_nothing_but_separators_holds_nobody_up():
    """X2 unbreakable: a request may have megabytes of them, and all others wait while it is looked up."""
    begun = thread_time()
    assert refusal(":|" * (1 << 20)) == (404, "model_not_found", 0)
    assert refusal("acme/tiny:8b" + ":" * (1 << 20)) == (404, "model_not_found", 0)
    assert thread_time() - begun < 1


def test_the_base_model_goes_to_any_ready_replica():
    assert where("acme/tiny:8b", chance=0.9) == ("r2", "")
    assert where(None, loads={"10.0.0.1:8000": 1}) == ("r2", "")
    assert refusal("acme/tiny:8b", pool(ready=())) == (503, "no_endpoint", 1)


def test_names_are_looked_up_in_the_order_of_the_pools():
    second = pool(adapter(place(3)), adapter(place(4, model="law"), name="law"), name="q")
    assert where("sql", TWO, second)[0] == "r1"
    assert where("law", TWO, second)[0] == "r4"


def test_what_leaves_is_the_last_resort():
    """R20 drain: what only draining replicas serve is served on."""
    leaving = place(1, reason=LEAVING)
    assert where("sql", pool(adapter(leaving, place(2))), loads={"10.0.0.2:8000": 9})[0] == "r2"
    assert where("sql", pool(adapter(leaving)))[0] == "r1"


@pytest.mark.parametrize("canaries", [{4}, {3, 4}])
def test_a_canary_gets_its_share_of_the_requests(canaries):
    """Also where it is slower than the others, and so has more requests on their way."""
    places = [place(number, generation=1 + (number in canaries)) for number in (1, 2, 3, 4)]
    loads = {f"10.0.0.{number}:8000": 50 for number in canaries}
    world = pool(adapter(*places, generation=2))
    found = Counter(where("sql", world, loads=loads, chance=step / 1000)[0] for step in range(1000))
    assert found == {"r1": 250, "r2": 250, "r3": 250, "r4": 250}


def test_a_gateways_subset_is_kept_to():
    assert where("sql", subset=frozenset({"10.0.0.2:8000"}))[0] == "r2"
    assert refusal("sql", subset=frozenset({"10.9.9.9:8000"})) == (503, "no_endpoint", 1)
    assert refusal("sql", subset=frozenset()) == (503, "no_endpoint", 1)


def test_lazy_adapters_go_where_they_are_loaded_and_else_always_to_the_same():
    cold = pool(adapter(*(place(one, loaded=False) for one in (1, 2, 3)), load="lazy"))
    first = where("sql", cold)[0]
    assert {where("sql", cold, chance=step / 10, loads={"10.0.0.1:8000": step})[0] for step in range(10)} == {first}
    others = [one for one in (1, 2, 3) if f"r{one}" != first]
    warm = pool(adapter(*(place(one, loaded=one == others[0]) for one in (1, 2, 3)), load="lazy"))
    assert where("sql", warm, loads={f"10.0.0.{others[0]}:8000": 9})[0] == f"r{others[0]}"


def test_what_was_published_at_a_revision_is_in_the_answer():
    """Neither a picker that is behind nor a replica that has an earlier generation answers."""
    seen = {"sql": (SeenGeneration(1, 7),)}
    mixed = pool(adapter(place(1), place(2, generation=2), generation=2), revision=9, seen=seen)
    assert {where("sql", mixed, chance=one / 10, least_revision=7)[0] for one in range(10)} == {"r1", "r2"}
    assert {where("sql", mixed, chance=one / 10, least_revision=8)[0] for one in range(10)} == {"r2"}
    assert refusal("sql", mixed, least_revision=10) == (503, "not_served_yet", 1)
    late = pool(adapter(place(1), place(2, generation=0), generation=2), revision=9, seen=seen)
    assert refusal("sql", late, least_revision=8) == (503, "not_served_yet", 1)
    assert where("acme/tiny:8b", mixed, least_revision=9)[0] == "r1"


def test_an_answer_is_not_the_last_while_the_pool_of_the_name_is_behind():
    """Whatever is known of others: what was published there last may be what is asked for."""
    ahead = pool(adapter(place(3), name="law"), name="q", revision=30)
    behind = [picked(model, TWO, ahead, least_revision=20) for model in ("sql", "new")]
    assert [one.code for one in behind if isinstance(one, Denied) and one.is_behind] == [
        "not_served_yet",
        "model_not_found",
    ]
    last = picked("nobody", ahead, least_revision=20)
    assert isinstance(last, Denied)
    assert not last.is_behind


states = st.sampled_from([State.SERVING, State.SERVING, State.PENDING, State.FAILED])
places = st.builds(
    place,
    st.integers(1, 6),
    generation=st.integers(0, 3),
    state=states,
    reason=st.sampled_from(["", LEAVING]),
    loaded=st.booleans(),
)
worlds = st.builds(
    lambda found, load, last: pool(
        adapter(*{one.replica: one for one in found}.values(), generation=3, load=load),
        seen={"sql": (SeenGeneration(2, last),)},
    ),
    st.lists(places, max_size=6),
    st.sampled_from(["eager", "lazy"]),
    st.integers(1, 10),
)


@given(
    world=worlds,
    model=st.sampled_from(["sql", "SQL", "sql@2", "acme/tiny:8b|sql", "nope", "acme/tiny:8b"]),
    chance=st.floats(0, 1, exclude_max=True),
    loads=st.dictionaries(st.sampled_from([f"10.0.0.{one}:8000" for one in range(1, 7)]), st.floats(0, 100)),
    subset=st.none() | st.frozensets(st.sampled_from([f"10.0.0.{one}:8000" for one in range(1, 7)])),
    revision=st.integers(0, 12),
)
def test_whatever_is_known_a_request_goes_where_its_name_is_served_or_nowhere(
    world, model, chance, loads, subset, revision
):
    """R5 no-silent-base, R20 drain: and never elsewhere than the gateway allows, nor to what is older than asked."""
    found = pick(PickRequest(model, subset, revision), (world,), loads, chance)
    if isinstance(found, Denied):
        assert found.status in {404, 503}
        return
    assert subset is None or found.endpoint.address in subset
    assert revision <= world.revision
    if model == "acme/tiny:8b":
        assert found.endpoint.replica in {"r1", "r2"}
        return
    serving = {one.replica: one for one in world.residency.adapters["sql"].serving}
    chosen = serving[found.endpoint.replica]
    assert (found.model or model) == chosen.model
    assert "@2" not in model or chosen.generation == 2
    assert not revision or chosen.generation >= (2 if revision <= world.seen["sql"][0].last_revision else 3)
    allowed = [one for one in found.candidates if not one.is_leaving]
    assert not found.endpoint.is_leaving or not allowed
