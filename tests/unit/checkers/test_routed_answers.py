"""Verdicts on what came by routers: what was right when, and who is excused."""

from __future__ import annotations

from typing import Any

from tests.support.routed_answers import Answer, Outage, Timeline, judge


def answer(began: float, ended: float, text: str = "", **more: Any) -> Answer:
    return Answer("r", "sql", began, ended, text, **more)


def timeline() -> Timeline:
    """Version one until 10; one or two until 12; two from then on."""
    found = Timeline()
    found.note(0, "sql", "one")
    found.note(10, "sql", "one", "two")
    found.note(12, "sql", "two")
    return found


def test_what_was_right_at_any_moment_of_a_request_is_right():
    """R5 no-silent-base: the base's answer, a version that is no more, and one that is not there yet are wrong."""
    right = [answer(1, 2, "one"), answer(9, 11, "two"), answer(11, 13, "one"), answer(13, 14, "two")]
    wrong = [answer(1, 2, "base"), answer(1, 2, "two"), answer(13, 14, "one"), answer(11, 13, "")]
    found = judge(timeline(), [*right, *wrong])
    assert (found.wrong, found.failed, found.asked) == (tuple(wrong), (), 8)


def test_only_who_asked_for_what_a_killed_replica_alone_served_is_excused():
    told = timeline()
    told.outages.append(Outage("sql", 20, 25))
    excused = [answer(19, 20, error="503"), answer(24, 30, error="503", tries=3)]
    failed = [answer(25.5, 26, error="503"), Answer("r", "law", 21, 22, error="503")]
    found = judge(told, [*excused, *failed, answer(21, 22, "two", tries=2, before="reset")])
    assert (found.excused, found.failed, found.wrong, found.repeated) == (2, tuple(failed), (), 2)
    told.note(0, "law", "one")
    told.outages.append(Outage("law", 20, 25, router="polls"))
    assert judge(told, [Answer("polls", "law", 21, 22, error="503"), *failed]).failed == tuple(failed)
    assert found.kinds == {"sql: 503": 3, "law: 503": 1, "sql: reset": 1}
    assert str(found).startswith("5 requests, 2 repeated, 0 wrong, 2 failed, 2 while their only replica was dead")
