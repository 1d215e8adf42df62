"""``python -m tests.support.dashboards`` writes the dashboards into the chart; ``make docs`` does."""

from __future__ import annotations

from pathlib import Path

from tests.support.dashboards.fleet import ADAPTER, FLEET
from tests.support.dashboards.grafana import json_of
from tests.support.dashboards.parts import ETCD, SIDECAR

FOLDER = Path(__file__).parents[3] / "deploy/helm/loraplane/files/dashboards"
PAGES = (FLEET, ADAPTER, SIDECAR, ETCD)


def files() -> dict[str, str]:
    """Name to content of each file."""
    return {f"{page.key}.json": json_of(page) for page in PAGES}


def main() -> None:
    """Writes all of them, and nothing else stays."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name, text in files().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
