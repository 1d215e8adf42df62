"""docs/architectures.md is what the kept results say, and their verdicts are right."""

from __future__ import annotations

import json
import math

import pytest

from tests.architectures.families import FAMILIES
from tests.architectures.page import PAGE, RESULTS, page
from tests.architectures.verdicts import Judged, answer_of, differences, distance, verdict_of

FAR = [[{"token": 1, "logprobs": [-3.0, -9.0]}]]
NEAR = [[{"token": 1, "logprobs": [-1.0, -2.0001]}]]
BASE = [[{"token": 1, "logprobs": [-1.0, -2.0]}]]


def test_the_page_is_current():
    """Fails when a result changed: make architectures."""
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text()))


def test_a_page_of_what_was_just_found_is_that_of_what_was_kept():
    cell = Judged("served", (), ("engine does not tell",), "right").as_dict()
    found = {"a": {"architecture": "A", "engine": "e", "kinds": {"mlp": cell}}}
    assert "- a: the engine does not tell" in page(found)
    assert page(found) == page(json.loads(json.dumps(found)))


def test_no_adapter_is_accepted_that_the_engine_does_not_serve_rightly():
    """R22 applied-whole: the whole matrix, as it was last run."""
    results = json.loads(RESULTS.read_text())
    cells = [(name, kind, cell) for name, row in results.items() for kind, cell in row.get("kinds", {}).items()]
    assert [one for one in cells if one[2]["verdict"] in {"SILENT", "LOUD"}] == []
    assert results.keys() <= {one.name for one in FAMILIES}


@pytest.mark.parametrize(
    ("told", "wanted", "answer"),
    [
        (None, FAR, "unknown"),
        ({"refused": "no"}, FAR, "refused"),
        ({"answers": BASE}, FAR, "as the base"),
        ({"answers": FAR}, FAR, "right"),
        ({"answers": NEAR}, FAR, "wrong"),
        ({"answers": NEAR}, NEAR, "unknown"),
    ],
)
def test_an_answer_is_right_only_if_it_is_told_from_the_base(told, wanted, answer):
    assert answer_of(told, BASE, wanted, BASE) == answer


def test_a_base_that_differs_leaves_only_what_has_no_effect():
    assert answer_of({"answers": NEAR}, FAR, FAR, BASE) == "unknown"
    assert answer_of({"answers": FAR}, FAR, NEAR, BASE) == "as the base"


@pytest.mark.parametrize(
    ("is_accepted", "raw", "prepared", "verdict"),
    [
        (True, "right", None, "served"),
        (True, "refused", "right", "prepared"),
        (True, "right", "wrong", "SILENT"),
        (True, "as the base", None, "SILENT"),
        (True, "refused", None, "LOUD"),
        (True, "unknown", None, "unknown"),
        (False, "wrong", None, "refused"),
        (False, "right", None, "refused, though right"),
    ],
)
def test_a_verdict_is_of_what_the_engine_would_be_given(is_accepted, raw, prepared, verdict):
    assert verdict_of(is_accepted, raw, prepared) == verdict


def test_answers_are_compared_as_long_as_they_go_on_alike():
    other = [[{"token": 2, "logprobs": [-1.0, -2.5]}, {"token": 1, "logprobs": [-9.0, -9.0]}]]
    assert distance(other, [[*BASE[0], *BASE[0]]]) == 0.5
    assert distance([[{"token": 1, "logprobs": [math.nan, -2.0]}]], BASE) == math.inf


def test_what_became_otherwise_is_told():
    cell = Judged("served", (), (), "right").as_dict()
    old, new = {"a": {"kinds": {"k": cell}}}, {"a": {"kinds": {"k": cell | {"verdict": "LOUD"}}}, "b": {}}
    assert differences(old, new) == ["a, k: served -> LOUD"]
    assert differences(old, {}) == ["a, k: served -> not run"]
