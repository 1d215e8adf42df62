"""Deliberate bugs: each is a patch in ``tests/mutants``, and some test has to fail with it."""
