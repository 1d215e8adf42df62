"""What an engine may be told, of whole adapters of lazy records: never of another state than is asked about."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from sidecar.artifacts.types import Staged
from sidecar.desired.informer import Informer
from sidecar.plan.backoff import Failure
from sidecar.plan.limits import limits_of
from sidecar.plan.names import SEPARATOR
from sidecar.resolver import policy as module
from sidecar.resolver.policy import Catalogue, Fetch, Reject, Serve, ServingLimits, decide, find
from sidecar.vllm_plugin.protocol import Unresolved
from tests.support.records import POOL, deletion, kv, put
from tests.support.worlds import desired, observed, path_of, pool, wants

ADAPTER = wants({"a": "v1"}).adapters["a"]
STAGED = Staged("v1", path_of("v1"), "", 8, frozenset({"q_proj"}))


def terms(**limits) -> ServingLimits:
    return ServingLimits(limits_of(pool(), observed(**limits)), 4)


def test_only_a_lazy_adapter_of_exactly_that_name_is_found():
    state = desired(kv("Acme/SQL", 1, load="lazy"), kv("eager", 2))
    assert find("Acme/SQL", state) == "acme%2Fsql"
    assert find("eager", state) == Unresolved("not_lazy")
    for name in ("acme/sql", "Eager", "no", "", "acme%2Fsql", "a\0b"):
        assert find(name, state) == Unresolved("unknown_adapter")


def test_what_is_staged_and_within_the_limits_is_served():
    assert decide(ADAPTER, STAGED, terms(), None, now=0.0) == Serve(STAGED)
    assert decide(ADAPTER, None, terms(), None, now=0.0) == Fetch()


def test_the_rules_are_those_of_eager_adapters():
    """R4, R5, R8, R22: rank, modules, what the engine said has no effect, and the names of the base."""

    def reason(adapter, staged, told) -> str:
        refused = decide(adapter, staged, told, None, now=0.0)
        assert isinstance(refused, Reject)
        assert refused.failure.retry_at is None
        return refused.failure.reason

    assert reason(ADAPTER, STAGED, terms(max_lora_rank=4)) == "rank_too_high"
    assert reason(ADAPTER, STAGED, terms(target_modules=("down_proj",))) == "target_modules_mismatch"
    without = replace(terms().rules, no_effect=frozenset({path_of("v1")}))
    assert reason(ADAPTER, STAGED, replace(terms(), rules=without)) == "no_effect"
    base = wants({"base": "v1"}).adapters["base"]
    assert reason(base, None, terms()) == "name_is_base_model"


def test_a_failed_staging_is_not_repeated_before_its_time():
    """R8 isolation."""
    failure = Failure(ADAPTER.ref, None, "not_found", "it is not there", 1, 5.0)
    assert decide(ADAPTER, None, terms(), failure, now=4.0) == Reject(failure)
    assert decide(ADAPTER, None, terms(), failure, now=5.0) == Fetch()
    assert decide(ADAPTER, STAGED, terms(), failure, now=4.0) == Serve(STAGED)


def test_what_is_not_proven_is_proven_before_it_is_told():
    """R21."""
    assert decide(ADAPTER, replace(STAGED, is_proven=False), terms(), None, now=0.0) == Fetch()


def informed(*kvs) -> tuple[Informer, Catalogue]:
    informer = Informer(POOL)
    informer.replace(10, kvs)
    return informer, Catalogue(informer)


def test_a_lazy_record_is_read_whole_packed_or_not():
    informer, catalogue = informed(kv("acme/sql", 3, load="lazy", priority=2))
    before = catalogue.whole(informer.state, "acme%2Fsql")
    informer.pack(10)
    assert catalogue.whole(informer.state, "acme%2Fsql") is before
    assert (before.name, before.revision, before.priority) == ("acme/sql", 3, 2)


def test_eager_unknown_and_deleted_ones_are_not_in_it():
    informer, catalogue = informed(kv("eager", 1), kv("lazy", 2, load="lazy"))
    old = informer.state
    assert catalogue.version(old, f"lazy{SEPARATOR}1") is None, "nothing is answered with instead of it"
    informer.apply(11, [deletion("lazy", 11)])
    assert [catalogue.whole(state, key) for state, key in ((old, "eager"), (old, "no"), (old, "lazy"))] == [None] * 3


def test_a_record_that_moved_on_is_not_served_under_the_older_state():
    """R4 digest-true."""
    informer, catalogue = informed(kv("a", 1, load="lazy"))
    old = informer.state
    assert catalogue.whole(old, "a").generation == 1
    informer.apply(11, [put("a", 11, generation=2, source="v2", load="lazy")])
    assert catalogue.whole(old, "a") is None
    assert catalogue.whole(informer.state, "a").generation == 2
    informer.apply(12, [put("a", 12, b"{}")])
    assert catalogue.whole(informer.state, "a").generation == 2, "R14: the last good one stands"


def test_what_no_state_could_follow_is_not_read():
    informer, _ = informed(kv("a", 1, load="lazy"))
    broken = Informer(POOL)
    broken.replace(11, [kv("a", 11, b"{}")])
    assert Catalogue(broken).whole(informer.state, "a") is None
    others = SimpleNamespace(pool="other", record=informer.record, with_last_good=informer.with_last_good)
    assert Catalogue(others).whole(informer.state, "a") is None


def test_what_was_read_anew_is_remembered_as_the_newest(monkeypatch):
    """R16 bounded: it is wanted at each round."""
    monkeypatch.setattr(module, "MAX_REMEMBERED", 2)
    informer, catalogue = informed(*(kv(name, number, load="lazy") for number, name in enumerate("abc", 1)))
    for name in "ab":
        catalogue.whole(informer.state, name)
    informer.apply(11, [put("a", 11, generation=2, load="lazy")])
    catalogue.whole(informer.state, "a")
    newer = catalogue._read["a"]
    catalogue.whole(informer.state, "c")
    catalogue.whole(informer.state, "a")
    assert catalogue._read["a"] is newer


def test_a_thousand_are_remembered(monkeypatch):
    """R16: as many as may be loaded are wanted at each round."""
    read: list[str] = []

    def parse(_pool: str, key: str, _value: bytes, _revision: int) -> SimpleNamespace:
        read.append(key)
        return SimpleNamespace(name=key, generation=1)

    monkeypatch.setattr(module, "parse_whole", parse)
    keys = [f"k{number}" for number in range(1025)]
    state = SimpleNamespace(lazy={key: SimpleNamespace(name=key, generation=1) for key in keys})
    raw = SimpleNamespace(
        pool=POOL,
        record=lambda key: SimpleNamespace(good=None, value=key.encode(), revision=1),
        with_last_good=lambda _, one: one,
    )
    catalogue = Catalogue(raw)
    for key in [*keys[:1024], keys[0]]:
        assert catalogue.whole(state, key) is not None
    assert len(read) == 1024
    for key in (keys[1024], keys[0], keys[1]):
        catalogue.whole(state, key)
    assert read[1024:] == [keys[1024], keys[1]], "the one that was wanted longest ago is forgotten"


def test_a_fault_of_ours_is_no_record_of_a_later_state(monkeypatch):
    """R9: it would be said to be brought in, for ever."""

    def parse(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "parse_whole", parse)
    informer, catalogue = informed(kv("a", 1, load="lazy"))
    with pytest.raises(ZeroDivisionError):
        catalogue.whole(informer.state, "a")


def test_a_name_that_is_another_adapter_s_is_not_given_for_it():
    """R4: name and generation are those of the state."""
    informer, catalogue = informed(kv("a", 1, load="lazy"))
    (lazy,) = informer.state.lazy.values()
    for other in (replace(lazy, name="A"), replace(lazy, generation=2)):
        assert catalogue.whole(SimpleNamespace(lazy={"a": other}), "a") is None
    assert catalogue.whole(SimpleNamespace(lazy={"a": lazy}), "a") is not None
