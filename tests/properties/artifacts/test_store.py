"""Whatever two files are given to the store, it refuses them by name or serves exactly them."""

from __future__ import annotations

import asyncio
import json
import struct
import typing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from registry.sources.base import ArtifactError, ArtifactReason
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.support.adapters import adapter_config, adapter_weights, digest_of, write_files
from tests.support.examples import examples
from tests.support.memory_folder import memory_folder

REASONS = {reason for part in typing.get_args(ArtifactReason) for reason in typing.get_args(part)}
# Halves of surrogate pairs too: JSON can say them, and nothing can write them down again.
texts = st.text(max_size=8) | st.text(st.characters(categories=["Cs", "Cc", "Cf"]), min_size=1, max_size=2)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The content with a slice replaced, so that most of it still makes sense."""
    start = draw(st.integers(0, len(whole)))
    end = draw(st.integers(start, min(len(whole), start + 40)))
    return whole[:start] + draw(st.binary(max_size=40)) + whole[end:]


@st.composite
def safetensors(draw: st.DrawFn) -> bytes:
    """A header of any form behind a length that is usually right, and some bytes."""
    offsets = st.lists(st.integers(-4, 24), min_size=1, max_size=3)
    tensor = st.fixed_dictionaries({"data_offsets": offsets}) | json_values
    header = json.dumps(draw(st.dictionaries(texts, tensor, max_size=4))).encode()
    length = draw(st.just(len(header)) | st.integers(0, 2**64 - 1))
    return struct.pack("<Q", length) + header + draw(st.binary(max_size=24))


@st.composite
def edited(draw: st.DrawFn) -> bytes:
    """A good configuration with one field more or another."""
    fields = json.loads(adapter_config())
    return json.dumps(fields | {draw(st.sampled_from(sorted(fields)) | texts): draw(texts | json_values)}).encode()


@st.composite
def renamed(draw: st.DrawFn) -> bytes:
    """Good weights with some tensor called otherwise, and with metadata."""
    content = adapter_weights()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    name = draw(st.sampled_from(sorted(header)))
    entries = {draw(texts) + one if one == name else one: value for one, value in header.items()}
    text = json.dumps({"__metadata__": {draw(texts): draw(texts)}} | entries).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


configs = (
    st.just(adapter_config())
    | edited()
    | st.binary(max_size=200)
    | json_values.map(lambda value: json.dumps(value).encode())
    | damaged(adapter_config())
)
weights = st.just(adapter_weights()) | renamed() | st.binary(max_size=200) | safetensors() | damaged(adapter_weights())


def outcome(folder: Path, config: bytes, content: bytes, *, is_pinned: bool) -> Staged | ArtifactError:
    written = write_files(folder / "source", config, content)
    store = LocalStore(folder / "store", "r1", [folder.as_uri()])
    try:
        return asyncio.run(store.ensure(ArtifactRef(written.uri, written.digest if is_pinned else None)))
    except ArtifactError as error:
        return error
    finally:
        store.close()


@examples(150)
@given(config=configs, content=weights, is_pinned=st.booleans())
def test_any_two_files_are_refused_by_name_or_served_as_they_are(config: bytes, content: bytes, is_pinned: bool):
    """R4 digest-true, R14 nack: a typed refusal, or a directory that hashes to its digest."""
    with memory_folder() as name:
        folder = Path(name)
        staged = outcome(folder, config, content, is_pinned=is_pinned)
        directories = list((folder / "store" / "adapters").iterdir())
        assert not list((folder / "store" / "tmp").iterdir())
        if isinstance(staged, ArtifactError):
            assert staged.reason in REASONS
            assert not directories
        else:
            assert directories == [Path(staged.path)]
            assert digest_of(directories[0]) == staged.digest == digest_of(folder / "source")
            assert staged.rank == json.loads(config)["r"]
