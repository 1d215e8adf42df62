"""What a replica served last: remembered while the newest generation is not served, and of one life of a name."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from registry.model.records import CanaryRollout
from sidecar.desired.informer import Informer, parse_whole
from sidecar.desired.last_good import MAX_FORMER, MAX_FORMER_EACH, GoodRecord
from tests.support.records import POOL, deletion, kv, put, record
from tests.support.worlds import placed_at, rolling
from tests.unit.desired.test_informer import informer
from tests.unit.desired.test_watcher import Scene, taken_up


def serving(generation: int = 1, **spec) -> Informer:
    """One that follows generation 1 of ``a``, which was served."""
    made = informer(kv("a", 1, generation=generation, **spec))
    made.note_served([("a", generation)])
    return made


def good(made: Informer, key: str = "a") -> tuple[str, int, str] | None:
    """Key, generation and source of the last good generation."""
    found = made.state.adapters[key].last_good
    return None if found is None else (found.key, found.generation, found.ref.uri.rsplit("/", 1)[-1])


def former(made: Informer, key: str = "a") -> list[str]:
    """Keys of the generations before that may have come to the engine."""
    return [one.key for one in made.state.adapters[key].former]


def test_what_was_served_is_remembered_until_the_newest_is_served():
    """R13: generation 2, and 3 after it, may be refused."""
    made = serving()
    assert good(made) is None
    made.apply(11, [put("a", 11, generation=2, source="v2")])
    assert good(made) == ("a@1", 1, "v1")
    made.apply(12, [put("a", 12, generation=3, source="v3")])
    assert good(made) == ("a@1", 1, "v1"), "nobody served generation 2"
    before = made.state
    assert made.note_served([("a", 3)]) == (("a", 3),)
    assert good(made) is None
    assert list(made.state.changed_since(before.changes) or ()) == ["a"], "whoever amends a share has to know"
    assert made.note_served([("a", 3)]) == ()
    made.apply(13, [put("a", 13, generation=4)])
    assert good(made) == ("a@3", 3, "v3")
    late = serving()
    for generation in (2, 3, 4, 5):
        late.apply(10 + generation, [put("a", 10 + generation, generation=generation, source=f"v{generation}")])
    assert former(late) == ["a@2", "a@3", "a@4"]
    assert late.note_served([("a", 3)]) == (("a", 3),)
    assert (good(late), former(late)) == (("a@3", 3, "v3"), ["a@4"]), "it was replaced twice, and answers late"
    lazy = informer(kv("a", 1, load="lazy"))
    lazy.note_served([("a", 1)])
    lazy.apply(11, [put("a", 11, generation=2, source="v2", load="lazy")])
    fallback = lazy.with_last_good("a", parse_whole(POOL, "a", lazy.raw["a"].value, 11)).fallbacks
    assert [one.generation for one in fallback] == [1]


def test_nothing_is_remembered_of_what_was_never_served_nor_changed_by_another_try():
    made = informer(kv("a", 1))
    made.apply(11, [put("a", 11, generation=2)])
    made.apply(12, [put("a", 12, generation=3)])
    assert good(made) is None
    assert made.note_served([("a", 4), ("never", 1)]) == (), "nobody followed that"
    assert made.memory.keys == frozenset()
    again = serving()
    again.apply(11, [put("a", 11, generation=1, priority=3)])
    assert (good(again), again.note_served([("a", 1)])) == (None, ())
    cased = informer(kv("Acme", 1))
    cased.note_served([("acme", 1)])
    cased.apply(11, [put("acme", 11, generation=2)])
    assert good(cased, "acme") is None, "a name that is written otherwise"


@pytest.mark.parametrize("was_served", [True, False])
def test_what_came_to_the_engine_just_before_its_record_was_replaced_counts(was_served):
    """R13: it is found there by its files at the next look."""
    made = serving() if was_served else informer(kv("a", 1))
    made.apply(11, [put("a", 11, generation=2, source="v2")])
    made.apply(12, [put("a", 12, generation=3, source="v3")])
    assert former(made)[-1] == "a@2"
    assert made.note_served([("a", 2)]) == (("a", 2),)
    assert (good(made), former(made)) == (("a@2", 2, "v2"), [])
    assert made.note_served([("a", 2)]) == ()
    made.note_served([("a", 3)])
    assert good(made) is None


def test_of_an_adapter_as_many_are_looked_for_as_a_memory_bears():
    """R16 bounded: a trainer publishes what no engine takes."""
    made = serving()
    for generation in range(2, MAX_FORMER_EACH + 5):
        made.apply(10 + generation, [put("a", 10 + generation, generation=generation)])
    assert former(made) == [f"a@{one}" for one in range(4, MAX_FORMER_EACH + 4)]
    names = [f"n{number}" for number in range(MAX_FORMER + 1)]
    made = informer(*(kv(name, 1) for name in names))
    for name in names:
        made.apply(11, [put(name, 11, generation=2)])
    for event in ([], [put("n1", 12, generation=3)]):
        made.apply(12, event)
        assert [name for name in names if not former(made, name)] == ["n0"], "each of very many may be replaced"


@pytest.mark.parametrize("created", [1, 15, None])
def test_it_goes_with_the_record(created):
    """R6 unload-eventual: the name may be another's when it comes back; a list shows that too."""
    made = serving()
    made.apply(11, [put("a", 11, generation=2)])
    if created:
        assert made.replace(20, [replace(kv("a", 16, generation=4), create_revision=created)]) == ["a"]
    else:
        made.apply(12, [deletion("a", 12)])
        made.apply(13, [put("a", 13, generation=3)])
        assert made.memory.keys == frozenset()
    assert (good(made) is None) is (created != 1)
    assert former(made) == (["a@2"] if created == 1 else []), "nor may files of the one before be found in the engine"
    assert made.note_served([("a", 2)]) == ((("a", 2),) if created == 1 else ())


