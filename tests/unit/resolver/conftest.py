"""What tests of the resolver begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.resolver.test_resolver import Refusing, Scene


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
