"""Connections that one staging leaves to the next, and the requests of a staging on them.

A connection is in the hands of one staging at a time, and nobody has it while it is kept. Nothing of a staging stays
with it: credentials go with each request, and the watch is that of whoever reads. It is kept only when the answer was
read to its end and nothing came after it, for that would be taken for the answer to somebody else's request.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from threading import Lock

import httpcore

from registry.sources.addresses import Reach
from registry.sources.limits import Limits
from registry.sources.network import Watch, WatchedStream, connect
from registry.sources.stop import Stop

# Soon, since a name is resolved and judged anew only for a new connection.
KEPT_SECONDS = 5.0
# As many as a host has workers, at a hub and at the place that its redirects lead to.
MAX_KEPT = 16
Place = tuple[Reach, str]


class Connection(httpcore.HTTP11Connection):
    """One connection, to a place that was judged when it was made."""

    def __init__(self, place: Place, origin: httpcore.Origin, stream: WatchedStream) -> None:
        super().__init__(origin, stream, keepalive_expiry=KEPT_SECONDS)
        self.place = place
        self._stream = stream

    def send(self, request: httpcore.Request, watch: Watch) -> httpcore.Response:
        """Sends a request, and reads the beginning of its answer under the watch of the staging that asks."""
        self._stream.watch = watch
        watch.has_answer = False
        return self.handle_request(request)

    @property
    def may_be_kept(self) -> bool:
        """True if the next bytes on it can only be the answer to the next request."""
        left, _ = self._h11_state.trailing_data
        return self.is_idle() and not left and not self.has_expired()


class Connections:
    """What the stagings of a host keep open for each other. Close it at the end."""

    def __init__(self, tls: Callable[[], ssl.SSLContext], limits: Limits) -> None:
        self.limits = limits
        self._tls = tls
        self._kept: list[Connection] = []
        self._is_closed = False
        self._mutex = Lock()

    def open(self, place: Place, origin: httpcore.Origin, watch: Watch) -> Connection:
        """A new one.

        Raises:
            ArtifactError: ``address_not_allowed``, ``source_untrusted``, or the staging was stopped.
            httpcore.ConnectError, httpcore.ConnectTimeout: it failed.
        """
        tls = self._tls() if origin.scheme == b"https" else None
        return Connection(place, origin, connect(origin, place[0], tls, watch))

    def take(self, place: Place) -> Connection | None:
        """The one that was used last, for the caller alone."""
        with self._mutex:
            ended = [one for one in self._kept if one.has_expired()]
            self._kept = [one for one in self._kept if one not in ended]
            found = next((one for one in reversed(self._kept) if one.place == place), None)
            if found is not None:
                self._kept.remove(found)
        for one in ended:
            one.close()
        return found

    def give(self, connection: Connection) -> None:
        """Takes back a connection whose answer was closed; it is closed too unless it may be kept."""
        surplus: Connection | None = connection
        with self._mutex:
            if connection.may_be_kept and not self._is_closed:
                self._kept.append(connection)
                surplus = self._kept.pop(0) if len(self._kept) > MAX_KEPT else None
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        """Closes what is kept, and whatever is given back later."""
        with self._mutex:
            self._is_closed = True
            kept, self._kept = self._kept, []
        for one in kept:
            one.close()


class Requests:
    """The requests of one staging, one after another: the next one ends the answer to the one before."""

    def __init__(self, connections: Connections, stop: Stop) -> None:
        self._connections = connections
        self._watch = Watch(connections.limits, stop)
        self._current: tuple[Connection, httpcore.Response] | None = None

    def get(self, url: str, reach: Reach, headers: Iterable[tuple[str, str]]) -> httpcore.Response:
        """Sends a GET; the answer's body has not been read yet.

        Raises:
            ArtifactError: ``address_not_allowed``, or the staging was stopped.
            httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError: it failed.
        """
        self.close()
        fields = [(name.encode(), value.encode()) for name, value in headers]
        timeouts = self._connections.limits.timeouts()
        request = httpcore.Request("GET", url, headers=fields, extensions={"timeout": timeouts})
        origin = request.url.origin
        place = (reach, str(origin))
        answer = self._on_kept(place, request)
        if answer is None:
            answer = self._send(self._connections.open(place, origin, self._watch), request)
        return answer

    def _on_kept(self, place: Place, request: httpcore.Request) -> httpcore.Response | None:
        """None: nothing is kept, or it was closed at its other end meanwhile, which says nothing of the source."""
        connection = self._connections.take(place)
        if connection is None:
            return None
        try:
            return self._send(connection, request)
        except (httpcore.NetworkError, httpcore.RemoteProtocolError):
            if self._watch.has_answer:
                raise
            return None

    def _send(self, connection: Connection, request: httpcore.Request) -> httpcore.Response:
        answer = connection.send(request, self._watch)
        self._current = connection, answer
        return answer

    def close(self) -> None:
        """Ends the answer that is being read, and gives its connection back."""
        if self._current is not None:
            connection, answer = self._current
            self._current = None
            answer.close()
            self._connections.give(connection)
