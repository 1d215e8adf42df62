"""Session of one command: global options, connection, output."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import click
from click.core import ParameterSource

from registry.cli.client import AdminClient
from registry.cli.contexts import as_command, load_contexts
from registry.cli.failure import CliError, failure_of, not_found, refused, unavailable, usage
from registry.cli.options import DEFAULT_ADMIN
from registry.cli.views.output import Color, Format, Output, Printer, output_of, write_error
from registry.client import admin_api as api
from registry.client.address import Tls
from registry.client.contexts import AdminContext, context_path, token_of
from registry.client.credentials import TokenSource
from registry.lora.text import printable
from registry.model.errors import InvalidArgument, Reason
from registry.model.names import check_request_id
from registry.tools.devstack.secure import OPERATOR_FILE, AuthorityName, SecretFolder
from registry.tools.devstack.stack_file import (
    DEFAULT_FOLDER,
    FILE,
    FolderNotTrusted,
    StackAdmin,
    StackError,
    admin_of_stack,
)

READ_SECONDS = 10.0
WRITE_SECONDS = 30.0
ROLLOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Session:
    """The global options of one run; `named_admin` is None where neither flag, variable nor context names one.

    `context` is the one in use, `context_name` its name; None: none is. `is_context_typed`: the command line names it.
    `waits`: the user said how long a call may take, so that it is waited for also while etcd is away.
    `template`: what stands behind the form.
    """

    named_admin: str | None
    form: Format
    tls: Tls
    context: AdminContext | None = None
    context_name: str = ""
    is_context_typed: bool = False
    waits: bool = False
    repeats: bool = False
    template: str = ""
    color: Color = Color.AUTO
    token: TokenSource | None = None

    @property
    def is_protected(self) -> bool:
        """True if what removes is asked about."""
        return self.context is not None and self.context.protected

    @cached_property
    def _of_stack(self) -> StackAdmin | None:
        """Admin service of the stack of the working directory; None: another is named, or there is no stack.

        Raises:
            CliError: the stack does not run, or is not ours.
        """
        if self.named_admin is not None:
            return None
        try:
            return admin_of_stack(DEFAULT_FOLDER)
        except StackError as error:
            raise stack_failure(error, "or name an admin service with --admin or LORAPLANE_ADMIN") from error

    @property
    def shown_tls(self) -> Tls:
        """Certificates for services: as flags or the context say, or else those of a secure stack.

        Raises as `admin` does.
        """
        stack = None if self.tls or self.named_admin is not None else self._of_stack
        if stack is None or stack.secrets is None:
            return self.tls
        secrets = SecretFolder(stack.secrets)
        return Tls(
            secrets.authority(AuthorityName.SERVICES), secrets.certificate(OPERATOR_FILE), secrets.key(OPERATOR_FILE)
        )

    @cached_property
    def admin(self) -> str:
        """HOST:PORT of the admin service; standard error tells of one that the user did not name.

        With JSON, standard error is one object for programs, so nothing is added to it there.

        Raises:
            CliError: it would be that of a stack that does not run, or that is not ours.
        """
        if self.named_admin is not None:
            return self.named_admin
        of_stack = self._of_stack
        if self.form is not Format.JSON:
            why = (
                f"of the stack in {DEFAULT_FOLDER}" if of_stack else "the default; --admin or LORAPLANE_ADMIN names one"
            )
            write_error(f"admin service: {of_stack.address if of_stack else DEFAULT_ADMIN} ({why})\n")
        return of_stack.address if of_stack else DEFAULT_ADMIN

    def client(self, timeout_seconds: float) -> AdminClient:
        """A connection whose calls may take `timeout_seconds` each, repetitions included. Raises as `admin` does."""
        return AdminClient(
            self.admin,
            self.shown_tls,
            timeout_seconds=timeout_seconds,
            waits=self.waits,
            before_change=self._tell_context,
            repeats=self.repeats,
            token=self.token,
        )

    def _tell_context(self) -> None:
        """Says which context is changed, unless the command line names it."""
        if self.context is not None and not self.is_context_typed and self.form is not Format.JSON:
            write_error(f"context: {printable(self.context_name)} ({printable(self.context.admin)})\n")

    def printer(self) -> Printer:
        return Printer(self.form, self.template, self.color)


_LOCAL = {"completion", "config", "dev", "digest", "explain", "schema"}


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token as flags, variables or a context name it: a file, or a command line. Empty: not said."""

    file: Path | None = None
    command: str = ""

    def source(self) -> TokenSource | None:
        """Source of the token; None: there is none.

        Raises:
            CliError: both are named, or the command line is none.
        """
        if self.file is None and not self.command:
            return None
        with as_command():
            return token_of(str(self.file or ""), self.command)


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The global options as flags and variables give them. `typed` names those that stand on the command line."""

    admin: str | None
    context: str | None
    output: Output
    tls: Tls
    typed: Collection[str]
    token: NamedToken = NamedToken()


def global_options(root: click.Context) -> GlobalOptions:
    """The global options of a command line, whose root context this is."""
    given, typed = root.params, [name for name in root.params if is_typed(root, name)]
    tls = Tls(given.get("tls_ca"), given.get("tls_cert"), given.get("tls_key"))
    output = output_of(given.get("output") or Format.TABLE, given.get("color") or Color.AUTO)
    token = NamedToken(given.get("token_file"), given.get("token_command") or "")
    return GlobalOptions(given.get("admin") or None, given.get("named_context") or None, output, tls, typed, token)


def session_from(given: GlobalOptions, subcommand: str | None) -> Session:
    """The session that the global options say. Commands that ask no admin service read no contexts.

    A context that is typed goes before all that variables say; an address that is named goes before the context of
    ``use-context``, and so does the stack of the working directory, so that nobody changes a service that is elsewhere.

    Raises:
        CliError: the address and a context are named alike, there is no such context, or contexts cannot be read.
    """
    name = None if subcommand in _LOCAL else _context_name(given)
    file = load_contexts(context_path()) if name is not None else None
    form, template, color = given.output.form, given.output.template, given.output.color
    if file is None or not (name := name or file.current):
        shown = None if subcommand in _LOCAL else given.token.source()
        return Session(given.admin, form, given.tls, template=template, color=color, token=shown)
    with as_command():
        one = file.named(name)
    tls = Tls(
        given.tls.ca if "tls_ca" in given.typed else _path(one.tls_ca),
        given.tls.cert if "tls_cert" in given.typed else _path(one.tls_cert),
        given.tls.key if "tls_key" in given.typed else _path(one.tls_key),
    )
    is_typed_context = "named_context" in given.typed
    is_typed_token = {"token_file", "token_command"} & {*given.typed}
    token = given.token if is_typed_token else NamedToken(_path(one.token_file), one.token_command)
    shown = token.source()
    return Session(one.admin, form, tls, one, name, is_typed_context, template=template, color=color, token=shown)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _context_name(given: GlobalOptions) -> str | None:
    """The name of the context in use; empty: the current one; None: none is."""
    is_typed_context = given.context is not None and "named_context" in given.typed
    is_typed_admin = given.admin is not None and "admin" in given.typed
    if given.admin is not None and given.context is not None and is_typed_context == is_typed_admin:
        raise usage("an address (--admin, LORAPLANE_ADMIN) and a context (--context, LORAPLANE_CONTEXT); name one")
    if is_typed_context or (given.context is not None and not is_typed_admin):
        return given.context
    if given.admin is not None:
        return None
    return None if os.path.lexists(DEFAULT_FOLDER / FILE) else ""


def stack_failure(error: StackError, remedy: str = "") -> CliError:
    """A local stack that cannot be used, as a command tells it."""
    message = f"{error}, {remedy}" if remedy else str(error)
    if isinstance(error, FolderNotTrusted):
        return refused(Reason.STACK_NOT_TRUSTED, message)
    return unavailable(Reason.STACK_NOT_READY, message)


def session_of(context: click.Context) -> Session:
    """The session that the root command made; it waits if this command was told how long.

    A request id that the user names may be that of an earlier command.
    """
    session = context.find_object(Session)
    if session is None:
        raise usage("a command of loraplane runs below loraplane itself")
    if context.params.get("timeout") is not None:
        context.obj = session = replace(session, waits=True)
    if context.params.get("request_id") is not None:
        context.obj = session = replace(session, repeats=True)
    return session


def is_typed(context: click.Context, parameter: str) -> bool:
    """True for what stands on the command line itself: a variable may have been set for other commands."""
    return context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def request_id_or_new(given: str | None) -> str:
    """The request id that the user gave, or a new one.

    Raises:
        CliError: it cannot be one.
    """
    if given is None:
        return str(uuid.uuid4())
    try:
        check_request_id(given, field="--request-id")
    except InvalidArgument as error:
        raise CliError(failure_of(error)) from error
    return given


def pool_or_only(client: AdminClient, given: str | None) -> str:
    """The pool that the user gave, or the only one there is.

    Raises:
        CliError: none was given, and there is not exactly one.
    """
    if given is not None:
        return given
    found = client.whole(api.LIST_POOLS)
    names = [pool.name for pool in found.pools]
    # One that cannot be read is there all the same, and what is asked of it says why.
    match names or [*found.unreadable]:
        case [only]:
            return only
        case []:
            raise not_found(Reason.POOL_NOT_FOUND, "there is no pool; make one with: loraplane pool create")
        case several:
            raise usage(f"there are several pools ({', '.join(several)}); choose one with --pool or LORAPLANE_POOL")
