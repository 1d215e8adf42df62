"""docs/cli.md shows what the commands print on a stack."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import cli_page
from tests.support.cli_examples import normalised, play

pytestmark = pytest.mark.timeout(1500)  # fifty commands, and a stack


@pytest.mark.skipif(not os.environ.get("NIGHTLY"), reason="sessions are played by make sessions")
def test_the_page_shows_what_the_commands_print():
    assert cli_page.PAGE.read_text() == cli_page.page(play()), "run: make docs"


@pytest.mark.parametrize("age", ["0s", "59s", "1m23s", "10m", "2h5m", "3d4h", "2 min ago", "1 h ago", "7 s"])
def test_how_old_something_is_differs_each_time(age):
    """A slow machine plays the commands in more than a minute."""
    assert normalised(f"generation 5, {age}, by\n", Path("/nowhere")) == "generation 5, <age>, by\n"
