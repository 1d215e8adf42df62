"""Global options and flags of the CLI.

Where things are and who asks may come from the environment variable LORAPLANE_<FLAG>; what is written may not: a
variable that was set for a daemon would end up in records. Global options may stand anywhere in the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from registry.cli.failure import usage
from registry.runtime import commands
from registry.runtime.clock import seconds_of
from registry.runtime.program import variable_of

if TYPE_CHECKING:  # protobuf is not imported for a help or a version
    from google.protobuf.message import Message

    from registry.v1.registry_pb2 import AdapterSpec

# More are no number of generations.
_MOST_DIGITS = 18
DEFAULT_ADMIN = "127.0.0.1:7600"
GLOBAL_OPTIONS = frozenset(
    "--admin --context --output -o --color --tls-ca --tls-cert --tls-key --token-file --token-command".split()
)


def global_options_first(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The global options with their values, and the rest, each in its order. What follows ``--`` stays."""
    first: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            rest += [argument, *waiting]
        elif argument in GLOBAL_OPTIONS:
            first += [argument, *_value(waiting)]
        elif argument.partition("=")[0] in GLOBAL_OPTIONS or _is_short_output(argument):
            first.append(argument)
        else:
            rest.append(argument)
    return first, rest


def form_asked(first: Sequence[str], otherwise: str) -> str:
    """The form of output that the global options ask for, also where they could not be parsed."""
    for argument, value in pairwise([*first, ""]):
        if argument in {"-o", "--output"}:
            otherwise = value
        elif argument.startswith("--output=") or _is_short_output(argument):
            otherwise = argument.removeprefix("--output").removeprefix("-o").removeprefix("=")
    return otherwise


def _value(waiting: Iterator[str]) -> list[str]:
    value = next(waiting, None)
    return [] if value is None else [value]


def _is_short_output(argument: str) -> bool:
    """True for ``-ojson``, not for ``--other``."""
    return argument.startswith("-o") and len(argument) > 2


# The largest numbers that messages take; within them the admin service says what is too much.
MOST_UINT32 = 2**32 - 1
MOST_INT64 = 2**63 - 1


# Address, TLS, pool, output, time-outs, credentials: those of the admin service, of etcd and of sources.
_FROM_ENVIRONMENT = frozenset(
    "--admin --context --tls-ca --tls-cert --tls-key --token-file --token-command --pool --output --timeout "
    "--look-seconds --credentials --sidecar-token-file "
    "--hf-endpoint --etcd --etcd-tls-ca --etcd-tls-cert --etcd-tls-key --etcd-user --etcd-password-file".split()
)
# Their values are names of what exists.
_KNOWN = frozenset({"--context", "--pool", "--replica", "--evidence-from"})


