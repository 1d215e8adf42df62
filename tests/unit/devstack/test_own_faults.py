"""A fault of our own is told as such, and never taken for a file, a process or a port that is not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest

from registry.tools.devstack import processes, stack_verbs
from registry.tools.devstack import stack as stacks
from registry.tools.devstack.processes import Process, find_marked, free_ports, recall
from registry.tools.devstack.stack_file import EngineKind, check_own_path, load
from registry.tools.devstack.stack_parts import Role, StackPart
from registry.tools.devstack.stack_verbs import etcd_line, memory_line
from tests.support.engine_install import main


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("ours")


ENGINE = httpx.Client(transport=httpx.MockTransport(fail))
DEAD = processes._Seen("Z", 7, 1)
# What is broken, and what is asked for.
LOOKS: list[tuple[dict[str, Any], Callable[[], object]]] = [
    ({"json.loads": fail}, lambda: stack_verbs._reason("{}")),
    ({"pathlib.Path.open": fail}, lambda: load(Path("s"))),
    ({"pathlib.Path.open": fail}, lambda: recall(Path("s"))),
    ({"pathlib.Path.read_text": fail}, lambda: Process(os.getpid(), 1).is_running()),
    ({"pathlib.Path.read_bytes": fail}, lambda: find_marked("A", "b")),
    ({f"{processes.__name__}._look": lambda _: DEAD, "os.waitpid": fail}, lambda: Process(7, 1).is_running()),
    ({f"{processes.__name__}.socket.socket": lambda: SimpleNamespace(bind=fail)}, lambda: free_ports(1)),
    ({f"{stacks.__name__}.HTTPConnection": fail}, lambda: stacks.is_ready(PART)),
    ({f"{stack_verbs.__name__}.find_etcd": lambda: Path("/bin/true"), "subprocess.run": fail}, etcd_line),
    ({"pathlib.Path.lstat": fail}, lambda: check_own_path(Path("s"))),
    ({"sys.argv": ["x"], "tests.support.engine_install.install": fail}, main),
    ({}, lambda: memory_line(EngineKind.SIM, 2, SimpleNamespace(read_text=fail))),  # type: ignore[arg-type]
]
PART = StackPart("a", Role.ADMIN, "127.0.0.1:1", "http://127.0.0.1:1/readyz")


@pytest.mark.parametrize(("broken", "look"), LOOKS, ids=range(len(LOOKS)))
def test_a_fault_of_our_own_is_told(broken, look):
    with pytest.MonkeyPatch.context() as patch:
        for place, stand_in in broken.items():
            patch.setattr(place, stand_in)
        with pytest.raises(RuntimeError) as told:
            look()
        assert str(told.value) == "ours"
