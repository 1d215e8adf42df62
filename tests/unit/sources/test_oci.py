"""Adapters in a registry of containers: which layers are read, what is shown to whom, and what is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from registry.model.source_uri import SourcePrefix, parse_prefix, parse_source
from registry.sources import oci
from registry.sources.base import ArtifactError, SourceLimits, Stop
from registry.sources.credentials import HeldCredential
from registry.sources.http import Web
from registry.sources.oci import registry_source, repository_prefix
from registry.sources.registry_login import read_challenge
from tests.support import container_registry
from tests.support.container_registry import (
    FILE_PATH,
    IMAGE_TAR,
    IMAGE_TAR_GZIP,
    IS_FOLDER,
    MODEL_CONFIG_RAW,
    MODEL_RAW,
    MODEL_TAR,
    PASSWORD,
    TITLE,
    TOKEN,
    USER,
    ContainerRegistry,
    PushedLayer,
    basic,
    manifest_of,
    packed,
    sha256,
)
from tests.support.web import Exchange, serving
from tests.unit.sources.conftest import got, refusal

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES = {CONFIG: b'{"peft_type": "LORA"}', WEIGHTS: b"weights" * 5000}
LIMITS = SourceLimits(connect_seconds=20, idle_seconds=20)


@pytest.fixture
def there() -> Iterator[ContainerRegistry]:
    with serving(ContainerRegistry()) as registry:
        yield registry  # type: ignore[misc]


@pytest.fixture
def web() -> Iterator[Web]:
    with closing(Web(LIMITS)) as web:
        yield web


def uri_of(there: ContainerRegistry, reference: str = ":v1") -> str:
    return f"oci://{there.url.partition('://')[2]}/acme/sql{reference}"


def source(web: Web, there: ContainerRegistry, reference: str = ":v1", held: HeldCredential | None = None):
    uri = parse_source(uri_of(there, reference))
    return registry_source(web, uri, [parse_prefix(f"oci://{uri.authority}/acme")], held)


def raw(name: str, media_type: str, key: str) -> PushedLayer:
    return PushedLayer(media_type, FILES[name.rpartition("/")[2]], {key: name})


def folder(pushed: str, place: str, media_type: str) -> PushedLayer:
    """A folder as oras pushes it, with the files at a place, which the archive has from where oras ran."""
    content = packed({f"{place}/{name}": FILES[name] for name in FILES}, is_gzipped=True)
    return PushedLayer(media_type, content, {TITLE: pushed, IS_FOLDER: "true"})


ORAS = [raw(CONFIG, IMAGE_TAR, TITLE), raw(WEIGHTS, IMAGE_TAR, TITLE)]
README = PushedLayer("application/vnd.cncf.model.doc.v1.raw", b"# It", {FILE_PATH: "README.md"})
FORMS: dict[str, Sequence[PushedLayer]] = {
    "ModelPack, files": [README, raw(CONFIG, MODEL_CONFIG_RAW, FILE_PATH), raw(WEIGHTS, MODEL_RAW, FILE_PATH)],
    "ModelPack, files in a folder": [
        raw(f"sql/{CONFIG}", MODEL_CONFIG_RAW, FILE_PATH),
        raw(f"sql/{WEIGHTS}", MODEL_RAW, FILE_PATH),
    ],
    "ModelPack, an archive for each": [
        PushedLayer(MODEL_TAR, packed({CONFIG: FILES[CONFIG]}), {FILE_PATH: CONFIG}),
        PushedLayer(f"{MODEL_TAR}+gzip", packed({WEIGHTS: FILES[WEIGHTS]}, is_gzipped=True), {FILE_PATH: WEIGHTS}),
    ],
    "image": [
        PushedLayer(IMAGE_TAR_GZIP, packed({"bin/sh": b"#!"}, is_gzipped=True)),
        PushedLayer(IMAGE_TAR_GZIP, packed({f"models/{name}": FILES[name] for name in FILES}, is_gzipped=True)),
    ],
    "archive with the padding of tar": [PushedLayer(IMAGE_TAR, packed(FILES) + bytes(10240))],
    "oras, files": ORAS,
    "oras, files of types of their own": [
        raw(CONFIG, "application/json", TITLE),
        raw(WEIGHTS, "application/x.safetensors", TITLE),
    ],
    "oras, files beside others, which have the type of an archive too": [
        PushedLayer(IMAGE_TAR, b"# It", {TITLE: "README.md"}),
        *ORAS,
        PushedLayer(IMAGE_TAR, b"", {TITLE: "empty"}),
    ],
    "oras, files by the path at which they lie": [
        raw(f"out/run/last/{CONFIG}", IMAGE_TAR, TITLE),
        raw(f"out/run/last/{WEIGHTS}", IMAGE_TAR, TITLE),
    ],
    "oras, an archive of the type of an archive": [PushedLayer(IMAGE_TAR, packed(FILES), {TITLE: "out/a.tar"})],
    "oras, an archive of that type that is packed": [
        PushedLayer(IMAGE_TAR, packed(FILES, is_gzipped=True), {TITLE: "a.tar.gz"})
    ],
    "oras, a folder": [folder("adapter", "adapter", IMAGE_TAR_GZIP)],
    "oras, a folder of a type of its own": [folder("adapter", "adapter", "application/vnd.acme.lora")],
    "oras, a folder of the type of files": [folder("adapter", "adapter", IMAGE_TAR)],
    "oras, a folder by the path at which it lies": [folder("out/run/last", "out/run/last", IMAGE_TAR_GZIP)],
    "oras, a folder with the folder of the adapter": [folder("out/run", "out/run/last", IMAGE_TAR_GZIP)],
    "ModelPack, a folder with the folder of the adapter": [
        PushedLayer(MODEL_TAR, packed({f"run/last/{name}": FILES[name] for name in FILES}), {FILE_PATH: "run"})
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_two_files_are_read_from_layers_of_every_form(web, there, form):
    digest = there.push("acme/sql", "v1", FORMS[form])
    assert got(source(web, there)) == FILES
    assert got(source(web, there, f"@{digest}")) == FILES


def test_a_tag_has_the_digest_that_it_names_now(web, there):
    """Which is how `apply` pins it; what is named by a digest needs no look."""
    one = there.push("acme/sql", "v1", ORAS)
    assert source(web, there).version(Stop()) == one
    two = there.push("acme/sql", "v1", FORMS["image"])
    assert source(web, there).version(Stop()) == two != one
    there.seen.clear()
    assert source(web, there, f"@{one}").version(Stop()) == one
    assert there.seen == []
    there.push("acme/sql", "latest", ORAS)
    assert got(source(web, there, "")) == FILES


def test_a_body_that_breaks_off_goes_on_and_is_still_compared(web, there):
    there.push("acme/sql", "v1", ORAS)
    there.cut_once(f"/v2/acme/sql/blobs/{sha256(FILES[WEIGHTS])}", 1000)
    assert got(source(web, there)) == FILES


def wrong_layers() -> dict[str, tuple[Sequence[PushedLayer], str, str]]:
    config, weights = ORAS
    return {
        "the same layer twice": ([config, weights, weights], "not_an_adapter", "twice; push each file once"),
        "two layers with one file": (
            [config, weights, PushedLayer(IMAGE_TAR, b"other", {TITLE: WEIGHTS})],
            *("bad_archive", f"it has {WEIGHTS} twice"),
        ),
        "an archive with what another layer has": (
            [config, weights, PushedLayer(IMAGE_TAR_GZIP, packed({WEIGHTS: b"x"}, is_gzipped=True))],
            *("bad_archive", f"it has {WEIGHTS} twice"),
        ),
        "foreign types": (
            [PushedLayer("application/vnd.foreign.thing", b"x"), PushedLayer(f"{MODEL_TAR}+zstd", b"y")],
            *("not_an_adapter", "are not read: application/vnd.cncf.model.weight.v1.tar+zstd, application/vnd.foreign"),
        ),
        "what oras pushes, without the adapter": (
            [PushedLayer(IMAGE_TAR, b"# It", {TITLE: "README.md"})],
            *("not_an_adapter", f"has no layer with {CONFIG}; push the two files or their folder"),
        ),
        "a folder that holds more than the adapter's": (
            [folder("out", "out/run/last", IMAGE_TAR_GZIP)],
            *("not_an_adapter", f"has no layer with {CONFIG}"),
        ),
        "a folder whose archive says another path": (
            [folder("out/run", "a/b/last", IMAGE_TAR_GZIP)],
            *("not_an_adapter", f"has no layer with {CONFIG}"),
        ),
        "files of several folders": (
            [raw(f"a/run/{CONFIG}", IMAGE_TAR, TITLE), raw(f"b/run/{WEIGHTS}", IMAGE_TAR, TITLE)],
            *("not_an_adapter", f"has no layer with {WEIGHTS}"),
        ),
        "no weights": ([config], "not_an_adapter", f"has no layer with {WEIGHTS}"),
        "a path that leads out": (
            [PushedLayer(MODEL_RAW, b"x", {FILE_PATH: f"../{CONFIG}"})],
            *("bad_archive", f"names the file '../{CONFIG}', which leads out of it; push it from its own folder"),
        ),
        "a path from the root": (
            [PushedLayer(IMAGE_TAR, b"x", {TITLE: f"/home/me/{CONFIG}"})],
            *("bad_archive", f"names the file '/home/me/{CONFIG}', which leads out of it; push it from its own folder"),
        ),
        "a folder that leads out": (
            [folder("../sql", "../sql", IMAGE_TAR_GZIP)],
            *("bad_archive", "leads out of it"),
        ),
        "an archive that is none": ([PushedLayer(IMAGE_TAR, b"x" * 2048)], "bad_archive", "no tar archive"),
        "a link": ([PushedLayer(IMAGE_TAR_GZIP, b"no gzip")], "bad_archive", "not a gzip stream"),
    }


@pytest.mark.parametrize("case", wrong_layers())
def test_layers_that_are_no_adapter_are_refused_for_good(web, there, case):
    layers, reason, words = wrong_layers()[case]
    there.push("acme/sql", "v1", layers)
    error = refusal(source(web, there))
    assert (error.reason, error.permanent) == (reason, True)
    assert words in error.message


@pytest.mark.parametrize(
    ("content", "reason", "words"),
    [
        (b"[]", "not_an_adapter", "has a manifest that cannot be used"),
        (b"{", "not_an_adapter", "no JSON"),
        (b"[" * 100_000, "not_an_adapter", "no JSON"),
        (b'{"layers": []}', "not_an_adapter", "cannot be used: layers"),
        (b'{"layers": [{"mediaType": "x", "digest": "sha256:../..", "size": 1}]}', "not_an_adapter", "digest"),
        (
            b'{"layers": [{"mediaType": "x", "digest": "%s", "size": -1}]}' % sha256(b"").encode(),
            "not_an_adapter",
            "size",
        ),
        (b"{}", "not_an_adapter", "cannot be used: layers"),
        (b'["manifests"]', "not_an_adapter", "has a manifest that cannot be used"),
        (b'{"manifests": [], "layers": []}', "not_an_adapter", "cannot be used: layers"),
        (b'{"manifests": []}', "not_an_adapter", "an index of several artifacts; name one of them by its digest"),
        (manifest_of([PushedLayer("x", b"%d" % at) for at in range(201)]), "not_an_adapter", "layers"),
        (b" " * ((1 << 20) + 1), "too_large", "more than 1048576 bytes"),
    ],
)
def test_a_manifest_that_is_none_is_refused(web, there, content, reason, words):
    """X2 unbreakable."""
    there.push_manifest("acme/sql", "v1", content)
    error = refusal(source(web, there))
    assert (error.reason, error.permanent, words in error.message) == (reason, True, True), error.message
    assert uri_of(there) in error.message, "as somebody wrote it"


def test_a_manifest_without_an_end_is_not_read_on(web, there):
    """R16 bounded: without a length, too."""
    sent: list[int] = []

    def endless(exchange: Exchange) -> None:
        exchange.start(200)
        while True:
            exchange.wfile.write(b" " * 65536)
            sent.append(65536)

    there.answers["/v2/acme/sql/manifests/v1"] = endless
    assert refusal(source(web, there)).reason == "too_large"
    assert sum(sent) < 50 << 20


def test_bytes_that_are_not_those_of_their_digest_are_not_taken(web, there, monkeypatch):
    """R4 digest-true: of the manifest, of a file, of an archive, behind an archive's end, and of another length."""
    digest = there.push("acme/sql", "v1", ORAS)
    there.files[f"/v2/acme/sql/manifests/{digest}"] = manifest_of(ORAS, annotations={"a": "b"})
    told = refusal(source(web, there, f"@{digest}")).message
    assert (f"registry of {uri_of(there, f'@{digest}')} sends" in told, "for the manifest" in told) == (True, True)
    for layers in (ORAS, FORMS["image"], FORMS["archive with the padding of tar"]):
        content = layers[-1].content
        there.push("acme/sql", "v1", layers)
        for changed in (content[:-1] + bytes([content[-1] ^ 1]), content + b"\0", content[:-1]):
            there.files[f"/v2/acme/sql/blobs/{sha256(content)}"] = changed
            error = refusal(source(web, there))
            assert error.reason in {"digest_mismatch", "bad_archive", "source_incomplete"}, error.message
    longer = json.loads(manifest_of(ORAS))
    longer["layers"][-1]["size"] += 1
    there.push("acme/sql", "v1", ORAS, json.dumps(longer).encode())
    error = refusal(source(web, there))
    assert (error.reason, f"of {longer['layers'][-1]['size']} bytes" in error.message) == ("digest_mismatch", True)
    there.push("acme/sql", "v1", ORAS)
    monkeypatch.setattr(oci, "MAX_UNPACKED_BYTES", 10)
    assert refusal(source(web, there)).reason == "too_large"


