"""``python -m bench.report``: measures how work grows, keeps the points, and writes docs/performance.md of them.

``--only NAME`` measures one figure again and keeps the others. `bench.plots` draws them, in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

from bench.growth import CURVES, Curve, machine

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, PAGE = DOCS / "performance/results.json", DOCS / "performance.md"
Results = dict[str, dict[str, Any]]


def read() -> Results:
    """By figure what was measured of it last; empty: nothing yet."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def _measure(curve: Curve) -> dict[str, Any]:
    points = [point.as_dict() for size in curve.sizes for point in curve.measure(size)]
    about = machine() | {"python": platform.python_version()}
    return {"points": points, "machine": about, "title": curve.title, "across": curve.across}


def page(results: Results) -> str:
    """The whole page."""
    sections = "".join(_section(curve, results[curve.name]) for curve in CURVES)
    return f"""# Performance: cost as work grows

Made by `make bench-report` of what it measures; `make bench-report ONLY=NAME` measures one figure again.

The parts whose work could grow are called alone, without etcd, network or engine, and their processor time is counted:
what else the machine does changes it little. How long a change takes over real processes, and what is promised in
numbers, each beside its floor, is measured by [`make bench`](../CONTRIBUTING.md#tests).
{sections}"""


def _section(curve: Curve, result: dict[str, Any]) -> str:
    found = {(one["line"], one["x"]): one["value"] for one in result["points"]}
    rows = "\n".join(
        f"| {size:,} | " + " | ".join(f"{_told(found[line, size])} ms" for line in curve.lines) + " |"
        for size in curve.sizes
    )
    about = result["machine"]
    return f"""
## {curve.title}
![{curve.title}](performance/{curve.name}.svg)

{curve.told}

| {" | ".join((curve.across, *curve.lines))} |
|{"---|" * (len(curve.lines) + 1)}
{rows}

`make bench-report ONLY={curve.name}`: on {about["cores"]} cores with {about["memory_gib"]} GiB of memory, at a load
of {about["load"]}, with Python {about["python"]}.
"""


def _told(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    """Measures, keeps, and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("--only", choices=[curve.name for curve in CURVES], help="measure just this")
    asked, results = parser.parse_args(), read()
    for curve in CURVES:
        if asked.only in {None, curve.name}:
            results[curve.name] = _measure(curve)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
