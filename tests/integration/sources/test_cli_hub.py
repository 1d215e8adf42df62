"""A hub's adapters at the command line: looked at, pinned, published; the hub is the one of HF_ENDPOINT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.cli import source_reader
from registry.cli.main import run
from registry.lora.digest import CONFIG_FILE, FILES, WEIGHTS_FILE
from registry.lora.directory import digest_of
from tests.corpus.drafts import LLAMA, Draft
from tests.integration.sources.conftest import PATIENT
from tests.support.web import Exchange, Site

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FOLDER = f"/acme/sql/resolve/{COMMIT}/v7/"
URI = f"hf://acme/sql/v7@{COMMIT}"
TOKEN = "hf_CANARY"  # noqa: S105 - what is looked for


@pytest.fixture(autouse=True)
def _patient(monkeypatch) -> None:
    monkeypatch.setattr(source_reader, "_LIMITS", PATIENT)


@pytest.fixture
def hub(web, monkeypatch) -> Site:
    """Everything for a token only; weights behind a redirect to another path, as the real one has them."""
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    host(web, LLAMA.draft())
    return web


def host(site: Site, draft: Draft) -> None:
    files = draft.files()
    site.files["/blobs/weights"] = files[WEIGHTS_FILE]

    def config(exchange: Exchange) -> None:
        exchange.send(200, files[CONFIG_FILE]) if is_known(exchange) else exchange.send(401)

    def weights(exchange: Exchange) -> None:
        exchange.send(302, Location="/blobs/weights") if is_known(exchange) else exchange.send(401)

    def is_known(exchange: Exchange) -> bool:
        return exchange.headers.get("Authorization") == f"Bearer {TOKEN}"

    site.answers = {FOLDER + CONFIG_FILE: config, FOLDER + WEIGHTS_FILE: weights}


@pytest.fixture
def base(tmp_path) -> tuple[str, ...]:
    return ("--base-model", str(LLAMA.write_base(tmp_path / "base")))


@pytest.fixture
def token(tmp_path) -> tuple[str, ...]:
    """Flags with a credential for acme's repositories and no other place."""
    (tmp_path / "token").write_text(TOKEN)
    entry = {"kind": "file", "path": str(tmp_path / "token"), "prefixes": ["hf://acme"]}
    (tmp_path / "credentials").write_text(json.dumps({"acme": entry}))
    return ("--credentials", str(tmp_path / "credentials"))


@pytest.fixture
def told(capsys):
    """Runs a command; gives its exit code, and what it printed or its error."""

    def call(*arguments: str) -> tuple[int, dict[str, object]]:
        code = run(["-o", "json", *arguments])
        captured = capsys.readouterr()
        assert "CANARY" not in captured.out + captured.err
        return int(code), json.loads(captured.err)["error"] if code else json.loads(captured.out)

    return call


def test_a_commit_has_the_digest_of_its_files_and_is_checked(hub, told, base, token, tmp_path):
    """R4: as a replica would read it."""
    mine = (*token, "--credential", "acme")
    code, said = told("digest", URI, *mine)
    assert (code, said["digest"]) == (0, digest_of(LLAMA.draft().write(tmp_path / "a")))
    code, said = told("check", URI, *base, *mine)
    assert (code, said["findings"]) == (0, [])
    draft = LLAMA.draft()
    draft.config["lora_alpha"] = 0
    host(hub, draft)
    code, said = told("check", URI, *base, *mine)
    assert (code, said["reason"]) == (4, "ADAPTER_UNFIT")


def test_a_commit_is_published_with_a_credential_of_its_own(hub, told, base, token, tmp_path):
    """X1: the source's credential is not the destination's."""
    out = tmp_path / "out"
    code, said = told("publish", URI, str(out), *base, *token, "--source-credential", "acme")
    assert (code, said["digest"]) == (0, digest_of(out))
    assert {name: (out / name).read_bytes() for name in FILES} == LLAMA.draft().files()


@pytest.mark.parametrize("command", ["check", "digest", "publish"])
@pytest.mark.parametrize(
    ("uri", "reason", "finding"),
    [
        (URI, "SOURCE_UNREADABLE", "source_denied"),
        ("hf://acme/sql@main", "SOURCE_REFUSED", "invalid_source"),
        ("hf://acme/sql", "SOURCE_REFUSED", "invalid_source"),
        ("hf://acme", "SOURCE_REFUSED", "invalid_source"),
    ],
)
def test_what_the_hub_does_not_give_is_one_error(hub, told, base, tmp_path, command, uri, reason, finding):
    """X1: and without a credential nothing but the question is sent; nothing is written."""
    target = {"check": base, "digest": (), "publish": (str(tmp_path / "out"), *base)}[command]
    code, error = told(command, uri, *target)
    assert (code, error["reason"]) == (6 if reason == "SOURCE_UNREADABLE" else 4, reason)
    assert error["metadata"] == {"finding": finding}
    assert not (tmp_path / "out").exists()


def test_nothing_is_fetched_for_a_place_where_nothing_can_be_written(hub, told, base, token):
    for target in (URI, "https://h/a/"):
        code, error = told("publish", URI, target, *base, *token, "--source-credential", "acme")
        assert (code, error["reason"]) == (4, "CANNOT_PUBLISH")
    assert hub.seen == []


def test_a_file_of_another_host_is_said(told, base, tmp_path):
    code, error = told("publish", "file://elsewhere/a", str(tmp_path / "out"), *base)
    assert (code, error["reason"]) == (4, "SOURCE_REFUSED")
    code, error = told("publish", str(Path(tmp_path / "nothing")), str(tmp_path / "out"), *base)
    assert (code, error["reason"]) == (3, "ADAPTER_NOT_FOUND")
