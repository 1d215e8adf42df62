"""How a store is opened: for whom, with what, and over which way."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from obstore.exceptions import GenericError

from registry.model.source_uri import parse_source
from registry.sources import object_stores as module
from registry.sources.base import ArtifactError
from registry.sources.credentials import HeldCredential
from registry.sources.credentials_file import EnvSecret, NoSecret, StoreOptions
from registry.sources.object_stores import Stores, open_store
from registry.sources.origins import Origins
from tests.unit.sources.conftest import refused

BOUND: Any = ("s3://bucket/", "gs://bucket/", "az://bucket/")
CLIENT = {
    "connect_timeout": "10s",
    "read_timeout": "30s",
    "timeout": "60s",
    "pool_idle_timeout": "5s",
    "allow_http": False,
    "user_agent": "loraplane",
}


def alone(host: str) -> dict[str, str]:
    """The options of a client that reaches one host."""
    return {"proxy_url": "http://127.0.0.1:0", "proxy_excludes": host}


class Opened:
    """In place of a client's store: where it is, and with what it was opened."""

    def __init__(self, bucket: str, **options: Any) -> None:
        self.bucket = bucket
        self.options = options
        assert options["retry_config"] == {"max_retries": 0}, "ours are the only ones"

    @property
    def config(self) -> dict[str, Any]:
        return self.options["config"]


@pytest.fixture(autouse=True)
def _played(monkeypatch) -> None:
    for name in ("S3Store", "GCSStore", "AzureStore"):
        monkeypatch.setattr(module, name, type(name, (Opened,), {}))
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def hold(monkeypatch):
    """Holds a credential with this secret, or with none, for a store with these options."""

    def held(secret: str | None, name: str = "team", **store: str) -> HeldCredential:
        options = StoreOptions(**store)
        if secret is None:
            return HeldCredential(name, NoSecret(kind="none", prefixes=BOUND, store=options))
        monkeypatch.setenv("SECRET", secret)
        return HeldCredential(name, EnvSecret(kind="env", prefixes=BOUND, variable="SECRET", store=options))

    return held


def opened(scheme: str, held: HeldCredential | None, **options: Any) -> Any:
    return open_store(parse_source(f"{scheme}://bucket/a"), held, **options)


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize(
    ("scheme", "kind", "config"),
    [
        ("s3", "S3Store", {"region": "us-east-1", "skip_signature": True}),
        ("gs", "GCSStore", {"skip_signature": True}),
    ],
)
def test_what_anybody_may_read_is_asked_for_without_a_signature(hold, scheme, kind, config, is_named):
    """X1: and with nothing that the client could find around it."""
    store = opened(scheme, hold(None) if is_named else None)
    assert (type(store).__name__, store.bucket, store.config) == (kind, "bucket", config)
    assert store.options.keys() == {"config", "client_options", "retry_config"}
    assert store.options["client_options"] == CLIENT


def test_a_container_needs_the_name_of_its_account(hold):
    for held in (None, hold(None), hold('{"token": "t"}')):
        error = refused(opened, "az", held)
        assert (error.reason, error.permanent) == ("unknown_credential", True)


GS = {"skip_signature": False}
ACME = {"account": "acme", "endpoint": "https://store.test/acme"}
READ_ACME = {"account_name": "acme", "skip_signature": False, "endpoint": "https://store.test/acme"}
KEYS = [
    '{"type": "service_account"' + more + "}"
    for more in ("", ', "gcs_base_url": ""', ', "gcs_base_url": "https://own.test"')
]


@pytest.mark.parametrize(
    ("scheme", "secret", "store", "config"),
    [
        ("az", None, {"account": "acme"}, {"account_name": "acme", "skip_signature": True}),
        ("az", '{"account_key": "k", "sas_token": "s", "token": "t"}', ACME, READ_ACME | {"account_key": "k"}),
        ("az", '{"sas_token": "s", "token": "t"}', ACME, READ_ACME | {"sas_key": "s"}),
        ("az", '{"token": "t"}', ACME, READ_ACME | {"token": "t"}),
        ("az", "t", ACME, READ_ACME | {"token": "t"}),
        ("gs", "t", {"endpoint": "https://own.test"}, GS | {"base_url": "https://own.test", "bearer_token": "t"}),
        *(("gs", key, {}, GS | {"service_account_key": key}) for key in KEYS),
        ("gs", '{"type": "user", "token": "t"}', {}, GS | {"bearer_token": "t"}),
    ],
)
def test_a_bucket_or_container_is_read_with_what_its_secret_has(hold, scheme, secret, store, config):
    assert opened(scheme, hold(secret, **store)).config == config


