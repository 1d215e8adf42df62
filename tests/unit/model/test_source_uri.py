"""Which URIs name a source, what is below a prefix, and that nothing secret is repeated."""

from __future__ import annotations

import pytest

from registry.model.errors import InvalidArgument, Reason
from registry.model.records import AdapterSpec, SourceSpec
from registry.model.source_uri import (
    SourcePrefix,
    SourceUri,
    SourceUriError,
    is_movable,
    parse_prefix,
    parse_source,
    settled_uri,
    without_secrets,
)
from registry.transactions.supported import check_supported

DIGEST = "sha256:" + "ab" * 32
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (f"hf://acme/sql@{COMMIT}", SourceUri("hf", "acme", ("sql",), COMMIT)),
        (f"hf://acme/sql/v7/best@{COMMIT}", SourceUri("hf", "acme", ("sql", "v7", "best"), COMMIT)),
        ("s3://acme-loras/sql/v7/", SourceUri("s3", "acme-loras", ("sql", "v7"))),
        ("s3://acme-loras/run=1/step@5", SourceUri("s3", "acme-loras", ("run=1", "step@5"))),
        ("gs://acme.loras", SourceUri("gs", "acme.loras", ())),
        (f"hf://acme/sql.tar@{COMMIT}", SourceUri("hf", "acme", ("sql.tar",), COMMIT)),
        ("s3://acme/sql.tar", SourceUri("s3", "acme", ("sql.tar",))),
        ("http://host/a.tgz", SourceUri("http", "host", ("a.tgz",), is_directory=False)),
        ("az://container/a", SourceUri("az", "container", ("a",))),
        ("https://Host.Example/a/", SourceUri("https", "host.example", ("a",))),
        ("https://host:443/a/", SourceUri("https", "host", ("a",))),
        ("https://host:/a/", SourceUri("https", "host", ("a",))),
        ("http://host:443/a/", SourceUri("http", "host:443", ("a",))),
        ("http://host:80/a/", SourceUri("http", "host", ("a",))),
        ("https://host:1/a/", SourceUri("https", "host:1", ("a",))),
        ("https://host:65535/a/", SourceUri("https", "host:65535", ("a",))),
        ("https://host:08443/a/", SourceUri("https", "host:8443", ("a",))),
        ("https://[::1]:8443/", SourceUri("https", "[::1]:8443", ())),
        ("https://[::1]/", SourceUri("https", "[::1]", ())),
        ("https://host/a%20b.tar.gz", SourceUri("https", "host", ("a%20b.tar.gz",), is_directory=False)),
        ("https://host/a.tar", SourceUri("https", "host", ("a.tar",), is_directory=False)),
        ("https://host/a.tar/", SourceUri("https", "host", ("a.tar",))),
        ("oci://GHCR.io/acme/sql", SourceUri("oci", "ghcr.io", ("acme", "sql"), "latest")),
        ("oci://ghcr.io:443/a-1.b__c/sql:v1.2_X-", SourceUri("oci", "ghcr.io", ("a-1.b__c", "sql"), "v1.2_X-")),
        (f"oci://[::1]:5000/sql@{DIGEST}", SourceUri("oci", "[::1]:5000", ("sql",), DIGEST)),
        ("wandb-artifact:///team/run/sql:v7", SourceUri("wandb-artifact", "", ("team", "run", "sql:v7"))),
        ("mlflow-model://host:5000/sql@best/", SourceUri("mlflow-model", "host:5000", ("sql@best",))),
    ],
)
def test_a_uri_is_read_in_its_one_spelling(uri, expected):
    assert parse_source(uri) == expected
    kinds = {"hf": "hub", "http": "web", "https": "web", "oci": "registry"}
    kinds |= {"wandb-artifact": "fetched", "mlflow-model": "fetched"}
    assert parse_source(uri).kind == kinds.get(expected.scheme, "bucket")


