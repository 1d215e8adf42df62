"""One file over HTTP, continued where it broke off if the server can tell that it is still the same file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidecar.artifacts.files import Stop
from sidecar.artifacts.source import Receive
from sidecar.artifacts.sources.failures import Passing, StartOver, retries, retries_from_start, status_error
from sidecar.artifacts.sources.getter import Answer, Getter
from sidecar.artifacts.sources.urls import WebUrl
from sidecar.artifacts.types import ArtifactError

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
        size_bytes = self._length(answer)
        return size_bytes, self._body(answer, size_bytes)

    def _first(self) -> Answer:
        answer = self._getter.get(self._url)
        if answer.status != 200:
            answer.close()
            raise status_error(answer.status, answer.url.place)
        return answer

    def _length(self, answer: Answer) -> int:
        """What the server promises; without a promise nothing could be said of a body that ends or never ends."""
        place = answer.url.place
        if answer.header("content-encoding").lower() not in {"", "identity"}:
            raise _unusable(f"{place} sends it compressed, though that was not asked for")
        if answer.header("content-type").lower().startswith("text/html"):
            message = f"{place} sends a page of HTML, expected a file; perhaps it wants a login. It is tried again"
            raise ArtifactError("source_is_html", message, permanent=False)
        length = answer.header("content-length")
        if not length.isascii() or not length.isdigit() or len(length) > 15:
            raise _unusable(f"{place} does not say how long it is (Content-Length)")
        return int(length)

    def _body(self, answer: Answer, size_bytes: int) -> Iterator[bytes]:
        got_bytes = 0
        for attempt in retries(self._stop):
            with attempt:
                is_first = attempt.retry_state.attempt_number == 1
                part = answer if is_first else self._rest(answer, got_bytes, size_bytes)
                for chunk in part.chunks():
                    got_bytes += len(chunk)
                    if got_bytes > size_bytes:
                        raise StartOver("source_changed", f"{part.url.place} sends more than it said")
                    yield chunk
                if got_bytes < size_bytes:
                    raise Passing("source_incomplete", _ended(part, got_bytes, size_bytes))

    def _rest(self, first: Answer, got_bytes: int, size_bytes: int) -> Answer:
        """The answer that goes on after what was got."""
        tag = first.header("etag")
        if not tag.startswith('"'):  # none, or a weak one, which says little of bytes
            raise StartOver("source_incomplete", _ended(first, got_bytes, size_bytes))
        answer = self._getter.get(self._url, (("Range", f"bytes={got_bytes}-"), ("If-Range", tag)))
        if answer.status == 206 and _goes_on(answer, tag, got_bytes, size_bytes):
            return answer
        answer.close()
        if answer.status in {200, 206, 416}:
            message = f"{answer.url.place} broke off and cannot go on where it did; it is tried again from the start"
            raise StartOver("source_incomplete", message)
        raise status_error(answer.status, answer.url.place)


def _goes_on(answer: Answer, tag: str, got_bytes: int, size_bytes: int) -> bool:
    found = _CONTENT_RANGE.fullmatch(answer.header("content-range"))
    expected = (str(got_bytes), str(size_bytes - 1), str(size_bytes))
    return found is not None and found.groups() == expected and answer.header("etag") in {"", tag}


def _ended(answer: Answer, got_bytes: int, size_bytes: int) -> str:
    return f"{answer.url.place} broke off after {got_bytes} of {size_bytes} bytes; it is tried again"


def _unusable(found: str) -> ArtifactError:
    message = f"{found}; serve the file as it is, statically. It is tried again"
    return ArtifactError("source_io", message, permanent=False)
