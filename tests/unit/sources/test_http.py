"""Adapters from a web server, file by file; over TLS, and with a store around them, in tests/integration."""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from registry.etcd3.backoff import Backoff
from registry.model.source_uri import parse_prefix, parse_source
from registry.sources import connections, failures
from registry.sources.base import ArtifactError, SourceLimits, Stop
from registry.sources.credentials import Credentials, HeldCredential
from registry.sources.credentials_file import read_credentials
from registry.sources.failures import MAX_ATTEMPTS, MAX_STARTS
from registry.sources.http import MAX_REDIRECTS, Web, hub_source, web_source
from registry.sources.urls import parse_url
from tests.support.web import Exchange, Site, serving

CONFIG, WEIGHTS = b"{}", bytes(range(256)) * 400
NAMES = ["/team/a/adapter_config.json", "/team/a/adapter_model.safetensors"]
LIMITS = SourceLimits(connect_seconds=60, idle_seconds=60, pace_seconds=60)


@pytest.fixture(autouse=True)
def _no_time_counts(monkeypatch) -> None:
    """What is tried again is tried at once, and what is kept is kept on a machine that stops for a while too."""
    monkeypatch.setattr(connections, "KEPT_SECONDS", 600.0)
    monkeypatch.setattr(failures, "_WAIT", Backoff(base_seconds=0.0, cap_seconds=0.0))


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