def test_an_artifact_is_gone_when_its_registry_says_so(web, there):
    """A 404 of whatever stands before the registry says nothing of it, and neither does a refusal."""
    there.push("acme/sql", "v1", ORAS)
    assert not source(web, there).is_gone(Stop())

    def unknown(code: str) -> bytes:
        return json.dumps({"errors": [{"code": code, "message": "no", "detail": {}}]}).encode()

    path = "/v2/acme/sql/manifests/v1"
    for content, is_gone in [
        (unknown("MANIFEST_UNKNOWN"), True),
        (unknown("NAME_UNKNOWN"), True),
        (unknown("DENIED"), False),
        (b"<html>not found</html>", False),
        (b"[" * 100_000, False),
        (b'{"errors": {}}', False),
        (b"", False),
    ]:
        there.answers[path] = lambda exchange, content=content: exchange.send(404, content)
        assert source(web, there).is_gone(Stop()) is is_gone
    for status in (403, 418, 500):
        there.answers[path] = lambda exchange, status=status: exchange.send(status, unknown("MANIFEST_UNKNOWN"))
        with pytest.raises(ArtifactError):
            source(web, there).is_gone(Stop())


@pytest.fixture
def login(hold):
    """Holds a credential with this secret, bound to the registry and to these prefixes."""
    return lambda there, secret, *prefixes: hold(uri_of(there), secret, uri_of(there, ""), *prefixes)


