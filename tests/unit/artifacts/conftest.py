"""A store in a temporary directory, and a directory that it may read from."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from registry.lora.digest import FileEntry
from registry.lora.findings import AdapterWarning
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.examination import Examination
from sidecar.artifacts.layout import StoreLayout, open_layout
from sidecar.artifacts.store import LocalStore, ReadingEngine, StoreLimits
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.support.adapters import WrittenAdapter, write_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
GRACE = 600.0
MIB = 1 << 20


@pytest.fixture
def sources(tmp_path) -> Path:
    """The allowed root of sources."""
    (tmp_path / "sources").mkdir()
    return tmp_path / "sources"


@pytest.fixture
def open_store(tmp_path, sources) -> Iterator[Callable[..., LocalStore]]:
    """Opens the same store, as a process of a replica does; each is closed at the end."""
    opened: list[LocalStore] = []

    def open_one(replica: str = "r1", **options: Any) -> LocalStore:
        limits = StoreLimits(options.pop("budget_bytes", None), options.pop("grace_seconds", GRACE))
        engine = ReadingEngine(options.pop("engine", ""), options.pop("base", None))
        allowed = options.pop("allow", sources).as_uri()
        made = LocalStore(tmp_path / "store", replica, [allowed], engine=engine, limits=limits, **options)
        opened.append(made)
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store) -> LocalStore:
    """The store as replica r1."""
    return open_store()


@pytest.fixture
def layout(tmp_path) -> StoreLayout:
    """The folders of a store in which nothing is yet."""
    return open_layout(tmp_path / "store", "r1")


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def entry(name: str, content: bytes) -> FileEntry:
    return FileEntry(name, len(content), hashlib.sha256(content).hexdigest())


async def refusal(store: LocalStore, ref: ArtifactRef) -> ArtifactError:
    with pytest.raises(ArtifactError) as refused:
        await store.ensure(ref)
    assert store.lookup(ref) is None
    return refused.value


def pinned(adapter: WrittenAdapter) -> ArtifactRef:
    """A reference that says the digest."""
    return ArtifactRef(adapter.uri, adapter.digest)


def flip(directory: Path | str) -> None:
    """Flips the last bit of a number, which only a digest finds, and sets the times of the file back."""
    path = Path(directory) / WEIGHTS
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(0o444)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def unpinned(adapter: WrittenAdapter, generation: int = 1) -> ArtifactRef:
    """A reference that means whatever is there when it is first read."""
    return ArtifactRef(adapter.uri, None, pin_key=f"pool/a@{generation}")


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def adapters(tmp_path) -> Path:
    return tmp_path / "store" / "adapters"


def age(store: LocalStore, staged: Staged, seconds: float = 2 * GRACE) -> None:
    """As if it was used so long ago."""
    at = time.time() - seconds
    os.utime(store._layout.lock(staged.id), (at, at))


def recalled(store: LocalStore, ref: ArtifactRef) -> Staged | None:
    """What is known of it once its files were looked at, as `recall` does in a thread."""
    return store.lookup(ref) or store._recall(ref)


def release(store: LocalStore, *staged: Staged) -> None:
    assert store.let_go({one.id for one in staged}) == {one.id for one in staged}
    store.maintenance.write_leases(Stop())


async def stage(store: LocalStore, sources: Path, *seeds: int) -> list[Staged]:
    return [await store.ensure(pinned(write_adapter(sources / f"s{seed}", seed=seed))) for seed in seeds]


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Fails so, whatever it is called with."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


DROPPED = AdapterWarning("modules_dropped", "one was left out")
EXAMINATION = Examination(
    rank=8,
    modules={"model.layers.{0-1}.self_attn.q_proj": False, "model.layers.{0-1}.mlp.down_proj": False},
    base_model="acme/base",
    warnings=(DROPPED,),
    renamed={"b": "y", "a": "x"},
    dropped=("c",),
    config={"use_dora": False},
    new_config=None,
    new_weights=None,
    start=8,
)
BROKEN: list[Exception] = [OSError(5, "bad sector"), ZeroDivisionError()]
