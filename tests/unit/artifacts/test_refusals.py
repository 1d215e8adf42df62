"""What is refused, with which reason, whether for good, and that nothing of it stays."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from registry.runtime.failpoints import Point, handling
from registry.sources.base import ArtifactError, SourceUnchanged, Stop
from registry.sources.file import FileSource
from sidecar.artifacts.requests import other_version
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
from tests.support.adapters import adapter_config, adapter_weights, write_adapter, write_files
from tests.unit.artifacts.conftest import pinned, raising, refusal, unpinned


def is_clean(root: Path) -> bool:
    return not list((root / "tmp").iterdir()) and not list((root / "adapters").iterdir())


@pytest.mark.parametrize(
    ("config", "weights", "reason", "permanent"),
    [
        (b"", adapter_weights(), "source_incomplete", False),
        (adapter_config(), b"", "source_incomplete", False),
        (adapter_config(), adapter_weights()[:-1], "source_incomplete", False),
        (adapter_config(), adapter_weights() + b"x", "not_an_adapter", True),
        (adapter_config(), b"<!DOCTYPE html><p>" + b"x" * 999, "not_an_adapter", True),
        (b"{}", adapter_weights(), "wrong_peft_type", True),
        (adapter_config(rank=0), adapter_weights(), "invalid_config", True),
        (b" " * (1 << 20) + b"{}", adapter_weights(), "too_large", True),
        (adapter_config().replace(b"tiny", rb"\ud800"), adapter_weights(), "not_an_adapter", True),
        (adapter_config().replace(b"{", rb'{"\uDFFF": 1,'), adapter_weights(), "not_an_adapter", True),
    ],
)
@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_what_is_not_an_adapter_is_refused_before_it_is_placed(
    store, sources, tmp_path, config, weights, reason, permanent, make_ref
):
    """R14, fault 26: refused with a stable reason, the copy removed, no pin made of it."""
    error = await refusal(store, make_ref(write_files(sources / "a", config, weights)))
    assert (error.reason, error.permanent) == (reason, permanent)
    assert is_clean(tmp_path / "store")
    assert not list((tmp_path / "store" / "pins").iterdir())


@pytest.mark.parametrize("uri", ["file:///etc", "s3://bucket/a"])
async def test_a_source_that_is_not_allowed_is_refused_even_if_its_digest_is_here(open_store, sources, uri):
    """Fail closed: a digest is not a permission, nor does a restarted replica recall for it."""
    adapter = write_adapter(sources / "a")
    await open_store().ensure(pinned(adapter))
    error = await refusal(open_store(), ArtifactRef(uri, adapter.digest))
    assert error.reason in ("source_not_allowed", "unsupported_scheme")


async def test_a_disk_that_fails_under_the_store_fails_that_adapter_alone(store, sources, tmp_path, monkeypatch):
    """R8, fault 25: typed, worth a retry, and the next adapter is staged."""
    bad, good = write_adapter(sources / "bad"), write_adapter(sources / "good", seed=1)
    with monkeypatch.context() as patched:
        patched.setattr("sidecar.artifacts.ingest.os.fchmod", raising(OSError(errno.EIO, "bad sector")))
        error = await refusal(store, pinned(bad))
    assert (error.reason, error.permanent) == ("store_io", False)
    assert str(tmp_path / "store") in error.message
    assert is_clean(tmp_path / "store")
    for one in (good, bad):
        assert (await store.ensure(pinned(one))).digest == one.digest


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield path
    subprocess.run(["umount", str(path)], check=True)


async def test_a_disk_that_fills_up_on_the_way_fails_that_adapter_alone(small_disk, sources):
    """R8, R16, fault 25: a real full disk; room is given back, and the next one is staged."""
    ballast = small_disk / "ballast"
    big, small = write_adapter(sources / "big", rank=64, hidden=2048), write_adapter(sources / "small")

    def fill(_: Point) -> None:
        if not ballast.exists():
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(b"x" * 4096):
                    pass

    store = LocalStore(small_disk / "store", "r1", [sources.as_uri()])
    with handling(fill):
        error = await refusal(store, unpinned(big))
    assert (error.reason, error.permanent) == ("disk_full", False)
    assert "make room" in error.message
    assert is_clean(small_disk / "store")
    ballast.write_bytes(b"")
    assert (await store.ensure(pinned(small))).digest == small.digest
    store.close()


@pytest.mark.parametrize("look", ["unpinned", "unknown", "known"])
async def test_a_folder_that_was_refused_is_taken_once_its_files_are_others(store, sources, look):
    """R8: and is not read again before."""
    (sources / "a").mkdir()
    (sources / "a" / "adapter_config.json").write_bytes(adapter_config())
    (sources / "a" / "adapter_model.bin").write_bytes(b"pickle")
    ref = ArtifactRef((sources / "a").as_uri(), None, pin_key="p/a@1")
    error = await refusal(store, ref)
    assert (error.reason, error.version) == ("weights_not_safetensors", "")
    if look != "unpinned":
        with pytest.raises(ArtifactError) as again:
            await store.ensure(ref, "")
        assert again.value.version
        with pytest.raises(SourceUnchanged):
            await store.ensure(ref, again.value.version)
    write_adapter(sources / "a")
    assert (await store.ensure(ref, again.value.version if look == "known" else "")).rank


async def test_a_source_that_cannot_be_asked_now_is_taken_to_be_as_it_was(store, sources, monkeypatch):
    """R8, R9: what was refused stays refused, whatever becomes of the place meanwhile. A fault of ours is told."""
    adapter = unpinned(write_adapter(sources / "a"))
    for error, told in (
        (ArtifactError("source_io", "it is away"), SourceUnchanged),
        (ZeroDivisionError(), ZeroDivisionError),
    ):
        monkeypatch.setattr(FileSource, "version", raising(error))
        with pytest.raises(told):
            await store.ensure(adapter, "one")
    stop = Stop()
    assert other_version(Mock(version=lambda _: ""), "", stop) == "", "of who tells no version nothing is known"
    stop.set()
    with pytest.raises(ArtifactError, match="stopped"):
        other_version(Mock(version=raising(ArtifactError("source_io", "it is away"))), "one", stop)