LOGIN = {"username": USER, "password": PASSWORD}


def test_a_token_is_had_for_the_user_and_shown_to_the_registry_alone(web, there, login):
    """X1 secret-free: the password goes to the place of tokens, with the one scope that is needed, and nowhere else."""
    there.asks = "token"
    there.push("acme/sql", "v1", ORAS)
    assert got(source(web, there, held=login(there, LOGIN))) == FILES
    shown = [headers.get("Authorization") for path, headers in there.seen if not path.startswith("/token")]
    assert shown == [None, *[f"Bearer {TOKEN}"] * 3]
    [path] = [path for path in there.paths if path.startswith("/token")]
    assert path == "/token?service=it&scope=repository%3Aacme%2Fsql%3Apull"
    assert there.headers(path)[0]["Authorization"] == basic()


def test_a_token_that_ends_amid_the_layers_is_had_anew(web, there, login):
    there.asks = "token"
    there.push("acme/sql", "v1", ORAS)
    blob = f"/v2/acme/sql/blobs/{sha256(FILES[CONFIG])}"

    def ended(exchange: Exchange) -> None:
        del there.answers[blob]
        there.tokens[:] = ["next"]
        there.answer(exchange)

    there.answers[blob] = ended
    assert got(source(web, there, held=login(there, LOGIN))) == FILES


