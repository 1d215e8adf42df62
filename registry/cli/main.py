"""The command `loraplane`."""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import click

from registry.cli import options
from registry.cli.command_tree import ENTRIES, LazyCommand, Root
from registry.cli.failure import ChangeInterrupted, CliError, CommandFailure, Exit, usage
from registry.cli.options import form_asked, global_options_first
from registry.cli.views.output import OUTPUTS, Color, Format, output_of, write_error, write_out
from registry.lora.text import escaped
from registry.model.errors import Reason
from registry.runtime import tracing
from registry.runtime.commands import called, complaint, parameters, version_flag
from registry.runtime.program import install_remedy, open_standard_streams, spare_collector
from registry.tools.devstack.stack_file import DEFAULT_FOLDER

# What a client is installed without: it reads an adapter's numbers, and speaks with buckets.
_OF_FILES = {"numpy", "obstore"}
# How Python tells bytes of the command line that are no UTF-8; no message takes them.
_NO_TEXT = re.compile("[\ud800-\udfff]")

OUTPUT_HELP = (
    "Form of the output: table, wide, json, yaml, name; of get also manifest and custom-columns=TITLE:.path,…, whose "
    "paths are those of json."
)
EXIT_CODES = (
    "Exit codes: 0 done, 1 internal error, 2 usage, 3 not found, 4 refused, 5 conflict, 6 unavailable or deadline, "
    "7 a rollout finished with failures."
)