NO_SOURCES = {
    "is not known": "ftp://host/a s3:/bucket/a https wandb://x/y -a://b a-://b A-b://c a--b://c "
    f"a-{'b' * 40}://c wandb-artifact:/x 1-a://b",
    "write oci://HOST/REPOSITORY": f"oci://h oci://h/ oci://h/a: oci://h/a@ oci://h/a@sha256:ab oci://h/a:v@{DIGEST} "
    f"oci://h/a:v1/b oci://h/a:-x oci://h/a:{'t' * 129} oci://h/a@{DIGEST}x",
    "lower case": "oci://h/A oci://h/a//b oci://h/a/ oci://h/a..b oci://h/-a oci://h/../a oci://h/a%2fb oci://h/"
    + "a" * 129,
    "no path": "wandb-artifact:// wandb-artifact:/// wandb-artifact://team",
    "no plain name": "wandb-artifact://user@team/x wandb-artifact://-x/y wandb-artifact://a%20b/c",
    "one host": "file:///a",
    "40 hexadecimal digits": f"hf://acme/sql hf://acme/sql@main hf://acme/sql@{COMMIT[:-1]} hf:// "
    f"hf://acme/sql@{COMMIT.upper()} hf://acme@{COMMIT} hf://acme/{COMMIT}",
    "ORGANISATION/REPOSITORY": f"hf://acme/@{COMMIT} hf://acme/..a@{COMMIT} hf://a..b/sql@{COMMIT}",
    "dotted": f"hf://acme/../x@{COMMIT} s3://bucket/../b https://host/%2e%2e/",
    "no bucket": "s3:///a s3://Bucket/a s3://a..b/a s3://user@bucket/a",
    "empty": "s3://bucket/a//b",
    "not plain": "s3://bucket/a%2f s3://bucket/a%20b https://host/a%2Fb/ https://host/a\\b/ https://host/a%5cb/ "
    "https://host/%00/ https://host/ü/",
    "end the URL of a directory with /": "https://host/a https://host",
    "no host": "https:///a/ https://ho%73t/",
    "a user or password in a URL is a secret": "https://user@host/",
    "no host and port": "https://host:0/ https://host:99999/ https://host:65536/ https://host:0065530000/ "
    "https://host:\uff18\uff10/ https://host:1_0/ https://host:x/",
    "brackets": "https://[::1/",
}


@pytest.mark.parametrize(
    ("uri", "found"),
    [*((uri, found) for found, uris in NO_SOURCES.items() for uri in uris.split()), ("https://a b/", "no host")],
)
def test_what_names_no_source_is_refused_with_what_to_write(uri, found):
    """Fail closed: whatever two readers might read differently is not read at all."""
    with pytest.raises(SourceUriError, match=found.replace("[", "\\[")):
        parse_source(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "https://host/a.tar?X-Amz-Signature=CANARY",
        "https://host/a/#CANARY",
        "https://user:CANARY@host/a/",
        "https://CANARY@host/a/",
        "s3://user:CANARY@bucket/a",
        "file:///a?CANARY",
    ],
)
def test_no_message_repeats_a_secret(uri):
    """X1: presigned queries and passwords in URLs are refused at apply, with a remedy and without an echo."""
    with pytest.raises(InvalidArgument) as refused:
        check_supported(AdapterSpec(source=SourceSpec(uri=uri)), field="spec")
    assert refused.value.reason is Reason.INVALID_FIELD
    assert refused.value.field == "spec.source.uri"
    assert "CANARY" not in f"{refused.value} {refused.value.__cause__} {refused.value.metadata}"
    assert "CANARY" not in without_secrets(uri)


def test_what_may_be_shown_of_a_uri_is_the_rest():
    assert without_secrets("https://u:p@host/a/b.tar?x=1#y") == "https://host/a/b.tar"
    assert without_secrets("file:///a@b/c") == "file:///a@b/c"
    assert without_secrets(f"hf://acme/sql@{COMMIT}") == f"hf://acme/sql@{COMMIT}"
    assert len(without_secrets("s3://b/" + "a" * 2000)) == 300


