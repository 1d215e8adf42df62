"""Export for routers, once or into a file at each change.

The file is replaced as a whole, and only if its text changes, so that a router that reads it at any moment reads one
state. While the admin service is out of reach it stays as it is: what it says is likely still so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from registry.cli.client import AdminClient
from registry.cli.failure import CliError, not_found, usage
from registry.cli.session import Session, pool_or_only
from registry.cli.views.get import note
from registry.cli.views.output import write_out
from registry.cli.views.replica_view import ReplicaView, replica_view
from registry.client import admin_api as api
from registry.client.residency import Follower, PoolResidency
from registry.formats.exporter import ExportedAdapter, ExportedPool, ExportedReplica, ExportFormat, export_as
from registry.model.errors import Reason
from registry.runtime.own_paths import write_whole
from registry.v1 import registry_pb2 as pb

# So long nothing may come before replicas are looked at again: one that serves nothing yet is told by no residency.
QUIET_SECONDS = 2.0
AGAIN_SECONDS = 2.0


def format_asked(names: Sequence[str] | None, watch: Path | None) -> ExportFormat | None:
    """The format that the arguments of `export` ask for; None: they ask for manifests.

    Raises:
        CliError: a file is to be kept, and no format is named.
    """
    found = [one for one in ExportFormat if [one] == list(names or ())]
    if watch == Path("-"):
        raise usage("--watch -: it replaces a file at each change; name one, or leave it out for standard output")
    if not found and watch is not None:
        raise usage(f"--watch: name one format: loraplane export {'|'.join(ExportFormat)} --watch FILE")
    return found[0] if found else None


def export_config(
    session: Session, form: ExportFormat, pool: str | None, watch: Path | None, timeout_seconds: float
) -> None:
    """Writes the configuration of a router; with `watch` into that file, at each change, until it is interrupted."""
    with session.client(timeout_seconds) as client:
        asked = pool_or_only(client, pool)
        if watch is None:
            told = pb.WatchResidencyResponse(snapshot=True, adapters=client.residency(asked))
            made = export_as(form, [_exported(client, asked, Follower().take(told) or PoolResidency(0, {}))])
            for one in made.notes:
                note(one)
            write_out(made.text)
            return
        _keep(client, form, asked, watch)


def _keep(client: AdminClient, form: ExportFormat, pool: str, file: Path) -> None:
    """Raises CliError: the file cannot be written, the pool is gone, or the first state could not be had."""
    written, noted, is_first = "", set[str](), True
    while True:
        try:
            for state in _states(client, pool):
                made = export_as(form, [_exported(client, pool, state)])
                for one in [one for one in made.notes if one not in noted]:
                    note(one)
                noted = set(made.notes)
                if is_first or made.text != written:
                    replace_file(file, made.text)
                    written = made.text
                    note(f"{file}: {'written' if is_first else 'changed'}")
                is_first = False
        except CliError as error:
            if is_first or not error.failure.passes:
                raise
        time.sleep(AGAIN_SECONDS)


def _states(client: AdminClient, pool: str) -> Iterator[PoolResidency]:
    """The residency of a pool now and at each change, and again where nothing was told for a while."""
    follower, state = Follower(), None
    start, where = pb.WatchAdaptersRequest(pool=pool), pb.WatchResidencyRequest(pool=pool)
    for answers in client.watch_pool(start, where, QUIET_SECONDS):
        for answer in answers:
            if isinstance(answer, pb.WatchResidencyResponse):
                state = follower.take(answer) or state
        if state is not None:
            yield state


def _exported(client: AdminClient, pool: str, state: PoolResidency) -> ExportedPool:
    """A pool as routers see it: replicas that are ready and do not drain, and what they serve."""
    replicas = [replica_view(one) for one in client.all_replicas(pool).replicas]
    adapters = [
        ExportedAdapter(one.name, {part.replica: part.model for part in one.serving})
        for _, one in sorted(state.adapters.items())
        if one.serving
    ]
    base_models = tuple(client.unary(api.GET_POOL, pb.GetPoolRequest(name=pool)).base_models)
    if not base_models:
        raise not_found(Reason.POOL_NOT_FOUND, f"there is no pool {pool!r}, or none that can be read")
    found = sorted((one for one in replicas if _may_be_asked(one)), key=lambda one: one.name)
    shown = tuple(ExportedReplica(one.name, one.router_url, one.labels) for one in found)
    return ExportedPool(pool, base_models, shown, tuple(adapters))


def _may_be_asked(one: ReplicaView) -> bool:
    has_url = one.router_url.startswith(("http://", "https://")) and not one.withheld_engine_url
    return has_url and one.status.get("ready") is True and not one.leaving


def replace_file(file: Path, text: str) -> None:
    """Replaces a file as a whole.

    Raises:
        CliError: it cannot be written; what it held is as it was.
    """
    try:
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o644
        write_whole(file, text.encode(), mode=mode)
    except OSError as error:
        raise usage(
            f"--watch {file}: cannot be written: {error.strerror}; name a file in a folder that is there"
        ) from error
