"""Asks the sidecar which files an unknown name stands for. Whatever goes wrong, the answer is that there are none."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from sidecar.vllm_plugin.question import (
    MAX_ANSWER_BYTES,
    MAX_QUESTION_BYTES,
    BadAnswer,
    is_askable,
    question,
    read_answer,
)
from sidecar.vllm_plugin.recently import Recently

_log = logging.getLogger("vllm.loraplane")
ASK_SECONDS = 30.0
MISS_SECONDS = 1.0
MAX_MISSES = 1024
MAX_ASKING = 64
SILENCE_SECONDS = 60.0
# What the kernel takes as the address of a socket.
MAX_SOCKET_PATH_BYTES = 107


class Resolver:
    """The sidecar's socket, as seen from inside the engine. vLLM itself bounds neither time nor names nor questions."""

    def __init__(
        self, socket: str, *, ask_seconds: float = ASK_SECONDS, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Connects to nothing yet.

        Args:
            socket: absolute path of the socket; it need not be there.
            ask_seconds: how long a question may take.
            now: seconds of a clock that never goes back.
        """
        self._socket = socket
        self._ask_seconds = ask_seconds
        self._misses = Recently(MISS_SECONDS, MAX_MISSES, now)
        self._said = Recently(SILENCE_SECONDS, 8, now)
        self._asking = 0

    async def path_of(self, name: str, base_model: str) -> str | None:
        """The directory with the files of `name`; None: there is none, or it cannot be told now.

        Args:
            name: as a client wrote it, of any length.
            base_model: path of the base model.
        """
        if not is_askable(name) or name in self._misses:
            return None
        if self._asking >= MAX_ASKING:
            self._say("busy", f"{MAX_ASKING} questions are open already")
            return None
        self._asking += 1
        try:
            path = await self._asked(name, base_model)
        finally:
            self._asking -= 1
        if path is None:
            self._misses.add(name)
        return path

    async def _asked(self, name: str, base_model: str) -> str | None:
        try:
            async with asyncio.timeout(self._ask_seconds):
                path = await self._ask(question(name, base_model))
                if path is None or await asyncio.to_thread((Path(path) / "adapter_config.json").is_file):
                    return path
            self._say(
                "path_missing", f"it names {path!r}, which holds no adapter here: mount the store at the same path"
            )
        except TimeoutError:  # which is an OSError too
            self._say("deadline", f"no answer within {self._ask_seconds:g} s")
        except OSError as error:
            self._say("unreachable", f"{error}")
        except BadAnswer as error:
            self._say("bad_answer", f"its answer cannot be read: {error}")
        return None

    async def _ask(self, line: bytes) -> str | None:
        if len(line) > MAX_QUESTION_BYTES:
            raise BadAnswer(f"a question of {len(line)} bytes has none")
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=MAX_ANSWER_BYTES)
        try:
            writer.write(line)
            return read_answer(await reader.readline())
        except ValueError:
            raise BadAnswer(f"it is longer than {MAX_ANSWER_BYTES} bytes") from None
        finally:
            writer.transport.abort()

    def _say(self, kind: str, message: str) -> None:
        """Once a minute for each kind: hostile names must not fill the log."""
        if kind not in self._said:
            self._said.add(kind)
            _log.warning("loraplane: a name was not resolved, %s: %s: %s", kind, self._socket, message)


def socket_problem(path: str) -> str | None:
    """Why there can be no socket at `path`; None: there can."""
    if path.startswith("/") and len(path.encode(errors="surrogateescape")) <= MAX_SOCKET_PATH_BYTES:
        return None
    return f"{path!r} must be an absolute path of at most {MAX_SOCKET_PATH_BYTES} bytes"
