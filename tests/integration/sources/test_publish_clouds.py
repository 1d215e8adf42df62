"""`loraplane publish` to Google's and Azure's stores, and back by a sidecar: over HTTP, with each kind of secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.cli.main import run
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE
from registry.lora.directory import digest_of
from tests.corpus.drafts import LLAMA
from tests.integration.sources.conftest import content, ref, refusal
from tests.support.clouds import CLOUDS, KEY, ONE_OF_EACH, ByPath, Cloud, bucket, plain
from tests.support.web import Answer, Exchange, Site, serving

BUCKET = "acme-published"
CONFIG_BLOB, WEIGHTS_BLOB = (f"/{BUCKET}/sql/v1/{name}" for name in (CONFIG_FILE, WEIGHTS_FILE))
Published = tuple[int, str, str]
ids = {"ids": lambda one: one.name}


def uri(cloud: Cloud, bucket_name: str = BUCKET) -> str:
    return f"{cloud.scheme}://{bucket_name}/sql/v1"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site()) as site:
        yield site


@pytest.fixture
def folder(tmp_path) -> Path:
    return LLAMA.draft().write(tmp_path / "trained")


@pytest.fixture
def publish(site, tmp_path, capsys):
    """Publishes to a cloud with its secret; gives the exit code, standard output, and the error if there is one."""
    base = LLAMA.write_base(tmp_path / "base")

    def call(cloud: Cloud, source: Path, target: str = "", *, credential: str | None = "acme") -> Published:
        if not isinstance(site.answers, ByPath):
            site.answers = ByPath(bucket(cloud, BUCKET))
        (tmp_path / "secret").write_text(cloud.secret)
        entry = cloud.entry(site, BUCKET, tmp_path / "secret")
        entry["prefixes"].append(f"{cloud.scheme}://nowhere")
        public = {"kind": "none", "prefixes": entry["prefixes"], "store": entry["store"]}
        (tmp_path / "credentials").write_text(json.dumps({"acme": entry, "public": public}))
        mine = ("--credentials", str(tmp_path / "credentials"), *(("--credential", credential) if credential else ()))
        code = run(["-o", "json", "publish", str(source), target or uri(cloud), "--base-model", str(base), *mine])
        captured = capsys.readouterr()
        assert "CANARY" not in captured.out + captured.err
        return int(code), captured.out, json.loads(captured.err)["error"]["reason"] if code else captured.err

    return call


def ours() -> dict[str, bytes]:
    files = LLAMA.draft().files()
    return {CONFIG_BLOB: files[CONFIG_FILE], WEIGHTS_BLOB: files[WEIGHTS_FILE]}


def other(tmp_path: Path) -> Path:
    return LLAMA.draft(seed=1).write(tmp_path / "other")


@pytest.mark.parametrize("cloud", CLOUDS, **ids)
async def test_what_is_published_is_what_a_sidecar_reads(publish, site, folder, open_store, tmp_path, cloud):
    """R4, W6, X1: the same bytes under the digest that was printed; again is as good as done, another is refused."""
    code, out, err = publish(cloud, folder)
    assert code == 0, err
    assert site.files == ours()
    store = open_store(
        f"{cloud.scheme}://{BUCKET}", credentials={"acme": cloud.entry(site, BUCKET, tmp_path / "secret")}
    )
    staged = await store.ensure(ref(f"{uri(cloud)}/", "acme"))
    assert content(staged.path) == (ours()[CONFIG_BLOB], ours()[WEIGHTS_BLOB])
    assert (json.loads(out)["digest"], staged.digest) == (digest_of(folder), digest_of(folder))
    assert publish(cloud, folder)[0] == 0
    assert publish(cloud, other(tmp_path))[::2] == (5, "DESTINATION_TAKEN")
    assert site.files == ours()
    assert {plain(path) for path in site.paths} == {CONFIG_BLOB, WEIGHTS_BLOB}  # nothing is listed
    assert "keyCANARY" not in str(site.seen)
    assert KEY not in str(site.seen)


def writing(site: Site, cloud: Cloud, blob: str, fault: Answer) -> None:
    """A fault at the first write of one object; everything else is as it should be."""
    sound = bucket(cloud, BUCKET)
    site.answers = ByPath(sound)

    def once(exchange: Exchange) -> None:
        if exchange.command == "PUT":
            del site.answers[blob]
            fault(exchange)
        else:
            sound(exchange)

    site.answers[blob] = once


def broken_off(exchange: Exchange) -> None:
    exchange.rfile.read(100)
    exchange.cut()


def unavailable(exchange: Exchange) -> None:
    exchange.body()
    exchange.send(503, b"<Error>CANARY</Error>")


def reply_lost(exchange: Exchange) -> None:
    body = exchange.body()
    assert body is not None
    exchange.site.files[plain(exchange.path)] = body
    exchange.cut()


@pytest.mark.parametrize("fault", [broken_off, unavailable, reply_lost])
@pytest.mark.parametrize("blob", [CONFIG_BLOB, WEIGHTS_BLOB])
@pytest.mark.parametrize("cloud", ONE_OF_EACH, **ids)
async def test_half_an_upload_is_no_adapter_and_goes_on(
    publish, site, folder, open_store, tmp_path, cloud, blob, fault
):
    """R4: what stands there in between is refused by replicas; repeated, it ends with the same two objects."""
    writing(site, cloud, blob, fault)
    assert publish(cloud, folder)[::2] == (6, "UPLOAD_UNFINISHED")
    assert site.files.items() <= ours().items()
    credentials = {"acme": cloud.entry(site, BUCKET, tmp_path / "secret")}
    if site.files != ours():
        store = open_store(f"{cloud.scheme}://{BUCKET}", credentials=credentials)
        error = await refusal(store, f"{uri(cloud)}/", "acme")
        assert (error.reason, error.permanent) == ("source_missing", False)
    assert publish(cloud, folder)[0] == 0
    assert site.files == ours()


@pytest.mark.parametrize("blob", [CONFIG_BLOB, WEIGHTS_BLOB])
@pytest.mark.parametrize("cloud", ONE_OF_EACH, **ids)
def test_somebody_else_who_is_quicker_is_not_replaced(publish, site, folder, tmp_path, cloud, blob):
    """W6: it appears between the look and the write, so only the store's own condition can tell."""
    theirs = other(tmp_path) / blob.rpartition("/")[2]

    def quicker(exchange: Exchange) -> None:
        site.files[blob] = theirs.read_bytes()
        bucket(cloud, BUCKET)(exchange)

    if blob == CONFIG_BLOB:  # else both would have the same configuration
        theirs.write_bytes(theirs.read_bytes() + b" ")
    writing(site, cloud, blob, quicker)
    assert publish(cloud, folder)[::2] == (5, "DESTINATION_TAKEN")
    assert site.files[blob] == theirs.read_bytes()


