"""Removal of adapters by labels: selection, limit, preview and consent.

What is removed was listed at one revision and is removed at that etag or not at all; no more than a limit at once; and
after a person, or ``--yes``, agreed to the list.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence

import click

from registry.cli.change.sets import Change
from registry.cli.client import AdminClient
from registry.cli.failure import refused, usage
from registry.cli.session import Session
from registry.cli.views.get import labels_of, note
from registry.cli.views.output import Format, write_error
from registry.client import admin_api as api
from registry.lora.text import printable
from registry.model.errors import Reason
from registry.model.names import matches, name_key
from registry.v1 import registry_pb2 as pb

# Deleted at once by labels, unless --delete-limit says more.
DELETE_LIMIT = 10
_SHOWN = 20


def to_prune(
    session: Session,
    changes: Sequence[Change],
    selector: Sequence[str] | None,
    limit: int,
    seconds: float,
    *,
    prune: bool,
) -> list[Change]:
    """Deletions of what has the labels, in the pools of `changes`, and is in none of them; without `prune` none.

    Raises:
        CliError: one of ``--prune`` and ``-l`` stands without the other; a manifest lacks the labels, so that they are
            not those of this set; or there are more than `limit`.
    """
    if prune != bool(selector):
        raise usage("--prune and -l KEY=VALUE go together: the label says which adapters the manifests are all of")
    if not prune:
        return []
    wanted = labels_of(selector or ())
    for change in changes:
        if not matches(wanted, change.wire.upsert.spec.labels):
            message = "has not the labels of -l, so they do not say which adapters these manifests are all of"
            raise refused(Reason.INVALID_FIELD, message, field=f"{change.place}: metadata.labels")
    kept = {(change.pool, name_key(change.wire.upsert.name)) for change in changes}
    with session.client(seconds) as client:
        return by_labels(client, sorted({change.pool for change in changes}), wanted, limit, kept)


def by_labels(
    client: AdminClient,
    pools: Sequence[str],
    wanted: Mapping[str, str],
    limit: int,
    kept: Collection[tuple[str, str]] = (),
) -> list[Change]:
    """Deletions of the adapters that have all of these labels, each at the etag that was listed.

    Those whose records cannot be read are not among them: nobody knows their labels.

    Raises:
        CliError: there are more than `limit`.
    """
    found: list[Change] = []
    for pool in pools:
        for page in client.pages(api.LIST_ADAPTERS, pb.ListAdaptersRequest(pool=pool)):
            labelled = [one for one in page.adapters if matches(wanted, one.spec.labels)]
            meant = [one for one in labelled if (one.pool, name_key(one.name)) not in kept]
            found += [Change(one.pool, pb.AdapterChange(delete=one.name, etag=one.etag), one.name) for one in meant]
            if page.unreadable:
                note(f"{len(page.unreadable)} adapters of pool {pool} cannot be read, and stay; see loraplane doctor")
    if len(found) > limit:
        names = ", ".join(change.place for change in found[:_SHOWN])
        raise refused(
            Reason.TOO_MANY_CHANGES,
            f"{len(found)} adapters would be deleted ({names}{', …' if len(found) > _SHOWN else ''}), more than "
            f"{limit}; if all of them are meant, give --delete-limit {len(found)}",
            field="--delete-limit",
        )
    return found


def ask(session: Session, removals: Sequence[Change], *, yes: bool) -> None:
    """Shows what is to be deleted, and returns once somebody agreed; at once where there is nothing.

    Raises:
        CliError: there is nobody to ask, and ``--yes`` was not given.
        click.Abort: they did not agree.
    """
    agree(session, [f"{change.pool}/{change.place}" for change in removals], yes=yes)


def ask_protected(session: Session, removed: Sequence[str], *, yes: bool, what: str = "delete") -> None:
    """The same where the context is protected; elsewhere nobody is asked about what stands on the command line."""
    if session.is_protected:
        agree(session, removed, yes=yes, what=what)


def agree(session: Session, removed: Sequence[str], *, yes: bool, what: str = "delete") -> None:
    """The same for whatever is removed, each told by a name."""
    if not removed:
        return
    if session.form is not Format.JSON:  # there, standard error is one object for programs
        lines = [f"{what} {one}" for one in removed[:_SHOWN]]
        lines += [f"and {len(removed) - _SHOWN} more"] if len(removed) > _SHOWN else []
        write_error("".join(printable(line) + "\n" for line in lines))
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"this would {what} {len(removed)}{_where(session)}, and there is no terminal to ask; give --yes")
    write_error(f"{what} {len(removed)}{_where(session)}? [y/N] ")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        note("nothing was changed")
        raise click.Abort


def _where(session: Session) -> str:
    return f" in the protected context {printable(session.context_name)}" if session.is_protected else ""
