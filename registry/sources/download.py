"""One file over HTTP, continued where it broke off if the server can tell that it is still the same file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from registry.sources.errors import ArtifactError
from registry.sources.failures import Passing, StartOver, retries, retries_from_start, status_error
from registry.sources.getter import Answer, Getter
from registry.sources.source import Receive
from registry.sources.stop import Stop
from registry.sources.urls import WebUrl

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def receive_file(getter: Getter, url: WebUrl, name: str, receive: Receive, stop: Stop) -> None:
    """Hands over one file, from its start again where it cannot be continued.

    Raises:
        ArtifactError: it cannot be had.
    """

    def once() -> None:
        size_bytes, chunks = Download(getter, url, stop).content()
        receive(name, size_bytes, chunks)

    retries_from_start(stop)(once)


class Download:
    """What is at a URL, once."""

    def __init__(self, getter: Getter, url: WebUrl, stop: Stop) -> None:
        self._getter = getter
        self._url = url
        self._stop = stop

    def content(self) -> tuple[int, Iterator[bytes]]:
        """Its size in bytes and its content; the connection is made here, and again where it breaks.

        Raises:
            ArtifactError: here, or from the iterator.
        """
        answer = retries(self._stop)(self._first)
        transfer = _Transfer(self._getter, self._url, answer, _length(answer))
        return transfer.size_bytes, transfer.chunks(self._stop)

    def _first(self) -> Answer:
        answer = self._getter.get(self._url)
        if answer.status != 200:
            answer.close()
            raise status_error(answer.status, answer.url.place)
        return answer


class _Transfer:
    """A body as it arrives, in one part or, where it breaks off, in several."""

    def __init__(self, getter: Getter, url: WebUrl, first: Answer, size_bytes: int) -> None:
        self._getter = getter
        self._url = url
        self._first = first
        self._got_bytes = 0
        self._failure: Passing | None = None
        self.size_bytes = size_bytes

    def chunks(self, stop: Stop) -> Iterator[bytes]:
        """The content, exactly as long as it was said to be.

        Raises:
            ArtifactError: it did not arrive.
        """
        for attempt in retries(stop):
            with attempt:
                yield from self._part()

    def _part(self) -> Iterator[bytes]:
        answer = self._first if self._failure is None else self._rest(self._failure)
        try:
            for chunk in answer.chunks():
                self._got_bytes += len(chunk)
                self._check_not_longer(answer)
                yield chunk
        except Passing as error:
            self._failure = error
            raise

    def _check_not_longer(self, answer: Answer) -> None:
        if self._got_bytes > self.size_bytes:
            raise StartOver("source_changed", f"{answer.url.place} sends more than it said; it is tried again")

    def _rest(self, failure: Passing) -> Answer:
        """The answer that goes on after what was got."""
        tag = self._first.header("etag")
        if not tag.startswith('"'):  # none, or a weak one, which says little of bytes
            raise StartOver(failure.reason, failure.message)
        answer = self._getter.get(self._url, (("Range", f"bytes={self._got_bytes}-"), ("If-Range", tag)))
        if answer.status == 206 and self._goes_on(answer, tag):
            return answer
        answer.close()
        if answer.status in {200, 206, 416}:
            raise StartOver(failure.reason, failure.message)
        raise status_error(answer.status, answer.url.place)

    def _goes_on(self, answer: Answer, tag: str) -> bool:
        """True if the answer is of the same file, and begins where the last one ended."""
        found = _CONTENT_RANGE.fullmatch(answer.header("content-range"))
        expected = (str(self._got_bytes), str(self.size_bytes - 1), str(self.size_bytes))
        left_bytes = str(self.size_bytes - self._got_bytes)
        is_said = found is not None and found.groups() == expected and answer.header("content-length") == left_bytes
        return is_said and answer.header("etag") in {"", tag}


def _length(answer: Answer) -> int:
    """What the server promises; without a promise nothing could be said of a body that ends or never ends."""
    place = answer.url.place
    if answer.header("content-encoding").lower() not in {"", "identity"}:
        raise _unusable(f"{place} sends it compressed, though that was not asked for")
    if answer.header("content-type").lower().startswith("text/html"):
        message = f"{place} sends a page of HTML, expected a file; perhaps it wants a login. It is tried again"
        raise ArtifactError("source_is_html", message, permanent=False)
    length = answer.header("content-length")
    if not length.isascii() or not length.isdigit() or len(length) > 18:
        raise _unusable(f"{place} does not say how long it is (Content-Length)")
    return int(length)


def _unusable(found: str) -> ArtifactError:
    message = f"{found}; serve the file as it is, statically. It is tried again"
    return ArtifactError("source_io", message, permanent=False)
