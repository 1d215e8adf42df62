"""Commands on adapters as documents and sets: export, edit, label, delete."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import click
from google.protobuf import field_mask_pb2

from registry.cli import options
from registry.cli.apply import ApplyOrder, OrderOptions, apply_changes, tell_nothing
from registry.cli.change.documents import deletions, upserts
from registry.cli.change.manifest import has_unknown, keep_unknown, manifest_dict
from registry.cli.change.sets import Change, by_pool, derived_id, step_of_changes
from registry.cli.client import AdminClient
from registry.cli.failure import CliError, Exit, not_found, refused, usage, with_remedy
from registry.cli.preflight import LOOK_SECONDS, Looking, preflight
from registry.cli.removal import DELETE_LIMIT, ask, by_labels
from registry.cli.session import READ_SECONDS, Session, is_typed, pool_or_only, request_id_or_new, session_of
from registry.cli.views.get import labels_of, note
from registry.cli.views.output import yaml_document
from registry.cli.views.router_config import export_config, format_asked
from registry.client import admin_api as api
from registry.formats.exporter import ExportFormat
from registry.lora.text import some_of
from registry.model.errors import Reason
from registry.model.names import matches, name_key
from registry.v1 import registry_pb2 as pb

# Of many adapters, so many are named in a note.
_NAMED = 10
_OTHER_KINDS = {"pool", "pools", "replica", "replicas", "tenant", "tenants"}


def export(
    context: click.Context,
    names: Annotated[
        list[str] | None,
        options.naming(
            metavar="[NAME|FORMAT]...", help=f"Only these adapters; or a format: {', '.join(ExportFormat)}."
        ),
    ] = None,
    *,
    pool: options.OnlyPool = None,
    selector: options.Selector = None,
    watch: Annotated[
        Path | None,
        options.flag(
            "--watch", metavar="FILE", help="With a format: keep this file at each change, replaced as a whole."
        ),
    ] = None,
    timeout: options.Timeout = None,
) -> None:
    """Write adapters as manifests, or as a router's configuration.

    Manifests are those that apply takes. Without --pool, writes the adapters of all pools. If a record cannot be read,
    writes the others and fails. With a format, writes who serves the adapters of one pool: docs/routers.md has them.
    """
    session, wanted = session_of(context), labels_of(selector or ())
    if (form := format_asked(names, watch)) is not None:
        if wanted:
            raise usage(f"--selector: {form} says where requests may go, whatever their adapters' labels; leave it out")
        export_config(session, form, pool, watch, timeout or READ_SECONDS)
        return
    asked = {name_key(one): one for one in names or ()}
    missing, unreadable, later = dict(asked), list[str](), list[str]()
    with session.client(timeout or READ_SECONDS) as client:
        for one in [pool] if pool is not None else _pools(client):
            for page in client.pages(api.LIST_ADAPTERS, pb.ListAdaptersRequest(pool=one)):
                found = {name_key(adapter.name): adapter for adapter in page.adapters}
                chosen = [it for key, it in found.items() if not names or key in asked]
                written = [it for it in chosen if matches(wanted, it.spec.labels)]
                session.printer().documents(map(manifest_dict, written))
                later += [f"{one}/{it.name}" for it in written if has_unknown(it.spec)]
                unreadable += [f"{one}/{key}" for key in page.unreadable if not names or key in asked]
                for key in (*found, *page.unreadable):
                    missing.pop(key, None)
    _check_whole(missing.values(), unreadable, later)


def _check_whole(missing: Collection[str], unreadable: Sequence[str], later: Sequence[str]) -> None:
    """Says what is not in the manifests: adapters that there are not, or cannot be read, and fields of a later release.

    Raises:
        CliError: an adapter is not in them.
    """
    if later:
        told = some_of(later, _NAMED)
        note(
            f"fields of a later release are left out of {told}; before they are applied, upgrade: pip install loraplane"
        )
    if missing:
        told = ", ".join(map(repr, missing))
        raise not_found(Reason.ADAPTER_NOT_FOUND, f"there is no adapter {told}; see loraplane get adapters")
    if unreadable:
        message = f"records that cannot be read were left out: {', '.join(unreadable)}; see loraplane doctor"
        raise refused(Reason.UNREADABLE_RECORD, message)


def _pools(client: AdminClient) -> list[str]:
    found = client.whole(api.LIST_POOLS)
    if found.unreadable:
        note(f"pools that cannot be read: {', '.join(found.unreadable)}; their adapters are written too")
    return [*(pool.name for pool in found.pools), *found.unreadable]


_HEADER = """\
# What apply takes. Saved without a change, nothing happens; the same name and pool must stay.
# {pool}/{name}, generation {generation}; refused if somebody else changes it meanwhile.
"""


def edit(
    context: click.Context,
    name: options.AdapterName,
    *,
    pool: options.Pool = None,
    dry_run: options.DryRun = False,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
    credentials: options.Credentials = None,
    hf_endpoint: options.HfEndpoint = None,
    look_seconds: options.LookSeconds = LOOK_SECONDS,
) -> None:
    """Change one adapter in an editor: VISUAL or EDITOR, else vi.

    If the text cannot be applied, it is kept in a file that the error names.
    """
    session, order = session_of(context), ApplyOrder(request_id, timeout, dry_run, wait=wait)
    with session.client(order.read_seconds) as client:
        adapter = client.unary(api.GET_ADAPTER, pb.GetAdapterRequest(pool=pool_or_only(client, pool), name=name))
    before = yaml_document(manifest_dict(adapter))
    header = _HEADER.format(pool=adapter.pool, name=adapter.name, generation=adapter.generation)
    path = _new_file(header + before)
    try:
        _run_editor(path)
        after = upserts([str(path)])
        if _is_same(after, adapter):
            tell_nothing(session, "nothing was changed", dry_run=dry_run)
        else:
            looking = Looking(credentials, hf_endpoint, look_seconds, order.read_seconds)
            apply_changes(session, preflight(session, [_edited(after, adapter)], looking), order)
    except CliError as error:
        if error.failure.exit is Exit.ROLLOUT_FAILED:
            path.unlink()
            raise
        raise CliError(with_remedy(error.failure, f"what you wrote is kept in {path}")) from error
    except KeyboardInterrupt:
        note(f"what you wrote is kept in {path}")
        raise
    path.unlink()


def _new_file(text: str) -> Path:
    """A file that nobody else reads."""
    descriptor, name = tempfile.mkstemp(prefix="loraplane-edit-", suffix=".yaml")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)


def _run_editor(path: Path) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        with _left_to_the_editor(signal.SIGINT):
            code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode  # noqa: S603 - the user's
    except (OSError, ValueError) as error:
        raise usage(f"cannot start the editor {editor!r}: {error}; name one with EDITOR") from error
    if code:
        raise usage(f"the editor {editor!r} ended with {code}, and nothing was changed")


@contextmanager
def _left_to_the_editor(number: signal.Signals) -> Iterator[None]:
    """A terminal sends an interrupt to both; ours would end the editor, with all that is not saved."""
    before = signal.signal(number, lambda *_: None)  # SIG_IGN would be the editor's too
    try:
        yield
    finally:
        signal.signal(number, before)


def _is_same(after: Sequence[Change], before: pb.Adapter) -> bool:
    return len(after) == 1 and manifest_dict(after[0].wire.upsert) == manifest_dict(_named(before))


def _named(adapter: pb.Adapter) -> pb.Adapter:
    return pb.Adapter(name=adapter.name, pool=adapter.pool, spec=adapter.spec)


def _edited(after: Sequence[Change], before: pb.Adapter) -> Change:
    """The change, on the condition that the adapter is still what was shown."""
    found = [(one.pool, name_key(one.wire.upsert.name)) for one in after]
    if found != [(before.pool, name_key(before.name))]:
        raise usage(f"the text must be one manifest, of {before.pool}/{before.name}; for others there is apply")
    wire = pb.AdapterChange(upsert=after[0].wire.upsert, etag=before.etag)
    keep_unknown(before.spec, wire.upsert.spec)
    return replace(after[0], wire=wire, place="edit")


def label(
    context: click.Context,
    name: options.AdapterName,
    labels: Annotated[list[str], options.argument(metavar="K=V|K-...", help="K=V sets a label, K- takes it away.")],
    *,
    pool: options.Pool = None,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Set and remove labels of one adapter."""
    session, order = session_of(context), ApplyOrder(request_id, timeout, dry_run)
    with session.client(order.read_seconds) as client:
        adapter = client.unary(api.GET_ADAPTER, pb.GetAdapterRequest(pool=pool_or_only(client, pool), name=name))
    options.relabel("", adapter.spec.labels, labels)
    change = pb.AdapterChange(upsert=_named(adapter), etag=adapter.etag)
    apply_changes(session, [Change(adapter.pool, change, adapter.name)], order)