class Got(dict[str, bytes]):
    """What was handed over, and how often each file was begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[str] = []

    def __call__(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        self.begun.append(name)
        self[name] = b"".join(chunks)
        assert len(self[name]) == size_bytes


def fetch(web: Web, uri: str, *named: str, held: HeldCredential | None = None, got: Got | None = None) -> Got:
    got = Got() if got is None else got
    source = parse_source(uri)
    web_source(web, source, [parse_prefix(one) for one in named], held).fetch(got, Stop())
    return got


def refusal(web: Web, site: Site, *named: str, held: HeldCredential | None = None) -> ArtifactError:
    with pytest.raises(ArtifactError) as refused:
        fetch(web, f"{site.url}/team/a/", *(named or (f"{site.url}/team/",)), held=held)
    return refused.value


def whole(got: Got) -> bool:
    return [*got.values()] == [CONFIG, WEIGHTS]


def test_the_two_files_come_over_one_connection_and_the_next_staging_takes_it(site, web):
    for _ in range(3):
        assert whole(fetch(web, f"{site.url}/team/a/", f"{site.url}/team/"))
    assert site.paths == NAMES * 3
    assert len(site.accepted) == 1
    assert site.seen[0][1]["Accept-Encoding"] == "identity"
    assert "Authorization" not in site.seen[0][1]
    web.close()
    assert whole(fetch(web, f"{site.url}/team/a/", f"{site.url}/team/"))
    assert len(site.accepted) == 3, "after the end nothing is kept"


def test_no_more_connections_than_some_are_kept(site, other, web, monkeypatch):
    """R16 bounded: the one that was used last is."""
    monkeypatch.setattr(connections, "MAX_KEPT", 1)
    other.put("/team/a/", CONFIG, WEIGHTS)
    for one in (site, site, other, other, site):
        assert whole(fetch(web, f"{one.url}/team/a/", f"{one.url}/team/"))
    assert (len(site.accepted), len(other.accepted)) == (2, 1)


def test_what_breaks_off_goes_on_where_it_did(site, web):
    site.cut_once(NAMES[1], 5000)
    got = fetch(web, f"{site.url}/team/a/", f"{site.url}/team/")
    assert whole(got)
    assert [headers.get("Range") for headers in site.headers(NAMES[1])] == [None, "bytes=5000-"]
    assert len(got.begun) == 2


@pytest.mark.parametrize("kind", ["none", "weak", "changed"])
def test_what_cannot_be_gone_on_with_is_begun_anew_once(site, web, kind):
    """R4 digest-true: half of one file and half of another would pass many a check."""
    site.has_tags, site.are_tags_weak = kind != "none", kind == "weak"
    newer = WEIGHTS[::-1]

    def cut_and_change(exchange: Exchange) -> None:
        del site.answers[NAMES[1]]
        site.serve(exchange, cut_after=5000)
        site.files[NAMES[1]] = newer

    site.answers[NAMES[1]] = cut_and_change
    got = fetch(web, f"{site.url}/team/a/", f"{site.url}/team/")
    assert [*got.values()] == [CONFIG, newer]
    assert len(got.begun) == 3


def lying_about_the_range(exchange: Exchange) -> None:
    if "Range" in exchange.headers:
        exchange.send(206, WEIGHTS[:9], Content_Range=f"bytes 0-8/{len(WEIGHTS)}", ETag='"x"')
    else:
        exchange.start(200, Content_Length=len(WEIGHTS), ETag='"x"')
        exchange.wfile.write(WEIGHTS[:5000])
        exchange.cut()


def breaking_off(exchange: Exchange) -> None:
    """Begins an answer."""
    exchange.wfile.write(b"HTTP/1.1 20")
    exchange.cut()


END = len(WEIGHTS)
REST = f"bytes 5000-{END - 1}/{END}"


def going_on_with(content: bytes, content_range: str, tag: str = "x"):
    """Breaks off, and says that this is the rest."""

    def answer(exchange: Exchange) -> None:
        if "Range" in exchange.headers:
            exchange.send(206, content, Content_Range=content_range, ETag=f'"{tag}"')
        else:
            lying_about_the_range(exchange)

    return answer


@pytest.mark.parametrize(
    ("answer", "reason", "asked"),
    [
        (lambda exchange: exchange.send(503), "source_io", MAX_ATTEMPTS),
        (lambda exchange: exchange.cut(), "source_io", 1 + MAX_ATTEMPTS),  # of a kept one an end says nothing
        (breaking_off, "source_io", MAX_ATTEMPTS),  # of one that began to answer it does
        (lambda exchange: exchange.send(404), "source_missing", 1),
        (lambda exchange: exchange.send(403), "source_denied", 1),
        (lambda exchange: exchange.send(201, b"x"), "source_io", 1),
        (lambda exchange: exchange.start(200, Transfer_Encoding="chunked"), "source_io", 1),
        (lambda exchange: exchange.send(200, b"x", Content_Encoding="gzip"), "source_io", 1),
        (lambda exchange: exchange.send(200, b"x", Content_Type="text/html; charset=x"), "source_is_html", 1),
        (lying_about_the_range, "source_incomplete", 2 * MAX_STARTS),
        (going_on_with(WEIGHTS[5000:], REST, tag="y"), "source_incomplete", 2 * MAX_STARTS),
        (going_on_with(WEIGHTS[:-5000], f"bytes 0-{END - 5001}/{END}"), "source_incomplete", 2 * MAX_STARTS),
        (going_on_with(WEIGHTS[5000:-1], f"bytes 5000-{END - 2}/{END - 1}"), "source_incomplete", 2 * MAX_STARTS),
        (going_on_with(WEIGHTS[5000:-1], REST), "source_incomplete", 2 * MAX_STARTS),
        (going_on_with(WEIGHTS[5000:], "bytes"), "source_incomplete", 2 * MAX_STARTS),
    ],
)
def test_what_passes_by_itself_is_asked_again_a_few_times_and_a_fact_is_not(site, web, answer, reason, asked):
    """R8, R16: the reason is that of the last try, in words of ours."""
    site.answers[NAMES[1]] = answer
    error = refusal(web, site)
    assert (error.reason, error.permanent) == (reason, False)
    assert site.url in error.message
    assert site.paths.count(NAMES[1]) == asked


def redirecting(location: str):
    return lambda exchange: exchange.send(302, b"elsewhere", Location=location)


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
    error = refusal(web, site)
    assert (error.reason, error.permanent) == ("redirect_not_allowed", True)
    assert site.paths.count(NAMES[1]) == (MAX_REDIRECTS + 1 if location == NAMES[1] else 1)


@pytest.mark.parametrize("location", ["https://10.0.0.1/", "https://169.254.169.254/latest/meta-data/"])
def test_a_redirect_leads_to_public_addresses_only(site, web, location):
    site.answers[NAMES[1]] = redirecting(location)
    assert refusal(web, site).reason == "address_not_allowed"


def test_a_redirect_to_what_is_allowed_too_is_followed_and_costs_no_connection(site, other, web):
    other.files["/cdn/w"] = WEIGHTS
    site.answers[NAMES[1]] = redirecting(f"{other.url}/cdn/w?signature=1")
    for _ in range(2):
        assert whole(fetch(web, f"{site.url}/team/a/", f"{site.url}/team/", f"{other.url}/cdn/"))
    assert other.paths == ["/cdn/w?signature=1"] * 2
    assert (len(site.accepted), len(other.accepted)) == (1, 1)
    error = refusal(web, site, f"{site.url}/team/", f"{other.url}/other/")
    assert error.reason == "redirect_not_allowed"


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
    assert whole(fetch(web, f"{site.url}/team/a/", f"{site.url}/team/"))
    assert is_over.wait(60)
    assert sum(written) < most


@pytest.fixture
def credentials(tmp_path, monkeypatch):
    """What holds a credential for what is below a prefix; its secret is the variable SECRET."""
    monkeypatch.setenv("SECRET", "one")

    def hold(prefix: str, uri: str) -> HeldCredential | None:
        file = tmp_path / "credentials.yaml"
        file.write_text(f"team: {{kind: env, variable: SECRET, prefixes: ['{prefix}']}}\n")
        return Credentials(read_credentials(file)).hold("team", parse_source(uri))

    return hold


def sent(site: Site) -> list[str | None]:
    """The credential of each request."""
    return [headers.get("Authorization") for _, headers in site.seen]


def test_a_credential_is_sent_where_it_is_bound_and_nowhere_else(site, other, web, credentials):
    """X1 secret-free: not to another host, and not to another path of the same, whoever redirects there."""
    uri = f"{site.url}/team/a/"
    site.files["/public/w"] = other.files["/w"] = WEIGHTS
    held = credentials(f"{site.url}/team/", uri)
    assert whole(fetch(web, uri, f"{site.url}/", held=held))
    assert sent(site) == ["Bearer one"] * 2
    twice = ["Bearer one"] * 2
    for where, seen in ((f"{site.url}/public/w", [*twice, None]), (f"{other.url}/w", twice)):
        site.seen.clear()
        site.answers[NAMES[1]] = redirecting(where)
        assert whole(fetch(web, uri, f"{site.url}/", f"{other.url}/", held=held))
        assert sent(site) == seen
    assert sent(other) == [None]


def test_a_credential_that_is_bound_to_two_places_is_not_sent_on_from_one_to_the_other(site, other, web, credentials):
    """X1 secret-free: whoever redirects there may be somebody else than the record names."""
    uri = f"{site.url}/team/a/"
    other.files["/team/w"] = WEIGHTS
    site.answers[NAMES[1]] = redirecting(f"{other.url}/team/w")
    held = credentials(f"{site.url}/team/', '{other.url}/team/", uri)
    assert whole(fetch(web, uri, f"{site.url}/", f"{other.url}/", held=held))
    assert (sent(site), sent(other)) == (["Bearer one"] * 2, [None])


@pytest.mark.parametrize("status", [401, 403])
def test_a_credential_that_is_refused_is_had_anew_once(site, web, credentials, monkeypatch, status):
    """It may have been rotated, or have come to its end, since it was fetched."""
    uri = f"{site.url}/team/a/"

    def asks(exchange: Exchange) -> None:
        if exchange.headers.get("Authorization") == "Bearer two":
            site.serve(exchange)
        else:
            monkeypatch.setenv("SECRET", "two")
            exchange.send(status)

    site.answers = dict.fromkeys(NAMES, asks)
    assert whole(fetch(web, uri, f"{site.url}/team/", held=credentials(f"{site.url}/team/", uri)))
    assert sent(site) == ["Bearer one", "Bearer two", "Bearer two"]
    site.answers = dict.fromkeys(NAMES, lambda exchange: exchange.send(status))
    site.seen.clear()
    error = refusal(web, site, held=credentials(f"{site.url}/team/", uri))
    assert (error.reason, len(site.seen)) == ("source_denied", 2)
    site.seen.clear()
    assert (refusal(web, site).reason, sent(site)) == ("source_denied", [None])


def test_the_files_of_a_commit_are_on_a_hub(site, web):
    commit = "a" * 40
    site.put(f"/hub/acme/models/resolve/{commit}/sub/", CONFIG, WEIGHTS)
    got = Got()
    hub = parse_url(f"{site.url}/hub/")
    hub_source(web, hub, parse_source(f"hf://acme/models/sub@{commit}"), (), None).fetch(got, Stop())
    assert whole(got)


def test_who_is_stopped_asks_for_nothing_more(site, web):
    """R12."""
    stop = Stop()

    def stopping(exchange: Exchange) -> None:
        stop.set()
        exchange.send(503)

    site.answers[NAMES[0]] = stopping
    source = parse_source(f"{site.url}/team/a/")
    with pytest.raises(ArtifactError) as stopped:
        web_source(web, source, [parse_prefix(f"{site.url}/team/")], None).fetch(Got(), stop)
    assert (stopped.value.reason, len(site.seen)) == ("staging_stopped", 1)


def packed(kind: str) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode=kind) as tar:
        for name, content in zip(("adapter_config.json", "adapter_model.safetensors"), (CONFIG, WEIGHTS), strict=True):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


@pytest.mark.parametrize(("name", "kind"), [("a.tar", "w"), ("a.tar.gz", "w:gz"), ("a.tgz", "w:gz")])
def test_an_archive_is_unpacked_as_it_comes_and_begun_anew_where_it_broke(site, web, name, kind):
    """R4: what was handed over of it is handed over again."""
    site.files[f"/team/{name}"], site.has_tags = packed(kind), False
    site.cut_once(f"/team/{name}", len(packed(kind)) - 100 if kind == "w:gz" else 5000)
    got = fetch(web, f"{site.url}/team/{name}", f"{site.url}/team/")
    assert whole(got)
    assert site.paths == [f"/team/{name}"] * 2


@pytest.mark.parametrize(("size_bytes", "accepted"), [(9_999, 1), (10_000, 2)])
def test_a_connection_outlives_a_redirect_with_a_short_body(site, web, size_bytes, accepted):
    """R16: a long one is not read for its sake."""
    site.answers[NAMES[1]] = lambda exchange: exchange.send(302, bytes(size_bytes), Location="/team/w")
    site.files["/team/w"] = WEIGHTS
    assert whole(fetch(web, f"{site.url}/team/a/", f"{site.url}/team/"))
    assert len(site.accepted) == accepted


def test_a_connection_on_which_more_came_than_was_said_is_not_used_again(site, web):
    """R4: it would be taken for the answer to the next request."""
    more = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"
    site.answers[NAMES[0]] = lambda exchange: exchange.send(200, CONFIG + more, Content_Length=len(CONFIG))
    assert whole(fetch(web, f"{site.url}/team/a/", f"{site.url}/team/"))
    assert len(site.accepted) == 2


def test_five_redirects_are_followed_and_no_sixth(site, web):
    """Fault 28."""
    for number in range(6):
        site.answers[f"/team/{number}"] = redirecting(f"/team/{number + 1}")
    site.answers[NAMES[1]], site.files["/team/6"] = redirecting("/team/2"), WEIGHTS
    assert whole(fetch(web, f"{site.url}/team/a/", f"{site.url}/team/"))
    site.answers[NAMES[1]] = redirecting("/team/1")
    assert refusal(web, site).reason == "redirect_not_allowed"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_each_kind_of_redirect_is_followed_and_one_without_a_place_is_an_answer(site, web, status):
    site.files["/team/w"] = WEIGHTS
    site.answers[NAMES[1]] = lambda exchange: exchange.send(status, Location="/team/w")
    assert whole(fetch(web, f"{site.url}/team/a/", f"{site.url}/team/"))
    site.answers[NAMES[1]] = lambda exchange: exchange.send(status)
    assert refusal(web, site).reason == "source_io"
    site.answers[NAMES[1]] = lambda exchange: exchange.send(300, Location="/team/w")
    assert refusal(web, site).reason == "source_io"


def source_at(web: Web, uri: str):
    return web_source(web, parse_source(uri), [parse_prefix(uri)], None)


def test_the_version_of_a_source_changes_with_its_files_and_takes_none_of_them(site, web):
    """R8: what is refused for good is looked at, whatever its size."""
    source = source_at(web, f"{site.url}/team/a/")
    first = source.version(Stop())
    assert first
    assert first == source.version(Stop())
    assert {headers["Range"] for _, headers in site.seen} == {"bytes=0-0"}
    site.files[NAMES[1]] = WEIGHTS[::-1]
    second = source.version(Stop())
    del site.files[NAMES[1]]
    assert len({first, second, source.version(Stop())}) == 3
    site.has_tags = False
    assert source.version(Stop()) == "", "a server that tells nothing is asked for the files"
    site.answers[NAMES[0]] = lambda exchange: exchange.send(500)
    with pytest.raises(ArtifactError, match="answered 500"):
        source.version(Stop())


def test_the_version_of_an_archive_is_its_own(site, web):
    site.files["/a.tar"] = b"some"
    assert '"' in source_at(web, f"{site.url}/a.tar").version(Stop())
    assert site.paths == ["/a.tar"]


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
    error = refusal(web, site)
    assert (error.reason, error.permanent) == (reason, reason != "source_missing")
    assert said in error.message


def test_a_source_that_fails_when_it_is_asked_for_more_is_said_as_it_was(site, web):
    del site.files[NAMES[1]]
    site.answers["/team/a/adapter_model.bin"] = lambda exchange: exchange.send(302, Location="http://10.0.0.1/")
    assert refusal(web, site).reason == "source_missing"


@pytest.mark.parametrize("status", [b"103 Early Hints", b"102 Processing"])
def test_a_source_that_only_announces_an_answer_is_as_silent_as_one_that_says_nothing(site, status):
    """X3 given-back, R8: informational answers for ever keep no staging."""

    until = time.monotonic() + 30  # where it is no silence, the test fails

    def announces(exchange: Exchange) -> None:
        while time.monotonic() < until:
            exchange.wfile.write(b"HTTP/1.1 %s\r\nLink: </%s>\r\n\r\n" % (status, b"x" * 4000))

    site.answers[NAMES[0]] = announces
    with closing(Web(SourceLimits(connect_seconds=60, idle_seconds=0.5, pace_seconds=60))) as web:
        assert refusal(web, site).reason == "source_timeout"
    assert site.paths == [NAMES[0]]