def test_a_password_that_is_rotated_amid_the_layers_is_fetched_anew(web, there, login, monkeypatch):
    """A6 rotates."""
    there.asks = "basic"
    there.push("acme/sql", "v1", ORAS)
    blob = f"/v2/acme/sql/blobs/{sha256(FILES[CONFIG])}"

    def rotated(exchange: Exchange) -> None:
        del there.answers[blob]
        monkeypatch.setattr(container_registry, "PASSWORD", "new")
        monkeypatch.setenv("SECRET", json.dumps(LOGIN | {"password": "new"}))
        there.answer(exchange)

    there.answers[blob] = rotated
    assert got(source(web, there, held=login(there, LOGIN))) == FILES


def test_a_token_for_everybody_that_is_refused_is_the_end(web, there):
    """R8: there is no secret that could be fetched anew."""
    there.asks, there.is_anonymous = "token", True
    there.push("acme/sql", "v1", ORAS)
    there.answers[f"/v2/acme/sql/blobs/{sha256(FILES[CONFIG])}"] = lambda exchange: exchange.send(
        401, WWW_Authenticate=f'Bearer realm="{there.url}/token",service="it"'
    )
    assert (refusal(source(web, there)).reason, len(there.seen)) == ("source_denied", 5)


def test_whoever_needs_no_password_gets_a_token_without(web, there):
    there.asks, there.is_anonymous = "token", True
    there.push("acme/sql", "v1", ORAS)
    assert got(source(web, there)) == FILES


