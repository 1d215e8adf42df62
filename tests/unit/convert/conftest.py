"""The arithmetic of a publication, on numpy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.played_torch import convert_on_numpy


@pytest.fixture(scope="session")
def numeric() -> SimpleNamespace:
    """The modules ``stored``, ``arithmetic`` and ``converter``, which need torch."""
    return convert_on_numpy()
