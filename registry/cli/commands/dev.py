"""Commands for the local stack: dev up, status, down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import click

from registry.cli import options
from registry.cli.contexts import load_contexts
from registry.cli.failure import not_found, unavailable, usage
from registry.cli.session import session_of, stack_failure
from registry.cli.views.output import OutputView, Printer
from registry.client.contexts import AdminContext, context_path
from registry.model.errors import Reason
from registry.tools.devstack.secure import OPERATOR_FILE, AuthorityName
from registry.tools.devstack.stack import PartStatus, Stack
from registry.tools.devstack.stack_file import DEFAULT_FOLDER, EngineKind, StackError
from registry.tools.devstack.stack_parts import POOL
from registry.tools.devstack.stack_verbs import ADAPTERS, opened
from registry.tools.devstack.stack_verbs import down as take_down
from registry.tools.devstack.stack_verbs import up as bring_up

# Name of the context of a secure stack.
_CONTEXT = "dev"
_PARTS: OutputView[PartStatus] = OutputView(
    name=lambda one: one.part.name,
    plain=lambda one: {
        "name": one.part.name,
        "running": one.pid is not None,
        "ready": one.ready,
        "pid": one.pid,
        "address": one.part.address,
        "log": str(one.log),
    },
    columns={
        "PART": lambda one: one.part.name,
        "STATE": lambda one: "ready" if one.ready else "not ready" if one.pid else "not running",
        "PID": lambda one: str(one.pid or "-"),
        "ADDRESS": lambda one: one.part.address,
        "LOG": lambda one: str(one.log),
    },
)


def up(
    context: click.Context,
    *,
    replicas: Annotated[
        int | None,
        options.flag(
            "--replicas",
            metavar="N",
            min=1,
            max=64,
            help="Number of replicas (2 in a new stack); a stack that runs gets more, not fewer.",
        ),
    ] = None,
    engine: Annotated[
        Literal["vllm", "sim"] | None, options.flag("--engine", help="Engine to run (vllm in a new stack).")
    ] = None,
    secure: Annotated[
        bool, options.flag("--secure", help="With TLS, users of etcd and roles; a stack that was made so stays so.")
    ] = False,
    folder: options.Folder = DEFAULT_FOLDER,
) -> None:
    """Start what is missing of the local stack: etcd, admin service, engines, sidecars.

    With --secure each process shows a certificate of its own, etcd knows a user for each, and the admin service asks
    for roles. The secrets are in the folder `secrets` of the stack. Commands in this directory show the operator's
    certificate by themselves; from elsewhere use the context `dev`, which is made too.
    """
    printer = session_of(context).printer()
    kind = EngineKind(engine) if engine else None
    try:
        stack = bring_up(folder, replicas, kind, _telling(printer), secure=secure or None)
    except StackError as error:
        raise stack_failure(error) from error
    except OSError as error:
        message = f"cannot use {error.filename or folder}: {error.strerror}; choose another folder with --dir"
        raise usage(message) from error
    if stack.layout.secure:
        _set_context(stack)
    _print_status(printer, stack)
    if printer.is_table:
        printer.lines(["", *_what_next(stack, folder)])


def status(context: click.Context, *, folder: options.Folder = DEFAULT_FOLDER) -> None:
    """Show how each part of the local stack is; exit 6 unless all are ready."""
    stack = _existing(folder)
    if not _print_status(session_of(context).printer(), stack):
        message = "not every part is ready; start what is missing with: loraplane dev up"
        raise unavailable(Reason.STACK_NOT_READY, message)


def down(
    context: click.Context,
    *,
    purge: Annotated[bool, options.flag("--purge", help="Remove all its files too.")] = False,
    folder: options.Folder = DEFAULT_FOLDER,
) -> None:
    """End every process of the local stack."""
    try:
        take_down(folder, _telling(session_of(context).printer()), purge=purge)
        if purge:
            _forget_context(folder)
    except StackError as error:
        raise stack_failure(error) from error


def _set_context(stack: Stack) -> None:
    """Makes the context of a secure stack, unless another one of its name is there already."""
    file, secrets = load_contexts(context_path()), stack.folder.secrets
    if _CONTEXT not in file.contexts or _is_of(file.contexts[_CONTEXT], stack.folder.root):
        tls_ca, tls_cert = secrets.authority(AuthorityName.SERVICES), secrets.certificate(OPERATOR_FILE)
        key, admin = f"{secrets.key(OPERATOR_FILE)}", stack.layout.address("admin")
        one = AdminContext(admin, tls_ca=f"{tls_ca}", tls_cert=f"{tls_cert}", tls_key=key, pool=POOL)
        if file.contexts.get(_CONTEXT) != one:
            file.with_context(_CONTEXT, one).save()


def _forget_context(folder: Path) -> None:
    file = load_contexts(context_path())
    if _CONTEXT in file.contexts and _is_of(file.contexts[_CONTEXT], folder.absolute()):
        file.without(_CONTEXT).save()


def _is_of(context: AdminContext, root: Path) -> bool:
    return Path(context.tls_ca).is_relative_to(root)


def _telling(printer: Printer) -> Callable[[str], None]:
    """Progress goes to the table's reader; programs get the end result alone."""
    return (lambda line: printer.lines([line])) if printer.is_table else (lambda _line: None)


def _existing(folder: Path) -> Stack:
    try:
        stack = opened(folder)
    except StackError as error:
        raise stack_failure(error) from error
    if stack is None:
        raise not_found(Reason.STACK_NOT_FOUND, f"there is no stack in {folder}; start one with: loraplane dev up")
    return stack


def _print_status(printer: Printer, stack: Stack) -> bool:
    """Prints how each part is; True if all are ready."""
    statuses = stack.status()
    if printer.is_plain:
        about = {"folder": str(stack.folder.root), "engine": str(stack.layout.engine), "pool": POOL}
        printer.plain({**about, "parts": [_PARTS.plain(one) for one in statuses]})
    else:
        printer.items(_PARTS, statuses)
    return all(one.ready for one in statuses)


def _what_next(stack: Stack, folder: Path) -> list[str]:
    """Commands to try, which work as they stand."""
    adapters = stack.folder.adapters
    engine = stack.layout.url(f"engine-{stack.layout.replicas[0]}")
    named = f" --context {_CONTEXT}" if stack.layout.secure else f" --admin {stack.layout.address('admin')}"
    admin = "" if folder == DEFAULT_FOLDER else named
    question = '{"model": "sql", "prompt": "Hello", "max_tokens": 8, "temperature": 0}'
    return [
        f"Adapters to try: {', '.join(ADAPTERS)} in {adapters}",
        "Next:",
        f"  loraplane{admin} add sql --source {adapters / 'sql'} --wait",
        f"  loraplane{admin} get replicas",
        f"  curl -s {engine}/v1/completions -H 'Content-Type: application/json' -d '{question}'",
        f"  loraplane dev down --dir {folder}",
    ]
