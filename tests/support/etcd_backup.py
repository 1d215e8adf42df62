"""Backups of a cluster, taken and restored as an operator would."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.etcd import Cluster, etcdctl


async def save(cluster: Cluster) -> Path:
    """Saves what the cluster holds now; returns the file."""
    file = cluster.members[0].folder.parent / "backup.db"
    single = Cluster(cluster.members[:1])
    await etcdctl(single, "snapshot", "save", str(file))
    return file


async def restore(cluster: Cluster, backup: Path) -> None:
    """Ends the members, replaces what they hold by the backup, and starts them again."""
    await asyncio.to_thread(cluster.stop)
    for member in cluster.members:
        member.wipe()
        await etcdctl(
            *(cluster, "snapshot", "restore", str(backup), "--name", member.name),
            *("--data-dir", str(member.folder / "data"), "--initial-cluster", member.cluster),
            *("--initial-advertise-peer-urls", member.peer_url),
        )
    cluster.start()
    await cluster.ready()
