"""Fixtures shared by unit tests."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(scope="module", autouse=True)
def _nothing_remembered() -> None:
    """A file runs what it tests, also where another file has had the same answer from a cache already."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("registry.", "sidecar.")):
            for thing in list(vars(module).values()):
                if clear := getattr(thing, "cache_clear", None):
                    clear()
