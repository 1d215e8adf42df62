"""Dashboards as files: current, whole, and in PromQL that Prometheus reads."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.support.dashboards.__main__ import FOLDER, PAGES, files
from tests.support.expressions import COMPOSE, asked, panels
from tests.support.promql import selectors, unmatched

BOARDS = {name: json.loads(text) for name, text in files().items()}
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def test_the_files_are_as_the_code_makes_them():
    """Fails when a panel was added or moved: make docs."""
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == files()
    assert [*files()] == ["fleet.json", "adapter.json", "sidecar.json", "etcd.json"]


@each_board
def test_whoever_imports_a_dashboard_chooses_its_data_source(board):
    first, *others = board["templating"]["list"]
    assert (first["type"], first["query"], first["name"]) == ("datasource", "prometheus", "datasource")
    source = {"type": "prometheus", "uid": "${datasource}"}
    asking = [part for panel in panels(board) for part in (panel, *panel["targets"])] + others
    assert [part for part in asking if part["datasource"] != source] == []


@each_board
def test_panels_have_ids_of_their_own_and_do_not_overlap(board):
    ids = [panel["id"] for panel in board["panels"]]
    assert ids == [*range(1, len(ids) + 1)]
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24
                assert taken.setdefault((x, y), panel["title"]) == panel["title"], (panel["title"], x, y)


def test_no_query_of_a_panel_is_left_out():
    plots = [plot for page in PAGES for section in page.sections for plot in section.plots]
    written = {
        (panel["title"], len(panel["targets"]))
        for board in BOARDS.values()
        for panel in panels(board)
        if panel["type"] != "stat"
    }
    assert {(plot.title, len(plot.queries)) for plot in plots} == written


def test_a_selector_has_its_name_its_conditions_and_what_it_is_summed_by():
    expr = (
        'sum by (pool) (rate(a_total{x="1",y!="2",z=~"p|q",w!~"r.*"}[$__rate_interval])) / scalar(max(b{n=~"$name"}))'
    )
    one, other = selectors(expr + " unless -(c offset 5m) > 3")[:2]
    assert (one.name, one.by, other.name, other.by) == ("a_total", {"pool"}, "b", frozenset())
    assert one.is_answered_by({"x": "1", "y": "2", "z": "q", "w": "rs"})
    wrong = ({"x": "1", "y": "", "z": "qq", "w": ""}, {"y": "", "z": "q", "w": ""}, {"x": "1", "z": "q", "w": ""})
    assert [labels for labels in wrong if one.is_answered_by(labels)] == []
    assert other.is_answered_by({"n": "whatever"})
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        selectors("sum(a")


def test_expressions_are_found_in_alerts_dashboards_and_variables():
    found = asked()
    alerts = yaml.safe_load((COMPOSE / "prometheus/alerts.yml").read_text())
    count = sum(len(group["rules"]) for group in alerts["groups"])
    assert sum(one.place.startswith("alert ") for one in found) == count > 20
    assert sum(one.place.startswith("variable ") for one in found) == 2
    assert len(found) > 100
    assert all(selectors(one.expr) for one in found if one.expr != "vector(0)")


def test_of_every_operation_something_can_come():
    """Prometheus leaves out what has no partner with the same labels, and shows nothing at all."""
    lonely = ("max(a) - min by (i) (a)", "2 * (a / sum by (i) (b)) > 1", "sum(max by (i) (a) < min by (j) (a))")
    assert [len(unmatched(one)) for one in lonely] == [1, 1, 1]
    fine = (
        "scalar(max(a)) - a",
        "sum(a) / sum(b)",
        "a / on (i) group_left sum by (i) (b)",
        "count(a) or vector(0)",
        "-(a - 1)",
    )
    assert [unmatched(one) for one in fine] == [[]] * len(fine)
    assert {one.place: unmatched(one.expr) for one in asked() if unmatched(one.expr)} == {}


def test_no_alert_puts_fleets_together():
    """Each is a namespace of its own, and whoever is woken has to know which it is."""
    alerts = yaml.safe_load((COMPOSE / "prometheus/alerts.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    kept = [(rule["alert"], by) for rule in rules for by in re.findall(r"\bby \(([^)]*)\)", rule["expr"])]
    assert len(kept) > 3
    assert [one for one in kept if "namespace" not in one[1].split(", ")] == []
