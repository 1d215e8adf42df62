"""Versions that our plugin in an engine was told, so that answers can prove them.

What was told is remembered for each process of the engine, and only what is new is told. The plugin keeps it while it
lives. After a restart of the sidecar all is told again, which changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from sidecar.engines.observed import Use
from sidecar.engines.transport import PostRequest, Reply
from sidecar.engines.vllm.http import VllmHttp
from sidecar.engines.vllm.process import VllmProcess

VERSIONS_PATH = "/v1/loraplane/versions"
# The plugin takes bodies of 64 KiB.
MOST_BYTES = 32 * 1024


class ToldVersions:
    """Versions that one engine process was told, by name and path."""

    def __init__(self) -> None:
        self._incarnation = ""
        self._told: dict[Use, str] = {}

    async def tell(
        self, http: VllmHttp, process: VllmProcess | None, versions: Mapping[Use, str], seconds: float
    ) -> None:
        """Tells what is new to a process whose plugin takes it; each call may take so long.

        What does not arrive is told at the next call of this.
        """
        if process is None or not process.proves_answers:
            return
        if process.incarnation != self._incarnation:
            self._incarnation, self._told = process.incarnation, {}
        # What is gone and comes back, as with a roll-back, may have another generation in between.
        self._told = {use: version for use, version in self._told.items() if versions.get(use) == version}
        news = {use: version for use, version in versions.items() if use not in self._told}
        for part in parts(news):
            [answer] = await http.post([call(part)], "", seconds)
            if not isinstance(answer, Reply) or answer.status != 200:
                return
            self._told |= part


def call(versions: Mapping[Use, str]) -> PostRequest:
    """Tells the versions of names and paths."""
    rows = [_row(use, version) for use, version in versions.items()]
    return PostRequest(VERSIONS_PATH, {"versions": rows})


def parts(versions: Mapping[Use, str]) -> Iterator[dict[Use, str]]:
    """The versions in portions for each of which the plugin has room."""
    part, size = dict[Use, str](), 0
    for use, version in versions.items():
        more = len(json.dumps(_row(use, version)))
        if part and size + more > MOST_BYTES:
            yield part
            part, size = {}, 0
        part[use] = version
        size += more
    if part:
        yield part


def _row(use: Use, version: str) -> dict[str, str]:
    name, path = use
    return {"lora_name": name, "lora_path": path, "version": version}