@pytest.mark.parametrize(("at", "created"), [(16, 15), (9, 8)], ids=["made anew", "of another store"])
def test_an_unreadable_record_of_another_life_keeps_nothing_of_the_one_before(at, created):
    """R14 keeps the last readable record of one life; the name may be another's now, whether or not that was seen."""
    made = serving()
    made.apply(11, [put("a", 11, generation=2)])
    made.replace(20, [replace(kv("a", at, b"{"), create_revision=created)])
    assert (list(made.state.adapters), list(made.state.refused), made.state.order) == ([], ["a"], ())
    assert made.raw["a"].good is None


@pytest.mark.parametrize("by_list", [True, False])
def test_a_generation_that_has_other_weights_now_was_not_served(by_list):
    """R13, R4: a restored store uses numbers again. What it says under one was never served, so once another is
    refused it is not the last good one; what is served from then on is.
    """
    made = serving()
    again = replace(kv("a", 21, generation=1, source="other"), create_revision=1)
    made.replace(22, [again]) if by_list else made.apply(21, [put("a", 21, generation=1, source="other")])
    assert made.memory.keys == frozenset()
    made.apply(23, [put("a", 23, generation=2, source="v2")])
    assert good(made) is None
    made.note_served([("a", 2)])
    made.apply(24, [put("a", 24, generation=3)])
    assert good(made) == ("a@2", 2, "v2")


def test_the_generation_of_those_who_are_no_canaries_counts_as_one_that_was_served():
    """It is in the same record: once that is promoted, it tells what was served before."""
    made = informer(rolling("a", 1))
    made.note_served([("a", 1)])
    assert made.note_served([("a", 1)]) == ()
    promoted = record("a", 2, source="v2")
    made.apply(11, [put("a", 11, promoted.to_bytes())])
    assert good(made) == ("a@1", 1, "v1")


def test_a_canary_falls_back_to_the_others_generation_and_they_to_none_that_is_newer():
    made = informer(kv("a", 1))
    made.note_served([("a", 1)])
    made.apply(11, [put("a", 11, rolling("a", 11).value)])
    canary = made.state.adapters["a"]
    [of_others] = canary.fallbacks
    assert (of_others.key, of_others.generation) == ("a@1", 1)
    assert not replace(canary, generation=1, ref=of_others.ref).fallbacks, "it is what these are to serve"
    made.note_served([("a", 2)])
    rollout = CanaryRollout(stable_generation=2, stable_spec=record("a", source="v2").spec)
    third = record("a", 3, source="v3").model_copy(update={"rollout": rollout})
    made.apply(12, [put("a", 12, third.to_bytes())])
    assert [one.generation for one in made.state.adapters["a"].fallbacks] == [2]
    assert not replace(made.state.adapters["a"], generation=2).fallbacks


