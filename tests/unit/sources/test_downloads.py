"""What a download believes of an answer, with answers that are played."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import httpcore
import pytest

from registry.sources.base import ArtifactError, SourceLimits, Stop, TrustedAuthorities
from registry.sources.getter import SourceResponse
from registry.sources.http import Web, receive_file
from registry.sources.urls import parse_url
from tests.support.tls import Authority
from tests.unit.sources.conftest import refused

URL = parse_url("https://own.test/a/weights")
CONTENT = bytes(range(100))


class Body:
    """A body in pieces; after them it breaks off, if it is to. `is_closed` once nobody reads it any more."""

    def __init__(self, *pieces: bytes, breaks: bool | Exception = False) -> None:
        self.pieces, self.breaks, self.is_closed = pieces, breaks, False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        if self.breaks:
            raise httpcore.ReadError if self.breaks is True else self.breaks

    def close(self) -> None:
        self.is_closed = True


class PlayedGetter:
    """Gives these answers, one after another, then the last one again; notes what was asked."""

    def __init__(self, *answers: Callable[[], tuple[int, dict[str, str], Body]]) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, str]] = []
        self.bodies: list[Body] = []

    def get(self, url: object, headers: tuple[tuple[str, str], ...] = ()) -> SourceResponse:
        assert url == URL
        self.asked.append(dict(headers))
        status, fields, body = (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()
        self.bodies.append(body)
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
        return SourceResponse(URL, httpcore.Response(status, headers=raw, content=body))


def answer(status: int, *pieces: bytes, breaks: bool = False, **headers: str):
    return lambda: (status, headers, Body(*pieces, breaks=breaks))


def fetch(*answers: Any) -> tuple[list[bytes], PlayedGetter]:
    """What was handed over, each time that it was begun."""
    getter, got = PlayedGetter(*answers), list[bytes]()

    def receive(name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        assert (name, size_bytes) == ("weights", 100)
        got.append(b"")
        for chunk in chunks:
            got[-1] += chunk

    receive_file(getter, URL, "weights", receive, Stop())  # type: ignore[arg-type]
    return got, getter


def refusal(*answers: Any) -> tuple[str, PlayedGetter]:
    getter = PlayedGetter(*answers)
    error = refused(receive_file, getter, URL, "weights", lambda _n, _s, chunks: list(chunks), Stop())
    assert not error.permanent
    return error.reason, getter


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "source_io"),
        ({"Content_Length": ""}, "source_io"),
        ({"Content_Length": "-1"}, "source_io"),
        ({"Content_Length": "1e2"}, "source_io"),
        ({"Content_Length": "\u00b2"}, "source_io"),
        ({"Content_Length": "1" * 19}, "source_io"),
        ({"Content_Length": "100", "Content_Encoding": "GZIP"}, "source_io"),
        ({"Content_Length": "100", "Content_Type": "Text/HTML; charset=x"}, "source_is_html"),
    ],
)
def test_what_does_not_say_how_long_it_is_or_is_no_plain_file_is_refused(headers, reason):
    """R4, R16: without a length nothing could be said of a body that ends or never ends."""
    found, getter = refusal(answer(200, CONTENT, **headers))
    assert (found, len(getter.asked)) == (reason, 1)


@pytest.mark.parametrize(
    "headers", [{}, {"Content_Encoding": "identity"}, {"content_type": "application/text/html"}, {"CONTENT_TYPE": "x"}]
)
def test_a_plain_file_is_taken_however_its_headers_are_written(headers):
    got, getter = fetch(answer(200, CONTENT[:60], CONTENT[60:], content_LENGTH="100", **headers))
    assert (got, getter.asked) == ([CONTENT], [{}])
    assert getter.bodies[0].is_closed


@pytest.mark.parametrize(("status", "reason"), [(201, "source_io"), (206, "source_io"), (404, "source_missing")])
def test_only_200_is_a_file_and_every_other_answer_is_ended(status, reason):
    """R16: its connection would be held else."""
    found, getter = refusal(answer(status, CONTENT, Content_Length="100"))
    assert (found, [body.is_closed for body in getter.bodies]) == (reason, [True])


def test_what_sends_more_than_it_said_is_begun_anew_once():
    """R4, R16: not a byte more is handed on."""
    longer = answer(200, CONTENT, b"x", Content_Length="100")
    found, getter = refusal(longer)
    assert (found, len(getter.asked)) == ("source_changed", 2)
    got, _ = fetch(longer, answer(200, CONTENT, Content_Length="100"))
    assert got == [CONTENT, CONTENT]


FIRST = answer(200, CONTENT[:40], breaks=True, Content_Length="100", ETag='"t"')
RANGE, LEFT = "bytes 40-99/100", "60"


def rest(status: int = 206, content_range: str = RANGE, length: str = LEFT, **tag: str):
    return answer(status, CONTENT[40:], Content_Range=content_range, Content_Length=length, **tag)


@pytest.mark.parametrize("tag", [{}, {"ETag": '"t"'}])
def test_the_rest_of_the_same_file_is_gone_on_with(tag):
    got, getter = fetch(FIRST, rest(**tag))
    assert got == [CONTENT]
    assert getter.asked == [{}, {"Range": "bytes=40-", "If-Range": '"t"'}]


@pytest.mark.parametrize(
    "other",
    [
        rest(ETag='"u"'),
        rest(content_range="bytes 39-99/100"),
        rest(content_range="bytes 40-98/100"),
        rest(content_range="bytes 40-99/101"),
        rest(content_range="bytes 40-99/*"),
        rest(content_range=""),
        rest(length="61"),
        rest(length=""),
        rest(200),
        rest(416),
    ],
    ids=["tag", "begin", "end", "size", "no size", "no range", "length", "no length", "whole", "too far"],
)
def test_what_may_be_of_another_file_is_begun_anew(other):
    """R4 digest-true: and the answer that is not read is ended."""
    got, getter = fetch(FIRST, other, answer(200, CONTENT, Content_Length="100"))
    assert got == [CONTENT[:40], CONTENT]
    assert getter.bodies[1].is_closed
    assert getter.asked[2] == {}


@pytest.mark.parametrize("tag", [{}, {"ETag": 'W/"t"'}, {"ETag": "t"}])
def test_what_has_no_strong_tag_is_begun_anew_without_a_question_for_the_rest(tag):
    first = answer(200, CONTENT[:40], breaks=True, Content_Length="100", **tag)
    got, getter = fetch(first, answer(200, CONTENT, Content_Length="100"))
    assert (got, getter.asked) == ([CONTENT[:40], CONTENT], [{}, {}])


def test_a_redirects_own_body_may_break_off_and_a_stop_is_no_fault_of_it():
    """R12: who is to end asks nothing more."""

    def redirect(body: Body) -> SourceResponse:
        return SourceResponse(URL, httpcore.Response(302, headers=[(b"content-length", b"9")], content=body))

    broken, stopped = Body(b"x", breaks=True), Body(b"x", breaks=ArtifactError("staging_stopped", ""))
    redirect(broken).skip()
    assert refused(redirect(stopped).skip).reason == "staging_stopped"
    assert broken.is_closed
    assert stopped.is_closed


@pytest.mark.parametrize(("status", "reason"), [(404, "source_missing"), (403, "source_denied")])
def test_a_file_that_is_gone_in_the_middle_is_told(status, reason):
    found, getter = refusal(FIRST, rest(status))
    assert (found, [body.is_closed for body in getter.bodies]) == (reason, [True, True])


def test_a_file_may_break_off_in_each_of_four_parts():
    """R8: within one staging; what arrived is kept."""

    def part(start: int, end: int) -> Any:
        fields = {"Content_Range": f"bytes {start}-99/100", "Content_Length": str(100 - start)}
        return answer(206, CONTENT[start:end], breaks=end < 100, **fields)

    got, getter = fetch(FIRST, part(40, 50), part(50, 60), part(60, 100))
    assert (got, len(getter.asked)) == ([CONTENT], 4)
    found, getter = refusal(FIRST, part(40, 50), part(50, 60), part(60, 70), part(70, 100))
    assert found == "source_incomplete"


def test_authorities_are_read_again_where_a_file_names_them(monkeypatch, tmp_path):
    """A6 rotates: a new one counts from the next connection on."""
    file = tmp_path / "authorities"
    shutil.copy(Authority(tmp_path / "old", "old").certificate, file)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    tls = Web(SourceLimits()).tls
    before = tls.newest()
    assert tls.newest() is before
    shutil.copy(Authority(tmp_path / "new", "new").certificate, file)
    assert [one["subject"] for one in tls.newest().get_ca_certs()] != [one["subject"] for one in before.get_ca_certs()]


def test_authorities_that_are_replaced_while_they_are_read_are_read_again(tmp_path):
    """A6: whom they left out is trusted until then, and nothing about the file may change for months."""
    file = tmp_path / "authorities"
    old, new = (Authority(tmp_path / name, name).certificate for name in ("old", "new"))
    shutil.copy(old, file)
    coming = [new]

    def read() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(file))
        if coming:
            shutil.copy(coming.pop(), file)
        return context

    subjects = [one["subject"] for one in TrustedAuthorities(file, read).newest().get_ca_certs()]
    assert subjects == [one["subject"] for one in ssl.create_default_context(cafile=str(new)).get_ca_certs()]


def test_authorities_that_cannot_be_read_are_told(monkeypatch, tmp_path):
    """R8: no certificate can be judged, whatever the source; they are read when they are first needed."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    web = Web(SourceLimits())
    error = refused(lambda: web.tls)
    assert (error.reason, error.permanent) == ("source_untrusted", False)
    assert "No such file or directory" in error.message
