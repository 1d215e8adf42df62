"""Adapters in an S3 bucket, served by moto's server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from registry.model.source_uri import parse_source
from registry.sources.base import ArtifactError, Stop
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials
from registry.sources.object_stores import ObjectSource, Stores
from registry.sources.object_stores import open_store as open_object_store
from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, ref, refusal
from tests.support.web import Exchange, Site, serving

KEY = json.dumps({"access_key_id": "AKIACANARY", "secret_access_key": "secretCANARY", "session_token": "sessionCANARY"})
BUCKET = "acme-loras"


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """URL of a server with a bucket that holds an adapter below sql/v7/."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    session = boto3.Session("x", "x", region_name="us-east-1")
    client = session.client("s3", endpoint_url=url)
    client.create_bucket(Bucket=BUCKET)
    client.put_object(Bucket=BUCKET, Key="sql/v7/adapter_config.json", Body=CONFIG)
    client.put_object(Bucket=BUCKET, Key="sql/v7/adapter_model.safetensors", Body=WEIGHTS)
    client.close()
    yield url
    server.stop()


def credential(endpoint: str, **entry: Any) -> dict[str, Any]:
    """A credential for the bucket, whose store is at an endpoint of ours."""
    return {"acme": {"prefixes": [f"s3://{BUCKET}"], "store": {"endpoint": endpoint}} | (entry or {"kind": "none"})}


@pytest.fixture
def signed(moto, tmp_path) -> dict[str, Any]:
    """A credential that moto knows."""
    (tmp_path / "moto").write_text('{"AccessKeyId": "x", "SecretAccessKey": "x"}')
    return credential(moto, kind="file", path=str(tmp_path / "moto"))


async def test_two_objects_become_an_adapter(signed, open_store):
    store = open_store(f"s3://{BUCKET}/sql", credentials=signed)
    staged = await store.ensure(ref(f"s3://{BUCKET}/sql/v7/", "acme"))
    assert content(staged.path) == (CONFIG, WEIGHTS)


@pytest.mark.parametrize("range_bytes", [1000, len(WEIGHTS), len(WEIGHTS) - 1, 1 << 20])
def test_ranges_of_any_size_make_the_whole(signed, tmp_path, range_bytes):
    """R16 bounded: no more than one range is in memory."""
    got: dict[str, list[bytes]] = {}
    source = parse_source(f"s3://{BUCKET}/sql/v7")
    (tmp_path / "c.json").write_text(json.dumps(signed))
    held = Credentials(read_credentials(tmp_path / "c.json")).hold("acme", source)
    ObjectSource(Stores(), source, held, range_bytes).fetch(
        lambda name, _, chunks: got.update({name: list(chunks)}), Stop()
    )
    assert {name: b"".join(chunks) for name, chunks in got.items()} == {
        "adapter_config.json": CONFIG,
        "adapter_model.safetensors": WEIGHTS,
    }
    assert max(map(len, got["adapter_model.safetensors"])) <= range_bytes


async def test_a_private_object_is_denied_without_a_signature(moto, open_store):
    store = open_store(f"s3://{BUCKET}", credentials=credential(moto))
    error = await refusal(store, f"s3://{BUCKET}/sql/v7/", "acme")
    assert (error.reason, error.permanent) == ("source_denied", False)


async def test_what_is_not_there_is_tried_again(signed, open_store):
    store = open_store(f"s3://{BUCKET}", credentials=signed)
    error = await refusal(store, f"s3://{BUCKET}/sql/v8/", "acme")
    assert (error.reason, error.permanent) == ("source_missing", False)
    assert error.message.startswith(f"s3://{BUCKET}/sql/v8/adapter_config.json")


@pytest.fixture
def s3() -> Iterator[Site]:
    """A server that speaks the little of S3 that is used, with faults."""
    with serving(Site()) as site:
        site.put(f"/{BUCKET}/sql/", CONFIG, WEIGHTS)
        for path in list(site.files):
            site.answers[path] = ranged
        yield site


def ranged(exchange: Exchange) -> None:
    body = exchange.site.files[exchange.path]
    start, end = (int(part) for part in exchange.headers["Range"].removeprefix("bytes=").split("-"))
    part = body[start : end + 1]
    tag = f'"{len(body)}-{body[-1]}"'
    if exchange.headers.get("If-Match", tag) != tag:
        exchange.send(412)
        return
    said = f"bytes {start}-{start + len(part) - 1}/{len(body)}"
    exchange.send(206, part, Content_Range=said, ETag=tag, Last_Modified="Mon, 05 Jan 2026 00:00:00 GMT")


async def test_only_the_two_objects_are_asked_for_and_nothing_is_listed(s3, open_store):
    store = open_store(f"s3://{BUCKET}", credentials=credential(s3.url))
    await store.ensure(ref(f"s3://{BUCKET}/sql/", "acme"))
    assert s3.paths == [f"/{BUCKET}/sql/adapter_config.json", f"/{BUCKET}/sql/adapter_model.safetensors"]
    assert all("authorization" not in {name.lower() for name in headers} for _, headers in s3.seen)


