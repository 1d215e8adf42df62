"""Names that are ours in an engine, whatever somebody puts under them."""

from __future__ import annotations

import pytest

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


ANEW = observed(incarnation="e2"), [], everything


@pytest.mark.parametrize(
    ("notes", "is_taken"),
    [
        pytest.param([(observed(), [], everything), (observed({"a": THEIRS}), ["a"], everything)], True, id="desired"),
        pytest.param([(observed({"a": THEIRS}), [], nothing)], False, id="desired no more"),
        pytest.param([(observed({"a": "v1"}), ["a"], everything), (observed(), [], everything)], False, id="unloaded"),
        pytest.param([(observed({"a": THEIRS}, incarnation="e2"), [], everything)], False, id="of a new process"),
        pytest.param([ANEW], False, id="not in a new process"),
    ],
)
def test_it_stays_ours_while_it_is_desired_and_is_anybodys_once_we_or_its_process_let_go_of_it(notes, is_taken):
    """R11: a lazy adapter that nobody used, or one that others serve now; a new process has nothing from us."""
    names, now = OwnNames(owns), notes[-1][0].facts.incarnation
    names.note(observed({"a": "v1"}), [], everything)
    if now == "e2":
        assert names.taken(observed({"a": THEIRS}, incarnation="e2")) == frozenset()
    for note in notes:
        names.note(*note)
    assert names.taken(observed({"a": THEIRS}, incarnation=now)) == ({"a"} if is_taken else frozenset())


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
