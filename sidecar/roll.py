"""The roll of a pool's replicas: which of them are taken to be alive. Pure; time is an argument.

Whoever lost its own lease has lost the way to etcd, and so may all others have: that their presences are gone then says
nothing of them. So a replica believes in nobody's absence before its own presence has stood for a while. And while it
is in doubt whether a store may be followed at all (guarantee R15), nothing that it says of replicas is believed.
"""

from __future__ import annotations

from collections.abc import Mapping

from registry.model.placement import Member

# After a lost lease a presence is there again within 2 s, as a rule.
BELIEVE_SECONDS = 3.0


class Roll:
    """What one replica takes for the live replicas of its pool.

    Attributes:
        members: by name, itself among them; None: not known yet.
        due: monotonic seconds at which to `look` again; None: when something changes.
    """

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._listed: Mapping[str, Member] = {}
        self._present_since: float | None = None
        self.members: Mapping[str, Member] | None = None
        self.due: float | None = None

    def restore(self, members: Mapping[str, Member]) -> None:
        """Starts from those that were known before a restart, unless there were none."""
        self.members = members or None

    def call(self, listed: Mapping[str, Member], now: float, *, is_doubtful: bool = False) -> None:
        """Takes in whose presences stand in etcd."""
        self._listed = listed
        self.look(now, is_doubtful=is_doubtful)

    def look(self, now: float, *, is_doubtful: bool = False) -> None:
        """Takes in that time has passed; `is_doubtful`: whether the store may be followed is not known now."""
        self.due = None
        if self._replica not in self._listed:
            self._present_since = None
            return
        if self._present_since is None:
            self._present_since = now
        if is_doubtful:
            return
        sure_at = self._present_since + BELIEVE_SECONDS
        if now >= sure_at:
            self._settle(self._listed)
            return
        self.due = sure_at
        if self.members is not None:
            self._settle({**self.members, **self._listed})

    def _settle(self, members: Mapping[str, Member]) -> None:
        if members != self.members:
            self.members = members
