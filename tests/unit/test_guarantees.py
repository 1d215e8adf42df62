"""The document of guarantees and the tests that check them belong together."""

from __future__ import annotations

from tests.support.guarantees import PAGE, cited, page, promised


def test_every_guarantee_that_a_test_names_is_promised():
    assert cited().keys() <= promised().keys()


def test_every_guarantee_that_is_promised_is_checked_by_a_test():
    assert len(promised()) == 36
    assert promised().keys() <= cited().keys()


def test_the_page_names_the_tests_that_check_each_guarantee():
    """Fails when a test was added, moved or removed: make docs."""
    assert PAGE.read_text() == page()
