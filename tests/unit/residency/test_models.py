"""Cards of the models of a pool, in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.names import name_key
from registry.model.records import Canary, CanaryRollout, Strategy
from registry.model.status import Lazy, Pending, Resident
from registry.residency import models
from registry.residency.models import EngineHead, adapter_cards, base_cards, heads_of
from tests.support.records import KEYS, POOL, record
from tests.support.residency_world import World, among, engine_status, members


def engine(name: str, longest: int | None = None, **fields: Any) -> dict[str, Any]:
    return {"engine": engine_status(url=f"http://{name}", max_model_len=longest, **fields)}


def cards(world: World, *names: str) -> list[dict[str, Any]]:
    """The cards of these adapters, or of all."""
    world.look()
    keys: Iterable[str] = map(name_key, names) if names else sorted(world.view.records)
    found = adapter_cards(world.view, keys, heads_of(world.view))
    return [json.loads(card) for _, each in found for card in each]


def test_an_adapter_that_a_replica_serves_has_a_card_as_vllms(world):
    """R9: none that nobody is proven to serve; the shortest context of those that do."""
    world.alive("r1", "r2", "r3")
    world.put("acme/Sql", generation=3)
    world.put("b")
    waiting = [Pending(name="b", generation=1, reason="staging")]
    for name, longest in (("r1", 512), ("r2", 256), ("r3", None)):
        world.says(name, pending=waiting, **engine(name, longest))
    [card] = cards(world)
    created = card.pop("created")
    assert card == {
        "id": "acme/Sql",
        "object": "model",
        "owned_by": "loraplane",
        "root": "acme/Sql@3",
        "parent": "base",
        "max_model_len": 256,
        "loraplane": {"pool": POOL, "generation": 3},
    }
    assert created > 1_000_000_000
    assert cards(world, "nobody") == []


def test_a_lazy_one_says_whether_it_is_loaded(world):
    world.alive("r1", "r2")
    world.put("cold", load="lazy")
    world.put("warm", load="lazy")
    used = Resident(name="warm", generation=1, last_used="")
    world.says("r1", lazy=Lazy(count=2, servable=True, resident=[used]))
    world.says("r2", lazy=Lazy(count=2, servable=True))
    told = {card["id"]: card["loraplane"] for card in cards(world)}
    assert {name: (ours["lazy"], ours["loaded"]) for name, ours in told.items()} == {
        "cold": (True, False),
        "warm": (True, True),
    }


def test_versioned_names_are_those_that_engines_answer_to(world):
    world.alive("r1", "r2")
    world.put("a", generation=2)
    world.says("r1", **engine("r1", names="versioned"))
    world.says("r2")
    assert [(card["id"], card["root"]) for card in cards(world)] == [("a", "a@2"), ("a@2", "a@2")]


def test_generations_that_are_kept_have_cards_of_their_own(world):
    """R9: where a status that is believed says so; R24: and routers hear of a change."""
    world.alive("r1", "r2", "r3")
    world.put("a", generation=3)
    world.put("b")
    versioned = {"names": "versioned"}
    world.says("r1", earlier=[("a", 2), ("a", 1)], **engine("r1", 512, **versioned))
    world.says("r2", earlier=[("A", 2)], **engine("r2", 256, **versioned))
    world.says("r3", earlier=[("a", 2)], **engine("r3", 128))
    told = [(card["id"], card["root"], card["max_model_len"]) for card in cards(world, "a")]
    assert told == [("a", "a@3", 128), ("a@3", "a@3", 256), ("a@2", "a@2", 256), ("a@1", "a@1", 512)]
    assert {one.replica: one.earlier for one in world.where("a").replicas} == {"r1": (2, 1), "r2": (2,), "r3": ()}
    world.says("r1", earlier=[("a", 2)], **engine("r1", **versioned))
    assert world.look() == {"a"}
    world.says("r1", earlier=[("a", 2)], stale=True, **engine("r1", **versioned))
    assert [one.earlier for one in world.where("a").replicas if one.replica == "r1"] == [()]
    world.says("r1", earlier=[("a", 3), ("a", 2)], **engine("r1", **versioned))
    assert next(iter(world.where("a").replicas)).earlier == (2,), "the one that it is named for is no earlier one"
    world.says("r1", earlier=[("a", 2)], **engine("elsewhere", **versioned))
    world.allow("r2", "r3")
    assert next(iter(world.where("a").replicas)).earlier == ()


def test_the_card_of_a_name_is_that_of_the_newest_generation_served_by_it(world):
    world.alive("r1", "r2")
    tried = CanaryRollout(stable_generation=1, stable_spec=record("a").spec)
    world.put("a", 2, tried, source="v2", strategy=Strategy(canary=Canary(replicas=1)))
    for name in ("r1", "r2"):
        world.says(name, **engine(name), **among(members("r1", "r2")))
    assert [(card["id"], card["root"]) for card in cards(world, "a")] == [("a", "a@2")]
    assert sorted(one.generation for one in world.where("a").replicas) == [1, 2]


def test_adapters_that_stand_alike_are_derived_once_and_told_by_their_names(world, monkeypatch):
    world.alive("r1", "r2")
    for number in range(1, 9):
        world.put(f"a{number}", generation=number)
    for name in ("r1", "r2"):
        world.says(name, **engine(name, names="versioned"))
    world.look()
    derived = list[str]()
    monkeypatch.setattr(
        models,
        "residency_of",
        lambda view, adapter, real=models.residency_of: (derived.append(adapter.name), real(view, adapter))[1],
    )
    assert [card["id"] for card in cards(world)] == [f"a{number}@{number}" for number in range(1, 9)]
    assert len(derived) == 1
    world.statuses.clear()
    assert cards(world) == []
    assert len(derived) == 2, "also what nobody serves"


def test_base_models_are_those_of_engines_that_can_be_reached(world):
    """What a stale status says was so once; a URL that the pool does not allow is none of its engines."""
    world.alive("r1", "r2", "r3", "r4", "r5")
    world.says("r1", **engine("r1", 512, base_models=["base", "other"]))
    world.says("r2", **engine("r2", 128))
    world.says("r3", stale=True, **engine("r3", 1, base_models=["stale"]))
    world.says("r4", **engine("r4", 1, base_models=["gone"], incarnation=""))
    world.says("r5", **engine("elsewhere", 1))
    world.allow("r1", "r2", "r3", "r4")
    world.look()
    heads = heads_of(world.view)
    assert heads == {"r1": EngineHead(("base", "other"), 512), "r2": EngineHead(("base",), 128)}
    told = [json.loads(card) for card in base_cards("p", heads)]
    assert [(card["id"], card["parent"], card["max_model_len"]) for card in told] == [
        ("base", None, 128),
        ("other", None, 512),
    ]
    assert {json.dumps(card["loraplane"]) for card in told} == {'{"pool": "p"}'}


@pytest.mark.parametrize("told", ["yesterday", ""])
def test_a_record_that_tells_no_time_is_of_no_time(world, told):
    world.alive("r1")
    world.put("a")
    key = KEYS.adapter(POOL, "a")
    value = json.loads(world.records[key].value) | {"updated_at": told}
    kv = world.records[key]
    world.records[key] = KeyValue(key, json.dumps(value).encode(), kv.mod_revision, kv.create_revision, kv.version, 0)
    world.says("r1")
    assert [card["created"] for card in cards(world)] == [0]


def test_a_name_is_told_while_its_parent_is_not_known(world):
    """A replica may serve while its engine's base is not among what it says."""
    world.alive("r1")
    world.put("a")
    world.says("r1", **engine("r1", base_models=[]))
    [card] = cards(world)
    assert (card["parent"], card["max_model_len"]) == (None, None)
