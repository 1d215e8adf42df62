"""What an engine may be told, of whole adapters of lazy records: never of another state than is asked about."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sidecar.desired.informer import Informer
from sidecar.plan.names import SEPARATOR
from sidecar.resolver import policy as module
from sidecar.resolver.policy import Catalogue, find
from sidecar.vllm_plugin.protocol import Unresolved
from tests.support.records import POOL, deletion, kv, put
from tests.support.worlds import desired


def test_only_a_lazy_adapter_of_exactly_that_name_is_found():
    state = desired(kv("Acme/SQL", 1, load="lazy"), kv("eager", 2))
    assert find("Acme/SQL", state) == "acme%2Fsql"
    assert find("eager", state) == Unresolved("not_lazy")
    for name in ("acme/sql", "Eager", "no", "", "acme%2Fsql", "a\0b"):
        assert find(name, state) == Unresolved("unknown_adapter")


def informed(*kvs) -> tuple[Informer, Catalogue]:
    informer = Informer(POOL)
    informer.replace(10, kvs)
    return informer, Catalogue(informer)


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
