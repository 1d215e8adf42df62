"""Addresses of sources as users write them: a URI, or a path of this machine."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from registry.cli.failure import usage

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")


def source_uri(source: str) -> str:
    """A URI as it is; a path of this machine as a file: URI, since replicas know no working directory of ours.

    Raises:
        CliError: there is none. An empty path would stand for the working directory.
    """
    if not source:
        raise usage("--source is empty; give a URI or a folder")
    if is_uri(source):
        return source
    path = Path(source).absolute()
    return (path.resolve() if ".." in path.parts else path).as_uri()


def is_uri(source: str) -> bool:
    """True if a source is no path of this machine."""
    return _SCHEME.match(source) is not None


def folder_of(source: str) -> Path | None:
    """The folder of this machine that a path or a file:// URI names; None: it is somewhere else."""
    if "://" not in source:
        return Path(source)
    parts = urlsplit(source)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in {"", "localhost"} else None


def is_here(folder: Path) -> bool:
    """True if the folder is on this machine.

    Raises:
        CliError: whether it is cannot be seen.
    """
    try:
        return folder.is_dir()
    except OSError as error:
        raise usage(f"cannot read {folder}: {error.strerror}") from error
