"""What is kept of loads, on disk."""

from __future__ import annotations

import os

from sidecar.engines.load_ledger import write_synced


def test_all_of_it_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """R12 crash-only: after a power cut there is what was before, or all of what came."""
    synced: list[tuple[int, bool]] = []
    sync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_size, (tmp_path / "file").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    write_synced(tmp_path / "file", b"x" * 1000)
    assert synced[0] == (1000, False)
    assert (tmp_path / "file").read_bytes() == b"x" * 1000
