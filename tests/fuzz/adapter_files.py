"""Any two files as an adapter, and any archive: examination, preparation, unpacking, staging."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path

from registry.lora.base_directory import read_base
from registry.lora.directory import examine_files
from registry.lora.findings import UnfitAdapter
from registry.lora.policy import AdapterLimits, policy_of
from registry.lora.prepare import new_config, new_weights
from registry.sources.archive import receive_archive
from registry.sources.base import ArtifactError
from sidecar.artifacts.store import LocalStore, ReadingEngine
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.drafts import ARCHITECTURES, CONFIG, LLAMA, QWEN2_5_VL, WEIGHTS
from tests.corpus.hostile import archive, files, member
from tests.fuzz.fuzzer import Run, Target, must_say
from tests.fuzz.mutation import Case, as_json, choice, safetensors, tar

MAX_UNPACKED_BYTES = 8 << 20
_POLICIES = (
    {},
    {"remap": "off"},
    {"vision": "drop", "dora": "strip"},
    {"vision": "keep", "drop": ["q_proj"]},
)


@lru_cache
def _adapters() -> tuple[Case, ...]:
    """Adapters of each architecture under each policy, some with patterns and DoRA."""
    made: list[Case] = []
    for number, architecture in enumerate(ARCHITECTURES):
        draft = architecture.draft()
        if number == 1:
            draft.config |= {
                "rank_pattern": {"q_proj": 4},
                "alpha_pattern": {r".*\.v_proj": 16},
                "target_modules": ".*",
            }
        if architecture is QWEN2_5_VL:
            draft.rename("model.layers", "language_model.model.layers")
        both = draft.files()
        made += [(json.dumps(one).encode(), both[CONFIG], both[WEIGHTS]) for one in _POLICIES]
    return tuple(made)


@asynccontextmanager
async def _examining(folder: Path) -> AsyncIterator[Run]:
    """What the child process does with an adapter."""
    base = read_base(LLAMA.write_base(folder / "base"))

    async def play(case: Case) -> None:
        policy, config, weights = case
        both = {CONFIG: config, WEIGHTS: weights}
        try:
            found = examine_files(
                lambda name: io.BytesIO(both[name]), base, AdapterLimits(), policy_of(json.loads(policy))
            )
        except UnfitAdapter as error:
            must_say(error.findings, *(part for one in error.findings for part in (one.reason, one.sentence())))
            return
        changes = found.verdict.changes
        if changes.config:
            json.loads(new_config(config, changes))
        if changes:
            layout = new_weights(found.opened.header, changes)
            assert all(0 <= one.begin <= one.end <= len(weights) for one in layout.ranges)

    yield play


def _archives() -> list[Case]:
    draft = LLAMA.draft()
    extended = member("x" * 150)
    plain = [
        archive(*files(draft)),
        archive(*files(draft, "")),
        archive(extended, *files(draft), form=tarfile.GNU_FORMAT),
        archive(extended, *files(draft), form=tarfile.PAX_FORMAT),
        archive(*files(draft), form=tarfile.USTAR_FORMAT),
    ]
    return [(kind, one) for one in plain for kind in (b"plain", b"packed")] + [(b"gzip", gzip.compress(plain[0]))]


@asynccontextmanager
async def _unpacking(_: Path) -> AsyncIterator[Run]:
    """The reader of archives. `packed` is compressed after it was hurt, `gzip` before."""

    async def play(case: Case) -> None:
        kind, content = case
        stream = gzip.compress(content, 1) if kind == b"packed" else content
        got: dict[str, int] = {}

        def receive(name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
            assert name in {CONFIG, WEIGHTS}
            assert name not in got
            got[name] = sum(map(len, chunks))
            assert got[name] == size_bytes <= MAX_UNPACKED_BYTES

        chunks = (stream[at : at + 4096] for at in range(0, len(stream), 4096))
        try:
            receive_archive(chunks, receive, is_gzipped=kind != b"plain", max_bytes=MAX_UNPACKED_BYTES)
        except ArtifactError as error:
            must_say(error.reason, error.message)

    yield play


def _names(folder: str) -> set[str]:
    return {file.name for file in Path(folder).iterdir()}


@asynccontextmanager
async def _staging(folder: Path) -> AsyncIterator[Run]:
    """A whole store: from a directory that may be read to one that an engine is given, beside a good artifact."""
    sources = folder / "sources"
    base = read_base(LLAMA.write_base(folder / "base"))
    LLAMA.draft().write(sources / "good")
    store = LocalStore(folder / "store", "r1", [sources.as_uri()], engine=ReadingEngine(base=base))
    rng = random.Random(0)

    async def play(case: Case) -> None:
        policy, config, weights = case
        source = sources / f"{rng.getrandbits(64):x}"
        source.mkdir()
        (source / CONFIG).write_bytes(config)
        (source / WEIGHTS).write_bytes(weights)
        try:
            staged = await store.ensure(ArtifactRef(source.as_uri(), None, prepare=policy.decode()))
            assert _names(staged.path) == {CONFIG, WEIGHTS}
            store.let_go({staged.id})
        except ArtifactError as error:
            must_say(error.reason, error.message)
        assert not list((folder / "store" / "tmp").iterdir()), "something is left"
        good = await store.ensure(ArtifactRef((sources / "good").as_uri(), None))
        assert _names(good.path), "what was staged is gone"
        for file in source.iterdir():
            file.unlink()

    try:
        yield play
    finally:
        store.close()


TARGETS = (
    Target("adapter", (choice, as_json, safetensors), _adapters, _examining, runs=300, held_seconds=30),
    Target("archive", (choice, tar), _archives, _unpacking, runs=300),
    Target("staging", (choice, as_json, safetensors), _adapters, _staging, runs=25),
)