@pytest.mark.parametrize(("asks", "secret"), [("basic", LOGIN), ("token", TOKEN), ("token", {"token": TOKEN})])
def test_user_and_password_or_a_token_of_ones_own_are_shown_as_they_are(web, there, login, asks, secret):
    there.asks = asks
    there.push("acme/sql", "v1", ORAS)
    assert got(source(web, there, held=login(there, secret))) == FILES
    assert not [path for path in there.paths if path.startswith("/token")]


@pytest.mark.parametrize(
    ("asks", "secret"),
    [
        ("basic", {"username": USER, "password": "wrong"}),
        ("basic", None),
        ("token", {"username": USER, "password": "wrong"}),
        ("token", "wrong"),
        ("token", None),
    ],
)
def test_who_may_not_read_it_is_told_so_without_the_secret(web, there, login, asks, secret):
    """X1, R8: tried again, since the credential may be mended; and not over and over at once."""
    there.asks = asks
    there.push("acme/sql", "v1", ORAS)
    error = refusal(source(web, there, held=login(there, secret) if secret else None))
    assert (error.reason, error.permanent) == ("source_denied", False)
    assert "wrong" not in error.message
    assert len(there.seen) <= 4


def test_a_password_goes_only_where_the_credential_is_bound_to(web, there, login):
    """X1: whoever runs a registry could name any place for its tokens."""
    there.asks = "token"
    there.push("acme/sql", "v1", ORAS)
    with serving(ContainerRegistry()) as tokens:
        there.realm = f"{tokens.url}/token"
        uri = parse_source(uri_of(there))
        named = [parse_prefix(f"oci://{uri.authority}/acme"), parse_prefix(f"{tokens.url}/token")]
        error = refusal(registry_source(web, uri, named, login(there, LOGIN)))
        assert error.reason == "credential_not_bound"
        assert f"add {tokens.url} to its prefixes" in error.message
        assert tokens.seen == []
        assert got(registry_source(web, uri, named, login(there, LOGIN, f"{tokens.url}/token"))) == FILES
        unnamed = refusal(source(web, there, held=login(there, LOGIN, f"{tokens.url}/token")))
        assert unnamed.reason == "redirect_not_allowed"
        assert f"wants a token of {tokens.url}, expected https at port 443" in unnamed.message


def test_a_password_does_not_go_where_a_redirect_leads(web, there, login):
    """X1: what a registry redirects to may ask for a token too, and name itself as the place of tokens."""
    there.asks = "token"
    there.push("acme/sql", "v1", ORAS)
    blob = f"/v2/acme/sql/blobs/{sha256(FILES[CONFIG])}"
    with serving(ContainerRegistry()) as store:
        store.asks = "token"
        there.answers[blob] = lambda exchange: exchange.send(307, Location=f"{store.url}{blob}")
        uri = parse_source(uri_of(there))
        named = [parse_prefix(f"oci://{uri.authority}/acme"), parse_prefix(f"{store.url}/")]
        error = refusal(registry_source(web, uri, named, login(there, LOGIN)))
        assert error.reason == "source_denied"
        assert store.paths == [blob]
        assert [headers for _, headers in store.seen if "Authorization" in headers] == []