def disable(
    context: click.Context, name: options.AdapterName, *, pool: options.Pool = None, given: OrderOptions
) -> None:
    """Unload an adapter everywhere, and keep its name, its history and its place in the quota."""
    _switch(session_of(context), name, pool, given.order, enabled=False)


def enable(
    context: click.Context, name: options.AdapterName, *, pool: options.Pool = None, given: OrderOptions
) -> None:
    """Serve an adapter again that was disabled."""
    _switch(session_of(context), name, pool, given.order, enabled=True)


def _switch(session: Session, name: str, pool: str | None, order: ApplyOrder, *, enabled: bool) -> None:
    with session.client(order.read_seconds) as client:
        where = pool_or_only(client, pool)
    wanted = pb.Adapter(name=name, spec=pb.AdapterSpec(enabled=enabled))
    change = pb.AdapterChange(update=wanted, update_mask=field_mask_pb2.FieldMask(paths=["enabled"]))
    apply_changes(session, [Change(where, change, name)], order)


def delete(
    context: click.Context,
    names: Annotated[
        list[str] | None, options.naming(metavar="[adapter] [NAME]...", help="Adapters to delete, all or none.")
    ] = None,
    *,
    file: options.OptionalFiles = None,
    recursive: options.Recursive = False,
    selector: options.Selector = None,
    delete_limit: options.DeleteLimit = DELETE_LIMIT,
    ignore_not_found: Annotated[
        bool, options.flag("--ignore-not-found", help="Ignore names that do not exist, even if none does.")
    ] = False,
    yes: options.Yes = False,
    pool: options.Pool = None,
    etag: options.Etag = "",
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
    no_atomic: options.NoAtomic = False,
) -> None:
    """Delete adapters by their names, by labels, or all that manifests name.

    With labels, the command lists what it would delete, asks (unless --yes), refuses more than --delete-limit, and
    deletes only what is still as it was listed.
    """
    session, order = session_of(context), ApplyOrder(request_id, timeout, dry_run, no_atomic)
    meant = _names(names or [], is_alone=bool(file or selector))
    if [bool(file), bool(selector), bool(meant)].count(True) != 1:
        raise usage("say what to delete: NAME, several of them, -l KEY=VALUE or -f FILE, and only one of these")
    if etag and len(meant) != 1 and not file:
        raise usage("--etag goes with one adapter, whose etag it is")
    if file:
        _check_alone(context)
        changes = deletions(file, recursive=recursive)
    elif not (changes := _deletions(session, order, pool, meant or _Labelled(selector or [], delete_limit), etag)):
        return
    if not dry_run and (selector or session.is_protected):
        ask(session, changes, yes=yes)
    _delete(session, changes, order, ignore_not_found=ignore_not_found, follows=ignore_not_found or bool(selector))


