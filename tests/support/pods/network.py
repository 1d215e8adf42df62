"""Addresses of pods: a bridge on this machine, and a network namespace with one link to it for each pod."""

from __future__ import annotations

import os
import subprocess
from itertools import count

_SECONDS = 60


class PodNetwork:
    """The bridge, by which pods reach each other, and kubelet and router reach pods."""

    def __init__(self) -> None:
        number = os.getpid() % 65_000
        self._name = f"lpb{number}"
        self._subnet = f"10.{214 + number % 40}.{number // 40 % 250}"
        self._numbers = count(2)
        self._links: dict[str, str] = {}

    def open(self) -> None:
        """Makes the bridge."""
        _ip("link", "add", self._name, "type", "bridge")
        _ip("addr", "add", f"{self._subnet}.1/24", "dev", self._name)
        _ip("link", "set", self._name, "up")

    def addresses(self) -> list[str]:
        """Those that the first hundred pods will have."""
        return [f"{self._subnet}.{number}" for number in range(2, 102)]

    def close(self) -> None:
        """Removes it, and what is left of namespaces."""
        for namespace in [*self._links]:
            self.remove(namespace)
        _ip("link", "delete", self._name, check=False)

    def add(self) -> tuple[str, str]:
        """A namespace and its address."""
        number = next(self._numbers)
        namespace, link = f"{self._name}n{number}", f"{self._name}v{number}"
        address = f"{self._subnet}.{number}"
        _ip("netns", "add", namespace)
        self._links[namespace] = link
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", link, "master", self._name, "up")
        _ip("-netns", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-netns", namespace, "link", "set", "eth0", "up")
        _ip("-netns", namespace, "link", "set", "lo", "up")
        return namespace, address

    def cut(self, namespace: str) -> None:
        """What is sent to it, or by it, vanishes: its node is gone."""
        _ip("link", "set", self._links[namespace], "down")

    def remove(self, namespace: str) -> None:
        """Takes the link and the namespace away."""
        _ip("link", "delete", self._links.pop(namespace), check=False)
        _ip("netns", "delete", namespace, check=False)


def _ip(*arguments: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
