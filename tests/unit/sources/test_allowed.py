"""Which URIs a host takes files from, and what reads them."""

from __future__ import annotations

import pytest

from registry.model.source_uri import parse_source
from registry.sources import file
from registry.sources.allowed import AllowedSources, RemoteOptions
from registry.sources.base import SourceLimits, StoreError
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import NoSecret
from registry.sources.http import WebSource
from registry.sources.object_stores import ObjectSource
from registry.sources.oci import RegistrySource
from tests.unit.sources.conftest import refused

COMMIT = "a" * 40
LIMITS = SourceLimits(connect_seconds=3.0)
EVERYTHING = ("hf://acme/", "https://own.test/a/", "http://own.test/b/", "s3://bucket/x/", "gs://bucket/", "az://box/")


@pytest.fixture
def allowed() -> AllowedSources:
    entry = NoSecret(kind="none", prefixes=("s3://bucket/", "https://own.test/"))  # type: ignore[arg-type]
    remote = RemoteOptions(Credentials({"team": entry}), "http://hub.test/mirror", LIMITS)
    return AllowedSources(EVERYTHING, remote)


def refusal(allowed: AllowedSources, uri: str) -> str:
    error = refused(allowed.source, uri)
    assert error.permanent
    return error.reason


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("ftp://own.test/a/", "unsupported_scheme"),
        ("https", "unsupported_scheme"),
        ("", "unsupported_scheme"),
        ("https://", "invalid_source"),
        ("s3://bucket/../x/", "invalid_source"),
        ("https://own.test/other/", "source_not_allowed"),
        ("http://own.test/a/", "source_not_allowed"),
        ("s3://bucket/y/a", "source_not_allowed"),
        ("s3://other/x/a", "source_not_allowed"),
        (f"hf://other/models@{COMMIT}", "source_not_allowed"),
        ("file:///anywhere", "source_not_allowed"),
    ],
)
def test_what_is_below_no_prefix_is_refused_for_good(allowed, uri, reason):
    """Fail closed: before anything is connected to."""
    assert refusal(allowed, uri) == reason


def test_nothing_is_allowed_by_default():
    """Fail closed."""
    error = refused(AllowedSources([]).source, "file:///a")
    assert (error.reason, "--allow-source" in error.message) == ("source_not_allowed", True)


@pytest.mark.parametrize("uri", ["s3://bucket/x/a", "gs://bucket/a", "az://box/a"])
def test_object_stores_share_what_is_open(allowed, uri):
    source, other = allowed.source(uri), allowed.source("gs://bucket/other")
    assert (type(source), source.uri, source.stores) == (ObjectSource, parse_source(uri), other.stores)


def test_web_servers_and_the_hub_share_connections_and_the_limits_of_the_host(allowed):
    web, plain, hub = (
        allowed.source(uri) for uri in ("https://own.test/a/x.tgz", "http://own.test/b/", f"hf://acme/m@{COMMIT}")
    )
    assert {type(one) for one in (web, plain, hub)} == {WebSource}
    assert web.web is plain.web is hub.web
    assert web.web.connections.limits is LIMITS
    assert (str(web.url), web.is_directory) == ("https://own.test/a/x.tgz", False)
    assert (str(plain.url), plain.is_directory) == ("http://own.test/b/", True)
    assert str(hub.url) == f"http://hub.test/mirror/acme/m/resolve/{COMMIT}/"
    assert len(hub.named) == len(web.named) + 1 == len(EVERYTHING) + 1
    assert hub.may_see == hub.named[-1:]
    assert (hub.may_see[0].scheme, hub.may_see[0].authority, web.may_see) == ("http", "hub.test", ())


def test_a_registry_of_containers_shares_them_too(allowed):
    source = AllowedSources(["oci://reg.test/acme", "https://blobs.test/"]).source("oci://reg.test/acme/sql:v1")
    assert isinstance(source, RegistrySource)
    assert [str(one) for one in source.named] == ["oci://reg.test/acme", "https://blobs.test", "https://reg.test"]
    assert refusal(allowed, "oci://reg.test/acme/sql:v1") == "source_not_allowed"


def test_the_usual_hub_is_reached_over_tls():
    source = AllowedSources(["hf://acme/"]).source(f"hf://acme/m/sub/dir@{COMMIT}")
    assert isinstance(source, WebSource)
    assert str(source.url) == f"https://huggingface.co/acme/m/resolve/{COMMIT}/sub/dir/"
    assert (source.may_see[0].scheme, source.may_see[0].authority) == ("https", "huggingface.co")


def test_what_is_kept_is_closed_at_the_end(allowed, monkeypatch):
    """R16 bounded: and nothing is opened for that."""
    allowed.close()
    closed: list[object] = []
    web, stores = allowed.source("https://own.test/a/"), allowed.source("s3://bucket/x/a")
    monkeypatch.setattr(web.web.connections, "close", lambda: closed.append("web"))
    monkeypatch.setattr(type(stores.stores), "close", lambda _: closed.append("stores"))
    allowed.close()
    assert closed == ["stores", "web"]


@pytest.mark.parametrize(
    "prefix",
    [
        *("file://elsewhere/a", "file:relative", "file://", "s3:/bucket", "s3://", "ftp://x/"),
        *("https://u:p@host/", "/adapters", "nowhere", ""),
    ],
)
def test_a_prefix_that_cannot_be_followed_is_an_error_at_the_start(prefix):
    """Fail closed."""
    with pytest.raises(StoreError, match="--allow-source"):
        AllowedSources([prefix])


@pytest.mark.parametrize("hub", ["nowhere", "ftp://hub.test", "https://hub.test/?x=1"])
def test_a_hub_that_is_none_is_an_error_at_the_start(hub):
    with pytest.raises(StoreError, match="--hf-endpoint"):
        AllowedSources([], RemoteOptions(hub=hub))


@pytest.mark.parametrize(
    ("uri", "is_named"),
    [
        ("file:///allowed/a", True),
        ("file:///allowed/./a/", True),
        ("file:///allowed", True),
        ("file:///allowed/../other", False),
        ("file:///allowed%2F..%2Fother", False),
        ("file:///allowedly/a", False),
        ("file://host/allowed/a", False),
        ("s3://bucket/allowed/a", False),
    ],
)
def test_a_folder_is_named_without_a_look_at_it(monkeypatch, uri, is_named):
    """R13 static-stable: its mount may hang."""
    monkeypatch.setattr(file, "_resolved", raising)
    assert AllowedSources(["file:///allowed/", "s3://bucket/"]).names(uri) is is_named


def raising(_: object) -> str:
    raise AssertionError("it was looked at")
