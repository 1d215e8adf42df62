"""GETs of one staging at web servers: redirects judged, credentials bound."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpcore

from registry.model.source_uri import SourcePrefix
from registry.sources.base import ArtifactError
from registry.sources.connections import SourceRequests
from registry.sources.credentials import HeldCredential
from registry.sources.failures import (
    DENIED_STATUSES,
    PASSING_STATUSES,
    Passing,
    asked_pause,
    connecting,
    receiving,
    status_error,
)
from registry.sources.origins import OriginVisits
from registry.sources.urls import WebUrl, check_redirect

MAX_REDIRECTS = 5
MAX_SKIPPED_DIGITS = 4  # of the length of a redirect's own body
Headers = tuple[tuple[str, str], ...]
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Compressed on the way, a small answer could become a large file, and a range would mean something else.
_PLAIN: Headers = (("Accept", "*/*"), ("Accept-Encoding", "identity"), ("User-Agent", "loraplane"))


@dataclass(frozen=True, slots=True)
class SourceResponse:
    """Response, and its origin; its body is read as it comes."""

    url: WebUrl
    response: httpcore.Response

    @property
    def status(self) -> int:
        return self.response.status

    def header(self, name: str) -> str:
        """A header's value, empty if it is not there."""
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.response.headers if key.lower() == wanted), "")

    def chunks(self) -> Iterator[bytes]:
        """The body.

        Raises:
            Passing: it broke off.
        """
        with receiving(self.url.place):
            try:
                yield from self.response.iter_stream()
            finally:
                self.response.close()

    def skip(self) -> None:
        """Ends it. A short body is read all the same, since else the connection could not serve again."""
        length = self.header("content-length")
        if length.isdecimal() and len(length) <= MAX_SKIPPED_DIGITS:
            with suppress(Passing):
                for _ in self.chunks():
                    pass
        self.close()

    def close(self) -> None:
        self.response.close()


class Getter:
    """GETs of one staging."""

    def __init__(
        self,
        requests: SourceRequests,
        named: Sequence[SourcePrefix],
        held: HeldCredential | None,
        may_see: Sequence[SourcePrefix],
        visits: OriginVisits,
    ) -> None:
        """Takes the URLs that the operator named, and a credential with those that may see it."""
        self._visits = visits
        self._requests = requests
        self._named = named
        self._held = held
        self._may_see = may_see

    def get(self, url: WebUrl, headers: Headers = ()) -> SourceResponse:
        """The answer behind all redirects, whatever its status. A credential that is refused is fetched anew once.

        Raises:
            ArtifactError: it could not be had.
        """
        answer = self._follow(url, headers)
        if answer.status in DENIED_STATUSES and self._is_let_in(answer):
            answer.close()
            answer = self._follow(url, headers)
        return answer

    def _is_let_in(self, _denied: SourceResponse) -> bool:  # True: there is something else to show
        return self._held is not None and self._held.renew()

    def _follow(self, start: WebUrl, headers: Headers) -> SourceResponse:
        url = start
        for _ in range(MAX_REDIRECTS + 1):
            answer = self.send(url, (*headers, *self._authorization(url, start)))
            location = answer.header("location")
            if answer.status not in _REDIRECTS or not location:
                return answer
            answer.skip()
            url = url.redirected(location)
            check_redirect(url, self._named)
        message = f"{start.place} redirects more than {MAX_REDIRECTS} times"
        raise ArtifactError("redirect_not_allowed", message)

    def send(self, url: WebUrl, headers: Headers) -> SourceResponse:
        """The answer to one request; no redirect is followed. Raises as `get`."""
        fields = (("Host", url.authority), *_PLAIN, *headers)
        with self._visits.visiting(url.place):
            with connecting(url.place):
                answer = SourceResponse(url, self._requests.get(str(url), url.reach(self._named), fields))
            if answer.status in PASSING_STATUSES:
                answer.close()
                pause = asked_pause(answer.header("retry-after"), time.time())
                raise status_error(answer.status, url.place, pause_seconds=pause)
            return answer

    def _authorization(self, url: WebUrl, start: WebUrl) -> Headers:
        """The credential, if this is where the source is, and not where a redirect leads."""
        is_seen = url.is_same_origin(start) and any(url.is_below(prefix) for prefix in self._may_see)
        value = self._shown() if is_seen else None
        return () if value is None else (("Authorization", value),)

    def _shown(self) -> str | None:
        return self._held.authorization() if self._held is not None else None