@pytest.mark.parametrize("cloud", CLOUDS, **ids)
def test_a_bucket_or_a_right_that_is_missing_is_said(publish, site, folder, cloud):
    """X1: and nothing is written."""
    assert publish(cloud, folder, uri(cloud, "nowhere"))[::2] == (4, "CANNOT_PUBLISH")
    assert publish(cloud, folder, uri(cloud, "unbound"))[::2] == (4, "SOURCE_REFUSED")
    assert publish(cloud, folder, credential="public")[::2] == (4, "CANNOT_PUBLISH")
    stranger = Cloud(cloud.name, cloud.scheme, cloud.make_secret, lambda _: False)
    site.answers = ByPath(bucket(stranger, BUCKET))
    assert publish(cloud, folder)[::2] == (4, "CANNOT_PUBLISH")
    assert site.files == {}


@pytest.mark.parametrize("cloud", CLOUDS, **ids)
def test_a_redirect_leads_to_no_other_host(publish, site, folder, cloud):
    """X1: the client itself would follow it with a signature in its Referer."""
    with serving(Site()) as other:
        elsewhere = other.url.replace("127.0.0.1", "localhost")

        def moved(exchange: Exchange) -> None:
            exchange.body()
            exchange.send(307, Location=f"{elsewhere}{exchange.path}")

        site.answers = ByPath(moved)
        assert publish(cloud, folder)[::2] == (6, "UPLOAD_UNFINISHED")
        assert other.accepted == []


@pytest.mark.parametrize("cloud", ONE_OF_EACH, **ids)
def test_a_store_that_is_not_there_is_no_refusal(publish, site, folder, cloud):
    site.url = "http://127.0.0.1:1"
    assert publish(cloud, folder)[::2] == (6, "UPLOAD_UNFINISHED")
