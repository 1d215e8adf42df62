"""Google's and Azure's stores, by a server that speaks the little of them that is used, with faults."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from registry.model.source_uri import parse_source
from registry.sources import object_stores
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials
from registry.sources.errors import ArtifactError
from registry.sources.objects import ObjectSource
from registry.sources.stop import Stop
from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, ref, refusal
from tests.support.web import Exchange, Site, serving

BUCKET = "acme-loras"
KEY = base64.b64encode(b"keyCANARY" * 4).decode()
BLOB = f"/{BUCKET}/sql/v7/adapter_model.safetensors"
CONFIG_BLOB = f"/{BUCKET}/sql/v7/adapter_config.json"
WHEN = "Mon, 05 Jan 2026 00:00:00 GMT"


@dataclass(frozen=True)
class Cloud:
    """A cloud with one kind of secret: what is kept in the file, and whether a request shows that it was used."""

    name: str
    scheme: str
    secret: str
    is_signed: Callable[[str, dict[str, str]], bool]

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{BUCKET}/sql/v7/"


def bearer(_: str, headers: dict[str, str]) -> bool:
    return headers.get("authorization") == "Bearer tokenCANARY"


def shared_key(path: str, headers: dict[str, str]) -> bool:
    """Azure's signature over the request, made anew as its documentation says."""
    lines = {name: value for name, value in headers.items() if name.startswith("x-ms-")}
    canonical = "".join(f"{name}:{lines[name]}\n" for name in sorted(lines))
    fields = ("content-encoding content-language content-length content-md5 content-type date if-modified-since "
              "if-match if-none-match if-unmodified-since range")  # fmt: skip
    values = [headers.get(name, "") for name in fields.split()]
    values[2] = "" if values[2] == "0" else values[2]
    text = "\n".join(["GET", *values, f"{canonical}/acme{path}"])
    made = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    return headers.get("authorization") == f"SharedKey acme:{made}"


def sas(path: str, headers: dict[str, str]) -> bool:
    return parse_qs(urlsplit(path).query).get("sig") == ["sasCANARY"] and "authorization" not in headers


CLOUDS = (
    Cloud("gs_token", "gs", '{"token": "tokenCANARY"}', bearer),
    Cloud("az_token", "az", '{"token": "tokenCANARY"}', bearer),
    Cloud("az_key", "az", json.dumps({"account_key": KEY}), shared_key),
    Cloud("az_sas", "az", '{"sas_token": "sv=2024-11-04&sig=sasCANARY"}', sas),
)
ONE_OF_EACH = CLOUDS[:2]


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site()) as site:
        site.put(f"/{BUCKET}/sql/v7/", CONFIG, WEIGHTS)
        yield site


def plain(path: str) -> str:
    """A path without its query, where a shared access signature stands, and without the escapes of Google's client."""
    return unquote(path.partition("?")[0])


def blob(exchange: Exchange, *, cut_after: int | None = None, **changed: object) -> None:
    """A range of an object with the headers that both clouds send; `changed` headers are what is wrong."""
    body = exchange.site.files.get(plain(exchange.path))
    if body is None:
        exchange.send(404, b"<Error/>")
        return
    start, end = (int(part) for part in exchange.headers["Range"].removeprefix("bytes=").split("-"))
    part = body[start : end + 1]
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    if exchange.headers.get("If-Match", tag) != tag:
        exchange.send(412)
        return
    said = f"bytes {start}-{start + len(part) - 1}/{len(body)}"
    headers = {"Content_Length": len(part), "Content_Range": said, "ETag": tag, "Last_Modified": WHEN} | changed
    exchange.start(206, **headers, x_ms_blob_type="BlockBlob")
    exchange.wfile.write(part[:cut_after])
    if cut_after is not None:
        exchange.cut()


@pytest.fixture
def entry(site, tmp_path) -> Callable[[Cloud], dict[str, Any]]:
    """The credential of a cloud, whose store is at our server; its objects are served only to who signs."""

    def make(cloud: Cloud, *, at: Path = tmp_path / "secret") -> dict[str, Any]:
        at.write_text(cloud.secret)
        for path in site.files:
            site.answers[path] = guarded(cloud)
        store = {"endpoint": site.url, "account": "acme"}
        return {"acme": {"kind": "file", "path": str(at), "prefixes": [f"{cloud.scheme}://{BUCKET}"], "store": store}}

    return make