def complete_output(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Values of -o."""
    return [one for one in OUTPUTS if one.startswith(incomplete)]


def root(
    context: click.Context,
    *,
    admin: Annotated[
        str | None,
        options.flag(
            "--admin",
            metavar="HOST:PORT",
            help=f"The admin service (default: that of the stack in {DEFAULT_FOLDER}, else {options.DEFAULT_ADMIN}).",
        ),
    ] = None,
    named_context: Annotated[
        str | None,
        options.flag("--context", metavar="NAME", help="The context to use, see loraplane config get-contexts."),
    ] = None,
    output: Annotated[
        str, options.flag("--output", "-o", metavar="FORM", shell_complete=complete_output, help=OUTPUT_HELP)
    ] = Format.TABLE.value,
    color: Annotated[
        str,
        options.flag(
            "--color", metavar="WHEN", help="Colours: auto (on a terminal, unless NO_COLOR is set), always, never."
        ),
    ] = Color.AUTO.value,
    tls_ca: Annotated[Path | None, options.flag("--tls-ca", metavar="FILE", help="CA of the admin service.")] = None,
    tls_cert: Annotated[Path | None, options.flag("--tls-cert", metavar="FILE", help="Our certificate.")] = None,
    tls_key: Annotated[Path | None, options.flag("--tls-key", metavar="FILE", help="Its key.")] = None,
    token_file: Annotated[
        Path | None, options.flag("--token-file", metavar="FILE", help="Bearer token, read anew for each call.")
    ] = None,
    token_command: Annotated[
        str | None,
        options.flag(
            "--token-command",
            metavar="COMMAND",
            help="Program, with arguments, that prints a token as kubectl's credential plugins do; no shell reads it.",
        ),
    ] = None,
) -> None:
    # gRPC, which a session needs, is not imported for a help or a version.
    from registry.cli.session import GlobalOptions, NamedToken, is_typed, session_from  # noqa: PLC0415
    from registry.client.address import Tls  # noqa: PLC0415

    asked = output_of(output, color)
    _check_goes_with(asked.form, context.invoked_subcommand)
    typed = [name for name in context.params if is_typed(context, name)]
    tls, shown = Tls(tls_ca, tls_cert, tls_key), NamedToken(token_file, token_command or "")
    given = GlobalOptions(admin or None, named_context or None, asked, tls, typed, shown)
    session = session_from(given, context.invoked_subcommand)
    if session.context is not None and session.context.pool:
        context.default_map = _with_pool(session.context.pool)
    context.obj = session


# Groups whose --pool is not that of the admin service's context: users of etcd, and contexts themselves.
_OWN_POOL = {"config", "etcd-access"}


def _with_pool(pool: str) -> dict[str, dict[str, object]]:
    """Defaults of all commands, those of groups too, by which --pool is that pool."""
    found: dict[str, dict[str, object]] = {}
    for entry in ENTRIES:
        if entry.name not in _OWN_POOL:
            of_group = {name.replace("_", "-"): {"pool": pool} for name in entry.functions}
            found[entry.name] = {"pool": pool, **of_group}
    return found


def _check_goes_with(form: Format, command: str | None) -> None:
    """Raises CliError if a command has no such form."""
    if form is Format.MANIFEST and command != "get":
        raise usage("-o manifest goes with get adapters; all of them: loraplane export")
    if form is Format.CUSTOM_COLUMNS and command != "get":
        raise usage(f"-o {form} goes with get; for programs, any command has -o json")


def make_command() -> Root:
    """The whole command line; each command is imported when it is run."""
    return Root(
        "loraplane",
        {entry.name: LazyCommand(entry) for entry in ENTRIES},
        callback=called(root),
        params=[*parameters(root), version_flag("loraplane")],
        help="Say which LoRA adapters a fleet of engines should serve, and see that they do.",
        epilog=EXIT_CODES,
    )


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Errors go to standard error in one line."""
    first, _ = global_options_first(arguments)
    if _NO_TEXT.search("".join(arguments)):
        message = "an argument is not text in UTF-8; names, URIs and files must be"
        return _report(usage(message).failure, first)
    try:
        return make_command().main(arguments or ["--help"], prog_name="loraplane", standalone_mode=False) or Exit.DONE
    except CliError as error:
        return _report(error.failure, first)
    except click.UsageError as error:
        message = f"{complaint(error)}; see {error.ctx.command_path if error.ctx else 'loraplane'} --help"
        return _report(usage(message).failure, first)
    except ModuleNotFoundError as error:
        if error.name not in _OF_FILES:
            raise
        return _report(usage(install_remedy(error, "files")).failure, first)
    except (click.Abort, KeyboardInterrupt) as interrupt:
        cause = interrupt.__cause__ or interrupt
        return _report(cause.failure, first) if isinstance(cause, ChangeInterrupted) else Exit.INTERRUPTED


def _report(failure: CommandFailure, first: Sequence[str]) -> int:
    """Tells a failure in the form that the command line asks for, even if it could not be parsed."""
    as_json = form_asked(first, os.environ.get("LORAPLANE_OUTPUT", "")) == Format.JSON
    line = escaped(json.dumps({"error": failure.as_dict()}, ensure_ascii=False)) if as_json else failure.line()
    write_error(line + "\n")
    return failure.exit


def main() -> None:
    """Entry point of the console script."""
    open_standard_streams()
    spare_collector()  # before the commands are imported: most of a short run is that
    tracing.start("loraplane", os.environ, lambda why: write_error(f"loraplane: no traces: {why}\n"))
    failure: CommandFailure | None = None
    try:
        code = run(sys.argv[1:])
    except Exception as error:  # noqa: BLE001 - the supervisor: what nobody foresaw is told in one line, too
        failure = _unforeseen(error)
    try:
        write_out("")  # what was written without us, such as a help
    except CliError as error:
        failure = error.failure  # that is also why such a writer failed
    if failure is not None:
        code = _report(failure, global_options_first(sys.argv[1:])[0])
    with suppress(KeyboardInterrupt):  # somebody may not care to wait for a collector; what was done is done
        tracing.stop()
    sys.exit(code)


def _unforeseen(error: Exception) -> CommandFailure:
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = f"{type(error).__name__}: {error} (at {last.filename}:{last.lineno}); please report it"
    return CommandFailure(Exit.INTERNAL, Reason.INTERNAL, message)


if __name__ == "__main__":
    main()