@pytest.mark.parametrize("realm", ["", "nowhere", "ftp://x/", "file:///etc/passwd", "https://u:p@host/"])
def test_a_place_of_tokens_that_is_none_is_said(web, there, realm):
    there.answers["/v2/acme/sql/manifests/v1"] = lambda exchange: exchange.send(
        401, WWW_Authenticate=f'Bearer realm="{realm}"'
    )
    error = refusal(source(web, there))
    assert (error.reason, "names no URL where it can be had" in error.message) == ("source_io", True)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        b'{"token": 5}',
        b'{"token": ""}',
        b'{"token": "a b"}',
        b'{"token": "CANARY\\r\\nX: y"}',
        b"x" * 70000,
    ],
)
def test_an_answer_without_a_token_is_said_and_not_shown(web, there, answer):
    there.asks = "token"
    path = "/token?service=it&scope=repository%3Aacme%2Fsql%3Apull"
    there.answers[path] = lambda exchange: exchange.send(200, answer)
    error = refusal(source(web, there))
    assert (error.reason, "answers with no token" in error.message) == ("source_io", True)
    assert "CANARY" not in error.message
    there.answers[path] = lambda exchange: exchange.send(307, Location="http://127.0.0.1:1/")
    assert "answered 307" in refusal(source(web, there)).message


def test_a_bundle_is_read_beside_the_files_in_their_folder(web, there):
    """Wherever that was when it was pushed; another folder's is not theirs."""
    files = [raw(f"out/run/{name}", IMAGE_TAR, TITLE) for name in FILES]
    its, others = (
        PushedLayer(IMAGE_TAR, text, {TITLE: f"out/{name}/model.sig"}) for name, text in (("run", b"its"), ("x", b"no"))
    )
    run = packed({f"out/run/{name}": content for name, content in (FILES | {"model.sig": b"its"}).items()})
    for layers, bundle in (
        *((FORMS[form], None) for form in ("oras, files", "image", "archive with the padding of tar")),
        ([*ORAS, PushedLayer("application/json", b"its", {TITLE: "model.sig"})], b"its"),
        ([PushedLayer(IMAGE_TAR, packed(FILES | {"model.sig": b"its"}))], b"its"),
        ([others, *files, its], b"its"),
        ([others, *files], None),
        ([PushedLayer("application/x", gzip.compress(run), {TITLE: "out/run", IS_FOLDER: "true"})], b"its"),
    ):
        there.push("acme/sql", "v1", layers)
        assert source(web, there).signature(Stop()) == bundle, layers


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("oci://ghcr.io/acme/sql", "https://ghcr.io/v2/acme/sql"),
        ("oci://localhost:5000/sql", "http://localhost:5000/v2/sql"),
        ("oci://127.0.0.1:5000/sql", "http://127.0.0.1:5000/v2/sql"),
        ("oci://[::1]:5000/sql", "http://[::1]:5000/v2/sql"),
        ("oci://10.0.0.1:5000/sql", "https://10.0.0.1:5000/v2/sql"),
        ("oci://169.254.169.254/sql", "https://169.254.169.254/v2/sql"),
    ],
)
def test_only_a_registry_of_the_machine_itself_is_asked_without_tls(uri, expected):
    assert str(repository_prefix(parse_source(uri))) == expected
    assert repository_prefix(parse_prefix("oci://h")) == SourcePrefix("https", "h", ("v2",))


def test_a_challenge_is_read_as_far_as_it_goes():
    assert read_challenge('Bearer realm="https://a/t",Service="b c"') == (
        "bearer",
        {"realm": "https://a/t", "service": "b c"},
    )
    assert read_challenge("") == ("", {})
    assert read_challenge("Negotiate") == ("negotiate", {})
    assert len(read_challenge('Bearer a="' + "b" * 9000)[1]) == 0
