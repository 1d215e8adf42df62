"""Adapters from an https server, well-behaved and not."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import httpcore
import pytest

from registry.sources.base import Stop
from registry.sources.connections import SourceRequests
from registry.sources.http import Web
from registry.sources.urls import Reach
from sidecar.artifacts.obtain import MAX_WORKERS
from tests.integration.sources.conftest import CONFIG, PATIENT, QUICK, WEIGHTS, content, left_behind, ref, refusal
from tests.support.adapters import adapter_weights
from tests.support.container_registry import packed
from tests.support.tls import Authority
from tests.support.waiting import eventually
from tests.support.web import Exchange, Site, serving

WEIGHTS_PATH = "/team/a/adapter_model.safetensors"
CONFIG_PATH = "/team/a/adapter_config.json"
# Nothing but their versions tells that these two do not belong to those of before.
NEWER = CONFIG.replace(b'"lora_alpha": 16', b'"lora_alpha": 64'), adapter_weights(8, 2, hidden=512, layers=4)


@pytest.mark.usefixtures("fetched_alone")
async def test_a_download_that_breaks_off_goes_on_where_it_did(web, open_store):
    """Fault 26: what has arrived is not fetched again."""
    web.cut_once(WEIGHTS_PATH, 50_000)
    staged = await open_store(f"{web.url}/team").ensure(ref(f"{web.url}/team/a/"))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    first, second = web.headers(WEIGHTS_PATH)
    assert "Range" not in first
    assert second["Range"] == "bytes=50000-"
    assert second["If-Range"].startswith('"')


def endless(exchange: Exchange) -> None:
    exchange.start(200, Transfer_Encoding="chunked")
    while not exchange.site.closing.is_set():
        exchange.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")


def trickling(exchange: Exchange) -> None:
    exchange.start(200, Content_Length=len(WEIGHTS), ETag='"x"')
    while not exchange.site.closing.wait(0.01):
        exchange.wfile.write(b"\0")
        exchange.wfile.flush()


def promising_more(exchange: Exchange) -> None:
    exchange.start(200, Content_Length=len(WEIGHTS) + 100)
    exchange.wfile.write(WEIGHTS)
    exchange.cut()


def lying_about_the_range(exchange: Exchange) -> None:
    if "Range" in exchange.headers:
        exchange.send(206, WEIGHTS[:1000], Content_Range=f"bytes 0-999/{len(WEIGHTS)}", ETag='"x"')
    else:
        exchange.start(200, Content_Length=len(WEIGHTS), ETag='"x"')
        exchange.wfile.write(WEIGHTS[:50_000])
        exchange.cut()


def redirecting(location: str):
    return lambda exchange: exchange.send(302, Location=location)


@pytest.mark.parametrize(
    ("answer", "reason", "permanent"),
    [
        (endless, "source_io", False),
        (trickling, "source_timeout", False),
        (lambda exchange: exchange.site.hang(exchange), "source_timeout", False),
        (promising_more, "source_incomplete", False),
        (lying_about_the_range, "source_incomplete", False),
        (lambda exchange: exchange.send(200, b"<html>", Content_Type="text/html; charset=x"), "source_is_html", False),
        (lambda exchange: exchange.start(200, Content_Length=1 << 50), "too_large", True),
        (lambda exchange: exchange.send(200), "source_incomplete", False),
        (lambda exchange: exchange.cut(), "source_io", False),
        (lambda exchange: exchange.wfile.write(b"garbage\r\n\r\n"), "source_io", False),
        (redirecting("/internal/w"), "redirect_not_allowed", True),
        (redirecting("//[::1"), "redirect_not_allowed", True),
        (redirecting("https://169.254.169.254/latest/meta-data/"), "address_not_allowed", True),
        (redirecting("https://[::ffff:169.254.169.254]/"), "address_not_allowed", True),
        (redirecting("https://127.1/"), "address_not_allowed", True),
        (redirecting("https://localhost/"), "address_not_allowed", True),
    ],
)
async def test_a_bad_answer_is_refused_with_its_reason(web, open_store, answer, reason, permanent):
    """Faults 26 and 28, R16 bounded: it ends, it says why, and it leaves no file behind."""
    web.answers[WEIGHTS_PATH] = answer
    limits = QUICK if reason == "source_timeout" else PATIENT
    error = await refusal(open_store(f"{web.url}/team", limits=limits), f"{web.url}/team/a/")
    assert (error.reason, error.permanent) == (reason, permanent), error.message


@pytest.mark.usefixtures("fetched_alone")
async def test_a_pause_that_a_server_asks_for_is_kept_by_all_replicas_of_a_store(web, open_store):
    """S6, R8: one request for all of them in each pause, and then what it gives."""
    at = 1_000_000.0
    stores = [open_store(f"{web.url}/team", replica=f"r{number}") for number in range(3)]
    for store in stores:
        store.trust.sources._origins.now = lambda: at
    web.answers[CONFIG_PATH] = lambda exchange: exchange.send(429, b"slow down", Retry_After=60)
    for _ in range(5):
        for store in stores:
            for name in ("a", "b"):
                error = await refusal(store, f"{web.url}/team/{name}/")
                assert error.reason == "rate_limited"
                assert 0 < error.pause_seconds <= 60.0
        at += 20.0
    assert web.paths == [CONFIG_PATH] * 2
    at += 60.0
    del web.answers[CONFIG_PATH]
    for store in stores:
        assert content((await store.ensure(ref(f"{web.url}/team/a/"))).path) == (CONFIG, WEIGHTS)
    assert web.paths[2:] == [CONFIG_PATH, WEIGHTS_PATH]


async def test_authorities_are_replaced_under_load(certificate, tmp_path, monkeypatch):
    """R13 static-stable: no request fails, whatever the file is meanwhile; a new authority counts from then on."""
    stranger, file = Authority(tmp_path / "stranger", "stranger").issue("web"), tmp_path / "authorities"
    file.write_bytes(certificate.ca.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    web, done, is_over, both = Web(PATIENT), [], Event(), certificate.ca.read_bytes() + stranger.ca.read_bytes()

    def get(url: str) -> None:
        requests = SourceRequests(web.connections, Stop())
        requests.get(f"{url}/a", Reach.LITERAL, [("Host", "h"), ("Connection", "close")]).read()
        requests.close()
        done.append(url)

    def get_on(url: str) -> None:
        while not is_over.is_set():
            get(url)

    with serving(Site({"/a": b"a"}), certificate) as site, serving(Site({"/a": b"b"}), stranger) as new:
        get(site.url)
        with pytest.raises(httpcore.ConnectError):
            get(new.url)
        with ThreadPoolExecutor(4) as workers:
            load = [workers.submit(get_on, site.url) for _ in range(4)]
            for content in (both[:-100], b"", both):
                before = len(done)
                file.write_bytes(content)
                await eventually(lambda before=before: len(done) > before + 10)
            is_over.set()
            for one in load:
                one.result()
        get(new.url)
    web.close()


async def test_a_certificate_that_nobody_vouches_for_is_refused(web, open_store, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    error = await refusal(open_store(f"{web.url}/team"), f"{web.url}/team/a/")
    assert (error.reason, error.permanent) == ("source_untrusted", False)
    assert web.seen == []


def packed_adapter(*before: tuple[str, bytes]) -> bytes:
    """A tar.gz with an adapter in one directory."""
    files = {"sql/adapter_config.json": CONFIG, "sql/adapter_model.safetensors": WEIGHTS}
    return packed(dict(before) | files, is_gzipped=True)


@pytest.mark.usefixtures("fetched_alone")
@pytest.mark.parametrize("has_tags", [True, False])
async def test_an_archive_is_one_download_that_goes_on_or_starts_over(web, open_store, has_tags):
    web.has_tags = has_tags
    web.files["/team/a.tar.gz"] = packed_adapter(("README.md", b"x"))
    web.cut_once("/team/a.tar.gz", 50_000)
    staged = await open_store(f"{web.url}/team").ensure(ref(f"{web.url}/team/a.tar.gz"))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    assert [headers.get("Range") for headers in web.headers("/team/a.tar.gz")] == [
        None,
        "bytes=50000-" if has_tags else None,
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (packed_adapter(("../adapter_config.json", b"{}")), "bad_archive"),
        (packed_adapter(("/etc/passwd", b"{}")), "bad_archive"),
        (b"<html>" * 1000, "bad_archive"),
        (packed_adapter()[:-1000], "source_incomplete"),
    ],
)
async def test_an_archive_that_would_do_harm_leaves_nothing(web, open_store, tmp_path, body, reason):
    """Fault 26: nothing is written by the names of an archive."""
    before = set(tmp_path.iterdir())
    web.files["/team/a.tar.gz"] = body
    assert (await refusal(open_store(f"{web.url}/team"), f"{web.url}/team/a.tar.gz")).reason == reason
    assert {path.name for path in set(tmp_path.iterdir()) - before} == {"store", "credentials.json"}


async def test_a_folder_that_is_overwritten_while_it_is_read_is_read_again(web, open_store):
    """R4: where no digest tells which files they are to be, none of before is served with one of after."""
    store = open_store(f"{web.url}/team")

    def overwriting(exchange: Exchange) -> None:
        if "Range" not in exchange.headers:
            web.put("/team/a/", *NEWER)
            del web.answers[WEIGHTS_PATH]
        web.serve(exchange)

    web.answers[WEIGHTS_PATH] = overwriting
    assert (await refusal(store, f"{web.url}/team/a/")).reason == "source_changed"
    assert content((await store.ensure(ref(f"{web.url}/team/a/"))).path) == NEWER


@pytest.mark.usefixtures("fetched_alone")
async def test_one_download_serves_all_replicas_of_a_host(web, open_store):
    stores = [open_store(f"{web.url}/team", replica=f"r{number}") for number in range(3)]
    staged = await asyncio.gather(*(store.ensure(ref(f"{web.url}/team/a/")) for store in stores))
    assert len({one.path for one in staged}) == 1
    assert web.paths == [CONFIG_PATH, WEIGHTS_PATH]


async def test_several_downloads_run_at_once_and_no_more_than_the_cap(web, open_store):
    """R16 bounded: concurrent downloads have a cap."""
    store = open_store(f"{web.url}/team")
    names = [f"/team/{number}/" for number in range(MAX_WORKERS + 2)]
    for name in names:
        web.put(name, CONFIG, WEIGHTS)
        web.answers[f"{name}adapter_config.json"] = web.hang
    tasks = [asyncio.create_task(store.ensure(ref(web.url + name))) for name in names]
    await eventually(lambda: len(web.seen) == MAX_WORKERS)
    web.answers.clear()
    web.closing.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [one for one in results if isinstance(one, BaseException)]


async def test_a_staging_that_nobody_waits_for_ends_soon(web, open_store):
    """R19: not only once the source has been silent for as long as it may."""
    store = open_store(f"{web.url}/team", limits=replace(PATIENT, idle_seconds=600))
    web.answers[WEIGHTS_PATH] = web.hang
    task = asyncio.create_task(store.ensure(ref(f"{web.url}/team/a/")))
    await eventually(lambda: WEIGHTS_PATH in web.paths)
    assert left_behind(store)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not left_behind(store))
