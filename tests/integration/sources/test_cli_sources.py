"""Sources of other hosts at the command line: looked at, pinned, published; the hub is the one of HF_ENDPOINT."""

from __future__ import annotations

import json

import pytest

from registry.cli.main import run
from registry.lora.digest import CONFIG_FILE, FILES, WEIGHTS_FILE
from registry.lora.directory import digest_of
from tests.corpus.drafts import LLAMA, Draft
from tests.support.container_registry import IMAGE_TAR_GZIP, ContainerRegistry, PushedLayer, packed
from tests.support.web import Exchange, Site, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FOLDER = f"/acme/sql/resolve/{COMMIT}/v7/"
URI = f"hf://acme/sql/v7@{COMMIT}"


@pytest.fixture(autouse=True)
def _patient(patient_desk) -> None:
    """Keeps nobody waiting."""


def wrong() -> Draft:
    draft = LLAMA.draft()
    draft.config["lora_alpha"] = 0
    return draft


def host(site: Site, draft: Draft, path: str = "/team/good/") -> str:
    """Puts an adapter on a web server; gives its URL."""
    files = draft.files()
    site.put(path, files[CONFIG_FILE], files[WEIGHTS_FILE])
    return site.url + path


def archived(draft: Draft) -> bytes:
    return packed({f"adapter/{name}": content for name, content in draft.files().items()}, is_gzipped=True)


@pytest.fixture
def hub(web, monkeypatch) -> Site:
    """Everything for a token only; weights behind a redirect to another path, as the real one has them."""
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    put_on_hub(web, LLAMA.draft())
    return web


def put_on_hub(site: Site, draft: Draft) -> None:
    files = draft.files()
    site.files["/blobs/weights"] = files[WEIGHTS_FILE]

    def config(exchange: Exchange) -> None:
        exchange.send(200, files[CONFIG_FILE]) if is_known(exchange) else exchange.send(401)

    def weights(exchange: Exchange) -> None:
        exchange.send(302, Location="/blobs/weights") if is_known(exchange) else exchange.send(401)

    def is_known(exchange: Exchange) -> bool:
        return exchange.headers.get("Authorization") == "Bearer tokenCANARY"

    site.answers = {FOLDER + CONFIG_FILE: config, FOLDER + WEIGHTS_FILE: weights}


@pytest.fixture
def token(tmp_path, web):
    """Flags with a credential, for acme's repositories and for the web server."""
    (tmp_path / "token").write_text("tokenCANARY")
    entry = {"kind": "file", "path": str(tmp_path / "token"), "prefixes": ["hf://acme", f"{web.url}/team"]}
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


def test_a_directory_and_an_archive_of_a_web_server_are_checked_and_have_their_digest(told, web, base, tmp_path):
    """R4: the digest is that of the same files in a folder."""
    folder = LLAMA.draft().write(tmp_path / "a")
    web.files["/a.tar.gz"] = archived(LLAMA.draft())
    for url in (host(web, LLAMA.draft()), f"{web.url}/a.tar.gz"):
        assert told("check", url, "--base-model", str(base))[0] == 0
        code, said = told("digest", url)
        assert (code, said["digest"]) == (0, digest_of(folder))


def test_a_commit_has_the_digest_of_its_files_and_is_checked(hub, told, base, token, tmp_path):
    """R4: as a replica would read it."""
    mine, compared = (*token, "--credential", "acme"), ("--base-model", str(base))
    code, said = told("digest", URI, *mine)
    assert (code, said["digest"]) == (0, digest_of(LLAMA.draft().write(tmp_path / "a")))
    code, said = told("check", URI, *compared, *mine)
    assert (code, said["findings"]) == (0, [])
    put_on_hub(hub, wrong())
    code, said = told("check", URI, *compared, *mine)
    assert (code, said["reason"]) == (4, "ADAPTER_UNFIT")


def test_a_commit_is_published_with_a_credential_of_its_own(hub, told, base, token, tmp_path):
    """X1: the source's credential is not the destination's; nothing is fetched where nothing can be written."""
    mine = ("--base-model", str(base), *token, "--source-credential", "acme")
    for target in (URI, "https://h/a/"):
        code, error = told("publish", URI, target, *mine)
        assert (code, error["reason"]) == (4, "CANNOT_PUBLISH")
    assert hub.seen == []
    out = tmp_path / "out"
    code, said = told("publish", URI, str(out), *mine)
    assert (code, said["digest"]) == (0, digest_of(out))
    assert {name: (out / name).read_bytes() for name in FILES} == LLAMA.draft().files()