def test_a_canary_after_a_canary_falls_back_to_the_others_generation_and_then_to_the_one_between():
    """R13: its engine answers with that until a restart, though nobody promoted it."""
    made = informer(rolling("a", 1))
    made.note_served([("a", 2)])
    rollout = CanaryRollout(stable_generation=1, stable_spec=record("a", source="v1").spec)
    third = record("a", 3, source="v3").model_copy(update={"rollout": rollout})
    made.apply(12, [put("a", 12, third.to_bytes())])
    canary = made.state.adapters["a"]
    assert [one.key for one in canary.fallbacks] == ["a@1", "a@2"]
    found = [canary.under(key) for key in ("a", "a@1", "a@2", "a@4")]
    assert found == [canary, *canary.fallbacks, None]
    keeping = replace(canary, generation=5, kept=((4, canary.ref),))
    assert keeping.under("a@4") == keeping.beside[0]


def test_what_is_placed_on_others_is_forgotten():
    """They may serve several generations before it comes back."""
    made = serving(placement=placed_at(1))
    made.apply(11, [put("a", 11, generation=2, placement=placed_at(1))])
    assert made.note_served([("a", 0), ("b", 0)]) == (("a", 0),)
    assert good(made) is None


def test_what_others_serve_counts_where_this_replica_served_nothing_and_their_record_tells():
    """R12: whatever stands in a file."""
    others = GoodRecord(kv("a", 1).value, 1, 1)
    made = informer(kv("a", 1, generation=2))
    made.adopt("a", others)
    assert good(made) == ("a@1", 1, "v1")
    made.adopt("a", GoodRecord(b"?", 1, 1))
    assert good(made) == ("a@1", 1, "v1")
    served = serving(2)
    served.adopt("a", others)
    assert good(served) is None
    for wrong in (GoodRecord(b"?", 1, 1), replace(others, generation=7)):
        made = informer(kv("a", 1, generation=9))
        made.adopt("a", wrong)
        assert good(made) is None


async def test_whatever_a_kill_leaves_of_the_journal_tells_what_was_so_then(tmp_path):
    """R12 crash-only, R13: the file may end anywhere, and each boot goes on from what it found."""
    folder = tmp_path / "state"
    scene = Scene(folder)
    await scene.listed(50, kv("a", 1))
    scene.cache.note_served([("a", 1)])
    await scene.watcher._take_events(51, (put("a", 51, generation=2, source="v2"),))
    assert scene.mailbox.snapshot.desired is not None
    assert scene.mailbox.snapshot.desired.adapters["a"].last_good is not None
    scene.cache.note_served([("a", 2)])
    assert scene.mailbox.snapshot.desired.adapters["a"].last_good is None, "a plan has to be made of it"
    await scene.watcher._take_events(52, (put("a", 52, generation=3, source="v3"),))
    scene.journal.close()
    lines = journal(folder).read_bytes().splitlines(keepends=True)
    ends = [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]
    found = [await booted(folder, tmp_path / f"{size}", size) for end in ends for size in (end, end + 9)]
    assert sorted(set(found), key=found.index) == [(1, None), (2, 1), (2, None), (3, 2)]


def journal(folder: Path) -> Path:
    return max(folder.glob("journal-*"))


async def booted(folder: Path, copy: Path, size: int) -> tuple[int, int | None]:
    """The generation that a boot follows whose journal ends after so many bytes, and the last good one."""
    shutil.copytree(folder, copy)
    journal(copy).write_bytes(journal(copy).read_bytes()[:size])
    scene = Scene(copy)
    scene.cache.restore()
    await scene.cache.rewrite()  # as a boot does after damage
    scene.journal.close()
    adapter = taken_up(copy).watcher._informer.state.adapters["a"]
    return adapter.generation, None if adapter.last_good is None else adapter.last_good.generation


async def test_what_others_serve_outlives_a_restart(tmp_path):
    scene = Scene(tmp_path / "state")
    await scene.listed(50, kv("a", 1, generation=2, placement=placed_at(1)))
    scene.cache.adopt("a", GoodRecord(kv("a", 1).value, 1, 1))
    assert scene.cache.placed == {"a"}
    scene.journal.close()
    assert good(taken_up(tmp_path / "state").watcher._informer) == ("a@1", 1, "v1")
