"""Bundles go along with the files that they are over, and with no others."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from registry.client.upload import objects as bucket
from registry.client.upload.destination import destination, put
from registry.lora.policy import AdapterLimits
from registry.lora.signing.bundle import bundle_in, folder_sha256
from registry.lora.signing.keys import sign_statement
from registry.lora.signing.statement import SignedFiles, write_statement
from registry.tools.convert.options import ConversionOptions
from registry.tools.convert.publishing import Compared, PublishedFiles, publish
from tests.corpus.drafts import LLAMA
from tests.support.signing import make_ec_key


@pytest.fixture
def adapter(tmp_path) -> Path:
    folder = LLAMA.draft().write(tmp_path / "adapter")
    sign(folder)
    return folder


def sign(folder: Path) -> None:
    statement = write_statement(SignedFiles("adapter", folder_sha256(folder)), [])
    (folder / "model.sig").write_bytes(sign_statement(statement, make_ec_key()[0]))


def published(folder: Path, out: Path) -> PublishedFiles:
    nothing = Compared(None, None, AdapterLimits())
    return publish(folder, destination(str(out)), nothing, ConversionOptions(), None, None)


def test_a_bundle_is_published_with_its_files_and_renewed_where_they_are(adapter, tmp_path):
    out = tmp_path / "out"
    assert published(adapter, out).was_there is False
    assert bundle_in(out) == bundle_in(adapter)
    sign(adapter)
    assert published(adapter, out).was_there is True
    assert bundle_in(out) == bundle_in(adapter), "with another end, perhaps"
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in adapter.iterdir())


@pytest.mark.parametrize("spoil", [lambda bundle: b"{}", lambda bundle: None], ids=["no bundle", "of other files"])
def test_a_bundle_of_other_files_is_left_out_and_told(adapter, tmp_path, spoil):
    """R21 proven-here: it would only be refused by each replica."""
    other = LLAMA.draft(seed=1).write(tmp_path / "other")
    (other / "model.sig").write_bytes(spoil(adapter) or bundle_in(adapter) or b"")
    found = published(other, tmp_path / "out")
    assert [one.reason for one in found.warnings if one.reason == "bundle_left_out"] == ["bundle_left_out"]
    assert bundle_in(tmp_path / "out") is None


def test_a_bundle_is_in_the_bucket_before_the_last_file(adapter, monkeypatch):
    store, order = MemoryStore(), list[str]()
    real = obstore.put

    def noted(there: MemoryStore, key: str, path: Path, **options: object) -> object:
        order.append(key.rpartition("/")[2])
        return real(there, key, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(bucket, "open_store", lambda *_: store)
    monkeypatch.setattr(bucket.obstore, "put", noted)
    assert put(adapter, destination("s3://bucket/sql/v1"), None) is True
    assert order == ["model.sig", "adapter_model.safetensors", "adapter_config.json"]
    assert obstore.get(store, "sql/v1/model.sig").bytes().to_bytes() == bundle_in(adapter)
    assert put(adapter, destination("s3://bucket/sql/v1"), None) is False