@pytest.mark.parametrize("session", [None, "s"])
def test_a_bucket_of_s3_is_read_with_a_pair_of_keys(hold, session):
    more = f', "SessionToken": "{session}"' if session else ', "SessionToken": ""'
    secret = '{"AccessKeyId": "id", "SecretAccessKey": "key"' + more + "}"
    store = opened("s3", hold(secret, region="eu-west-1", endpoint="http://store.test:9000"))
    assert store.config == {"region": "eu-west-1", "skip_signature": False, "endpoint": "http://store.test:9000"}
    assert store.options["client_options"] == CLIENT | {"allow_http": True} | alone("store.test")
    given = {"access_key_id": "id", "secret_access_key": "key", "token": session, "expires_at": None}
    assert store.options["credential_provider"]() == given


@pytest.mark.parametrize(
    ("scheme", "secret", "why"),
    [
        ("s3", "t", "it has no access_key_id"),
        ("s3", '{"access_key_id": "id"}', "it has no secret_access_key"),
        ("s3", '{"access_key_id": "a b", "secret_access_key": "k"}', "its access_key_id is empty, or has"),
        (
            "s3",
            '{"access_key_id": "a", "secret_access_key": "k", "session_token": "\\n"}',
            "its session_token is empty, or has",
        ),
        ("gs", '{"type": "user"}', "it has no token, nor a service account's key"),
        ("gs", "a b", "its token is empty, or has"),
        ("gs", '{"type": "service_account", "gcs_base_url": "nowhere"}', "its gcs_base_url cannot be used"),
        ("az", '{"x": "y"}', "it has no account_key, sas_token or token"),
        ("az", '{"token": ""}', "its token is empty, or has"),
    ],
)
def test_a_secret_of_another_form_is_told_and_not_shown(hold, scheme, secret, why):
    """X1."""
    error = refused(opened, scheme, hold(secret, account="acme"))
    assert (error.reason, error.permanent) == ("credential_unavailable", False)
    assert error.message.startswith(f"the credential 'team' cannot be used: {why}")


