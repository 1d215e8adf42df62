"""What the global options say, and how a command gets its connection and its output."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import typer

from registry.cli.client import Client, open_channel
from registry.cli.failure import CliError, failure_of, not_found, usage
from registry.cli.output import Format, Printer
from registry.client.connection import Tls
from registry.errors import InvalidArgument, Reason
from registry.model.names import check_request_id

READ_SECONDS = 10.0
WRITE_SECONDS = 30.0
ROLLOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Session:
    """The global options of one run."""

    admin: str
    form: Format
    tls: Tls

    def client(self, timeout_seconds: float) -> Client:
        """A connection whose calls may take `timeout_seconds` each, repetitions included."""
        return Client(open_channel(self.admin, self.tls), self.admin, timeout_seconds=timeout_seconds)

    def printer(self) -> Printer:
        return Printer(self.form)


def session_of(context: typer.Context) -> Session:
    """The session that the root command made."""
    session = context.find_object(Session)
    if session is None:
        raise usage("a command of loraplane runs below loraplane itself")
    return session


def is_typed(context: typer.Context, parameter: str) -> bool:
    """True for what stands on the command line itself: a variable may have been set for other commands."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


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


def pool_or_only(client: Client, given: str | None) -> str:
    """The pool that the user gave, or the only one there is.

    Raises:
        CliError: none was given, and there is not exactly one.
    """
    if given is not None:
        return given
    pages = list(client.pool_pages())
    names = [pool.name for page in pages for pool in page.pools]
    # One that cannot be read is there all the same, and what is asked of it says why.
    match names or [name for page in pages for name in page.unreadable]:
        case [only]:
            return only
        case []:
            raise not_found(Reason.POOL_NOT_FOUND, "there is no pool; make one with: loraplane pool create")
        case several:
            raise usage(f"there are several pools ({', '.join(several)}); choose one with --pool or LORAPLANE_POOL")
