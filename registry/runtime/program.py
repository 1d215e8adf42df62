"""Properties of every program: the release, variables of flags, extras."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

# What is young is looked at more rarely than Python does by itself. What has survived that is looked at soon all the
# same: errors of calls in flight are cycles, and some hold a connection, which would wait for hours.
_GC_THRESHOLDS = (10_000, 3, 10)


_STANDARD_ERROR = 2


def open_standard_streams() -> None:
    """Opens the standard streams that this process was started without, as by ``>&-``, on nothing.

    Else Python has none there to write to, and the next file or connection gets the descriptor of one, into which
    libraries write their complaints.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - until the process ends


def spare_collector() -> None:
    """Makes Python look for cyclic garbage less often: records and modules are many objects without cycles."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


# Kept back for our own work: etcd, engines, files, and connections that are not judged yet.
_OWN_DESCRIPTORS = 256


def raise_descriptor_limit() -> None:
    """Lets this process open as many descriptors as it may: the lower limit is for programs that call ``select``."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # some systems have a limit of their own below
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections(wanted: int, *, thirds: int = 1) -> int:
    """Number of connections that a port may have at once, at most `wanted`.

    All ports of a process together have no more than three thirds of what is left beside our own work.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted
    left = max(limit - _OWN_DESCRIPTORS, limit // 2)
    return min(wanted, left * thirds // 3)


def variable_of(flag: str) -> str:
    """E.g. ``LORAPLANE_TLS_CA`` for ``--tls-ca``."""
    return "LORAPLANE_" + flag.removeprefix("--").replace("-", "_").upper()


@cache
def release_version() -> str:
    """The version of the installed package; empty where it runs without being installed."""
    # Reading it takes longer than a whole `python -c pass`, and most runs of a program do not.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("loraplane")
    except PackageNotFoundError:
        return ""


def version_line(program: str) -> str:
    """Answer of a program to ``--version``."""
    return f"{program} {release_version() or 'not installed'}"


EXTRA_MISSING = 2


def install_remedy(error: ImportError, extra: str) -> str:
    """One sentence on a package that is missing, with the command that installs it with the rest of that extra."""
    install = f"pip install 'loraplane[{extra}]', or in the project's folder: pip install '.[{extra}]'"
    return f"this needs {error.name}, which is not installed here; {install}"


@contextmanager
def needs_extra(program: str, extra: str) -> Iterator[None]:
    """Ends the program in one line if the body's imports find a package missing; a client is installed without them."""
    try:
        yield
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{program}: {install_remedy(error, extra)}\n")
        raise SystemExit(EXTRA_MISSING) from error
