"""Places at a port, and which connection gives way where none is left. Pure.

Of each connection the table knows whose turn it is. It is the peer's while a request is awaited, or while an answer is
not taken; it is ours while a request is answered. There are so many places, and of these so many for one peer.

Invariant: a connection that comes is refused only if all connections that could give way to it are ours to answer.
Otherwise the one whose peer has been silent longest ends for it: of the same peer where that peer has all that it may
have, else of the peer that has most. So who connects and says nothing stops nobody, however many there are, also where
all come from one address: of a probe and of an attacker on the same host the one that says what it wants is served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, Literal, TypeVar

Connection = TypeVar("Connection", bound=Hashable)


class NoPlace(Exception):
    """All connections are being answered: those of the `peer`, or of the whole `port`."""

    def __init__(self, of: Literal["peer", "port"]) -> None:
        super().__init__(of)
        self.of = of


class ConnectionTable(Generic[Connection]):
    """The connections of one port."""

    def __init__(self, most: int, most_of_peer: int) -> None:
        """`most` places, of which one peer has at most `most_of_peer`."""
        self._most = most
        self._most_of_peer = most_of_peer
        self._peers: dict[Connection, str] = {}
        self._counts: Counter[str] = Counter()
        self._silent: dict[Connection, None] = {}  # those who fell silent first stand first

    def enter(self, connection: Connection, peer: str) -> Connection | None:
        """Gives a new connection a place, and the peer the turn.

        Returns:
            The connection that has no place any more, and is to be closed; None: there was a place.

        Raises:
            NoPlace: this one is to be closed.
        """
        replaced = self._replaced(peer)
        if replaced is not None:
            self.leave(replaced)
        self._peers[connection] = peer
        self._counts[peer] += 1
        self._silent[connection] = None
        return replaced

    def await_peer(self, connection: Connection) -> None:
        """Gives the peer the turn, from now on; a connection without a place is passed over."""
        if connection in self._peers:
            self._silent.setdefault(connection)

    def answer(self, connection: Connection) -> None:
        """Takes the turn."""
        self._silent.pop(connection, None)

    def leave(self, connection: Connection) -> None:
        """Gives the place back; one without a place is passed over."""
        peer = self._peers.pop(connection, None)
        if peer is None:
            return
        self._silent.pop(connection, None)
        self._counts[peer] -= 1
        if not self._counts[peer]:
            del self._counts[peer]

    def _replaced(self, peer: str) -> Connection | None:
        if self._counts[peer] >= self._most_of_peer:
            candidates = [one for one in self._silent if self._peers[one] == peer]
            if not candidates:
                raise NoPlace("peer")
            return candidates[0]
        if len(self._peers) < self._most:
            return None
        if not self._silent:
            raise NoPlace("port")
        return max(self._silent, key=lambda one: self._counts[self._peers[one]])
