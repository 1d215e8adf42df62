"""Adapters from a web server, file by file; over TLS, and with a store around them, in tests/integration."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from email.utils import formatdate

import pytest

from registry.model.source_uri import parse_prefix, parse_source
from registry.sources import connections
from registry.sources.base import BUNDLE_BYTES, SourceLimits, Stop
from registry.sources.credentials import HeldCredential
from registry.sources.getter import MAX_REDIRECTS
from registry.sources.http import Web, WebSource, web_source
from tests.support.web import Exchange, Site, serving
from tests.unit.sources.conftest import got, refusal, refused
from tests.unit.sources.test_archive import archive, both, member
from tests.unit.sources.test_file import BUNDLE, LARGE_BUNDLE

CONFIG, WEIGHTS = b"{}", bytes(range(256)) * 400
FILES = {"adapter_config.json": CONFIG, "adapter_model.safetensors": WEIGHTS}
NAMES = ["/team/a/adapter_config.json", "/team/a/adapter_model.safetensors"]
LIMITS = SourceLimits(connect_seconds=60, idle_seconds=60, pace_seconds=60)


@pytest.fixture(autouse=True)
def _nothing_expires(monkeypatch) -> None:
    """What is kept is kept on a machine that stops for a while too."""
    monkeypatch.setattr(connections, "KEPT_SECONDS", 600.0)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site()) as site:
        site.put("/team/a/", CONFIG, WEIGHTS)
        yield site


@pytest.fixture
def other() -> Iterator[Site]:
    """Another host, as far as anybody can see."""
    with serving(Site()) as site:
        yield site


@pytest.fixture
def web() -> Iterator[Web]:
    with closing(Web(LIMITS)) as web:
        yield web


def at(web: Web, uri: str, *named: str, held: HeldCredential | None = None) -> WebSource:
    return web_source(web, parse_source(uri), [parse_prefix(one) for one in named or [uri]], held)


def team(web: Web, site: Site) -> WebSource:
    """What lies at the site's `/team/a/`; all of the team's is named."""
    return at(web, f"{site.url}/team/a/", f"{site.url}/team/")


def test_a_file_is_asked_for_as_it_is_and_with_nothing_of_ours(site, web):
    """R4, X1: packed on its way, its bytes would be others; a credential goes only where one is named."""
    assert got(team(web, site)) == FILES
    assert site.paths == NAMES
    assert [(headers["Accept-Encoding"], headers.get("Authorization")) for _, headers in site.seen] == [
        ("identity", None)
    ] * 2


def redirecting(location: str, status: int = 302):
    return lambda exchange: exchange.send(status, b"elsewhere", Location=location)


@pytest.mark.parametrize(
    "location",
    [
        NAMES[1],
        "http://example.com/",
        "https://example.com:8443/",
        "https://user:pass@example.com/",
        "file:///etc/passwd",
    ],
)
def test_a_redirect_to_what_nobody_allowed_is_refused(site, web, location):
    """Fault 28. One that leads back to itself ends too."""
    site.answers[NAMES[1]] = redirecting(location)
    error = refusal(team(web, site))
    assert (error.reason, error.permanent) == ("redirect_not_allowed", True)
    assert site.paths.count(NAMES[1]) == (MAX_REDIRECTS + 1 if location == NAMES[1] else 1)


@pytest.mark.parametrize("location", ["https://10.0.0.1/", "https://169.254.169.254/latest/meta-data/"])
def test_a_redirect_leads_to_public_addresses_only(site, web, location):
    site.answers[NAMES[1]] = redirecting(location)
    assert refusal(team(web, site)).reason == "address_not_allowed"


def test_what_a_redirect_says_beside_where_it_leads_is_not_read_without_end(site, web):
    """R16 bounded: a short body is, for the sake of the connection."""
    written, is_over, most = list[int](), threading.Event(), 1 << 26

    def talkative(exchange: Exchange) -> None:
        exchange.start(302, Location="/team/w", Content_Length=10 * most)
        try:
            while sum(written) < most:
                written.append(exchange.wfile.write(bytes(1 << 16)))
        finally:
            is_over.set()

    site.answers[NAMES[1]], site.files["/team/w"] = talkative, WEIGHTS
    assert got(team(web, site)) == FILES
    assert is_over.wait(60)
    assert sum(written) < most


def test_a_credential_that_is_bound_to_two_places_is_not_sent_on_from_one_to_the_other(site, other, web, hold):
    """X1 secret-free: whoever redirects there may be somebody else than the record names."""
    uri = f"{site.url}/team/a/"
    other.files["/team/w"] = WEIGHTS
    site.answers[NAMES[1]] = redirecting(f"{other.url}/team/w")
    held = hold(uri, "one", f"{site.url}/team/", f"{other.url}/team/")
    assert got(at(web, uri, f"{site.url}/", f"{other.url}/", held=held)) == FILES
    sent = [[headers.get("Authorization") for _, headers in one.seen] for one in (site, other)]
    assert sent == [["Bearer one"] * 2, [None]]


def test_a_credential_that_is_refused_is_fetched_anew_once(site, web, hold, monkeypatch):
    """A6 rotates: what is refused again is denied; without another secret nobody asks twice."""
    uri = f"{site.url}/team/a/"
    source = at(web, uri, held=hold(uri, "old", f"{site.url}/team/"))

    def guarded(exchange: Exchange) -> None:
        monkeypatch.setenv("SECRET", "new")
        (site.serve if exchange.headers["Authorization"] == "Bearer new" else denied)(exchange)

    def denied(exchange: Exchange) -> None:
        exchange.send(401, b"no")

    site.answers[NAMES[0]] = guarded
    assert got(source) == FILES
    assert [headers["Authorization"] for _, headers in site.seen] == ["Bearer old", "Bearer new", "Bearer new"]
    site.answers[NAMES[0]] = denied
    assert refusal(source).reason == refusal(team(web, site)).reason == "source_denied"
    assert len(site.paths) == 3 + 1 + 1


@pytest.mark.parametrize(("size_bytes", "accepted"), [(9_999, 1), (10_000, 2)])
def test_a_connection_outlives_a_redirect_with_a_short_body(site, web, size_bytes, accepted):
    """R16: a long one is not read for its sake."""
    site.answers[NAMES[1]] = lambda exchange: exchange.send(302, bytes(size_bytes), Location="/team/w")
    site.files["/team/w"] = WEIGHTS
    assert got(team(web, site)) == FILES
    assert len(site.accepted) == accepted


def test_a_connection_on_which_more_came_than_was_said_is_not_used_again(site, web):
    """R4: it would be taken for the answer to the next request."""
    more = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"
    site.answers[NAMES[0]] = lambda exchange: exchange.send(200, CONFIG + more, Content_Length=len(CONFIG))
    assert got(team(web, site)) == FILES
    assert len(site.accepted) == 2


def test_five_redirects_are_followed_and_no_sixth(site, web):
    """Fault 28. An answer that says only that there are several is none."""
    for number, status in enumerate((302, 303, 307, 308, 302), 1):
        site.answers[f"/team/{number}"] = redirecting(f"/team/{number + 1}", status)
    site.answers[NAMES[1]], site.files["/team/6"] = redirecting("/team/2", 301), WEIGHTS
    assert got(team(web, site)) == FILES
    site.answers[NAMES[1]] = redirecting("/team/1")
    assert refusal(team(web, site)).reason == "redirect_not_allowed"
    site.answers[NAMES[1]] = redirecting("/team/6", 300)
    assert refusal(team(web, site)).reason == "source_io"


@pytest.mark.parametrize("is_date", [False, True])
@pytest.mark.parametrize(("status", "reason"), [(429, "rate_limited"), (503, "source_io")])
def test_who_wants_to_be_left_alone_is_left_alone(site, web, status, reason, is_date):
    """S6, R8: for as long as it says, or until then, by all stagings of this host."""
    after = formatdate(time.time() + 70, usegmt=True) if is_date else "70"
    site.answers[NAMES[0]] = lambda exchange: exchange.send(status, b"", Retry_After=after)
    for _ in range(2):
        error = refusal(team(web, site))
        assert (error.reason, 60 < error.pause_seconds <= 70, site.paths) == (reason, True, NAMES[:1])


def test_the_version_of_a_source_changes_with_its_files_and_takes_none_of_them(site, web):
    """R8: what is refused for good is looked at, whatever its size."""
    source = team(web, site)
    first = source.version(Stop())
    assert first
    assert first == source.version(Stop())
    assert {headers["Range"] for _, headers in site.seen} == {"bytes=0-0"}
    site.files[NAMES[1]] = WEIGHTS[::-1]
    second = source.version(Stop())
    del site.files[NAMES[1]]
    assert len({first, second, source.version(Stop())}) == 3
    site.put("/team/a/", CONFIG, WEIGHTS[:-1])
    by_length = [source.version(Stop())]
    for headers in ({}, {"Content_Range": "bytes 0-0/77"}, {"Content_Range": "bytes 0-0/78"}):
        site.answers[NAMES[1]] = lambda exchange, headers=headers: exchange.send(206, b"1", ETag='"1"', **headers)
        by_length.append(source.version(Stop()))
    site.answers[NAMES[1]] = lambda exchange: exchange.send(200, b"12", ETag='"1"')
    assert len({*by_length, source.version(Stop())}) == 5, "a tag may stand for a second in which it changed twice"
    del site.answers[NAMES[1]]
    site.has_tags = False
    assert source.version(Stop()) == "", "a server that tells nothing is asked for the files"
    site.answers[NAMES[0]] = lambda exchange: exchange.send(500)
    assert "answered 500" in refused(source.version, Stop()).message


@pytest.mark.parametrize("status", [404, 410])
def test_a_source_is_gone_when_the_server_says_so_of_a_file(site, web, status):
    """Without taking a file; what is refused, overloaded or broken says nothing of it."""
    source = team(web, site)
    assert not source.is_gone(Stop())
    assert {headers["Range"] for _, headers in site.seen} == {"bytes=0-0"}
    site.has_tags = False
    assert not source.is_gone(Stop())
    for other in (401, 403, 429, 500, 503, 418):
        site.answers[NAMES[1]] = lambda exchange, other=other: exchange.send(other)
        with closing(Web(LIMITS)) as alone:
            assert refused(team(alone, site).is_gone, Stop()).reason != "source_missing"
    site.answers[NAMES[1]] = lambda exchange: exchange.send(status)
    assert source.is_gone(Stop())
    site.answers[NAMES[1]] = lambda exchange: exchange.send(status, X_Error_Code="RepoNotFound")
    assert not source.is_gone(Stop()), "a hub hides so what a credential may not see"
    site.files["/team/a.tar"] = b"tar"
    packed = at(web, f"{site.url}/team/a.tar")
    assert not packed.is_gone(Stop())
    del site.files["/team/a.tar"]
    assert packed.is_gone(Stop())


@pytest.mark.parametrize(
    ("other", "reason", "said"),
    [
        ("adapter_model.bin", "weights_not_safetensors", "before 2024"),
        ("adapters.safetensors", "other_format", "MLX"),
        ("pytorch_lora_weights.safetensors", "other_format", "diffusers"),
        ("readme.md", "source_missing", "404 for adapter_model.safetensors"),
    ],
)
def test_weights_that_are_missing_are_named_and_what_is_there_instead(site, web, other, reason, said):
    """R8: what can never be had by waiting is not waited for."""
    site.files[f"/team/a/{other}"] = site.files.pop(NAMES[1])
    error = refusal(team(web, site))
    assert (error.reason, error.permanent) == (reason, reason != "source_missing")
    assert said in error.message


@pytest.mark.parametrize("status", [b"103 Early Hints", b"102 Processing"])
def test_a_source_that_only_announces_an_answer_is_as_silent_as_one_that_says_nothing(site, status):
    """X3 given-back, R8: informational answers for ever keep no staging."""

    until = time.monotonic() + 30  # where it is no silence, the test fails

    def announces(exchange: Exchange) -> None:
        while time.monotonic() < until:
            exchange.wfile.write(b"HTTP/1.1 %s\r\nLink: </%s>\r\n\r\n" % (status, b"x" * 4000))

    site.answers[NAMES[0]] = announces
    with closing(Web(SourceLimits(connect_seconds=60, idle_seconds=0.5, pace_seconds=60))) as web:
        assert refusal(team(web, site)).reason == "source_timeout"
    assert site.paths == [NAMES[0]]


@pytest.mark.parametrize("content", [None, BUNDLE, LARGE_BUNDLE])
def test_a_bundle_is_a_file_beside_the_others(site, web, content):
    if content is not None:
        site.files["/team/a/model.sig"] = content
    source = team(web, site)
    assert source.signature(Stop()) == (content and content[:BUNDLE_BYTES])
    site.answers["/team/a/model.sig"] = lambda exchange: exchange.send(403, b"")
    assert refused(source.signature, Stop()).reason == "source_denied"


@pytest.mark.parametrize(("name", "pack"), [("a.tar.gz", gzip.compress), ("a.tar", bytes)])
def test_the_bundle_of_an_archive_is_a_member_of_the_folder_of_the_files(site, web, name, pack):
    source = at(web, f"{site.url}/{name}")
    assert refused(source.signature, Stop()).reason == "source_missing"
    site.files[f"/{name}"] = pack(archive(member("a/model.sig", BUNDLE), *both("a/")))
    assert source.signature(Stop()) == BUNDLE
