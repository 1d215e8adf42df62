"""Commands on access: who one is, what one may do, and what roles may do."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

import click

from registry.access.questions import READING, Resource, Verb
from registry.access.roles import OF_POOLS, OF_TENANTS, ROLES, AccessRole
from registry.cli import options
from registry.cli.failure import Exit
from registry.cli.session import READ_SECONDS, session_of
from registry.cli.views.get import note
from registry.cli.views.output import OutputView
from registry.client import admin_api as api
from registry.v1 import registry_pb2 as pb

Verbose = Annotated[
    bool, options.flag("--verbose", "-v", help="Say by which binding it is allowed, or which roles would allow it.")
]


def whoami(context: click.Context, *, timeout: options.Timeout = None) -> None:
    """Show whom the admin service takes you for, and your roles."""
    session, printer = session_of(context), session_of(context).printer()
    with session.client(timeout or READ_SECONDS) as client:
        found = client.unary(api.WHO_AM_I, pb.WhoAmIRequest())
    if not printer.is_table:
        printer.item(_ME, found)
        return
    if not found.access_digest:
        printer.lines([f"{found.principal}: this admin service has no access file, so everybody may do everything"])
        return
    printer.fields(
        {"principal": found.principal, "credential": found.credential, "groups": ", ".join(found.groups) or "-"}
    )
    if found.roles:
        printer.items(_HELD, found.roles)
    else:
        printer.lines(["no role: no binding of the access file names you"])


def _words(words: list[str], otherwise: str = "*") -> str:
    return ", ".join(words) or otherwise


_HELD: OutputView[pb.HeldRole] = OutputView(
    name=lambda one: one.role,
    plain=lambda one: {
        "role": one.role,
        "binding": one.binding,
        "tenants": [*one.tenants],
        "pools": [*one.pools],
        "sources": [*one.sources],
        "credentials": [*one.credentials],
    },
    columns={
        "ROLE": lambda one: one.role,
        "BINDING": lambda one: str(one.binding) if one.binding else "-",
        "TENANTS": lambda one: _words([*one.tenants]) if one.role in OF_TENANTS else "-",
        "POOLS": lambda one: _words([*one.pools]),
        "SOURCES": lambda one: _words([*one.sources]) if one.role == AccessRole.PUBLISHER else "-",
    },
)
_ME: OutputView[pb.WhoAmIResponse] = OutputView(
    name=lambda one: one.principal,
    plain=lambda one: {
        "principal": one.principal,
        "credential": one.credential,
        "groups": [*one.groups],
        "access_digest": one.access_digest,
        "roles": [_HELD.plain(held) for held in one.roles],
    },
    columns={
        "PRINCIPAL": lambda one: one.principal,
        "CREDENTIAL": lambda one: one.credential,
        "ROLES": lambda one: _words([held.role for held in one.roles], "-"),
    },
)


def can_i(
    context: click.Context,
    verb: Annotated[str, options.argument(metavar="VERB", help="Verb of docs/roles.md, such as apply.")],
    object_name: Annotated[
        str | None, options.argument(metavar="[NAME]", help="Adapter, pool or tenant; none: whatever there is.")
    ] = None,
    *,
    resource: Annotated[
        str | None,
        options.flag("--resource", metavar="R", help="Resource of docs/roles.md (default: what the verb changes)."),
    ] = None,
    pool: options.OnlyPool = None,
    source: Annotated[
        str | None, options.flag("--source", metavar="URI", help="Where the adapter would come from.")
    ] = None,
    as_user: Annotated[
        str | None, options.flag("--as", metavar="USER", help="Ask about somebody else; the role security may.")
    ] = None,
    as_groups: Annotated[
        list[str] | None, options.flag("--as-group", metavar="GROUP", help="Group of who is asked about.")
    ] = None,
    verbose: Verbose = False,
    timeout: options.Timeout = None,
) -> None:
    """Tell whether you may do something: yes (exit 0) or no (exit 4)."""
    session, printer = session_of(context), session_of(context).printer()
    asked = resource or usual_resource(verb)
    request = pb.CheckAccessRequest(verb=verb, resource=asked, groups=as_groups or ())
    options.set_given(request, name=object_name, pool=pool, source=source, user=as_user)
    with session.client(timeout or READ_SECONDS) as client:
        found = client.unary(api.CHECK_ACCESS, request)
    told = "yes" if found.allowed else "no"
    if printer.is_plain:
        by = {"role": found.role, "binding": found.binding} if found.role else None
        printer.plain({"allowed": found.allowed, "by": by, "roles": [*found.roles], "verb": verb, "resource": asked})
    else:
        if resource is None and (meant := _other_meaning(verb, asked)):
            note(meant)
        printer.lines([f"{told}{_why(found)}" if verbose else told])
    if not found.allowed:
        context.exit(Exit.REFUSED)


def usual_resource(verb: str) -> str:
    """The resource that a verb changes, if it changes one alone; else adapters."""
    changed = _changed_by(verb)
    return changed.pop() if len(changed) == 1 else Resource.ADAPTERS


def _changed_by(verb: str) -> set[str]:
    actions = frozenset().union(*ROLES.values())
    return {resource for one, resource in actions if one == verb and one not in READING}


def _other_meaning(verb: str, asked: str) -> str:
    """Hint where the answer may be about something else than meant; empty: it is not."""
    if verb == Verb.DELETE:
        return f"delete is about {asked}; whether an adapter may be deleted tells the verb {Verb.APPLY}"
    changed = sorted(_changed_by(verb))
    return f"{verb} is about {' and '.join(changed)}; name one with --resource" if len(changed) > 1 else ""


def _why(found: pb.CheckAccessResponse) -> str:
    if found.role:
        return f": {found.role} by binding {found.binding}" if found.binding else f": {found.role}"
    if found.allowed:
        return ": no role is needed"
    return f": the role {' or '.join(found.roles)} allows it" if found.roles else ": no role allows it"


def table(context: click.Context) -> None:
    """Show what each role may do. No admin service is asked."""
    session_of(context).printer().items(_ROLES, [*AccessRole])


def _bound_to(role: AccessRole) -> str:
    return _words([word for word, of in (("tenants", OF_TENANTS), ("pools", OF_POOLS)) if role in of], "everything")


def _resources(role: AccessRole) -> dict[Verb, list[str]]:
    found: defaultdict[Verb, list[str]] = defaultdict(list)
    for verb, resource in sorted(ROLES[role]):
        found[verb].append(resource)
    return dict(found)


_ROLES: OutputView[AccessRole] = OutputView(
    name=lambda one: one,
    plain=lambda one: {"role": one.value, "actions": {verb.value: of for verb, of in _resources(one).items()}},
    columns={
        "ROLE": lambda one: one,
        "BOUND TO": _bound_to,
        "MAY": lambda one: "; ".join(f"{verb} {', '.join(of)}" for verb, of in _resources(one).items()),
    },
)
