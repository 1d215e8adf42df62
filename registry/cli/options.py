"""Every flag of the CLI, once. Each has the environment variable LORAPLANE_<FLAG>."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from registry.daemon.flags import variable_of

# The largest numbers that messages take; within them the admin service says what is too much.
MOST_UINT32 = 2**32 - 1
MOST_INT64 = 2**63 - 1


def flag(*names: str, help: str, **more: Any) -> Any:  # noqa: A002, ANN401 - typer's own name and type
    """An option whose environment variable follows from its long name."""
    return typer.Option(*names, help=help, envvar=variable_of(long_name(names)), **more)


def long_name(names: tuple[str, ...]) -> str:
    """The first name with two dashes, of a flag that has a contrary the one that is not it."""
    return next(name for name in names if name.startswith("--")).partition("/")[0]


Pool = Annotated[str | None, flag("--pool", metavar="POOL", help="Pool; may be left out while there is only one.")]
Files = Annotated[
    list[str], flag("--file", "-f", metavar="FILE", help="Manifest with one or more YAML documents; - is stdin.")
]
OptionalFiles = Annotated[
    list[str] | None, flag("--file", "-f", metavar="FILE", help="Manifest with YAML documents; - is stdin.")
]
Wait = Annotated[bool, flag("--wait", help="Wait until every replica that should serve it does (exit 7 if not).")]
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
        help="Seconds until giving up, repetitions included (default: 30, or 300 where a rollout is waited for).",
    ),
]
RequestId = Annotated[
    str | None,
    flag("--request-id", metavar="ID", help="Identifies the change: repeating it with the same id changes nothing."),
]
Etag = Annotated[str, flag("--etag", metavar="REV", help="Refuse unless it is still at this etag.")]
Watch = Annotated[bool, flag("--watch", "-w", help="Go on and print every change.")]
Folder = Annotated[Path, flag("--dir", metavar="DIR", help="Where the stack keeps its data, logs and state.")]
Credentials = Annotated[
    Path | None, flag("--credentials", metavar="FILE", help="Credentials of this desk, in the form of the sidecar's.")
]
Credential = Annotated[str | None, flag("--credential", metavar="NAME", help="The one to use.")]
HfEndpoint = Annotated[
    str | None, flag("--hf-endpoint", metavar="URL", help="Hub behind hf:// sources (default: HF_ENDPOINT).")
]
LookSeconds = Annotated[
    float,
    flag("--look-seconds", metavar="S", min=0, help="Seconds for reading sources of other hosts before; 0: not."),
]
