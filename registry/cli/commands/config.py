"""Commands on contexts: set, use, get, delete."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import click

from registry.cli import options
from registry.cli.contexts import as_command, load_contexts
from registry.cli.failure import usage
from registry.cli.session import NamedToken, is_typed, session_of
from registry.cli.views.output import OutputView
from registry.client.address import check_address
from registry.client.contexts import AdminContext, context_path
from registry.model.errors import InvalidArgument

ContextName = Annotated[str, options.naming(metavar="NAME", help="Name of the context.")]


def set_context(
    context: click.Context,
    context_name: ContextName,
    *,
    pool: Annotated[
        str | None, options.flag("--pool", metavar="POOL", envvar=None, help="Default pool; empty: none.")
    ] = None,
    protected: Annotated[
        bool | None, options.flag("--protected/--no-protected", help="Ask before anything is removed.")
    ] = None,
) -> None:
    """Make a context, or change what is given of it: --admin, --tls-…, --token-…, --pool, --protected."""
    file, root = load_contexts(context_path()), context.find_root()
    admin = str(root.params["admin"]) if is_typed(root, "admin") else None
    one = file.contexts.get(context_name) or (AdminContext(admin) if admin else None)
    if one is None:
        raise usage(f"there is no context {context_name!r} yet; a new one needs --admin HOST:PORT")
    files = {name: str(Path(root.params[name]).absolute()) for name in _FILES if is_typed(root, name)}
    if is_typed(root, "token_file") or is_typed(root, "token_command"):
        files = {"token_file": "", "token_command": "", **files}
    if is_typed(root, "token_command"):
        files["token_command"] = str(root.params["token_command"])
        NamedToken(command=files["token_command"]).source()
    given = {"admin": admin, "pool": pool, "protected": protected, **files}
    one = replace(one, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    try:
        check_address(one.admin)
    except InvalidArgument as error:
        raise usage(f"--admin: {error.message}") from error
    file.with_context(context_name, one).save()
    session_of(context).printer().item(_VIEW, (context_name, one, not file.current or file.current == context_name))


_FILES = ("tls_ca", "tls_cert", "tls_key", "token_file")
_VIEW: OutputView[tuple[str, AdminContext, bool]] = OutputView(
    name=lambda one: one[0],
    plain=lambda one: {"name": one[0], "current": one[2], **asdict(one[1])},
    columns={
        "CURRENT": lambda one: "*" if one[2] else "",
        "NAME": lambda one: one[0],
        "ADMIN": lambda one: one[1].admin,
        "POOL": lambda one: one[1].pool or "-",
        "TLS": lambda one: "yes" if one[1].tls_ca or one[1].tls_cert else "no",
        "PROTECTED": lambda one: "yes" if one[1].protected else "no",
    },
)


def use_context(context: click.Context, context_name: ContextName) -> None:
    """Make a context the one that commands use where none is named."""
    file = load_contexts(context_path())
    with as_command():
        one = file.named(context_name)
    replace(file, current=context_name).save()
    session_of(context).printer().item(_VIEW, (context_name, one, True))


def get_contexts(context: click.Context) -> None:
    """List the contexts."""
    file = load_contexts(context_path())
    rows = [(name, one, name == file.current) for name, one in sorted(file.contexts.items())]
    session_of(context).printer().items(_VIEW, rows)


def delete_context(context: click.Context, context_name: ContextName) -> None:
    """Forget a context; nothing of its admin service changes."""
    file = load_contexts(context_path())
    with as_command():
        file.named(context_name)
    file.without(context_name).save()
    session_of(context).printer().lines([context_name])