def test_what_the_client_says_of_a_secret_is_not_repeated(hold, monkeypatch):
    """X1: it may quote it; a fault of ours is none of the secret's. Times and the way are the caller's."""
    monkeypatch.setattr(module, "GCSStore", mock.Mock(side_effect=GenericError("canary")))
    error = refused(opened, "gs", hold("canary"))
    assert (error.reason, error.permanent) == ("credential_unavailable", False)
    assert "it is not of a form that gs:// takes" in error.message
    assert "canary" not in error.message
    monkeypatch.setattr(module, "GCSStore", mock.Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        opened("gs", hold("t"))
    options = opened("s3", None, timeout="2s", proxy="http://127.0.0.1:1").options["client_options"]
    assert options == CLIENT | {"timeout": "2s", "proxy_url": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("endpoint", "environment", "expected"),
    [
        ("https://store.test:9000", {}, alone("store.test")),
        ("http://[::1]:9000", {}, alone("::1")),
        ("https://store.test", {"http_proxy": "http://p"}, alone("store.test")),
        ("https://store.test", {"https_proxy": "http://p", "no_proxy": "store.test"}, alone("store.test")),
        ("https://store.test", {"https_proxy": "http://p"}, {}),
        ("https://store.test", {"ALL_PROXY": "http://p"}, {}),
        (None, {}, {}),
    ],
)
def test_an_endpoint_is_all_that_is_reached_unless_a_proxy_is(hold, monkeypatch, endpoint, environment, expected):
    """X1: where a redirect leads there is no credential, though the client would follow it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = opened("s3", hold(None, **({} if endpoint is None else {"endpoint": endpoint}))).options["client_options"]
    assert options == CLIENT | {"allow_http": endpoint == "http://[::1]:9000"} | expected


@pytest.fixture
def ways(monkeypatch) -> dict[str, list[Any]]:
    """The forwarders that were made, and which hosts were judged beforehand."""
    found: dict[str, list[Any]] = {"made": [], "judged": []}

    def make(host: str, port: int, _limits: object, most_bytes: int) -> SimpleNamespace:
        assert most_bytes == module.RANGE_BYTES
        made = SimpleNamespace(url=f"http://way-to-{host}-{port}", is_open=True)
        made.close = lambda: setattr(made, "is_open", False)
        found["made"].append(made)
        return made

    monkeypatch.setattr(module, "Forwarder", make)
    monkeypatch.setattr(module, "check_leads", lambda *place: found["judged"].append(place))
    return found


@pytest.fixture
def stores() -> Iterator[Stores]:
    stores = Stores(Origins())
    yield stores
    stores.close()


def proxy_of(stores: Stores, held: HeldCredential | None, bucket: str = "bucket") -> str | None:
    store: Any = stores.store(parse_source(f"s3://{bucket}/a"), held)
    return store.options["client_options"].get("proxy_url")


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        (None, None),
        ("https://store.test:9000", None),
        ("http://127.0.0.1:9000", ("127.0.0.1", 9000)),
        ("http://localhost:9000", ("localhost", 9000)),
        ("http://store.test:9000", ("store.test", 9000)),
        ("http://store.test", ("store.test", 80)),
    ],
)
def test_an_endpoint_without_tls_is_judged_and_led_to_by_us(stores, ways, hold, endpoint, place):
    """Fault 28: a certificate proves where the others came to."""
    held = hold(None, **({} if endpoint is None else {"endpoint": endpoint}))
    direct = None if endpoint is None else "http://127.0.0.1:0"
    assert proxy_of(stores, held) == (direct if place is None else f"http://way-to-{place[0]}-{place[1]}")
    assert ways["judged"] == ([] if place is None else [place])
    assert len(ways["made"]) == len(ways["judged"])


def test_one_way_serves_all_stores_of_a_host_until_the_end(stores, ways, hold):
    """R16 bounded: each is a thread and a port; where it leads is judged each time."""
    assert proxy_of(stores, None) is None
    first = proxy_of(stores, hold(None, "one", endpoint="http://store.test"))
    assert proxy_of(stores, hold(None, "two", endpoint="http://store.test"), "other") == first
    proxy_of(stores, hold(None, "three", endpoint="http://else.test"))
    proxy_of(stores, hold(None, "three", endpoint="http://else.test"))
    assert [one.url for one in ways["made"]] == ["http://way-to-store.test-80", "http://way-to-else.test-80"]
    assert len(ways["judged"]) == 4
    stores.close()
    assert [one.is_open for one in ways["made"]] == [False, False]
    stores.close()


def test_a_name_that_leads_to_the_machine_opens_nothing(stores, ways, hold, monkeypatch):
    """Fault 28: each time that somebody asks for it, also where it led elsewhere before."""
    held = hold(None, endpoint="http://store.test")
    proxy_of(stores, held)
    monkeypatch.setattr(module, "check_leads", mock.Mock(side_effect=ArtifactError("address_not_allowed", "")))
    assert refused(stores.store, parse_source("s3://bucket/a"), held).reason == "address_not_allowed"


def test_stores_are_told_apart_by_scheme_bucket_and_credential(stores, hold, monkeypatch):
    """X1: what one record's credential opened serves no other record."""
    found = [
        stores.store(parse_source(uri), held)
        for uri, held in (
            ("s3://bucket/a", None),
            ("gs://bucket/a", None),
            ("s3://bucket2/a", None),
            ("s3://bucket/a", hold(None, "one")),
            ("s3://bucket/a", hold(None, "two")),
        )
    ]
    assert len(set(map(id, found))) == 5
    assert stores.store(parse_source("s3://bucket/other"), None) is found[0]
    rotated = stores.store(
        parse_source("s3://bucket/a"), hold('{"access_key_id": "i", "secret_access_key": "k"}', "two")
    )
    assert rotated not in found, "the secret that was taken back is not used for as long as its store is kept"
    assert len(stores._open) == 5
    newest = stores.reopened(parse_source("s3://bucket/a"), None)
    assert newest is not found[0]
    assert stores.store(parse_source("s3://bucket/a"), None) is newest


def test_a_store_whose_address_was_corrected_is_opened_there(stores, hold):
    """R8: as it is asked for where it cannot be reached; the secret may be the same, or none."""
    first, there, region = (
        stores.store(parse_source("s3://bucket/a"), hold(None, "one", **options))
        for options in (
            {"endpoint": "https://wrong.test"},
            {"endpoint": "https://right.test"},
            {"endpoint": "https://right.test", "region": "eu-west-1"},
        )
    )
    assert [one.config["endpoint"] for one in (first, there, region)] == [
        "https://wrong.test",
        *["https://right.test"] * 2,
    ]
    assert region.config["region"] == "eu-west-1"
    assert len(stores._open) == 1


def test_sixteen_stores_are_kept_and_the_one_that_was_used_longest_ago_goes(stores):
    """R16 bounded: each has connections of its own."""
    first, second, _, third, *_ = [stores.store(parse_source(f"s3://bucket{number}/a"), None) for number in range(16)]
    assert stores.store(parse_source("s3://bucket0/a"), None) is first
    assert stores.store(parse_source("s3://bucket1/a"), None) is second
    stores.reopened(parse_source("s3://bucket2/a"), None)
    newest = stores.store(parse_source("s3://bucket16/a"), None)
    assert stores.store(parse_source("s3://bucket16/a"), None) is newest
    assert stores.store(parse_source("s3://bucket0/a"), None) is first
    assert stores.store(parse_source("s3://bucket1/a"), None) is second
    assert len(stores._open) == 16
    assert stores.store(parse_source("s3://bucket3/a"), None) is not third
