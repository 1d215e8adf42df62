"""Object stores, by a server that speaks the little of them that is used, with faults."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.etcd3.backoff import Backoff
from registry.model.source_uri import parse_source
from registry.sources import failures, object_stores
from registry.sources.base import ArtifactError, Stop
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials
from registry.sources.object_stores import ObjectSource, Stores
from registry.sources.origins import Origins
from sidecar.artifacts import maintenance
from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, ref, refusal
from tests.support.adapters import adapter_weights
from tests.support.clouds import CLOUDS, KEY, ONE_OF_EACH, WHEN, ByPath, Cloud, asked, blob, guarded, plain
from tests.support.web import Exchange, Site, serving

BUCKET = "acme-loras"
SESSION = '{"access_key_id": "x", "secret_access_key": "keyCANARY", "session_token": "sessionCANARY"}'
AMAZON = Cloud("s3", "s3", lambda: SESSION, lambda one: one.headers.get("x-amz-security-token") == "sessionCANARY")
AMBIENT = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
BLOB = f"/{BUCKET}/sql/v7/adapter_model.safetensors"
CONFIG_BLOB = f"/{BUCKET}/sql/v7/adapter_config.json"


def uri(cloud: Cloud) -> str:
    return f"{cloud.scheme}://{BUCKET}/sql/v7/"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site()) as site:
        site.put(f"/{BUCKET}/sql/v7/", CONFIG, WEIGHTS)
        yield site


@pytest.fixture
def entry(site, tmp_path) -> Callable[[Cloud], dict[str, Any]]:
    """The credential of a cloud, whose store is at our server; its objects are served only to who signs."""

    def make(cloud: Cloud, *, at: Path = tmp_path / "secret") -> dict[str, Any]:
        at.write_text(cloud.secret)
        for path in site.files:
            site.answers[path] = guarded(cloud, blob)
        return {"acme": cloud.entry(site, BUCKET, at)}

    return make


@pytest.fixture(autouse=True)
def _queries_do_not_count(site) -> None:
    site.answers = ByPath()


@pytest.mark.usefixtures("fetched_alone")
@pytest.mark.parametrize("cloud", [*CLOUDS, AMAZON], ids=lambda one: one.name)
async def test_two_objects_become_an_adapter_with_each_kind_of_secret(site, entry, open_store, monkeypatch, cloud):
    """R4, X1: just two objects are asked for; nothing is listed; no secret is sent but as its cloud takes it."""
    for name in AMBIENT:
        monkeypatch.setenv(name, "AMBIENT")
    store = open_store(f"{cloud.scheme}://{BUCKET}/sql", credentials=entry(cloud))
    staged = await store.ensure(ref(uri(cloud), "acme"))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    assert [plain(path) for path in site.paths] == [CONFIG_BLOB, BLOB]
    assert "keyCANARY" not in str(site.seen)
    assert KEY not in str(site.seen)
    assert "AMBIENT" not in str(site.seen), "what lies in the sidecar's own surroundings is not sent"


@pytest.mark.parametrize("cloud", [*ONE_OF_EACH, AMAZON], ids=lambda one: one.name)
async def test_objects_that_are_replaced_while_they_are_read_are_read_again(site, entry, open_store, cloud):
    """R4: where no digest tells which files they are to be, none of before is served with one of after."""
    store = open_store(f"{cloud.scheme}://{BUCKET}", credentials=entry(cloud))
    served, newer = site.answers[BLOB], adapter_weights(8, 2, hidden=512, layers=4)

    def replacing(exchange: Exchange) -> None:
        if exchange.headers["Range"] != "bytes=0-0":
            site.put(f"/{BUCKET}/sql/v7/", CONFIG, newer)
            site.answers[BLOB] = served
        served(exchange)

    site.answers[BLOB] = replacing
    assert (await refusal(store, uri(cloud), "acme")).reason == "source_changed"
    assert content((await store.ensure(ref(uri(cloud), "acme"))).path) == (CONFIG, newer)


@pytest.mark.parametrize("cloud", [*CLOUDS, AMAZON], ids=lambda one: one.name)
async def test_without_a_secret_nothing_is_signed_and_the_refusal_is_said(site, entry, open_store, monkeypatch, cloud):
    """X1."""
    for name in AMBIENT:
        monkeypatch.setenv(name, "AMBIENT")
    public = entry(cloud)
    public["acme"] = {"kind": "none", "prefixes": public["acme"]["prefixes"], "store": public["acme"]["store"]}
    error = await refusal(open_store(f"{cloud.scheme}://{BUCKET}", credentials=public), uri(cloud), "acme")
    assert (error.reason, error.permanent) == ("source_denied", False)
    assert all("authorization" not in {name.lower() for name in headers} for _, headers in site.seen)
    site.answers[CONFIG_BLOB] = site.answers[BLOB] = blob
    staged = await open_store(f"{cloud.scheme}://{BUCKET}", credentials=public).ensure(ref(uri(cloud), "acme"))
    assert content(staged.path) == (CONFIG, WEIGHTS)


@pytest.mark.usefixtures("fetched_alone")
@pytest.mark.parametrize("cloud", [*CLOUDS, AMAZON], ids=lambda one: one.name)
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
    staged = await store.ensure(ref(uri(cloud), "acme"))
    assert content(staged.path) == (CONFIG, WEIGHTS)
    assert len(site.paths) == 3


@pytest.mark.usefixtures("fetched_alone")
@pytest.mark.parametrize("cloud", [*CLOUDS, AMAZON], ids=lambda one: one.name)
async def test_a_secret_that_stays_refused_is_said_and_not_shown(site, entry, open_store, cloud):
    """X1: not in the error, nor in what caused it."""
    mine = entry(cloud)
    site.answers[CONFIG_BLOB] = lambda exchange: exchange.send(403, b"<Error/>")
    error = await refusal(open_store(f"{cloud.scheme}://{BUCKET}", credentials=mine), uri(cloud), "acme")
    assert (error.reason, error.permanent, len(site.paths)) == ("source_denied", False, 2)
    assert "CANARY" not in f"{error} {error.__cause__}"


@pytest.mark.parametrize("cloud", [*ONE_OF_EACH, AMAZON], ids=lambda one: one.name)
async def test_a_bucket_that_lost_the_files_is_told_while_the_store_has_them(
    site, entry, open_store, monkeypatch, cloud
):
    """R13 static-stable: a new replica could not serve it. A refusal says nothing, and takes nothing back."""
    for name in ("ASK_FIRST_SECONDS", "ASK_GAP_SECONDS", "ASK_AGAIN_SECONDS", "ASK_PERIOD_SECONDS"):
        monkeypatch.setattr(maintenance, name, 0.0)
    store, one = open_store(f"{cloud.scheme}://{BUCKET}", credentials=entry(cloud)), ref(uri(cloud), "acme")
    await store.ensure(one)

    def is_told(answer: Callable[[Exchange], None]) -> bool:
        site.answers[BLOB] = answer
        for _ in range(maintenance.ASK_TIMES):
            store.maintenance.look_at_sources(Stop())
        return "source_gone" in [warning.reason for warning in store.seen[one].warnings]

    there = site.answers[BLOB]
    denied, gone = b"<Error><Code>AccessDenied</Code></Error>", b"<Error><Code>NoSuchKey</Code></Error>"
    assert [
        is_told(there),
        is_told(lambda exchange: exchange.send(403, denied)),
        is_told(lambda exchange: exchange.send(404, gone)),
        is_told(lambda exchange: exchange.send(403, denied)),
        is_told(there),
    ] == [False, False, True, True, False]


def got_by_ranges(cloud: Cloud, entry: dict[str, Any], folder: Path, range_bytes: int) -> bytes:
    source = parse_source(uri(cloud)[:-1])
    (folder / "c.json").write_text(json.dumps(entry))
    held = Credentials(read_credentials(folder / "c.json")).hold("acme", source)
    got: dict[str, bytes] = {}
    ObjectSource(Stores(Origins()), source, held, range_bytes).fetch(
        lambda name, _, chunks: got.update({name: b"".join(chunks)}), Stop()
    )
    return got["adapter_model.safetensors"]


@pytest.mark.parametrize("cloud", [*ONE_OF_EACH, AMAZON], ids=lambda one: one.name)
def test_a_range_that_breaks_off_is_asked_for_again_and_no_other(site, entry, tmp_path, cloud):
    """Fault 22: what arrived before is kept; each later range is of the same version."""
    mine, once = entry(cloud), iter([True])

    def breaking(exchange: Exchange) -> None:
        is_second = exchange.headers["Range"].startswith("bytes=50000-")
        blob(exchange, cut_after=10 if is_second and next(once, False) else None)

    site.answers[BLOB] = guarded(cloud, breaking)
    assert got_by_ranges(cloud, mine, tmp_path, 50_000) == WEIGHTS
    ranges = [headers["range"] for headers in asked(site, BLOB)]
    starts = [int(one.removeprefix("bytes=").split("-")[0]) for one in ranges]
    assert starts == [0, 50_000, *range(50_000, len(WEIGHTS), 50_000)]
    tags = {headers.get("if-match") for headers in asked(site, BLOB)[1:]}
    assert len(tags) == 1
    assert None not in tags


@pytest.mark.parametrize("cloud", [*ONE_OF_EACH, AMAZON], ids=lambda one: one.name)
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
@pytest.mark.parametrize("cloud", [*ONE_OF_EACH, AMAZON], ids=lambda one: one.name)
async def test_a_length_that_is_not_kept_is_never_served(site, entry, open_store, monkeypatch, cloud, wrong):
    """R4: refused for now, since a store that says two things may say one of them later; nothing is left behind."""
    monkeypatch.setattr(object_stores, "IDLE_TIMEOUT", "1s")
    monkeypatch.setattr(object_stores, "RANGE_TIMEOUT", "2s")

    def lying(exchange: Exchange) -> None:
        blob(exchange, cut_after=len(WEIGHTS), **WRONG_LENGTHS[wrong])

    mine = entry(cloud)
    site.answers[BLOB] = guarded(cloud, lying)
    error = await refusal(open_store(f"{cloud.scheme}://{BUCKET}", credentials=mine), uri(cloud), "acme")
    assert not error.permanent
    assert error.reason in {"source_io", "source_changed", "source_incomplete"}


@pytest.fixture
def _at_once(monkeypatch) -> None:
    """Nothing is waited for before it is tried again."""
    monkeypatch.setattr(failures, "_WAIT", Backoff(base_seconds=0.0, cap_seconds=0.0))


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("cloud", [*CLOUDS, AMAZON], ids=lambda one: one.name)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_redirect_leads_nowhere_else_and_takes_no_secret_along(site, entry, open_store, cloud, host):
    """X1, fault 28: the client itself would follow it, with a session token, or a signature in its Referer."""
    mine = entry(cloud)
    with serving(Site()) as other:
        elsewhere = other.url.replace("127.0.0.1", host)
        site.answers[CONFIG_BLOB] = lambda exchange: exchange.send(307, Location=f"{elsewhere}{CONFIG_BLOB}")
        error = await refusal(open_store(f"{cloud.scheme}://{BUCKET}", credentials=mine), uri(cloud), "acme")
    assert (error.reason, error.permanent, other.accepted) == ("source_io", False, [])
    assert "look at the store's endpoint in the file of --credentials" in error.message


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("status", [206, 404, 503])
def test_room_for_an_answer_is_made_for_no_more_than_was_asked_for(site, entry, tmp_path, status):
    """X2, R16 bounded: the client itself would, also for an error; its process ends where there is not so much."""

    def endless(exchange: Exchange) -> None:
        said = {"Content_Range": "bytes 0-9/10", "ETag": '"x"', "Last_Modified": WHEN}
        exchange.start(status, Content_Length=1 << 59, **said)
        exchange.site.closing.wait()

    mine = entry(CLOUDS[0])
    site.answers[CONFIG_BLOB] = endless
    with pytest.raises(ArtifactError) as refused:
        got_by_ranges(CLOUDS[0], mine, tmp_path, 50_000)
    assert refused.value.reason == ("source_missing" if status == 404 else "source_io")


WRONG_SECRETS = {
    "gs": (
        '{"password": "CANARY"}',
        '{"token": "CAN\\nARY"}',
        '{"token": ""}',
        '{"type": "service_account"}',
        '{"type": "service_account", "private_key": "CANARY", "client_email": "x", "private_key_id": "x"}',
        '{"type": "service_account", "gcs_base_url": "http://CANARY:99999999"}',
    ),
    "az": (
        '{"password": "CANARY"}',
        '{"token": "CAN\\nARY\u00fc"}',
        '{"account_key": "!!CANARY"}',
        '{"sas_token": "CANARY"}',
        '{"sas_token": "%ff&=CANARY"}',
    ),
    "s3": (
        "not json",
        "{}",
        '{"access_key_id": "CANARY"}',
        '{"access_key_id": "CAN\\nARY", "secret_access_key": "x"}',
        '{"access_key_id": "\u00fc", "secret_access_key": "CANARY"}',
        '{"access_key_id": "x", "secret_access_key": "CANARY", "session_token": "CAN\\nARY"}',
    ),
}


@pytest.mark.parametrize(
    ("scheme", "secret"), [(scheme, secret) for scheme, secrets in WRONG_SECRETS.items() for secret in secrets]
)
async def test_a_secret_of_the_wrong_form_is_never_sent(site, open_store, tmp_path, scheme, secret):
    """X1, R8: it is not shown; and the client, which would break off the whole process over some, never gets it."""
    (tmp_path / "secret").write_text(secret)
    mine = Cloud("any", scheme, str, bool).entry(site, BUCKET, tmp_path / "secret")
    store = open_store(f"{scheme}://{BUCKET}", credentials={"acme": mine})
    error = await refusal(store, f"{scheme}://{BUCKET}/sql/v7/", "acme")
    assert (error.reason, error.permanent) == ("credential_unavailable", False)
    assert "CAN" not in f"{error} {error.__cause__}"
    assert site.seen == []
