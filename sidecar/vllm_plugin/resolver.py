"""Client of the sidecar's resolver socket.

Whatever goes wrong, the answer is that there are no files.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from .guard import is_below
from .protocol import (
    MAX_ANSWER_BYTES,
    MAX_QUESTION_BYTES,
    MAX_SOCKET_PATH_BYTES,
    BadAnswer,
    Resolved,
    is_askable,
    read_answer,
    write_question,
)

_log = logging.getLogger("vllm.loraplane")
ASK_SECONDS = 30.0
MISS_SECONDS = 1.0
MAX_MISSES = 1024
MAX_ASKING = 64
SILENCE_SECONDS = 60.0


class TtlSet:
    """Remembers texts for `seconds`, at most `capacity` of them: those that came last."""

    def __init__(self, seconds: float, capacity: int, now: Callable[[], float]) -> None:
        """`now` gives seconds of a clock that never goes back."""
        self._seconds = seconds
        self._capacity = capacity
        self._now = now
        self._until: OrderedDict[str, float] = OrderedDict()

    def __contains__(self, text: str) -> bool:
        return self._until.get(text, self._now()) > self._now()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, text: str) -> None:
        """Remembers `text` from now on."""
        self._until[text] = self._now() + self._seconds
        self._until.move_to_end(text)
        if len(self._until) > self._capacity:
            self._until.popitem(last=False)


class ResolverClient:
    """The sidecar's socket, as seen from inside the engine. vLLM itself bounds neither time nor names nor questions."""

    def __init__(
        self,
        socket: str,
        *,
        store: str | None = None,
        ask_seconds: float = ASK_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects to nothing yet.

        Args:
            socket: absolute path of the socket; it need not be there.
            store: where the files of all answers have to be; None: wherever the sidecar says.
            ask_seconds: how long a question may take.
            now: seconds of a clock that never goes back.
        """
        self._socket = socket
        self._store = store
        self._ask_seconds = ask_seconds
        self._misses = TtlSet(MISS_SECONDS, MAX_MISSES, now)
        self._said = TtlSet(SILENCE_SECONDS, 8, now)
        self._asking = 0

    async def find(self, name: str, base_model: str) -> Resolved | None:
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
            found = await self._asked(name, base_model)
        finally:
            self._asking -= 1
        if found is None:
            self._misses.add(name)
        return found

    async def _asked(self, name: str, base_model: str) -> Resolved | None:
        try:
            async with asyncio.timeout(self._ask_seconds):
                found = await self._ask(write_question(name, base_model))
                problem = None if found is None else await asyncio.to_thread(self._problem_with, found.path)
            if problem is None:
                return found
            self._say(*problem)
        except TimeoutError:  # which is an OSError too
            self._say("deadline", f"no answer within {self._ask_seconds:g} s")
        except OSError as error:
            self._say("unreachable", f"{error}")
        except BadAnswer as error:
            self._say("bad_answer", f"its answer cannot be read: {error}")
        return None

    def _problem_with(self, path: str) -> tuple[str, str] | None:
        """Kind and sentence of what is wrong with a path."""
        if self._store is not None and not is_below(path, self._store):
            return "outside_store", f"it names {path!r}, which is not in {self._store!r}"
        if (Path(path) / "adapter_config.json").is_file():
            return None
        return "path_missing", f"it names {path!r}, which holds no adapter here: mount the store at the same path"

    async def _ask(self, line: bytes) -> Resolved | None:
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
