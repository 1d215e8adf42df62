"""How often the reconciler may look again: at once as a rule, seldom while changes come in a flood. Pure.

Each round takes whatever is newest, so that under a flood fewer rounds lose nothing and leave time to take it in.
"""

from __future__ import annotations

from collections import deque

# So many rounds in so long are a flood; from then on each waits a little.
FLOOD_ROUNDS = 50
FLOOD_SECONDS = 0.5
REST_SECONDS = 0.02


class Rounds:
    """Remembers when the latest rounds were."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=FLOOD_ROUNDS)

    def rest_seconds(self, now: float) -> float:
        """How long to wait before a round that is due now; notes the round."""
        is_flood = len(self._at) == FLOOD_ROUNDS and now - self._at[0] < FLOOD_SECONDS + FLOOD_ROUNDS * REST_SECONDS
        rest = REST_SECONDS if is_flood else 0.0
        self._at.append(now + rest)
        return rest
