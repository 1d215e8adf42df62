"""How many examples a property is asked: what a search plays whole, `make test` plays a third of."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

SEARCHES = bool(os.environ.get("LORAPLANE_TEST_SEARCH"))
_SHARE = 3


def share(count: int) -> int:
    """So many where new ones are searched, as `make properties` does; a third of them otherwise, always the same."""
    return count if SEARCHES else -(-count // _SHARE)


def examples(count: int, **more: Any) -> settings:
    """Settings of a property, which may take as long as it does; see `share`."""
    return settings(max_examples=share(count), deadline=None, **more)