def known(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Values that exist and begin with what was typed."""
    from registry.cli.completion import complete  # noqa: PLC0415 - asks the admin service; for a Tab alone

    return complete(context, parameter.name, incomplete)


def flag(*names: str, **more: Any) -> Any:  # noqa: ANN401 - as `registry.runtime.commands.flag` takes it
    """An option. Its environment variable, and whether Tab offers what exists, follow from its long name."""
    long = long_name(names)
    by_name = {"envvar": variable_from(long), "shell_complete": known if long in _KNOWN else None}
    return commands.flag(*names, **{**by_name, **more})


argument = commands.argument


def naming(**more: Any) -> Any:  # noqa: ANN401 - as `argument` takes it
    """An argument that is the name of something that exists, which Tab offers."""
    return argument(shell_complete=known, **more)


def variable_from(long: str) -> str | None:
    """The environment variable of a flag; None: it has none."""
    return variable_of(long) if long in _FROM_ENVIRONMENT else None


def long_name(names: tuple[str, ...]) -> str:
    """The first name with two dashes, of a flag that has a contrary the one that is not it."""
    return next(name for name in names if name.startswith("--")).partition("/")[0]


def set_given(message: Message, **values: str | float | None) -> None:
    """Sets those fields of a message whose values are given: None is none."""
    for name, value in values.items():
        if value is not None:
            setattr(message, name, value)


def set_ttl(spec: AdapterSpec, ttl: str | None) -> None:
    """Sets how long an adapter lives; None: not given. Raises CliError: it is no span."""
    if ttl is None:
        return
    if ttl == "none":
        spec.ClearField("ttl_seconds")
        spec.ClearField("ttl_from")
        return
    try:
        spec.ttl_seconds = seconds_of(ttl)
    except ValueError as error:
        raise usage(f"--ttl {ttl}: {error}; or none") from error


def set_keep(spec: AdapterSpec, keep: str | None) -> None:
    """Sets how many generations are served by name; None: not given. Raises CliError: it is no number."""
    if keep is None:
        return
    if keep == "none":
        spec.ClearField("keep")
    elif keep.isascii() and keep.isdecimal() and len(keep) <= _MOST_DIGITS:
        spec.keep = int(keep)
    else:
        raise usage(f"--keep {keep}: write a whole number of generations, such as 3; or none")


def pairs(flag: str, words: Sequence[str], form: str = "KEY=VALUE") -> dict[str, str]:
    """The pairs that ``KEY=VALUE`` say. Of an error, `flag` is the beginning, and `form` what is to be written.

    Raises:
        CliError: a word is no pair.
    """
    for word in words:
        key, equals, _ = word.partition("=")
        if not key or not equals:
            raise usage(f"{flag}{word}: write {form}")
    return dict(word.split("=", 1) for word in words)


def relabel(flag: str, labels: MutableMapping[str, str], words: Sequence[str]) -> None:
    """Sets what ``KEY=VALUE`` say, and takes away what ``KEY-`` say. Raises as `pairs`."""
    for word in words:
        if "=" not in word and len(word) > 1 and word.endswith("-"):
            labels.pop(word[:-1], None)
        else:
            labels.update(pairs(flag, [word], "KEY=VALUE to set it, KEY- to take it away"))


AdapterName = Annotated[str, naming(help="Name of the adapter.")]
Pool = Annotated[str | None, flag("--pool", metavar="POOL", help="Pool; may be left out while there is only one.")]
SidecarToken = Annotated[
    Path | None,
    flag("--sidecar-token-file", metavar="FILE", help="File with the token of the sidecars' --http-token-file."),
]
OnlyPool = Annotated[str | None, flag("--pool", metavar="POOL", help="Only this pool.")]
Files = Annotated[
    list[str],
    flag("--file", "-f", metavar="FILE", help="Manifest with YAML documents, or a folder of them; - is stdin."),
]
OptionalFiles = Annotated[
    list[str] | None,
    flag("--file", "-f", metavar="FILE", help="Manifest with YAML documents, or a folder; - is stdin."),
]
Recursive = Annotated[bool, flag("--recursive", "-R", help="Read subfolders of a folder of manifests too.")]
Selector = Annotated[
    list[str] | None,
    flag(
        "--selector",
        "-l",
        metavar="K=V",
        help="Only objects with this label; with several (K=V,K=V or repeated), all of them.",
    ),
]
DeleteLimit = Annotated[
    int, flag("--delete-limit", metavar="N", min=1, help="Largest number of deletions by labels; --dry-run lists them.")
]
Yes = Annotated[bool, flag("--yes", "-y", help="Do not ask before something is removed.")]
Wait = Annotated[bool, flag("--wait", help="Wait until every replica that should serve it does (exit 7 if not).")]
Force = Annotated[
    bool,
    flag("--force", help="Go on although a folder is missing here, a path has .. in it, or files have another digest."),
]
MinReady = Annotated[
    int,
    flag(
        "--min-ready", metavar="N", min=0, max=MOST_UINT32, help="With --wait: number of replicas that suffice; 0: all."
    ),
]
DryRun = Annotated[bool, flag("--dry-run", help="Check everything, change nothing.")]
NoAtomic = Annotated[
    bool, flag("--no-atomic", help="Allow several transactions: several pools, or more than one transaction takes.")
]
Timeout = Annotated[
    float | None,
    flag(
        "--timeout",
        metavar="S",
        min=0.1,
        help="Seconds until giving up, repetitions included "
        "(default: 10 to read, 30 to change, 300 to wait for a rollout).",
    ),
]
RequestId = Annotated[
    str | None,
    flag("--request-id", metavar="ID", help="Id of the change; a repetition with the same id changes nothing more."),
]
Etag = Annotated[
    str,
    flag("--etag", metavar="REV", help="Refuse the change unless the record still has this etag.", show_default=False),
]
Watch = Annotated[bool, flag("--watch", "-w", help="Follow changes: print each, or redraw the table on a terminal.")]
Folder = Annotated[Path, flag("--dir", metavar="DIR", help="Where the stack keeps its data, logs and state.")]
Credentials = Annotated[
    Path | None,
    flag("--credentials", metavar="FILE", help="Credentials of this machine, in the form of the sidecar's."),
]
Credential = Annotated[str | None, flag("--credential", metavar="NAME", help="Credential to use.")]
HfEndpoint = Annotated[
    str | None, flag("--hf-endpoint", metavar="URL", help="Hub behind hf:// sources (default: HF_ENDPOINT).")
]
LookSeconds = Annotated[
    float, flag("--look-seconds", metavar="S", min=0, help="Seconds for reading sources of other hosts before; 0: not.")
]
# Longer than anything is kept.
_LONGEST = timedelta(days=366)
_LONGEST_WORD = 7
Ttl = Annotated[
    str | None, flag("--ttl", metavar="SPAN", help="Delete it so long after its last change, e.g. 7d; none: never.")
]
TtlFrom = Annotated[
    Literal["change", "use"] | None,
    flag("--ttl-from", help="Begin of its ttl: its last change, or its last use where that is later."),
]
KeepCount = Annotated[
    str | None,
    flag(
        "--keep", metavar="N", help="Serve so many generations as NAME@GENERATION, the newest included; none: that one."
    ),
]


def span_of(since: str) -> timedelta:
    """The time that ``--since`` means, of at most a year.

    Raises:
        CliError: it means none.
    """
    try:
        return min(timedelta(seconds=seconds_of(since if len(since) <= _LONGEST_WORD else "")), _LONGEST)
    except ValueError as error:
        raise usage(f"--since {since}: {error}") from error
