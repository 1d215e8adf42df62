"""Adapters on a hub: a small one of our own, with large files on another host as the real one has them."""

from __future__ import annotations

import pytest

from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, ref, refusal
from tests.support.web import Exchange

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FOLDER = f"/acme/sql/resolve/{COMMIT}/v7/"
URI = f"hf://acme/sql/v7@{COMMIT}"
TOKEN = "hf_CANARY"  # noqa: S105 - what is looked for


@pytest.fixture
def hub(web, other):
    """Small files here, weights behind a redirect with a signature, everything for a token only."""
    other.files["/blobs/weights"] = WEIGHTS

    def config(exchange: Exchange) -> None:
        exchange.send(200, CONFIG) if is_known(exchange) else exchange.send(401)

    def weights(exchange: Exchange) -> None:
        if is_known(exchange):
            exchange.send(302, Location=f"{other.url}/blobs/weights?X-Signature=CANARY")
        else:
            exchange.send(401)

    def is_known(exchange: Exchange) -> bool:
        return exchange.headers.get("Authorization") == f"Bearer {TOKEN}"

    web.answers = {f"{FOLDER}adapter_config.json": config, f"{FOLDER}adapter_model.safetensors": weights}
    return web


@pytest.fixture
def token(tmp_path):
    """A credential for acme's repositories."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return {"acme": {"kind": "file", "path": str(tmp_path / "token"), "prefixes": ["hf://acme"]}}


@pytest.mark.usefixtures("fetched_alone")
async def test_two_files_of_a_commit_are_fetched_and_the_token_stays_at_the_hub(hub, other, open_store, token):
    """X1 secret-free: the host behind the redirect never sees the token."""
    store = open_store("hf://acme", f"{other.url}/blobs", hub=hub.url, credentials=token)
    staged = await store.ensure(ref(URI, "acme"))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    assert hub.paths == [f"{FOLDER}adapter_config.json", f"{FOLDER}adapter_model.safetensors"]
    assert [headers["Authorization"] for _, headers in hub.seen] == [f"Bearer {TOKEN}"] * 2
    assert [path for path, headers in other.seen if "Authorization" in headers] == []
    assert len(other.seen) == 1


async def test_large_files_on_a_private_host_need_a_prefix_of_their_own(hub, open_store, token):
    """Fault 28: a hub cannot lead into one's own network. What it said is not repeated, since it holds a signature."""
    error = await refusal(open_store("hf://acme", hub=hub.url, credentials=token), URI, "acme")
    assert error.reason == "redirect_not_allowed"
    assert "CANARY" not in error.message


async def test_without_its_credential_it_is_denied(hub, open_store):
    error = await refusal(open_store("hf://acme", hub=hub.url), URI)
    assert (error.reason, error.permanent) == ("source_denied", False)
    assert "spec.credentials" in error.message
