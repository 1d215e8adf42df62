"""Gives memory back to the system after a large list was taken in."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Returns the pages that the C library keeps free for later; does nothing where it has no such call.

    A list is large for a moment only, and what replaces it here is smaller: without this the difference stays with
    the process until its end.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