@pytest.mark.parametrize("command", ["check", "digest", "publish"])
@pytest.mark.parametrize(
    ("uri", "reason", "finding"),
    [
        (URI, "SOURCE_UNREADABLE", "source_denied"),
        ("{web}/team/gone/", "SOURCE_UNREADABLE", "source_missing"),
        ("hf://acme/sql@main", "SOURCE_REFUSED", "invalid_source"),
        ("hf://acme", "SOURCE_REFUSED", "invalid_source"),
        ("https://169.254.169.254/latest/", "SOURCE_REFUSED", "address_not_allowed"),
        ("https://[fe80::1]/a/", "SOURCE_REFUSED", "address_not_allowed"),
        ("https://h/a/?token=CANARY", "SOURCE_REFUSED", "invalid_source"),
        ("oci://h/A", "SOURCE_REFUSED", "invalid_source"),
        ("file://elsewhere/a", "SOURCE_REFUSED", None),
    ],
)
def test_what_a_host_does_not_give_is_one_error(hub, told, base, tmp_path, command, uri, reason, finding):
    """X1: without a credential nothing but the question is sent; no secret is repeated; nothing is written."""
    compared = ("--base-model", str(base))
    target = {"check": compared, "digest": (), "publish": (str(tmp_path / "out"), *compared)}[command]
    code, error = told(command, uri.format(web=hub.url), *target)
    assert (code, error["reason"]) == (6 if reason == "SOURCE_UNREADABLE" else 4, reason)
    assert finding is None or error["metadata"] == {"finding": finding}
    assert not (tmp_path / "out").exists()


def test_a_credential_of_the_desk_is_sent(told, web, token):
    url = host(web, LLAMA.draft())
    assert told("digest", url, *token, "--credential", "acme")[0] == 0
    assert {headers.get("Authorization") for _, headers in web.seen} == {"Bearer tokenCANARY"}
    code, error = told("digest", url, *token, "--credential", "other")
    assert (code, "unknown_credential" in str(error)) == (4, True)


def test_a_tag_is_sent_as_the_digest_that_it_has_now(apply, sent_uris):
    """R4: the record names what was looked at, whatever the tag names when a sidecar reads it."""
    with serving(ContainerRegistry()) as registry:
        assert isinstance(registry, ContainerRegistry)
        digest = registry.push("acme/sql", "v1", [PushedLayer(IMAGE_TAR_GZIP, archived(LLAMA.draft()))])
        there = f"oci://{registry.url.partition('://')[2]}/acme/sql"
        assert apply(f"{there}:v1")[0] == 0
        assert apply(f"{there}@{digest}")[0] == 0
        assert sent_uris == [f"{there}@{digest}"] * 2
        code, pinned, said = apply(f"{there}:v2")
    assert (code, pinned, sent_uris[-1]) == (0, "", f"{there}:v2")
    assert "source_missing" in said


def test_what_is_wrong_for_good_is_not_sent_and_what_is_right_is_pinned(apply, web, tmp_path):
    """W9, R4: with the reason of the replicas; what is served later is what was there at this moment."""
    web.files["/a.tar"] = b"no archive" * 100
    for url, reason in ((host(web, wrong()), "zero_alpha"), (f"{web.url}/a.tar", "bad_archive")):
        code, sent, err = apply(url)
        assert (code, sent, reason in err) == (4, None, True)
    assert apply(host(web, LLAMA.draft())) == (0, digest_of(LLAMA.draft().write(tmp_path / "a")), "")


def test_what_cannot_be_read_here_or_keeps_us_waiting_is_left_to_the_replicas_with_a_note(apply, web):
    """R16: the deadline is for all of them together."""

    def drip(exchange: Exchange) -> None:
        exchange.start(200, Content_Length=1 << 20)
        while True:
            exchange.wfile.write(b"x")
            exchange.wfile.flush()

    code, sent, err = apply(f"{web.url}/gone/")
    assert (code, sent, err.startswith("note: "), "source_missing" in err) == (0, "", True, True)
    web.answers["/slow/" + CONFIG_FILE] = drip
    code, sent, err = apply(f"{web.url}/slow/", "--look-seconds", "0.2")
    assert (code, sent, "--look-seconds" in err) == (0, "", True)
