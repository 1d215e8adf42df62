"""The command `loraplane`."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

from registry.cli import (
    apply_commands,
    check_commands,
    dev_commands,
    doctor_command,
    glass_commands,
    options,
    pool_commands,
    publish_command,
    read_commands,
    rollout_command,
    sign_command,
    tenant_commands,
)
from registry.cli.failure import CliError, Exit, Failure
from registry.cli.hoist import form_asked, hoist
from registry.cli.output import Format
from registry.cli.session import Session
from registry.client.connection import Tls
from registry.dev.stack_file import DEFAULT_FOLDER, admin_of_running_stack
from registry.errors import Reason

DEFAULT_ADMIN = "127.0.0.1:7600"
# How Python tells bytes of the command line that are no UTF-8; no message takes them.
_NO_TEXT = re.compile("[\ud800-\udfff]")

_EXIT_CODES = (
    "Exit codes: 0 done, 1 internal error, 2 usage, 3 not found, 4 refused, 5 conflict, 6 unavailable or deadline, "
    "7 a rollout finished with failures."
)
_ANYWHERE = "Options of loraplane itself (--admin, -o, --tls-…) may stand anywhere in the line; loraplane --help."


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"loraplane {installed_version('loraplane')}\n")
        raise typer.Exit


def root(
    context: typer.Context,
    *,
    admin: Annotated[
        str | None,
        options.flag(
            "--admin",
            metavar="HOST:PORT",
            help=f"The admin service (default: that of the stack in {DEFAULT_FOLDER}, else {DEFAULT_ADMIN}).",
        ),
    ] = None,
    output: Annotated[Format, options.flag("--output", "-o", help="Form of the output.")] = Format.TABLE,
    tls_ca: Annotated[Path | None, options.flag("--tls-ca", metavar="FILE", help="CA of the admin service.")] = None,
    tls_cert: Annotated[Path | None, options.flag("--tls-cert", metavar="FILE", help="Our certificate.")] = None,
    tls_key: Annotated[Path | None, options.flag("--tls-key", metavar="FILE", help="Its key.")] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    address = admin or admin_of_running_stack(DEFAULT_FOLDER) or DEFAULT_ADMIN
    context.obj = Session(address, output, Tls(tls_ca, tls_cert, tls_key))


def make_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="loraplane",
        help="Say which LoRA adapters a fleet of engines should serve, and see that they do.",
        epilog=_EXIT_CODES,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(root)
    _add(app, apply_commands.apply, apply_commands.add, read_commands.get, read_commands.describe)
    _add(app, apply_commands.delete, read_commands.history, apply_commands.rollback, rollout_command.rollout)
    _add(app, apply_commands.diff, check_commands.check, check_commands.digest, publish_command.publish)
    _add(app, sign_command.sign, doctor_command.doctor)
    pool = _group(app, "pool", "Create, change and delete pools.")
    _add(pool, pool_commands.create, pool_commands.update, pool_commands.confirm_removals, pool_commands.delete)
    tenant = _group(app, "tenant", "Set what tenants may have.")
    tenant.command("set", epilog=_ANYWHERE)(tenant_commands.set_tenant)
    glass = _group(app, "break-glass", "When etcd is out of space: delete an adapter, and settle it later.")
    _add(glass, glass_commands.delete, glass_commands.settle)
    dev = _group(app, "dev", "A local stack: etcd, admin service, engines, sidecars.")
    _add(dev, dev_commands.up, dev_commands.status, dev_commands.down)
    return app


def _group(app: typer.Typer, name: str, about: str) -> typer.Typer:
    group = typer.Typer(help=about, no_args_is_help=True, epilog=_ANYWHERE)
    app.add_typer(group, name=name)
    return group


def _add(app: typer.Typer, *commands: Callable[..., None]) -> None:
    for command in commands:
        app.command(epilog=_ANYWHERE)(command)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Errors go to standard error in one line."""
    first, rest = hoist(arguments)
    if _NO_TEXT.search("".join(arguments)):
        message = "an argument is not text in UTF-8; names, URIs and files must be"
        return _report(Failure(Exit.USAGE, Reason.USAGE, message), first)
    try:
        return make_app()(args=[*first, *rest], prog_name="loraplane", standalone_mode=False) or Exit.DONE
    except CliError as error:
        return _report(error.failure, first)
    except typer.TyperException as error:
        said = error.format_message().replace("Value error, ", "").rstrip(".")
        message = f"{said or 'name a command'}; see loraplane --help"
        return _report(Failure(Exit.USAGE, Reason.USAGE, message), first)
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED


def _report(failure: Failure, first: Sequence[str]) -> int:
    """Tells a failure in the form that the command line asks for, even if it could not be parsed."""
    as_json = form_asked(first, os.environ.get("LORAPLANE_OUTPUT", "")) == Format.JSON
    line = json.dumps({"error": failure.as_dict()}, ensure_ascii=False) if as_json else failure.line()
    sys.stderr.write(line + "\n")
    return failure.exit


def main() -> None:
    """Entry point of the console script."""
    # Whoever reads our output may leave: end as other programs do, without a word.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        code = run(sys.argv[1:])
    except Exception as error:  # noqa: BLE001 - the supervisor: what nobody foresaw is told in one line, too
        code = _report(_unforeseen(error), hoist(sys.argv[1:])[0])
    sys.exit(code)


def _unforeseen(error: Exception) -> Failure:
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = f"{type(error).__name__}: {error} (at {last.filename}:{last.lineno}); please report it"
    return Failure(Exit.INTERNAL, Reason.INTERNAL, message)


if __name__ == "__main__":
    main()
