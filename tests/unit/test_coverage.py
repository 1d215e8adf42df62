"""Coverage is asked of the unit tests of the pure rooms; to measure the others would make them twice as slow."""

from __future__ import annotations

import sys

import pytest


def _is_free(config: pytest.Config) -> bool:
    """Nothing looks at each line, unless all tests are to be measured."""
    return sys.gettrace() is None or not config.getoption("--cov-pure")


@pytest.fixture
def is_free(request) -> bool:
    return _is_free(request.config)


def test_what_needs_no_coverage_runs_without_it(request, is_free):
    assert is_free, "a fixture"
    assert _is_free(request.config), "the test itself"
