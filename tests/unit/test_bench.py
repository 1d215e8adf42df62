"""What is measured where parts are lacking."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import report
from bench.__main__ import main
from bench.growth import CURVES
from bench.plots import digest_of
from registry.tools.devstack.engine_environment import VARIABLE


def test_what_takes_the_engines_environment_is_left_out_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a fresh clone `make bench` ends with 0, and says what it could not measure and how to get that."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "python"))
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "swap", "--only", "lazy"])
    assert main() == 0
    said = capsys.readouterr()
    assert said.out == "bench: swap left out, lazy left out\n"
    assert [line.partition(": left out: ")[0] for line in said.err.splitlines()] == ["swap", "lazy"]
    assert said.err.count("make engine") == 2


def test_the_page_on_growth_says_what_was_measured_and_each_figure_is_of_the_same_points() -> None:
    """Fails when results, page and figures are not of one run: make bench-report."""
    results = report.read()
    assert report.PAGE.read_text() == report.page(results)
    assert [*results] == [curve.name for curve in CURVES]
    for curve in CURVES:
        points = results[curve.name]["points"]
        assert {(one["line"], one["x"]) for one in points} == {(line, x) for line in curve.lines for x in curve.sizes}
        assert digest_of(results[curve.name]) in (report.RESULTS.parent / f"{curve.name}.svg").read_text()


def test_a_figure_is_measured_again_and_the_others_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "performance/results.json")
    monkeypatch.setattr(report, "PAGE", tmp_path / "performance.md")
    small = [curve.__class__(**{**_fields(curve), "sizes": (3,)}) for curve in CURVES]
    monkeypatch.setattr(report, "CURVES", small)
    monkeypatch.setattr(sys, "argv", ["report"])
    report.main()
    first = json.loads(report.RESULTS.read_text())
    monkeypatch.setattr(sys, "argv", ["report", "--only", "replicas"])
    report.main()
    again = json.loads(report.RESULTS.read_text())
    assert again["records"] == first["records"]
    assert again["replicas"] != first["replicas"]
    assert all(one["value"] > 0 for result in again.values() for one in result["points"])
    assert "make bench-report ONLY=records" in report.PAGE.read_text()


def _fields(curve: object) -> dict[str, object]:
    return {name: getattr(curve, name) for name in ("name", "title", "told", "across", "sizes", "lines", "measure")}