def _check_alone(context: click.Context) -> None:
    """Raises CliError if the command line says of documents what they say themselves."""
    for parameter in ("etag", "pool"):
        if is_typed(context, parameter):
            raise usage(f"--{parameter} goes with adapter NAME; documents name their pools, and no etags")


@dataclass(frozen=True, slots=True)
class _Labelled:
    """The adapters that have labels, if they are not more than that."""

    selector: Sequence[str]
    limit: int


def _deletions(
    session: Session, order: ApplyOrder, pool: str | None, meant: Sequence[str] | _Labelled, etag: str
) -> list[Change]:
    """The deletions of what is meant in one pool; a note says where labels mean nothing."""
    with session.client(order.read_seconds) as client:
        where = pool_or_only(client, pool)
        if not isinstance(meant, _Labelled):
            return [Change(where, pb.AdapterChange(delete=one, etag=etag), one) for one in meant]
        changes = by_labels(client, [where], labels_of(meant.selector), meant.limit)
    if not changes:
        tell_nothing(session, f"no adapter of pool {where!r} has these labels", dry_run=order.dry_run)
    return changes


def _names(words: Sequence[str], *, is_alone: bool) -> list[str]:
    """The names that stand behind the word adapter, which may be left out.

    `is_alone`: the word may be all, since something else says which adapters.
    """
    first = words[0].lower() if words else ""
    if first in _OTHER_KINDS:
        raise usage("adapters are deleted by their names; a pool with: loraplane pool delete NAME")
    if first not in {"adapter", "adapters"}:
        return list(words)
    if len(words) == 1 and not is_alone:
        raise usage("say which: loraplane delete adapter NAME")
    return list(words[1:])


