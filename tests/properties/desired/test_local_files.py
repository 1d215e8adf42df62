"""A sidecar's own files with anything at all in them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.pool_cache import PoolCache
from sidecar.desired.snapshot import SnapshotBase
from tests.support.hostile import DEEP, LARGE, dumped, mutations
from tests.support.records import KEYS, POOL, record

HEADER = {"schema": 1, "pool": POOL, "cluster_id": 7, "epoch": "e", "revision": 5, "doubted": False}
HEADER |= {"pool_record": None, "members": [["r1", {"zone": "a"}, 3]]}
RECORD = ["a", 5, None]
ENTRIES: list[dict[str, Any]] = [
    {"r": 6, "e": [["a", 6, record("a").to_bytes().decode()]]},
    {"p": "{}"},
    {"m": [["r1", {}, None]], "g": ["r2"]},
]


def base_file(header: bytes, *records: bytes) -> bytes:
    """A base that is whole: its checksum fits."""
    lines = b"".join(line + b"\n" for line in (header, *records))
    return lines + json.dumps({"sha256": hashlib.sha256(lines).hexdigest()}, separators=(",", ":")).encode() + b"\n"


def journal_file(*entries: bytes) -> bytes:
    return b"".join(b"%08x %s" % (zlib.crc32(entry + b"\n"), entry + b"\n") for entry in entries)


def boots(files: dict[str, bytes]) -> PoolCache:
    """Starts with these files, and once more with what it wrote itself."""
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        first = _cache(Path(folder))
        first.restore()
        state = first.informer.state
        assert all(isinstance(adapter.revision, int) for adapter in state.adapters.values())
        assert 0 <= state.revision < 1 << 63
        first.journal.close()
        again = _cache(Path(folder))
        again.restore()
        assert again.informer.state.state_hash == state.state_hash
        again.journal.close()
    return first


def _cache(folder: Path) -> PoolCache:
    return PoolCache(KEYS, POOL, Mailbox(), Journal(folder))


@given(st.binary(max_size=200), st.binary(max_size=200))
@example(b"", b"")
@example(base_file(DEEP.encode()), journal_file(DEEP.encode()))
def test_any_bytes(base: bytes, journal: bytes) -> None:
    """R12 crash-only: no local file can prevent the boot."""
    boots({"snapshot-3": base, "journal-3": journal})


@given(mutations(HEADER), mutations(RECORD), st.binary(max_size=30))
def test_any_json_in_a_base_that_is_whole(header: object, head: object, value: bytes) -> None:
    """R12: as another release may have written it, or somebody who knows how to count a checksum."""
    line = dumped(head) + b"\t" + value.replace(b"\n", b"")
    boots({"snapshot-3": base_file(dumped(header), line), "journal-3": b""})


@given(st.sampled_from(ENTRIES).flatmap(mutations))
@example({"m": [["r1", {}, LARGE]], "g": []})
@example({"r": LARGE, "e": []})
@example({"r": 6, "e": [["a", "6", "x"]]})
@example({"r": 6, "e": [["\ud800", 6, "x"]]})
def test_any_json_in_an_entry_that_is_whole(entry: object) -> None:
    """R12: what came before the entry is kept."""
    good = base_file(dumped(HEADER), dumped(RECORD) + b"\t" + record("a").to_bytes())
    cache = boots({"snapshot-3": good, "journal-3": journal_file(dumped(entry))})
    assert cache.informer.record("a") is not None or "e" in str(entry)


def test_what_is_no_file(tmp_path: Path) -> None:
    """R12: nobody waits for a pipe that nobody writes to, and what cannot be replaced is passed over."""
    (tmp_path / "snapshot-9").mkdir()
    os.mkfifo(tmp_path / "journal-9")
    os.mkfifo(tmp_path / "snapshot-8")
    (tmp_path / "snapshot-7").symlink_to(tmp_path / "nowhere")
    cache = _cache(tmp_path)
    cache.restore()
    assert cache.journal.wants_base


def test_a_snapshot_that_cannot_be_taken_up_is_set_aside(tmp_path: Path) -> None:
    """R12: what is whole and breaks us all the same breaks only one start."""
    journal = Journal(tmp_path)
    asyncio.run(journal.rewrite(SnapshotBase(POOL, 7, 5)))
    journal.close()
    cache = _cache(tmp_path)
    cache.restore()
    cache.forget()
    assert cache.informer.state.revision == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["damaged-journal-1", "damaged-snapshot-1"]
    again = _cache(tmp_path)
    again.restore()
    assert again.journal.wants_base
