"""A replica's share: what it serves, what it cannot tell yet, and what a plan does about what it no longer serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from registry.model.placement import Declined, Member, decline_id
from sidecar.desired.assignment import PLACES_AT_ONCE, Assigner, Share
from sidecar.desired.informer import DesiredState, Informer
from sidecar.desired.placement import PlacementCache
from sidecar.plan.handoff import Handoff, HandoffVerdict, Stuck, Taken, Waiting
from sidecar.plan.planner import make_plan
from sidecar.plan.types import Load, Plan, ServedAdapter, Unload
from tests.support.records import POOL, deletion, kv, put
from tests.support.worlds import (
    chosen,
    desired,
    fleet,
    keys_of,
    known,
    observed,
    path_of,
    placed_at,
    pool,
    rolling,
    without,
)

FLEET = fleet("r1", "r2", "r3")
NAMES = [f"n{number}" for number in range(9)]
ONE_EACH = desired(*(kv(name, 1, placement=placed_at(1)) for name in NAMES), kv("all", 1))
ELSEWHERE = fleet("r2", "r3")


def share(state: DesiredState, members=FLEET, replica: str = "r1", **labels: str) -> Share:
    return Assigner(POOL, replica, labels).find(state, members)


def planned(state: DesiredState, of: Share, listed: dict[str, str], handed=None) -> Plan:
    facts = replace(known(state, "v1"), share=of, handed=handed or {})
    return make_plan(state, pool(), observed(listed), facts, now=0.0)


def test_a_pool_without_terms_costs_nothing():
    state = desired(kv("a", 1), kv("b", 2))
    assert share(state).order is state.order


def test_until_the_replicas_are_known_what_is_placed_is_neither_loaded_nor_unloaded():
    """R13 static-stable."""
    found = share(ONE_EACH, None)
    assert keys_of(found.order) == ["all"]
    assert keys_of(found.undecided) == NAMES
    plan = planned(ONE_EACH, found, {"n1": "v1"})
    assert plan.calls == (Load("all", "/store/adapters/sha256-v1", ONE_EACH.adapters["all"].ref, "req-all-1"),)
    assert {one.name for one in plan.pending if one.reason == "replicas_unknown"} == set(NAMES)
    assert not plan.is_settled


def test_what_others_are_to_serve_is_kept_until_they_do():
    sharing = Assigner(POOL, "r1", {})
    mine = keys_of(sharing.find(ONE_EACH, fleet("r1")).order)
    assert set(mine) == {*NAMES, "all"}
    found = sharing.find(ONE_EACH, FLEET)
    lost = next(name for name in NAMES if name not in keys_of(found.order))
    listed = dict.fromkeys(keys_of(found.order), "v1") | {lost: "v1"}
    plan = planned(ONE_EACH, found, listed)
    (leaving,) = plan.leaving
    assert (leaving.name, plan.calls, plan.pending) == (lost, (), ())
    assert leaving.owners is not None
    assert "r1" not in leaving.owners
    assert plan.among == found.among == leaving.among
    digest = ONE_EACH.adapters[lost].ref.digest
    assert digest is not None
    assert plan.still_served == (ServedAdapter(lost, 1, digest),)
    assert planned(ONE_EACH, found, listed | {lost: "v0"}).still_served == (), "nobody knows what v0 was"
    assert planned(ONE_EACH, found, {f"{lost}@1": "v1"}).still_served == plan.still_served
    assert planned(ONE_EACH, found, {f"{lost}@7": "v1"}).still_served == (), "nobody asks for it by that name"
    assert planned(ONE_EACH, found, listed, {leaving: Waiting()}).warnings == ()
    (warning,) = planned(ONE_EACH, found, listed, {leaving: Stuck("r2 cannot")}).warnings
    assert (warning.name, warning.reason) == (lost, "not_handed_over")
    taken = planned(ONE_EACH, found, listed, {leaving: Taken()})
    assert taken.calls == (Unload(lost, "/store/adapters/sha256-v1"),)
    assert (taken.leaving, taken.still_served) == ((leaving,), ()), "whoever is to serve it is asked until it is gone"


def test_what_somebody_else_loaded_is_not_ours_to_hand_over():
    """R11 foreign-safe."""
    found = share(ONE_EACH, ELSEWHERE | fleet("r1"))
    lost = next(name for name in NAMES if name not in keys_of(found.order))
    plan = planned(ONE_EACH, found, {lost: "/mine", "N-other": "v1"})
    assert plan.leaving == ()
    assert [call for call in plan.calls if isinstance(call, Unload)] == [Unload("N-other", "/store/adapters/sha256-v1")]


@pytest.mark.parametrize(("strategy", "generations"), [(None, [1, 1, 1]), ({"canary": {"replicas": 1}}, [1, 1, 2])])
def test_canaries_alone_serve_what_is_rolled_out_and_without_a_strategy_nobody_is_one(strategy, generations):
    """Whoever cannot tell who is to go first lets nobody go first."""
    state = desired(rolling("a", 5, strategy=strategy))
    found = [share(state, replica=replica).version(state.adapters["a"]) for replica in FLEET]
    assert sorted(one.generation for one in found) == generations


def test_only_very_many_places_take_long():
    informer, sharing = Informer(POOL), Assigner(POOL, "r1", {})
    informer.replace(1, [kv(f"n{number}", 1, placement=placed_at(2)) for number in range(PLACES_AT_ONCE // 100)])
    many = fleet(*(f"r{number}" for number in range(101)))
    assert not sharing.is_long(informer.state, None)
    assert not sharing.is_long(informer.state, without(many, "r1"))
    assert sharing.is_long(informer.state, many)
    sharing.find(informer.state, many)
    assert not sharing.is_long(informer.state, many)
    assert sharing.is_long(informer.state, fleet(*(f"r{number}" for number in range(1, 102))))
    informer.apply(2, [put("n0", 2, generation=2, placement=placed_at(2))])
    assert not sharing.is_long(informer.state, many)
    informer.apply(3, [put("everywhere", 3)])
    assert sharing.is_long(informer.state, many)
    sharing.find(informer.state, many)
    informer.apply(4, [deletion(f"n{number}", 4) for number in range(2)])
    informer.apply(5, [put(f"n{number}", 5, placement=placed_at(2)) for number in range(70)])
    assert sharing.is_long(informer.state, many)


def test_what_the_engine_loses_before_others_serve_it_is_loaded_again():
    """R3, critiques: there would be one fewer until they do. Where they do, or nobody knows yet, it is not."""
    found, listed = share(ONE_EACH), {}
    lost = sorted({*NAMES} - {*keys_of(found.order)})[:2]
    facts = replace(known(ONE_EACH, "v1"), share=found, handing=frozenset(lost))

    def calls(handed: Mapping[Handoff, HandoffVerdict], **limits: int) -> list[str]:
        made = make_plan(ONE_EACH, pool(**limits), observed(listed), replace(facts, handed=handed), now=0.0)
        assert {(name, path_of("v1")) for name in lost} <= made.chosen.versions.keys()
        return [call.name for call in made.calls if call.name in lost]

    leaving = make_plan(ONE_EACH, pool(), observed(listed), facts, now=0.0).leaving
    assert sorted(one.name for one in leaving) == lost
    waiting: dict[Handoff, HandoffVerdict] = dict.fromkeys(leaving, Waiting())
    assert calls({}) == []
    assert calls(waiting) == lost
    assert calls(dict.fromkeys(leaving, Taken())) == []
    assert calls(waiting | {leaving[0]: Stuck("r2 cannot")}) == lost
    assert calls(waiting, max_adapters=len(found.order) + 1) == lost[:1], "what is its own has its place"
    assert calls(waiting, max_adapters=1) == []
    facts = replace(facts, staged={})
    assert [call.name for call in make_plan(ONE_EACH, pool(), observed(listed), facts, now=0.0).calls] == []


@pytest.mark.parametrize(
    ("names", "lost", "version"), [("plain", "a", "v1"), ("versioned", "a@1", "v1"), ("versioned", "a@9", "")]
)
def test_what_is_loaded_again_is_no_canarys(names, lost, version):
    """R3, critiques: whoever leaves is no canary, so it does not take weights that only canaries are to serve."""
    state = desired(rolling("a", 5, placement=placed_at(2), strategy={"canary": {"replicas": 1}}))
    facts = replace(known(state, "v1", "v2"), share=share(state, ELSEWHERE), handing=frozenset({lost}))
    spec, engine = pool(names=names), observed({})
    (leaving,) = make_plan(state, spec, engine, facts, now=0.0).leaving
    plan = make_plan(state, spec, engine, replace(facts, handed={leaving: Waiting()}), now=0.0)
    loads = [call for call in plan.calls if isinstance(call, Load)]
    assert [(call.name, call.path) for call in loads] == ([(lost, path_of(version))] if version else [])
    assert plan.chosen.versions.keys() == {(call.name, call.path) for call in loads}


def test_a_replica_whose_engine_is_away_serves_only_what_there_are_too_few_others_for():
    """R3: and gets its part back when it returns."""
    away = {**FLEET, "r1": replace(FLEET["r1"], capacity=0)}
    state = desired(*(kv(f"n{n}", 1, placement=placed_at(1 + n % 3)) for n in range(90)))
    for replica in FLEET:
        before, after = ({*keys_of(share(state, among, replica).order)} for among in (FLEET, away))
        three = {key for key in before if state.adapters[key].terms.placement.replicas == 3}
        assert after == three if replica == "r1" else after > before
    assert share(state, away, "r1").among != share(state, FLEET, "r1").among


def test_a_replica_that_leaves_serves_what_all_do_and_unloads_nothing():
    """R20 drain: a router that does not know yet that it left may still ask it for anything."""
    found = share(ONE_EACH, ELSEWHERE)
    assert found.is_out
    assert keys_of(found.order) == ["all"]
    listed = {"all": "v1", "n1": "v1"}
    (leaving,) = planned(ONE_EACH, found, listed).leaving
    assert set(leaving.owners or ()) <= set(ELSEWHERE)
    plan = planned(ONE_EACH, found, listed, {leaving: Taken()})
    assert plan.is_out
    assert plan.calls == ()
    assert plan.leaving == (leaving,)
    back = share(ONE_EACH, FLEET)
    assert not back.is_out
    for everywhere in (kv("all", 1), kv("all", 1, placement=placed_at("all", zone="x"))):
        assert not share(desired(everywhere), None).is_out, "where nobody has to know who lives"


def test_what_was_taken_over_just_now_is_told_no_more_and_not_yet_unloaded():
    """R20: a router that follows what is told has left before the engine does not know the name any more."""
    found = share(ONE_EACH)
    name = next(one for one in NAMES if one not in keys_of(found.order))
    (leaving,) = planned(ONE_EACH, found, {name: "v1"}).leaving
    news = planned(ONE_EACH, found, {name: "v1"}, {leaving: Taken(routers_know=False)})
    assert [one.name for one in planned(ONE_EACH, found, {name: "v1"}).still_served] == [name]
    assert news.still_served == ()
    assert [call for call in news.calls if isinstance(call, Unload)] == []
    old = planned(ONE_EACH, found, {name: "v1"}, {leaving: Taken()})
    assert [call.name for call in old.calls if isinstance(call, Unload)] == [name]


def test_until_the_replicas_are_known_what_labels_decide_is_decided():
    """R13: also beside what is placed by number. Who takes over what labels place is whoever has them."""
    by_labels = [kv(name, 7, placement=placed_at("all", zone=zone)) for name, zone in (("here", "x"), ("there", "y"))]
    state = desired(*by_labels, kv("one", 1, placement=placed_at(1)), kv("no", 1, placement=placed_at(1, zone="y")))
    found = share(state, None, zone="x")
    assert (keys_of(found.order), keys_of(found.undecided)) == (["here"], ["one"])
    assert not any(found.is_elsewhere(state.adapters[key]) for key in ("here", "one"))
    assert all(found.is_elsewhere(state.adapters[key]) for key in ("there", "no"))
    assert not found.is_out, "it is not known who is there"
    (leaving,) = chosen(state, observed({"there": "v1", "HERE": "v1"}), share=found).leaving
    assert (leaving.owners, leaving.terms.selector, leaving.revision) == (None, frozenset({("zone", "y")}), 7)
    assert set(share(state, zone="x").placed) == {"one", "no"}, "only what depends on who lives"


def test_a_change_costs_nothing_for_what_it_does_not_concern(monkeypatch):
    """R16, R19: a fleet of sidecars pays it for each change; all else is as it was."""
    placed: list[str] = []
    looked_at: list[str] = []
    place, again = PlacementCache.place, PlacementCache.place_again

    def noting_place(self: PlacementCache, key: str, *rest: object):
        placed.append(key)
        return place(self, key, *rest)

    def noting_again(self: PlacementCache, key: str, *rest: object):
        looked_at.append(key)
        return again(self, key, *rest)

    monkeypatch.setattr(PlacementCache, "place", noting_place)
    monkeypatch.setattr(PlacementCache, "place_again", noting_again)

    def cost() -> tuple[set[str], set[str]]:
        found = {*placed}, {*looked_at}
        placed.clear()
        looked_at.clear()
        return found

    informer, sharing, members = Informer(POOL), Assigner(POOL, "r1", {}), fleet(*(f"r{n}" for n in range(1, 9)))
    informer.replace(1, [kv(name, 1, placement=placed_at(1)) for name in NAMES])
    before = sharing.find(informer.state, members)
    assert cost() == ({*NAMES}, set())
    informer.apply(2, [put("n1", 2, generation=2, placement=placed_at(1))])
    sharing.find(informer.state, members)
    assert cost() == ({"n1"}, set())
    sharing.find(informer.state, dict(members))
    assert cost() == (set(), set()), "the same ones, said once more"
    gone = before.placed["n2"][0][1]
    concerned = {name for name in NAMES if before.placed[name][0][1] == gone}
    assert concerned < {*NAMES}
    sharing.find(informer.state, without(members, gone))
    again_placed, compared = cost()
    assert compared == {*NAMES}
    assert again_placed == concerned
    informer.apply(3, [put("all", 3), put("x", 3, placement=placed_at("all", zone="x"))])
    sharing.find(informer.state, without(members, gone))
    assert "all" not in cost()[0]


def test_the_room_of_replicas_counts_by_what_all_who_match_serve():
    """R3: who lives may be the same, and some of them have less room than before."""
    members = {**fleet("r1", "r2", capacity=10, zone="x"), **fleet("r3", capacity=10, zone="y")}
    cache, nothing, in_x = PlacementCache(POOL), {}, {frozenset({("zone", "x")}): 5}
    assert cache.meet(members, nothing)
    among = cache.among
    assert not cache.meet(members, nothing), "the same, said once more"
    assert not cache.meet(dict(members), {}), "nor is there a difference"
    assert cache.among == among
    assert cache.meet(members, in_x), "r3 has more room than the others"
    assert (cache.among.members, cache.among.weights != among.weights) == (among.members, True)
    assert not cache.meet(members, in_x)
    assert cache.meet({**members, **fleet("r4", capacity=10, zone="y")}, in_x)
    assert cache.among.members != among.members


def declining(member: Member, *adapters: tuple[str, int]) -> Member:
    ids = frozenset(decline_id(*one) for one in adapters)
    return replace(member, declines={"rank_too_high": Declined("8", ids)} if ids else {})


def test_only_what_a_replica_declines_moves_and_comes_back_once_it_does_not():
    """R3 converge: all find the same, whatever they knew before."""
    order = Assigner(POOL, "r1", {}).find(ONE_EACH, FLEET).placed
    first = order["n0"][0][1]
    changes = [
        {first: [("n0", 1)]},
        {one: [("n0", 1)] for one in FLEET},
        {one: [("n0", 1)] for one in FLEET if one != "r2"},
        {one: [("n0", 1)] for one in FLEET},
        {first: [("n0", 2), ("all", 1)]},
        {},
    ]
    sharing = Assigner(POOL, "r1", {})
    sharing.find(ONE_EACH, FLEET)
    for change in changes:
        members = {name: declining(one, *change.get(name, [])) for name, one in FLEET.items()}
        found = sharing.find(ONE_EACH, members)
        assert found == Assigner(POOL, "r1", {}).find(ONE_EACH, members)
        assert {key for key in order if found.placed[key] != order[key]} <= {"n0"}
        (owner,) = (replica for _, replica in found.placed["n0"])
        takers = [name for name in FLEET if ("n0", 1) not in change.get(name, [])]
        assert owner in takers or not takers
        assert owner == first or first not in (takers or [first])
