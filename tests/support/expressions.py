"""Every PromQL expression that we ship, and whether series of a real scrape answer it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.dashboards.__main__ import FOLDER
from tests.support.promql import Selector, selectors

COMPOSE = Path(__file__).parents[2] / "compose"
_LABEL = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True)
class Asked:
    """An expression, where it stands, and the labels by which its lines are named."""

    place: str
    expr: str
    shown: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scraped:
    """Series of a scrape.

    Attributes:
        series: labels of each series by the name that it is asked by.
        declared: label names of families that no series has yet, by the same names.
    """

    series: Mapping[str, list[Mapping[str, str]]]
    declared: Mapping[str, frozenset[str]]

    def lacks(self, asked: Asked) -> list[str]:
        """Sentences on what of an expression nothing answers."""
        found = selectors(asked.expr)
        told = [f"{asked.place}: nothing is called {one.name}" for one in found if not self._knows(one.name)]
        if told:
            return told
        return [f"{asked.place}: no series fits {one}" for one in found if not self._answers(one, asked.shown)]

    def _knows(self, name: str) -> bool:
        return name in self.series or name in self.declared

    def _answers(self, selector: Selector, shown: frozenset[str]) -> bool:
        """Labels that lines are named by are those that are summed by, or the series' own."""
        if selector.by and not (selector.is_compared or shown <= selector.by):
            return False
        wanted = selector.by or shown
        if selector.name in self.series:
            return any(selector.is_answered_by(one) and wanted <= one.keys() for one in self.series[selector.name])
        labels = self.declared[selector.name]
        return {one.name for one in selector.matchers} | wanted <= labels


def panels(board: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Panels of a dashboard that ask something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def asked() -> list[Asked]:
    """Those of alerts and dashboards."""
    return [*_of_alerts(), *(one for path in sorted(FOLDER.glob("*.json")) for one in _of_dashboard(path))]


def _of_alerts() -> Iterator[Asked]:
    rules = yaml.safe_load((COMPOSE / "prometheus/alerts.yml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        named = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        yield Asked(f"alert {rule['alert']}", rule["expr"], frozenset(named))


def _of_dashboard(path: Path) -> Iterator[Asked]:
    board = json.loads(path.read_text())
    for panel in panels(board):
        for target in panel["targets"]:
            named = frozenset(_LABEL.findall(target.get("legendFormat", "")))
            yield Asked(f"{path.stem}, {panel['title']}", target["expr"], named)
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            yield Asked(f"variable {path.stem}.{variable['name']}", series, frozenset({label}))


def names_of(name: str, kind: str) -> Iterable[str]:
    """Names of the series of a family, as a text of metrics has them."""
    match kind:
        case "histogram":
            return (f"{name}_bucket", f"{name}_count", f"{name}_sum")
        case "counter":
            return (f"{name}_total",)
        case _:
            return (name,)


def read(text: str, **target: str) -> dict[str, list[Mapping[str, str]]]:
    """Series of one page of metrics, with the labels that Prometheus adds to each of a target's."""
    found: dict[str, list[Mapping[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels | target)
    return found
