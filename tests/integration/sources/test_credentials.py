"""Secrets by reference: had from where the configuration says, sent only to where it binds them, shown nowhere."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from registry.sources.base import ArtifactError, StoreError
from registry.sources.credentials import fetch_secret
from registry.sources.credentials_file import MAX_SECRET_BYTES, Secret, SecretError, read_credentials
from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, ref, refusal
from tests.support.web import Exchange, Site, serving

CONFIG_PATH = "/team/a/adapter_config.json"
WEIGHTS_PATH = "/team/a/adapter_model.safetensors"


def entry(web: Site, **fields: object) -> dict[str, object]:
    return {"team": {"prefixes": [f"{web.url}/team"]} | fields}


def one(tmp_path: Path, **fields: object) -> object:
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"a": {"prefixes": ["s3://bucket"]} | fields}))
    return read_credentials(file)["a"]


async def test_a_bound_credential_is_sent_with_each_request(web, open_store, monkeypatch):
    monkeypatch.setenv("TEAM_TOKEN", "tCANARY")
    store = open_store(f"{web.url}/team", credentials=entry(web, kind="env", variable="TEAM_TOKEN"))
    staged = await store.ensure(ref(f"{web.url}/team/a/", "team"))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    assert [headers["Authorization"] for _, headers in web.seen] == ["Bearer tCANARY"] * 2


async def test_a_credential_is_never_sent_to_where_it_is_not_bound(web, other, open_store, monkeypatch):
    """X1, fail closed: whoever may write a record could otherwise have another's token sent to his own server."""
    monkeypatch.setenv("TEAM_TOKEN", "tCANARY")
    other.put("/team/a/", CONFIG, WEIGHTS)
    store = open_store(web.url, other.url, credentials=entry(web, kind="env", variable="TEAM_TOKEN"))
    for uri in (f"{other.url}/team/a/", f"{web.url}/teammate/a/", f"{web.url}/"):
        error = await refusal(store, uri, "team")
        assert (error.reason, error.permanent) == ("credential_not_bound", True)
    error = await refusal(store, f"{web.url}/team/a/", "nobody")
    assert (error.reason, error.permanent) == ("unknown_credential", True)
    assert web.seen == other.seen == []


async def test_a_redirect_carries_the_credential_to_no_other_place(web, other, open_store, monkeypatch):
    """X1: neither to another host, nor on the same host to where it is not bound."""
    monkeypatch.setenv("TEAM_TOKEN", "tCANARY")
    other.files["/w"] = WEIGHTS
    web.files["/open/c"] = CONFIG
    web.answers[CONFIG_PATH] = lambda exchange: exchange.send(302, Location="/open/c")
    web.answers[WEIGHTS_PATH] = lambda exchange: exchange.send(307, Location=f"{other.url}/w")
    store = open_store(web.url, other.url, credentials=entry(web, kind="env", variable="TEAM_TOKEN"))
    await store.ensure(ref(f"{web.url}/team/a/", "team"))
    assert {path: "Authorization" in headers for path, headers in web.seen + other.seen} == {
        CONFIG_PATH: True,
        "/open/c": False,
        WEIGHTS_PATH: True,
        "/w": False,
    }


async def test_a_credential_that_expires_in_mid_download_is_had_anew(web, open_store, tmp_path):
    """Fault 30: once more, and the download goes on where it broke off."""
    token = tmp_path / "token"
    token.write_text("old")

    def answer(exchange: Exchange) -> None:
        if exchange.headers["Authorization"] == "Bearer old" and "Range" not in exchange.headers:
            web.serve(exchange, cut_after=50_000)
            token.write_text("new")
        elif exchange.headers["Authorization"] == "Bearer old":
            exchange.send(401)
        else:
            web.serve(exchange)

    web.answers[WEIGHTS_PATH] = answer
    store = open_store(f"{web.url}/team", credentials=entry(web, kind="file", path=str(token)))
    assert content((await store.ensure(ref(f"{web.url}/team/a/", "team"))).path) == (CONFIG, WEIGHTS)
    asked = [(headers["Authorization"], headers.get("Range")) for headers in web.headers(WEIGHTS_PATH)]
    assert asked == [("Bearer old", None), ("Bearer old", "bytes=50000-"), ("Bearer new", "bytes=50000-")]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_credential_that_stays_refused_is_asked_for_twice_and_no_more(web, open_store, tmp_path, status):
    (tmp_path / "token").write_text("tCANARY")
    web.answers[CONFIG_PATH] = lambda exchange: exchange.send(status)
    store = open_store(f"{web.url}/team", credentials=entry(web, kind="file", path=str(tmp_path / "token")))
    error = await refusal(store, f"{web.url}/team/a/", "team")
    assert (error.reason, error.permanent) == ("source_denied", False)
    assert len(web.seen) == 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"kind": "exec", "command": [sys.executable, "-c", "print('tCANARY')"], "timeout_seconds": 60}, "tCANARY"),
        ({"kind": "env", "variable": "ONE"}, "from env"),
        ({"kind": "none"}, None),
    ],
)
def test_a_secret_is_had_from_where_the_entry_says(tmp_path, monkeypatch, fields, expected):
    monkeypatch.setenv("ONE", " from env\n")
    secret = fetch_secret(one(tmp_path, **fields))
    assert (secret.text if secret else None) == expected