def _delete(
    session: Session, changes: Sequence[Change], order: ApplyOrder, *, ignore_not_found: bool, follows: bool
) -> None:
    """Deletes; passes over what is not there if that is wanted. One that is not there refuses the whole change set.

    `follows`: which are deleted follows from what stands, so that in several transactions the rest of them may be left.
    """
    request_id = request_id_or_new(order.request_id)
    left = _present(session, changes, order) if ignore_not_found else list(changes)
    if order.no_atomic and follows:
        request_id = step_of_changes(request_id, "delete", left)
    turn = request_id
    while left:
        try:
            apply_changes(session, left, replace(order, request_id=turn))
        except CliError as error:
            gone = [one for one in left if _is_about(error, one)]
            if not ignore_not_found or error.failure.reason != Reason.ADAPTER_NOT_FOUND or not gone:
                raise
            left.remove(gone[0])  # somebody else was faster
            turn = derived_id(f"{request_id}:{len(left)}")
        else:
            return
    tell_nothing(session, "none of them exists; nothing was changed", dry_run=order.dry_run)


def _present(session: Session, changes: Sequence[Change], order: ApplyOrder) -> list[Change]:
    found: set[tuple[str, str]] = set()
    with session.client(order.read_seconds) as client:
        for pool in {change.pool for change in changes}:
            for page in client.pages(api.LIST_ADAPTERS, pb.ListAdaptersRequest(pool=pool)):
                found |= {(pool, name_key(one.name)) for one in page.adapters}
                found |= {(pool, one) for one in page.unreadable}
        _check_absent(client, [change for change in changes if _key(change) not in found])
    return [change for change in changes if _key(change) in found]


def _key(change: Change) -> tuple[str, str]:
    return change.pool, name_key(change.wire.delete)


# What a dry run says of deletions of what does not exist; of too many at once nothing more is asked.
_NONE = {Reason.ADAPTER_NOT_FOUND, Reason.TOO_MANY_CHANGES}


def _check_absent(client: AdminClient, absent: Sequence[Change]) -> None:
    """Raises CliError if some of what was not listed may only not be seen, as it is not the caller's to delete."""
    for batch in by_pool(absent, ""):
        asked = pb.ApplyAdaptersRequest(
            pool=batch.pool, changes=[one.wire for one in batch.changes], validate_only=True
        )
        try:
            client.unary(api.APPLY_ADAPTERS, asked)
        except CliError as error:
            if error.failure.reason not in _NONE:
                raise


def _is_about(error: CliError, change: Change) -> bool:
    field = error.failure.field or ""
    return field == change.place or field.startswith(f"{change.place}: ")
