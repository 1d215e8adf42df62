"""The document of guarantees and the tests that it names belong together."""

from __future__ import annotations

from tests.support.guarantees import cited, listed, promised


def test_every_guarantee_that_a_test_names_is_promised():
    assert cited().keys() <= promised().keys()


def test_every_test_that_the_document_names_checks_that_guarantee():
    """Fails when a test was moved or removed: write the list anew with python -m tests.support.guarantees."""
    tests = cited()
    stale = {number: paths - tests[number] for number, paths in listed().items()}
    assert {number: paths for number, paths in stale.items() if paths} == {}


def test_the_document_names_tests_for_what_it_promises():
    assert len(promised()) == 26
    assert listed().keys() == promised().keys()