def test_a_token_is_exchanged(tmp_path):
    (tmp_path / "subject").write_text("subject token\n")
    asked: list[dict[str, list[str]]] = []

    def answer(exchange: Exchange) -> None:
        asked.append(parse_qs(exchange.rfile.read(int(exchange.headers["Content-Length"])).decode()))
        exchange.send(200, b'{"access_token": "tCANARY", "token_type": "Bearer"}')

    with serving(Site(answers={"/token": answer})) as site:
        fields = {"url": f"{site.url}/token", "subject_token_file": str(tmp_path / "subject"), "audience": "s3"}
        secret = fetch_secret(one(tmp_path, kind="token_exchange", timeout_seconds=60, **fields))
    assert secret == Secret("tCANARY")
    assert asked[0]["subject_token"] == ["subject token"]
    assert asked[0]["audience"] == ["s3"]
    assert "scope" not in asked[0]


@pytest.mark.parametrize(
    "answer",
    [
        lambda exchange: exchange.send(400, b"tCANARY"),
        lambda exchange: exchange.send(302, Location="http://127.0.0.1:1/tCANARY"),
        lambda exchange: exchange.send(200, b'{"refresh_token": "tCANARY"}'),
        lambda exchange: exchange.send(200, b"tCANARY" * MAX_SECRET_BYTES),
        lambda exchange: exchange.cut(),
    ],
)
def test_a_token_endpoint_that_gives_no_token_is_said_without_its_answer(tmp_path, answer):
    (tmp_path / "subject").write_text("sCANARY")
    with serving(Site(answers={"/token": answer})) as site:
        found = one(
            tmp_path, kind="token_exchange", url=f"{site.url}/token", subject_token_file=str(tmp_path / "subject")
        )
        error = unavailable(found)
    assert site.paths[0] == "/token"
    assert "CANARY" not in error


def unavailable(found: object) -> str:
    """The whole traceback of a secret that cannot be had, as it might get into a log."""
    with pytest.raises(SecretError) as refused:
        fetch_secret(found)
    return "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "file", "path": "/nowhere"},
        {"kind": "env", "variable": "NOT_SET"},
        {"kind": "exec", "command": ["/nowhere"]},
        {"kind": "exec", "command": [sys.executable, "-c", "import sys; print('tCANARY'); sys.exit(3)"]},
        {"kind": "exec", "command": [sys.executable, "-c", "input('tCANARY')"]},
        {"kind": "exec", "command": [sys.executable, "-c", "print('tCANARY' * 20000)"]},
        {"kind": "exec", "command": [sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'\\xff')"]},
        {"kind": "exec", "command": ["sleep", "60"], "timeout_seconds": 0.1},
    ],
)
def test_a_secret_that_cannot_be_had_says_why_and_shows_nothing(tmp_path, fields):
    assert "tCANARY" not in unavailable(one(tmp_path, **fields)).replace(str(fields), "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("token", "Bearer token"),
        ('{"token": "x"}', "Bearer x"),
        ('{"access_token": "x"}', "Bearer x"),
        ('{"username": "u", "password": "p"}', "Basic dTpw"),
    ],
)
def test_a_secret_becomes_a_header(text, value):
    assert Secret(text).authorization() == value


