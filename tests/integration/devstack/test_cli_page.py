"""docs/cli.md shows what the commands print on a stack."""

from __future__ import annotations

import pytest

from tests.support import cli_page
from tests.support.cli_examples import play

pytestmark = pytest.mark.timeout(1500)  # fifty commands, and a stack


def test_the_page_shows_what_the_commands_print():
    assert cli_page.PAGE.read_text() == cli_page.page(play()), "run: make docs"