async def test_requests_are_signed_with_the_credential_alone(s3, open_store, tmp_path, monkeypatch):
    """X1: what lies in the sidecar's own surroundings is not sent, and the secret itself never is."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "AMBIENT")
    (tmp_path / "key").write_text(KEY)
    entry = credential(s3.url, kind="file", path=str(tmp_path / "key"))
    await open_store(f"s3://{BUCKET}", credentials=entry).ensure(ref(f"s3://{BUCKET}/sql/", "acme"))
    for _, headers in s3.seen:
        assert "AKIACANARY" in headers["authorization"]
        assert headers["x-amz-security-token"] == "sessionCANARY"
        assert "AMBIENT" not in str(headers)
        assert "secretCANARY" not in str(headers)


async def test_ambient_credentials_are_never_used(s3, open_store, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "AMBIENT")
    await open_store(f"s3://{BUCKET}", credentials=credential(s3.url)).ensure(ref(f"s3://{BUCKET}/sql/", "acme"))
    assert "AMBIENT" not in str(s3.seen)


async def test_a_refused_credential_is_fetched_anew_once(s3, open_store, tmp_path):
    """Fault 30: resolved once more, then transient."""
    key = tmp_path / "key"
    key.write_text(KEY.replace("AKIACANARY", "OLD"))

    def expired(exchange: Exchange) -> None:
        key.write_text(KEY)
        is_new = "AKIACANARY" in exchange.headers["authorization"]
        ranged(exchange) if is_new else exchange.send(403)

    s3.answers[f"/{BUCKET}/sql/adapter_model.safetensors"] = expired
    entry = credential(s3.url, kind="file", path=str(key))
    staged = await open_store(f"s3://{BUCKET}", credentials=entry).ensure(ref(f"s3://{BUCKET}/sql/", "acme"))
    assert content(staged.path) == (CONFIG, WEIGHTS)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_credential_that_stays_refused_is_transient(s3, open_store, tmp_path, status):
    (tmp_path / "key").write_text(KEY)
    s3.answers[f"/{BUCKET}/sql/adapter_config.json"] = lambda exchange: exchange.send(status, b"<Error/>")
    entry = credential(s3.url, kind="file", path=str(tmp_path / "key"))
    error = await refusal(open_store(f"s3://{BUCKET}", credentials=entry), f"s3://{BUCKET}/sql/", "acme")
    assert (error.reason, error.permanent) == ("source_denied", False)
    assert len(s3.seen) == 2
    assert all("AKIACANARY" in headers["authorization"] for _, headers in s3.seen)
    assert "CANARY" not in f"{error} {error.__cause__}"


async def test_an_object_that_changes_between_two_ranges_starts_over(s3, tmp_path):
    """R4 digest-true: two versions are never mixed."""
    path = f"/{BUCKET}/sql/adapter_model.safetensors"
    newer = WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1])

    def changing(exchange: Exchange) -> None:
        ranged(exchange)
        s3.files[path] = newer

    s3.answers[path] = changing
    source = parse_source(f"s3://{BUCKET}/sql")
    (tmp_path / "c.json").write_text(json.dumps(credential(s3.url)))
    held = Credentials(read_credentials(tmp_path / "c.json")).hold("acme", source)
    got: dict[str, bytes] = {}
    ObjectSource(Stores(), source, held, 50_000).fetch(
        lambda name, _, chunks: got.update({name: b"".join(chunks)}), Stop()
    )
    assert got["adapter_model.safetensors"] == newer


async def test_a_store_that_fails_in_passing_is_asked_again(s3, open_store):
    path = f"/{BUCKET}/sql/adapter_config.json"
    statuses = iter((503, 500))

    def failing(exchange: Exchange) -> None:
        status = next(statuses, None)
        ranged(exchange) if status is None else exchange.send(status)

    s3.answers[path] = failing
    await open_store(f"s3://{BUCKET}", credentials=credential(s3.url)).ensure(ref(f"s3://{BUCKET}/sql/", "acme"))
    assert s3.paths.count(path) == 3


@pytest.mark.parametrize("key", ["not json", "{}", '{"access_key_id": "CANARY"}'])
async def test_a_secret_of_the_wrong_form_is_said_without_showing_it(s3, open_store, tmp_path, key):
    (tmp_path / "key").write_text(key)
    entry = credential(s3.url, kind="file", path=str(tmp_path / "key"))
    error = await refusal(open_store(f"s3://{BUCKET}", credentials=entry), f"s3://{BUCKET}/sql/", "acme")
    assert (error.reason, error.permanent) == ("credential_unavailable", False)
    assert "CANARY" not in error.message
    assert "not json" not in error.message
    assert s3.seen == []


@pytest.mark.parametrize(
    ("uri", "secret"),
    [
        ("gs://bucket/a", "token"),
        ("gs://bucket/a", '{"token": "x"}'),
        ("az://container/a", '{"account_key": "eA=="}'),
        ("az://container/a", '{"sas_token": "sv=1&sig=x"}'),
        ("az://container/a", "token"),
        ("gs://bucket/a", None),
        ("az://container/a", None),
    ],
)
def test_other_clouds_are_opened_with_their_credentials(tmp_path, uri, secret):
    """Opened only: neither cloud is at hand here."""
    source = parse_source(uri)
    (tmp_path / "key").write_text(secret or "")
    kind = {"kind": "file", "path": str(tmp_path / "key")} if secret else {"kind": "none"}
    entry = {"acme": kind | {"prefixes": [uri], "store": {"account": "acme", "endpoint": "http://127.0.0.1:1"}}}
    (tmp_path / "c.json").write_text(json.dumps(entry))
    assert open_object_store(source, Credentials(read_credentials(tmp_path / "c.json")).hold("acme", source))


def test_azure_needs_an_account():
    with pytest.raises(ArtifactError, match="account"):
        open_object_store(parse_source("az://container/a"), None)
