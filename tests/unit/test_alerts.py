"""Alerts and the page that says what to do about them name each other."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def alerts() -> set[str]:
    rules = yaml.safe_load((ROOT / "compose" / "prometheus" / "alerts.yml").read_text())
    return {rule["alert"] for group in rules["groups"] for rule in group["rules"]}


def told() -> set[str]:
    """Names in brackets in docs/operations.md."""
    page = (ROOT / "docs" / "operations.md").read_text()
    lists = re.findall(r"\[((?:[A-Z]\w+)(?:[ ,\n][^\]]*)?)\](?!\()", page)
    return {name for one in lists for name in re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]*)+\b", one)}


def test_each_alert_is_in_the_operations_page_and_the_other_way_round():
    """Whoever is woken by an alert finds what to do."""
    assert alerts() == told()
