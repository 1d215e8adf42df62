"""Memory that a large list needed for a moment only."""

from __future__ import annotations

import os

from bench.usage import rss_bytes
from sidecar.memory import give_back

PIECES, PIECE_BYTES = 100_000, 640


def test_what_a_list_was_made_of_goes_back_to_the_system():
    """Guarantee R16: every hundredth piece stays, as records stay, so the heap's end cannot simply move back."""
    pieces = [bytes(PIECE_BYTES) for _ in range(PIECES)]
    kept = pieces[::100]
    del pieces
    before = rss_bytes(os.getpid())
    give_back()
    assert len(kept) == PIECES // 100
    assert before - rss_bytes(os.getpid()) > PIECES * PIECE_BYTES // 2
