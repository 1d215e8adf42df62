"""Each rule of the replay checker fails on a history in which nothing else is wrong than what it forbids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from registry.model.status import Failed
from registry.tools import verify
from registry.tools.verify.history import Violation
from registry.tools.verify.replay import LoggedCall, check_calls
from registry.tools.verify.replicas import check_listings, check_log
from tests.unit.verify.story import Story, served
from tests.unit.verify.test_files import swapped
from tests.unit.verify.test_held_against import KEY, busy, look, of_two, plan, simple, unload
from tests.unit.verify.test_truth import of_two as told_of_two
from tests.unit.verify.written import TWO, Written, adapter


def called(**fields: object) -> list[Violation]:
    call = {"request_id": "q3", "outcome": "ok", "revision": 3} | fields
    return check_calls(simple(), [LoggedCall(**call)])[0]  # type: ignore[arg-type]


def changed(*left_out: str, **more: object) -> list[Violation]:
    """A second generation, without some part of its change or with another."""
    history = Written()
    history.write(history.whole(None, adapter()))
    whole = history.whole(adapter(), adapter(generation=2, spec=TWO))
    history.write({key: value for key, value in whole.items() if not key.startswith(left_out)} | more)
    return history.fold().findings


def asked_twice() -> list[Violation]:
    twice = [LoggedCall(request_id="x", outcome="ok", revision=at, changed=False) for at in (2, 3)]
    return check_calls(simple(), twice)[0]


def logged(*lines: dict[str, object]) -> list[Violation]:
    return check_log(simple(), "p", "r1.log", lines)


def listed(*looks: object) -> list[Violation]:
    return check_listings(of_two().fold(), "p", looks)  # type: ignore[arg-type]


def put_off() -> list[Violation]:
    story = Story()
    at = "2026-01-02T00:00:00.000Z"
    story.say(1, failed=[Failed(name="a", generation=1, reason="x", message="", attempts=9, retry_at=at)])
    return story.found()


def made_up() -> list[Violation]:
    story, at = told_of_two()
    story.look(whole=True, a="1")
    story.say(at, served=served(("a", 1, "1"), ("b", 1, "2")))
    return story.found()


def of_nobody() -> list[Violation]:
    history = Written()
    history.write({"status/p/r1": {}})
    return history.fold().findings


WRONG: dict[str, Callable[[], Iterable[Violation]]] = {
    "W1": lambda: called(request_id="x"),
    "W2": lambda: changed("history/"),
    "W3": asked_twice,
    "W4": lambda: called(etags={KEY: 1}),
    "W5": lambda: changed(**{"tenants/acme": {"adapters": 7}}),
    "W6": lambda: changed(**{"adapters/p/acme%2Fa": adapter(generation=5, spec=TWO)}),
    "W7": lambda: changed("audit/"),
    "W8": lambda: called(outcome="refused"),
    "W9": lambda: called(validate_only=True),
    "R1": lambda: logged(plan(3), plan(2)),
    "R2": lambda: logged(plan(2, 0)),
    "R3": lambda: listed(look(2)),
    "R4": lambda: listed(busy(3, acme_a="1", b="1")),
    "R5": lambda: listed(busy(3, BASE="9")),
    "R6": lambda: listed(look(4, acme_a="1", b="2")),
    "R7": lambda: swapped(20.0).found(),
    "R8": put_off,
    "R9": made_up,
    "R10": of_nobody,
    "R11": lambda: logged(plan(3), unload("theirs")),
}


@pytest.mark.parametrize("guarantee", WRONG)
def test_what_a_rule_forbids_is_found(guarantee):
    """W1 to W9, R1 to R11: what a checker does not find, no run of it can show."""
    assert guarantee in {one.guarantee for one in WRONG[guarantee]()}


def test_there_is_no_rule_without_its_history():
    sources = (file.read_text() for file in Path(verify.__file__).parent.glob("*.py"))
    named = {name for text in sources for name in re.findall(r'"([WR]\d+)"', text)}
    assert named == WRONG.keys()
