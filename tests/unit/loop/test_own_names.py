"""Names that are ours in an engine, whatever somebody puts under them."""

from __future__ import annotations

from sidecar.loop.observer import OwnNames, ServedGenerations
from tests.support.worlds import observed, owns, path_of

THEIRS = "/elsewhere/a"


def everything(_: str) -> bool:
    return True


def nothing(_: str) -> bool:
    return False


def test_a_name_that_was_ours_and_has_other_files_was_taken():
    """R4 digest-true, R11 foreign-safe."""
    names = OwnNames(owns)
    assert names.taken(observed({"a": THEIRS})) == frozenset()  # as far as is known it was always theirs
    names.note(observed({"a": "v1", "x": "/elsewhere/x"}), [], everything)
    assert names.taken(observed({"a": "v2", "x": "/elsewhere/x"})) == frozenset()
    assert names.taken(observed({"a": THEIRS, "x": "/elsewhere/y"})) == {"a"}


def test_it_stays_ours_while_it_is_desired_also_where_a_look_did_not_show_it():
    """Somebody unloads it, and loads other files later; when we unload those, it is ours still."""
    names = OwnNames(owns)
    names.note(observed({"a": "v1"}), [], everything)
    names.note(observed(), [], everything)
    names.note(observed({"a": THEIRS}), ["a"], everything)
    assert names.taken(observed({"a": THEIRS})) == {"a"}
    names.note(observed({"a": THEIRS}), [], nothing)
    assert names.taken(observed({"a": THEIRS})) == frozenset()


def test_what_we_unloaded_ourselves_is_anybodys():
    """R11 foreign-safe: a lazy adapter that nobody used, or one that others serve now."""
    names = OwnNames(owns)
    names.note(observed({"a": "v1"}), ["a"], everything)
    names.note(observed(), [], everything)
    assert names.taken(observed({"a": THEIRS})) == frozenset()


def test_a_new_process_of_the_engine_has_nothing_from_us():
    names = OwnNames(owns)
    names.note(observed({"a": "v1"}), [], everything)
    assert names.taken(observed({"a": THEIRS}, incarnation="e2")) == frozenset()
    names.note(observed({"a": THEIRS}, incarnation="e2"), [], everything)
    assert names.taken(observed({"a": THEIRS}, incarnation="e2")) == frozenset()


def test_what_another_process_had_from_us_and_has_not_is_nobodys_in_this_one():
    """R11 foreign-safe: also where it is desired still."""
    names = OwnNames(owns)
    names.note(observed({"a": "v1"}), [], everything)
    names.note(observed(incarnation="e2"), [], everything)
    assert names.taken(observed({"a": THEIRS}, incarnation="e2")) == frozenset()


def test_what_was_served_as_desired_is_known_by_its_files_while_the_engine_lists_them():
    """R9 status-truth: so that a status can say which generation answers while the newest one cannot be had."""
    seen = ServedGenerations()
    assert seen.by_use == {}
    seen.note(observed({"a": "v1", "b": "v1"}), [("a", 3), ("b", 1), ("gone", 7)])
    assert seen.by_use == {("a", path_of("v1")): 3, ("b", path_of("v1")): 1}
    seen.note(observed({"a": "v1", "b": "v2"}), [])
    assert seen.by_use == {("a", path_of("v1")): 3}
    seen.note(observed({"a": "v1"}), [("a", 4)])
    assert seen.by_use == {("a", path_of("v1")): 4}
    seen.note(observed(), [("a", 4)])
    assert seen.by_use == {}
