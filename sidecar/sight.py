"""What the sidecar sees of its engine: a look at a time, never older than asked for, and whether the engine turns."""

from __future__ import annotations

import structlog

from sidecar.chance import Chance
from sidecar.engines.driver import Engine, EngineError
from sidecar.observed import Observed
from sidecar.seen import seen_since

_log = structlog.get_logger()
# A look at the engine is at most this old when the next plan is made, so that drift is found.
RESYNC_SECONDS = 15.0
# The same while something is expected to happen inside the engine.
EXPECTING_SECONDS = 0.5


class Sight:
    """Looks at one engine.

    Attributes:
        problem: why it could not be looked at in full; empty: it could.
        hangs: it answers, but generated nothing since a call whose outcome is unknown.
    """

    def __init__(self, engine: Engine, chance: Chance) -> None:
        self._engine = engine
        self._chance = chance
        self._observed: Observed | None = None
        self._observed_at = 0.0
        self._told: Observed | None = None
        self.problem = "the engine was not looked at yet"
        self.hangs = False

    def distrust(self) -> None:
        """Forgets what was seen: it may have changed. The next look is a new one."""
        self._observed = None

    async def look(self, *, has_unsettled: bool, is_expecting: bool = False) -> Observed | None:
        """The engine as the next plan may be made from it; None: it cannot be read in full.

        `has_unsettled`: the outcome of a call is unknown. `is_expecting`: the engine may load something by itself.
        """
        if not has_unsettled:
            self.hangs = False
            return await self.look_at_most_old(EXPECTING_SECONDS if is_expecting else RESYNC_SECONDS)
        # An engine that generates has ended every load before; only a look from after that tells what came of it.
        self.hangs = not await self._engine.turns()
        return await self.look_at_most_old(0.0)

    async def look_at_most_old(self, max_age_seconds: float) -> Observed | None:
        """The engine as it is, or was at most so long ago; None: it cannot be read in full."""
        now = self._chance.monotonic()
        if self._observed is not None and now - self._observed_at < max_age_seconds:
            return self._observed
        self._observed = None
        try:
            observed = await self._engine.observe()
        except EngineError as error:
            if self.problem != str(error):
                _log.warning("engine_not_observed", url=self._engine.url, error=str(error))
            self.problem = str(error)
            return None
        self.problem = ""
        self._observed, self._observed_at = observed, now
        self._tell(observed)
        return observed

    def _tell(self, observed: Observed) -> None:
        """Logs what changed, before anybody acts upon it or says so: a status can be held against what was seen."""
        for fields in seen_since(self._told, observed):
            _log.info("engine_listed", **fields)
        self._told = observed
