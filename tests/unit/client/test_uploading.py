"""A folder that is copied to a place of its own before it is published, and what is said where it cannot be."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from obstore.exceptions import BaseError
from obstore.store import MemoryStore

from registry.client.publication import Publication, Upload, change_of
from registry.client.upload import objects as bucket
from registry.lora.directory import digest_of
from registry.model.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Reason, RegistryError, Unavailable
from tests.corpus.drafts import LLAMA

URI = "s3://bucket/policy/step-7"


@pytest.fixture
def folder(tmp_path) -> Path:
    return LLAMA.draft().write(tmp_path / "made")


def source_of(folder: Path | str, upload: object, **more: str) -> tuple[str, str]:
    """The URI and the digest that are published."""
    publication = Publication(name="a", source=folder, upload=upload, **more)  # type: ignore[arg-type]
    source = change_of(publication).update.spec.source
    return source.uri, source.digest


def test_a_copy_is_published_that_stays_when_the_folder_is_rotated(folder, tmp_path):
    digest = digest_of(folder)
    kept = tmp_path / "kept" / "step-7"
    for upload in (kept, str(kept), Upload(kept), Upload(kept, credentials="/nowhere", credential="of buckets alone")):
        assert source_of(folder, upload) == (kept.as_uri(), digest)
    shutil.rmtree(folder)
    assert digest_of(kept) == digest


def test_a_bucket_takes_it_as_a_folder_does(folder, monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(bucket, "open_store", lambda *_: store)
    assert source_of(folder, URI) == (URI, digest_of(folder))
    assert {one["path"] for one in store.list().collect()} == {
        "policy/step-7/adapter_config.json",
        "policy/step-7/adapter_model.safetensors",
    }


def test_a_place_with_other_files_is_left_as_it_is(folder, tmp_path):
    kept = LLAMA.draft(seed=1).write(tmp_path / "kept")
    before = digest_of(kept)
    with pytest.raises(AlreadyExists, match="choose another place") as refused:
        source_of(folder, kept)
    assert (refused.value.reason, refused.value.field) == (Reason.DESTINATION_TAKEN, "upload")
    assert digest_of(kept) == before


def test_a_store_that_is_not_reached_may_be_tried_again(folder, monkeypatch):
    def broken(*_: object) -> bool:
        raise BaseError("http://secret")

    monkeypatch.setattr(bucket, "_put", broken)
    with pytest.raises(Unavailable, match="repeat it") as failed:
        source_of(folder, URI)
    assert failed.value.reason is Reason.UPLOAD_UNFINISHED
    assert "secret" not in str(failed.value), "X1 secret-free"


@pytest.mark.parametrize(
    ("upload", "error", "said"),
    [
        ("hf://org/model", FailedPrecondition, "cannot be written to"),
        (Upload(URI, credential="writer"), InvalidArgument, "no credential 'writer' is known"),
        (Upload(URI, credentials="/nowhere/credentials.yaml"), InvalidArgument, "/nowhere/credentials.yaml"),
        ("/proc/nowhere/step-7", FailedPrecondition, "cannot copy to /proc/nowhere/step-7"),
    ],
)
def test_a_place_that_takes_nothing_is_named(folder, upload, error, said):
    """X2 unbreakable: nothing is published."""
    with pytest.raises(error, match=said) as refused:
        source_of(folder, upload)
    assert isinstance(refused.value, RegistryError)
    assert refused.value.field == "upload"


def test_only_a_folder_is_uploaded(tmp_path):
    with pytest.raises(InvalidArgument, match="source is a URI"):
        source_of("https://host/a.tar", tmp_path / "kept")
    with pytest.raises(InvalidArgument, match="no such folder"):
        source_of(tmp_path / "none", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_what_speaks_with_buckets_may_not_be_installed(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "registry.client.upload.objects", None)
    with pytest.raises(FailedPrecondition, match=r"pip install 'loraplane\[files\]'") as refused:
        source_of(folder, URI)
    assert (refused.value.reason, refused.value.field) == (Reason.CANNOT_PUBLISH, "upload")
