"""docs/errors.md is what the code says."""

from __future__ import annotations

from registry.model.errors import Reason
from tests.support.errors_page import MEANING, PAGE, page


def test_the_page_is_current():
    """Fails when a reason, a status or an exit code changed: make docs."""
    assert PAGE.read_text() == page()


def test_every_reason_is_explained():
    assert set(MEANING) == set(Reason)


def test_every_reason_is_used():
    """A reason that nothing raises is a promise without a case."""
    for line in page().splitlines():
        if line.startswith("| `"):
            assert line.split("|")[3].strip(), line