def guarded(cloud: Cloud, answer: Callable[[Exchange], None] = blob) -> Callable[[Exchange], None]:
    def check(exchange: Exchange) -> None:
        headers = {name.lower(): value for name, value in exchange.headers.items()}
        answer(exchange) if cloud.is_signed(exchange.path, headers) else exchange.send(403, b"<Error/>")

    return check


def asked(site: Site) -> list[dict[str, str]]:
    """The headers of each request for the weights, names in lower case."""
    found = (headers for path, headers in site.seen if plain(path) == BLOB)
    return [{name.lower(): value for name, value in headers.items()} for headers in found]


class ByPath(dict[str, Any]):
    """Answers by plain paths."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(plain(key), default)


@pytest.fixture(autouse=True)
def _queries_do_not_count(site) -> None:
    site.answers = ByPath()


@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda one: one.name)
async def test_two_objects_become_an_adapter_with_each_kind_of_secret(site, entry, open_store, cloud):
    """R4, X1: just two objects are asked for; nothing is listed; no secret is sent but as its cloud takes it."""
    store = open_store(f"{cloud.scheme}://{BUCKET}/sql", credentials=entry(cloud))
    staged = await store.ensure(ref(cloud.uri, "acme"))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    assert [plain(path) for path in site.paths] == [CONFIG_BLOB, BLOB]
    assert "keyCANARY" not in str(site.seen)
    assert KEY not in str(site.seen)


@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda one: one.name)
async def test_without_a_secret_nothing_is_signed_and_the_refusal_is_said(site, entry, open_store, cloud):
    public = entry(cloud)
    public["acme"] = {"kind": "none", "prefixes": public["acme"]["prefixes"], "store": public["acme"]["store"]}
    error = await refusal(open_store(f"{cloud.scheme}://{BUCKET}", credentials=public), cloud.uri, "acme")
    assert (error.reason, error.permanent) == ("source_denied", False)
    assert all("authorization" not in {name.lower() for name in headers} for _, headers in site.seen)
    site.answers[CONFIG_BLOB] = site.answers[BLOB] = blob
    staged = await open_store(f"{cloud.scheme}://{BUCKET}", credentials=public).ensure(ref(cloud.uri, "acme"))
    assert content(staged.path) == (CONFIG, WEIGHTS)


@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda one: one.name)
async def test_a_secret_that_is_refused_is_read_once_more(site, entry, open_store, tmp_path, cloud):
    """Fault 30: it was rotated meanwhile."""
    mine = entry(cloud)
    (tmp_path / "secret").write_text(
        cloud.secret.replace("CANARY", "OLD").replace(KEY, base64.b64encode(b"o").decode())
    )
    check = site.answers[CONFIG_BLOB]

    def rotating(exchange: Exchange) -> None:
        (tmp_path / "secret").write_text(cloud.secret)
        check(exchange)

    site.answers[CONFIG_BLOB] = rotating
    store = open_store(f"{cloud.scheme}://{BUCKET}", credentials=mine)
    staged = await store.ensure(ref(cloud.uri, "acme"))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    assert len(site.paths) == 3


@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda one: one.name)
async def test_a_secret_that_stays_refused_is_said_and_not_shown(site, entry, open_store, cloud):
    """X1: not in the error, nor in what caused it."""
    mine = entry(cloud)
    site.answers[CONFIG_BLOB] = lambda exchange: exchange.send(403, b"<Error/>")
    error = await refusal(open_store(f"{cloud.scheme}://{BUCKET}", credentials=mine), cloud.uri, "acme")
    assert (error.reason, error.permanent, len(site.paths)) == ("source_denied", False, 2)
    assert "CANARY" not in f"{error} {error.__cause__}"


@pytest.mark.parametrize("cloud", ONE_OF_EACH, ids=lambda one: one.name)
async def test_what_is_not_there_is_tried_again(entry, open_store, cloud):
    store = open_store(f"{cloud.scheme}://{BUCKET}", credentials=entry(cloud))
    error = await refusal(store, f"{cloud.scheme}://{BUCKET}/gone/", "acme")
    assert (error.reason, error.permanent) == ("source_missing", False)


def got_by_ranges(cloud: Cloud, entry: dict[str, Any], folder: Path, range_bytes: int) -> bytes:
    source = parse_source(cloud.uri[:-1])
    (folder / "c.json").write_text(json.dumps(entry))
    held = Credentials(read_credentials(folder / "c.json")).hold("acme", source)
    got: dict[str, bytes] = {}
    ObjectSource(source, held, range_bytes).fetch(lambda name, _, chunks: got.update({name: b"".join(chunks)}), Stop())
    return got["adapter_model.safetensors"]


@pytest.mark.parametrize("cloud", ONE_OF_EACH, ids=lambda one: one.name)
def test_a_range_that_breaks_off_is_asked_for_again_and_no_other(site, entry, tmp_path, cloud):
    """Fault 22: what arrived before is kept; each later range is of the same version."""
    mine, once = entry(cloud), iter([True])

    def breaking(exchange: Exchange) -> None:
        is_second = exchange.headers["Range"].startswith("bytes=50000-")
        blob(exchange, cut_after=10 if is_second and next(once, False) else None)

    site.answers[BLOB] = guarded(cloud, breaking)
    assert got_by_ranges(cloud, mine, tmp_path, 50_000) == WEIGHTS
    ranges = [headers["range"] for headers in asked(site)]
    starts = [int(one.removeprefix("bytes=").split("-")[0]) for one in ranges]
    assert starts == [0, 50_000, *range(50_000, len(WEIGHTS), 50_000)]
    tags = {headers.get("if-match") for headers in asked(site)[1:]}
    assert len(tags) == 1
    assert None not in tags


@pytest.mark.parametrize("cloud", ONE_OF_EACH, ids=lambda one: one.name)
def test_an_object_that_changes_between_two_ranges_starts_over(site, entry, tmp_path, cloud):
    """R4 digest-true: two versions are never mixed."""
    mine, newer = entry(cloud), WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1])

    def changing(exchange: Exchange) -> None:
        blob(exchange)
        site.files[BLOB] = newer

    site.answers[BLOB] = guarded(cloud, changing)
    assert got_by_ranges(cloud, mine, tmp_path, 50_000) == newer


WRONG_LENGTHS = {
    "whole_too_small": {"Content_Range": f"bytes 0-{len(WEIGHTS) - 1}/{len(WEIGHTS) - 1}"},
    "whole_too_large": {"Content_Range": f"bytes 0-{len(WEIGHTS) - 1}/{len(WEIGHTS) + 9}"},
    "no_range": {"Content_Range": "nonsense"},
    "other_range": {"Content_Range": f"bytes 5-{len(WEIGHTS) + 4}/{len(WEIGHTS) + 5}"},
    "longer_than_sent": {"Content_Length": len(WEIGHTS) + 99},
}


@pytest.mark.parametrize("wrong", WRONG_LENGTHS)
@pytest.mark.parametrize("cloud", ONE_OF_EACH, ids=lambda one: one.name)
async def test_a_length_that_is_not_kept_is_never_served(site, entry, open_store, monkeypatch, cloud, wrong):
    """R4: refused for now, since a store that says two things may say one of them later; nothing is left behind."""
    monkeypatch.setattr(object_stores, "IDLE_TIMEOUT", "1s")
    monkeypatch.setattr(object_stores, "RANGE_TIMEOUT", "2s")

    def lying(exchange: Exchange) -> None:
        blob(exchange, cut_after=len(WEIGHTS), **WRONG_LENGTHS[wrong])

    mine = entry(cloud)
    site.answers[BLOB] = guarded(cloud, lying)
    error = await refusal(open_store(f"{cloud.scheme}://{BUCKET}", credentials=mine), cloud.uri, "acme")
    assert not error.permanent
    assert error.reason in {"source_io", "source_changed", "source_incomplete"}


@pytest.mark.parametrize("cloud", ONE_OF_EACH, ids=lambda one: one.name)
async def test_a_store_that_fails_in_passing_is_asked_again(site, entry, open_store, cloud):
    mine, statuses = entry(cloud), iter((503, 429))

    def failing(exchange: Exchange) -> None:
        status = next(statuses, None)
        blob(exchange) if status is None else exchange.send(status)

    site.answers[BLOB] = guarded(cloud, failing)
    staged = await open_store(f"{cloud.scheme}://{BUCKET}", credentials=mine).ensure(ref(cloud.uri, "acme"))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    assert len(asked(site)) == 3


def test_a_secret_of_the_wrong_form_is_refused_before_anything_is_sent(site, entry, tmp_path):
    """X1: and is not shown."""
    mine = entry(CLOUDS[2])
    (tmp_path / "secret").write_text('{"password": "CANARY"}')
    with pytest.raises(ArtifactError) as refused:
        got_by_ranges(CLOUDS[2], mine, tmp_path, 50_000)
    assert (refused.value.reason, "CANARY" in refused.value.message) == ("credential_unavailable", False)
    assert site.seen == []
