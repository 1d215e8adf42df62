"""``python -m bench.plots FOLDER``: draws the figures of docs/performance.md from its results.json.

Runs in ``.venv-plots``, which has matplotlib and nothing of ours. The same points make the same file, byte for byte,
and each file says of which points it was made.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any


def digest_of(result: dict[str, Any]) -> str:
    """Digest of all that a figure shows."""
    shown = {name: result[name] for name in ("title", "across", "points")}
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def draw(result: dict[str, Any], target: Path) -> None:
    """One figure; both axes are logarithmic, since sizes are."""
    import matplotlib as mpl  # noqa: PLC0415 - here alone, so that the digest can be had without
    from matplotlib import pyplot as plt  # noqa: PLC0415

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "loraplane", "svg.fonttype": "none", "font.size": 10})
    figure, panel = plt.subplots(figsize=(7, 4), layout="constrained")
    for line in dict.fromkeys(one["line"] for one in result["points"]):
        found = [(one["x"], one["value"]) for one in result["points"] if one["line"] == line]
        panel.plot(*zip(*found, strict=True), marker="o", label=line)
        for x, value in found:
            panel.annotate(f"{value:.2g}", (x, value), textcoords="offset points", xytext=(0, 6), ha="center")
    panel.set(xscale="log", yscale="log", xlabel=result["across"], ylabel="ms of processor time", title=result["title"])
    low, high = panel.get_ylim()
    panel.set_ylim(low / 2, high * 2)
    panel.margins(x=0.1)
    panel.grid(visible=True, alpha=0.3)
    panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(target, format="svg", metadata={"Date": None, "Description": digest_of(result)})
    plt.close(figure)


def main() -> None:
    """Draws all of them."""
    folder = Path(sys.argv[1])
    for name, result in json.loads((folder / "results.json").read_text()).items():
        draw(result, folder / f"{name}.svg")


if __name__ == "__main__":
    main()
