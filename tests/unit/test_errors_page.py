"""docs/errors.md is what the code says."""

from __future__ import annotations

from registry.model.errors import Reason
from registry.model.replica_reasons import RETRY_RULES, RetryClass
from tests.support.errors_page import AGAIN, MEANING, PAGE, page


def test_the_page_is_current():
    """Fails when a reason, a status or an exit code changed: make docs."""
    assert PAGE.read_text() == page()


def test_every_reason_is_explained():
    assert set(MEANING) == set(Reason) == set(AGAIN)


def test_every_reason_is_used():
    """A reason that nothing raises is a promise without a case."""
    for line in page().splitlines():
        if line.startswith("| `"):
            assert line.split("|")[3].strip(), line


def test_every_reason_says_whether_to_repeat_it_what_it_waits_for_and_which_command_helps():
    """R8: of the admin service in a row of its own, of replicas with those of the same rule."""
    told = [line for line in page().splitlines() if line.startswith("| `")]
    for reason in (*Reason, *RETRY_RULES):
        (row,) = (line.split("|") for line in told if f"`{reason}`" in line.split("|")[1])
        again, waits_for, command = (part.strip() for part in row[-4:-1])
        assert again in {*RetryClass}, row
        assert waits_for, row
        assert command, row
