"""A pool that asks for signatures gets nothing else, from the source or from the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from registry.lora.ed25519 import read_public_key, sign
from registry.model.records import PoolLimits, PoolSpec
from registry.sources.base import ArtifactError, Stop, StoreError
from sidecar.artifacts.proof import read_keys
from sidecar.artifacts.types import ArtifactRef
from tests.support.adapters import write_adapter, write_files
from tests.support.signing import make_key, public_pem
from tests.unit.artifacts.conftest import contents, pinned, unpinned

STRICT = PoolSpec(name="p", base_models=["base"], limits=PoolLimits(require_signature=True))
LAX = PoolSpec(name="p", base_models=["base"])


@pytest.fixture
def private(tmp_path) -> bytes:
    return make_key(tmp_path)[0]


@pytest.fixture
def strict(open_store, tmp_path, private):
    store = open_store(signature_keys={"team": read_public_key(make_key(tmp_path, "other")[1]), "mine": key(tmp_path)})
    store.use_pool(STRICT)
    return store


def key(tmp_path):
    return read_public_key(public_pem((tmp_path / "key.pem").read_bytes()))


def signed(ref: ArtifactRef, digest: str, private: bytes) -> ArtifactRef:
    return replace(ref, signature=sign(digest, private))


async def refused(store, ref: ArtifactRef) -> str:
    with pytest.raises(ArtifactError) as error:
        await store.ensure(ref)
    assert error.value.permanent
    return error.value.reason


@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_only_what_is_signed_is_served(strict, sources, private, tmp_path, make_ref):
    """R4 digest-true: the signature is of what was really fetched."""
    adapter = write_adapter(sources / "a")
    assert await refused(strict, make_ref(adapter)) == "signature_missing"
    assert not contents(tmp_path / "store" / "adapters")
    staged = await strict.ensure(signed(make_ref(adapter), adapter.digest, private))
    assert staged.digest == adapter.digest


async def test_a_signature_of_other_files_is_refused_before_these_are_read(strict, sources, private):
    """Refused if in doubt: nothing of the files is looked at that nobody vouches for."""
    broken = write_files(sources / "a", b"{", b"not an adapter")
    wrong = signed(unpinned(broken), f"sha256:{'0' * 64}", private)
    assert await refused(strict, wrong) == "signature_invalid"
    assert await refused(strict, signed(unpinned(broken, 2), broken.digest, private)) != "signature_invalid"


async def test_what_is_in_the_store_without_a_signature_is_not_handed_out(strict, open_store, sources, private):
    """R4: also where another replica, or the same before its pool asked for one, staged it."""
    adapter = write_adapter(sources / "a")
    other = open_store("r2")
    await other.ensure(pinned(adapter))
    assert await refused(strict, pinned(adapter)) == "signature_missing"
    assert (await strict.ensure(signed(pinned(adapter), adapter.digest, private))).digest == adapter.digest


async def test_a_pool_that_begins_to_ask_is_obeyed_at_once_and_may_stop_to(open_store, sources):
    adapter = write_adapter(sources / "a")
    store = open_store()
    store.use_pool(LAX)
    staged = await store.ensure(pinned(adapter))
    assert store.lookup(pinned(adapter)) == staged
    store.use_pool(STRICT)
    assert store.lookup(pinned(adapter)) is None
    assert await refused(store, pinned(adapter)) == "signature_keys_missing"
    store.use_pool(LAX)
    assert store.lookup(pinned(adapter)) == staged


async def test_without_being_asked_for_a_wrong_signature_is_refused_all_the_same(strict, sources, private):
    """Refused if in doubt."""
    adapter = write_adapter(sources / "a")
    strict.use_pool(LAX)
    wrong = signed(pinned(adapter), f"sha256:{'0' * 64}", private)
    assert await refused(strict, wrong) == "signature_invalid"
    assert (await strict.ensure(pinned(adapter))).digest == adapter.digest


def test_keys_are_read_by_name(tmp_path):
    _, public = make_key(tmp_path)
    file = tmp_path / "keys.yaml"
    indented = "\n".join(f"  {line}" for line in public.splitlines())
    file.write_text(f"team: |\n{indented}\nalso: |\n{indented}\n")
    assert set(read_keys(file)) == {"team", "also"}


async def test_keys_are_read_again(open_store, sources, tmp_path, private):
    """R4 digest-true, R13: a new key counts, one that is gone does not, and half a file changes nothing."""
    adapter, store, file = write_adapter(sources / "a"), open_store(), tmp_path / "keys.yaml"
    ref = signed(pinned(adapter), adapter.digest, private)
    write_keys(file, other=make_key(tmp_path, "other")[1])
    store.follow(file, read_keys, store.use_keys)
    store.use_pool(STRICT)
    assert await refused(store, ref) == "signature_invalid"
    reads = store.reads
    write_keys(file, other=make_key(tmp_path, "other")[1], mine=public_pem(private))
    store.maintenance.round(Stop())
    store.use_pool(STRICT)
    assert store.reads != reads
    staged = await store.ensure(ref)
    file.write_text("[")
    store.maintenance.round(Stop())
    store.use_pool(STRICT)
    assert store.lookup(ref) == staged
    write_keys(file, other=make_key(tmp_path, "other")[1])
    store.maintenance.round(Stop())
    store.use_pool(STRICT)
    assert store.lookup(ref) is None
    assert await refused(store, ref) == "signature_invalid"


def write_keys(file: Path, **keys: str) -> None:
    indented = {name: "".join(f"  {line}\n" for line in pem.splitlines()) for name, pem in keys.items()}
    file.write_text("".join(f"{name}: |\n{pem}" for name, pem in indented.items()))


@pytest.mark.parametrize(
    "content",
    [None, b"", b"[]", b"{", b"\xff", b"team: secret\n", b"team:\n  - 1\n", b"team: 2001-99-99\n", b"[" * 5000],
    ids=range(9),
)
def test_a_file_without_keys_is_a_clear_error_at_start(tmp_path, content):
    """X1 secret-free: its content is not shown."""
    file: Path = tmp_path / "keys.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StoreError, match=r"--signature-keys .*keys\.yaml") as error:
        read_keys(file)
    assert "secret" not in str(error.value)
