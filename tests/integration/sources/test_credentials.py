"""Secrets by reference: had from where the configuration says, sent only to where it binds them, shown nowhere."""

from __future__ import annotations

import traceback

import pytest

from registry.sources.base import ArtifactError
from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, ref, refusal
from tests.support.web import Exchange, Site

CONFIG_PATH = "/team/a/adapter_config.json"
WEIGHTS_PATH = "/team/a/adapter_model.safetensors"


def entry(web: Site, **fields: object) -> dict[str, object]:
    return {"team": {"prefixes": [f"{web.url}/team"]} | fields}


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


@pytest.mark.usefixtures("fetched_alone")
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
