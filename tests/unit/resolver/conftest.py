"""What tests of the resolver begin with."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.unit.resolver.test_resolver import Refusing, Scene


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a path that a socket's can begin with."""
    made = Path(tempfile.mkdtemp(prefix="lp-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """One whose resolver runs."""
    async with Scene().open() as scene:
        yield scene


@pytest.fixture
async def refusing() -> AsyncIterator[Refusing]:
    """One whose resolver runs."""
    async with (one := Refusing()).open():
        yield one
