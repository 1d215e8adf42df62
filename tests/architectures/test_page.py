"""docs/architectures.md is what the kept results say, and their verdicts are right."""

from __future__ import annotations

import json
import math
import re

import pytest

from tests.architectures.families import FAMILIES
from tests.architectures.page import PAGE, RESULTS, loaded_wrongly, page
from tests.architectures.verdicts import answer_of, distance, verdict_of

FAR = [[{"token": 1, "logprobs": [-3.0, -9.0]}]]
NEAR = [[{"token": 1, "logprobs": [-1.0, -2.0001]}]]
BASE = [[{"token": 1, "logprobs": [-1.0, -2.0]}]]


def test_the_page_is_current():
    """Fails when a result changed: make architectures."""
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text()))


def test_the_readme_opens_with_these_figures():
    results = json.loads(RESULTS.read_text())
    opening = " ".join((PAGE.parents[1] / "README.md").read_text().partition("\n## ")[0].split())
    wrong, _, ends = loaded_wrongly(results).partition("; ")
    prepared, refused = re.findall(r"\d+", ends)
    run = [row["kinds"] for row in results.values() if "kinds" in row]
    counted = f"Of {sum(map(len, run))} adapters that PEFT makes for {len(run)} models"
    assert f"{counted}, vLLM 0.32.0 loads {wrong}." in opening
    assert f"LoraPlane mends {prepared} of these and refuses {refused}, each with a reason" in opening


def test_no_adapter_is_accepted_that_the_engine_does_not_serve_rightly():
    """R22 applied-whole: the whole matrix, as it was last run."""
    results = json.loads(RESULTS.read_text())
    cells = [(name, kind, cell) for name, row in results.items() for kind, cell in row.get("kinds", {}).items()]
    assert [one for one in cells if one[2]["verdict"] in {"SILENT", "LOUD"}] == []
    assert results.keys() <= {one.name for one in FAMILIES}


def test_an_answer_is_right_only_if_it_is_told_from_the_base():
    told = [None, {"refused": "no"}, {"answers": BASE}, {"answers": FAR}, {"answers": NEAR}]
    found = [answer_of(one, BASE, FAR, BASE) for one in told]
    assert found == ["unknown", "refused", "as the base", "right", "wrong"]
    assert answer_of({"answers": NEAR}, BASE, NEAR, BASE) == "unknown"
    # A base that differs leaves only what has no effect.
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