def test_what_a_tag_names_may_be_another_tomorrow_and_is_named_by_its_digest():
    assert is_movable(parse_source("oci://h/acme/sql:v1"))
    settled = settled_uri(parse_source("oci://h/acme/sql:v1"), DIGEST)
    assert settled == f"oci://h/acme/sql@{DIGEST}"
    assert not is_movable(parse_source(settled))
    assert not is_movable(parse_source("s3://acme/sql"))


@pytest.mark.parametrize(
    ("prefix", "uri", "expected"),
    [
        ("s3://acme", "s3://acme/a", True),
        ("s3://acme/", "s3://acme-evil/a", False),
        ("s3://acme/a", "s3://acme/ab", False),
        ("s3://acme/a/", "s3://acme/a", True),
        ("s3://acme", "gs://acme/a", False),
        ("hf://acme", f"hf://acme/sql@{COMMIT}", True),
        ("hf://acme/sql", f"hf://acme/sql/v7@{COMMIT}", True),
        ("hf://acme/sql", f"hf://acme/sql2@{COMMIT}", False),
        ("https://host/a", "https://HOST:443/a/b/", True),
        ("https://host/a", "http://host/a/b/", False),
        ("https://host/a", "https://host:8443/a/b/", False),
        ("https://host/a", "https://host.evil/a/b/", False),
        ("oci://h/acme", "oci://h/acme/sql:v1", True),
        ("oci://h/acme", "oci://h/acme-evil/sql:v1", False),
        ("oci://h/acme/sql", f"oci://h/acme/sql@{DIGEST}", True),
        ("wandb-artifact:///team", "wandb-artifact:///team/run/sql:v7", True),
        ("wandb-artifact:///team", "wandb-artifact:///teams/run/sql:v7", False),
        ("wandb-artifact:///team", "wandb-artifact://host/team/run", False),
    ],
)
def test_below_a_prefix_means_by_whole_names(prefix, uri, expected):
    source = parse_source(uri)
    assert parse_prefix(prefix).covers(source.scheme, source.authority, source.path) is expected


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("s3://acme.loras/run=1/", SourcePrefix("s3", "acme.loras", ("run=1",))),
        ("gs://a--b", SourcePrefix("gs", "a--b", ())),
        ("https://HOST:443/a%20b", SourcePrefix("https", "host", ("a%20b",))),
        ("https://[::1]:8443", SourcePrefix("https", "[::1]:8443", ())),
        ("http://_host/", SourcePrefix("http", "_host", ())),
        ("hf://Acme/sql/v7", SourcePrefix("hf", "Acme", ("sql", "v7"))),
        ("oci://GHCR.io:443/acme/", SourcePrefix("oci", "ghcr.io", ("acme",))),
        ("oci://h:5000", SourcePrefix("oci", "h:5000", ())),
        ("wandb-artifact:///team/run/", SourcePrefix("wandb-artifact", "", ("team", "run"))),
        ("mlflow-model://host:5000", SourcePrefix("mlflow-model", "host:5000", ())),
    ],
)
def test_a_prefix_is_read_in_its_one_spelling(prefix, expected):
    assert parse_prefix(prefix) == expected
    assert parse_prefix(str(expected)) == expected, "as it is shown, it is the same"


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("", "is not known"),
        ("x://y", "is not known"),
        ("file:///a", "one host"),
        ("s3://", "no bucket"),
        ("s3://host:80/a", "no bucket"),
        ("hf://", "ORGANISATION/REPOSITORY"),
        (f"hf://acme/sql@{COMMIT}", "names no commit"),
        ("oci://h/a:v1", "names no tag"),
        (f"oci://h/a@{DIGEST}", "names no tag"),
        ("oci://h/A", "lower case"),
        ("oci:///a", "no host"),
        ("https://h/?x", "query or a fragment"),
        ("https://user@h/", "spec.credentials"),
        ("https:///a", "no host"),
        ("https://a..b/", "no host"),
    ],
)
def test_a_prefix_that_makes_no_sense_is_refused(prefix, found):
    with pytest.raises(SourceUriError, match=found):
        parse_prefix(prefix)