@pytest.mark.parametrize("text", ["tCANARY\r\nX-Evil: 1", "tCANARY ü", '{"key": "tCANARY"}', '{"token": ""}', "[]"])
def test_a_secret_that_can_be_no_header_is_refused_without_showing_it(text):
    secret = Secret(text)
    with pytest.raises(SecretError) as refused:
        Secret(text).authorization() if text != "[]" else Secret("[ ]\n[").authorization()
    assert "CANARY" not in "".join(traceback.format_exception(refused.value))
    assert "CANARY" not in repr(secret)


@pytest.mark.parametrize(
    "file",
    [
        "a: [",
        "a: {kind: file, prefixes: []}",
        "a: {kind: file, path: x}",
        "a: {kind: file, path: x, prefixes: ['file:///x']}",
        "a: {kind: file, path: x, prefixes: ['https://u:tCANARY@host/']}",
        "a: {kind: env, variable: 'tCANARY x', prefixes: ['s3://b']}",
        "a: {kind: token, token: tCANARY, prefixes: ['s3://b']}",
        "a: {kind: env, variable: X, secret: tCANARY, prefixes: ['s3://b']}",
        "a: {kind: exec, command: [], prefixes: ['s3://b']}",
        "a: {kind: token_exchange, url: 'http://host/', subject_token_file: x, prefixes: ['s3://b']}",
        "a: {kind: token_exchange, url: 'https://[bad', subject_token_file: x, prefixes: ['s3://b']}",
        "a: {kind: none, prefixes: ['s3://b'], store: {endpoint: 'https://u:tCANARY@host'}}",
        "a: {kind: none, prefixes: ['s3://b'], store: {endpoint: 'http://host:99999999'}}",
        "a: {kind: none, prefixes: ['s3://b'], store: {endpoint: 'http://[bad'}}",
        "tCANARY",
        "- tCANARY",
        "a: !!python/object/apply:os.system ['tCANARY']",
        "a: 'tCANARY",
        "a: " + "[" * 5000,
        "a: {kind: none, prefixes: [s3://b], CANARY: 2001-99-99}",
        "CANARY: " + "9" * 5000,
    ],
)
def test_a_file_that_makes_no_sense_stops_the_start_and_is_not_quoted(tmp_path, file):
    """X1: somebody may have put a secret where only its place should stand."""
    (tmp_path / "credentials.yaml").write_text(file)
    with pytest.raises(StoreError, match="--credentials") as refused:
        read_credentials(tmp_path / "credentials.yaml")
    assert "CANARY" not in "".join(traceback.format_exception(refused.value))


def test_a_file_that_is_not_there_stops_the_start(tmp_path):
    with pytest.raises(StoreError, match="No such file"):
        read_credentials(tmp_path / "nothing")
    (tmp_path / "large").write_bytes(b"#" * (2 << 20))
    with pytest.raises(StoreError, match="more than"):
        read_credentials(tmp_path / "large")


async def test_an_unavailable_secret_is_transient_and_nothing_is_sent(web, open_store, tmp_path):
    store = open_store(f"{web.url}/team", credentials=entry(web, kind="file", path=str(tmp_path / "later")))
    error = await refusal(store, f"{web.url}/team/a/", "team")
    assert (error.reason, error.permanent) == ("credential_unavailable", False)
    assert web.seen == []


@pytest.mark.parametrize(
    "answer",
    [
        lambda exchange: exchange.send(401),
        lambda exchange: exchange.cut(),
        lambda exchange: exchange.send(302, Location="https://169.254.169.254/?sig=rCANARY"),
        lambda exchange: exchange.send(302, Location="https://u:rCANARY@host/"),
        lambda exchange: exchange.send(200, b"<html>rCANARY", Content_Type="text/html"),
    ],
)
async def test_no_error_shows_a_secret(web, open_store, monkeypatch, answer):
    """X1: neither the message nor the traceback, with all that led to it."""
    monkeypatch.setenv("TEAM_TOKEN", "tCANARY")
    web.answers[CONFIG_PATH] = answer
    store = open_store(f"{web.url}/team", credentials=entry(web, kind="env", variable="TEAM_TOKEN"))
    with pytest.raises(ArtifactError) as refused:
        await store.ensure(ref(f"{web.url}/team/a/", "team"))
    assert web.headers(CONFIG_PATH)[0]["Authorization"] == "Bearer tCANARY"
    assert "CANARY" not in "".join(traceback.format_exception(refused.value))
