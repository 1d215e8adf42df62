"""A network namespace with one link to this one, which can be hurt where the machine allows it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from types import TracebackType
from typing import Self

_TIMEOUT_SECONDS = 60


def why_not() -> str:
    """Why this machine has no namespaces for us; empty: it has."""
    if shutil.which("ip") is None:
        return "there is no ip (apt-get install iproute2)"
    if os.geteuid() != 0:
        return "it takes root"
    name = f"probe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
    if made.returncode:
        return made.stderr.decode(errors="replace").strip()
    _run("ip", "netns", "delete", name)
    return ""


class Namespace:
    """Use as a context. Programs run in it with `command` before theirs; `here` is our address on its link."""

    def __init__(self) -> None:
        self._name = f"lp{os.getpid()}n"
        self._outer, self._inner = f"lp{os.getpid() % 100000}o", f"lp{os.getpid() % 100000}i"
        subnet = f"10.{os.getpid() // 200 % 40 + 213}.{os.getpid() % 200 + 20}"
        self.here, self.there = f"{subnet}.1", f"{subnet}.2"

    @property
    def command(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._name)

    def __enter__(self) -> Self:
        _run("ip", "netns", "add", self._name)
        try:
            _run("ip", "link", "add", self._outer, "type", "veth", "peer", "name", self._inner, "netns", self._name)
            _run("ip", "addr", "add", f"{self.here}/30", "dev", self._outer)
            _run("ip", "link", "set", self._outer, "up")
            for arguments in (
                ("addr", "add", f"{self.there}/30", "dev", self._inner),
                ("link", "set", self._inner, "up"),
                ("link", "set", "lo", "up"),
            ):
                self._inside("ip", *arguments)
        except BaseException:  # an interrupt too: the namespace would outlive the test
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        # A namespace goes some time after its name, and its link with it: the next one of our names may be too early.
        _run("ip", "link", "delete", self._outer, check=False)
        _run("ip", "netns", "delete", self._name)

    def drop(self) -> None:
        """What is sent in it vanishes without a word."""
        self._inside("ip", "route", "add", "blackhole", f"{self.here}/32")

    def reject(self) -> None:
        """What is sent in it is refused at once: no route."""
        self._inside("ip", "route", "add", "unreachable", f"{self.here}/32")

    def limit(self, kilobits_per_second: int) -> None:
        """What comes to it is squeezed through so little."""
        rate = ("rate", f"{kilobits_per_second}kbit", "burst", "4kb", "latency", "400ms")
        _run("tc", "qdisc", "add", "dev", self._outer, "root", "tbf", *rate)

    def squeezed(self) -> int:
        """How many packets had to wait, or were lost, since `limit`."""
        told = _run("tc", "-s", "qdisc", "show", "dev", self._outer)
        return sum(int(count) for count in re.findall(r"(?:dropped|overlimits) (\d+)", told))

    def heal(self) -> None:
        """Ends whatever was done to the link."""
        for kind in ("blackhole", "unreachable"):
            self._inside("ip", "route", "del", kind, f"{self.here}/32", check=False)
        subprocess.run(
            ["tc", "qdisc", "del", "dev", self._outer, "root"],
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )

    def _inside(self, *command: str, check: bool = True) -> None:
        _run(*self.command, *command, check=check)


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace")
