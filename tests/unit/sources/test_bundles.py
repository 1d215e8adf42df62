"""The bundle beside an adapter's files, from each kind of source."""

from __future__ import annotations

import gzip

import pytest

from registry.model.source_uri import parse_prefix, parse_source
from registry.sources.archive import MAX_BUNDLES, bundle_in_archive
from registry.sources.base import BUNDLE_BYTES, ArtifactError, Stop
from registry.sources.http import web_source
from registry.sources.object_stores import ObjectSource
from tests.unit.sources import test_archive, test_objects
from tests.unit.sources.test_archive import archive, both, member
from tests.unit.sources.test_file import adapter, allowed  # noqa: F401 - fixtures
from tests.unit.sources.test_http import _no_time_counts, site, web  # noqa: F401 - fixtures
from tests.unit.sources.test_objects import stores  # noqa: F401 - a fixture

BUNDLE = b'{"mediaType": "any"}' * 100
LARGE = b" " * (BUNDLE_BYTES + 5)


def refusal(ask) -> ArtifactError:
    with pytest.raises(ArtifactError) as refused:
        ask()
    return refused.value


def test_of_a_directory_it_is_a_regular_file_of_which_not_more_is_read_than_counts(allowed, adapter):  # noqa: F811
    source = allowed.source(adapter.uri)
    assert source.signature(Stop()) is None
    bundle = adapter.directory / "model.sig"
    for content in (BUNDLE, LARGE):
        bundle.write_bytes(content)
        assert source.signature(Stop()) == content[:BUNDLE_BYTES]
    bundle.unlink()
    bundle.symlink_to("/etc/hostname")
    assert refusal(lambda: source.signature(Stop())).reason == "not_a_regular_file"


def test_of_a_bucket_it_is_one_request_for_the_beginning_of_an_object(stores):  # noqa: F811
    source = ObjectSource(stores, parse_source(test_objects.URI), None)
    assert source.signature(Stop()) is None
    stores.objects["team/a/model.sig"] = LARGE
    assert source.signature(Stop()) == LARGE[:BUNDLE_BYTES]
    assert stores.asked[-1][1:4] == ("model.sig", 0, BUNDLE_BYTES)
    stores.faults = [test_objects.PermissionDeniedError("no")] * 9
    assert refusal(lambda: source.signature(Stop())).reason == "source_denied"


@pytest.mark.parametrize("content", [None, BUNDLE, LARGE])
def test_of_a_web_server_it_is_a_file_beside_the_others(site, web, content):  # noqa: F811
    if content is not None:
        site.files["/team/a/model.sig"] = content
    source = web_source(web, parse_source(f"{site.url}/team/a/"), [parse_prefix(site.url)], None)
    assert source.signature(Stop()) == (content and content[:BUNDLE_BYTES])
    site.answers["/team/a/model.sig"] = lambda exchange: exchange.send(403, b"")
    assert refusal(lambda: source.signature(Stop())).reason == "source_denied"


@pytest.mark.parametrize("is_packed", [True, False])
def test_of_an_archive_it_is_a_member_of_the_folder_of_the_files(site, web, is_packed):  # noqa: F811
    name, packed = ("a.tar.gz", gzip.compress) if is_packed else ("a.tar", bytes)
    source = web_source(web, parse_source(f"{site.url}/{name}"), [parse_prefix(site.url)], None)
    assert refusal(lambda: source.signature(Stop())).reason == "source_missing"
    site.files[f"/{name}"] = packed(archive(member("a/model.sig", BUNDLE), *both("a/")))
    assert source.signature(Stop()) == BUNDLE


def in_archive(*members: object) -> bytes | None:
    content = archive(*members)  # type: ignore[arg-type]
    return bundle_in_archive((content[at : at + 700] for at in range(0, len(content), 700)), is_gzipped=False)


def test_an_archive_has_one_before_or_behind_its_files_and_none_of_another_folder():
    for place in ("", "a/"):
        bundle = member(f"{place}model.sig", BUNDLE)
        assert in_archive(bundle, *both(place)) == in_archive(*both(place), bundle) == BUNDLE
    assert in_archive(*both()) is None
    assert in_archive(member("other/model.sig", BUNDLE), *both("a/")) is None
    assert in_archive(member("model.sig", BUNDLE)) == BUNDLE
    assert in_archive(member("model.sig", LARGE), *both()) == LARGE[:BUNDLE_BYTES]
    assert in_archive(member("model.sig", BUNDLE), member("model.sig", b"{}"), *both()) == BUNDLE


def test_an_archive_that_would_fill_the_memory_is_refused():
    """X2 unbreakable: whoever may publish an archive chooses its members."""
    many = [member(f"{at}/model.sig", BUNDLE) for at in range(MAX_BUNDLES + 1)]
    assert refusal(lambda: in_archive(*many, *both())).reason == "bad_archive"
    link = member("model.sig", b"", type=test_archive.tarfile.SYMTYPE, linkname="/etc/hostname")
    assert refusal(lambda: in_archive(link, *both())).reason == "bad_archive"
