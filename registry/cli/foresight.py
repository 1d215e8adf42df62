"""What can be seen of a change before it is sent: the digest of a source that this machine can read, and its check."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from registry.cli.change_set import Change
from registry.cli.client import Client
from registry.cli.failure import CliError
from registry.cli.local_adapters import base_of_pool, digest_here, folder_of, limits_of_pool, look, unfit
from registry.cli.session import READ_SECONDS, Session
from registry.lora.manifest import FILES
from registry.lora.policy import Policy, policy_of
from registry.v1 import registry_pb2 as pb


def foreseen(session: Session, changes: Sequence[Change]) -> list[Change]:
    """The changes with the digests of those sources that can be read here.

    A source that this machine cannot read is left to the replicas, and so is one with another digest than the pinned:
    what lies here is not what is meant.

    Raises:
        CliError: an adapter is not right for its pool; or the pool cannot be read.
    """
    folders = [_readable(change) for change in changes]
    if not any(folders):
        return list(changes)
    with session.client(READ_SECONDS) as client:
        pools = _Pools(client)
        return [_foreseen(change, folder, pools) for change, folder in zip(changes, folders, strict=True)]


class _Pools:
    """Records of pools, each read once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._records: dict[str, pb.Pool] = {}

    def get(self, name: str) -> pb.Pool:
        if name not in self._records:
            self._records[name] = self._client.get_pool(name)
        return self._records[name]


def _readable(change: Change) -> Path | None:
    """The folder of an upsert's adapter, if its files can be read here."""
    if change.wire.WhichOneof("change") != "upsert":
        return None
    folder = folder_of(change.wire.upsert.spec.source.uri)
    if folder is None or not folder.is_dir():
        return None
    return folder if any(os.access(folder / name, os.R_OK) for name in FILES) else None


def _foreseen(change: Change, folder: Path | None, pools: _Pools) -> Change:
    source = change.wire.upsert.spec.source
    if folder is None:
        return change
    digest = _digest(folder)
    if source.digest not in {"", digest}:
        return change
    pool = pools.get(change.pool)
    looked = look(folder, base_of_pool(pool), limits_of_pool(pool), _policy(change.wire.upsert.spec.prepare))
    for_good = [finding for finding in looked.findings if finding.permanent]
    if for_good:
        raise unfit(f"{change.place}: spec.source.uri", for_good)
    if digest is None:
        return change
    wire = pb.AdapterChange()
    wire.CopyFrom(change.wire)
    wire.upsert.spec.source.digest = digest
    return replace(change, wire=wire)


def _digest(folder: Path) -> str | None:
    try:
        return digest_here(folder)
    except CliError:
        return None  # the replicas say what is wrong with it, once they look


def _policy(prepare: pb.Prepare) -> Policy:
    named = {"remap": prepare.remap, "vision": prepare.vision, "dora": prepare.dora}
    return policy_of({name: value for name, value in named.items() if value})
