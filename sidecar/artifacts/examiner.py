"""Has strangers' files examined in child processes that can be ended.

One child is kept warm, so that a small adapter does not wait for a process to start. A child that uses more than an
adapter can need is ended by the kernel, at its limits of processor time and memory; that is for good, and no other
adapter's matter. One that ends otherwise may have been ended by anybody, so its adapter is examined once more.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import IO, cast

import structlog

from registry.lora.base import BaseModules
from registry.lora.digest import WEIGHTS_FILE
from registry.lora.policy import Policy
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.examination import (
    EXIT_NO_MEMORY,
    LENGTH,
    BaseOfReplica,
    Examination,
    ExaminationAnswer,
    ExaminationRequest,
)
from sidecar.artifacts.files import write_all

_log = structlog.get_logger()
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import sidecar.artifacts.examination as it; it.main()"
)
# What finds the interpreter's own libraries. A child gets nothing else of our environment, where secrets may be.
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "PATH")
_LOOK_SECONDS = 0.1
# A child is usually free again after milliseconds. To start another takes longer, the more so the busier the host is.
PATIENCE_SECONDS = 2.0
MAX_ANSWER_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class ExaminationLimits:
    """Resources of one examination.

    Attributes:
        memory_bytes: address space of the process. A header as large as is read takes about a third.
        processor_seconds: for names, shapes and patterns. The most hostile header that was found takes a third.
        bytes_per_second: of weights, for which there is as much time beside.
    """

    memory_bytes: int = 1 << 30
    processor_seconds: int = 30
    bytes_per_second: int = 100_000_000


class _ChildEnded(Exception):
    """A child ended without an answer; `is_limit`: because it used too much."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the process ended with {status}")
        self.is_limit = status in {-signal.SIGXCPU, EXIT_NO_MEMORY}


class _Child:
    """One process and the base model that it knows. In the hands of one thread at a time."""

    def __init__(self) -> None:
        """Starts it, and does not wait until it is there. Raises OSError."""
        path = json.dumps([str(Path(entry).absolute()) for entry in sys.path])
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, with our own program
            [sys.executable, "-I", "-c", _PROGRAM, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept | {"OPENBLAS_NUM_THREADS": "1"},  # each takes address space, and none has anything to do
            bufsize=0,
        )
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self._base: BaseModules | None = None
        self.is_ready = True

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, directory: Path, base: BaseModules | None, policy: Policy, limits: ExaminationLimits, stop: Stop
    ) -> ExaminationAnswer:
        """Has a directory examined.

        Raises:
            _ChildEnded: it did, before it answered.
            ArtifactError: the staging was stopped.
        """
        self.is_ready = False
        new = base if base is not self._base else None
        request = ExaminationRequest(
            directory=str(directory),
            policy=policy.as_dict(),
            has_base=base is not None,
            base=BaseOfReplica.of(new) if new else None,
            memory_bytes=limits.memory_bytes,
            processor_seconds=limits.processor_seconds
            + (directory / WEIGHTS_FILE).stat().st_size // limits.bytes_per_second,
        )
        self._base = base
        with suppress(BrokenPipeError):  # that it has ended is seen in its answer
            content = request.model_dump_json().encode()
            write_all(self._requests.fileno(), LENGTH.pack(len(content)) + content)
        (size_bytes,) = LENGTH.unpack(self._read(LENGTH.size, stop))
        if size_bytes > MAX_ANSWER_BYTES:
            raise _ChildEnded(self.end())
        answer = ExaminationAnswer.model_validate_json(self._read(size_bytes, stop))
        self.is_ready = True
        return answer

    def _read(self, size_bytes: int, stop: Stop) -> bytes:
        poll, content = select.poll(), bytearray()
        poll.register(self._answers, select.POLLIN)
        while len(content) < size_bytes:
            if not poll.poll(_LOOK_SECONDS * 1000):
                stop.check()
                continue
            chunk = self._answers.read(size_bytes - len(content))
            if not chunk:
                raise _ChildEnded(self.end())
            content += chunk
        return bytes(content)

    def end(self) -> int:
        """Ends it, if it has not ended. Returns its exit status."""
        self._process.kill()
        for pipe in (self._requests, self._answers):
            pipe.close()
        return self._process.wait()


class Examiner:
    """The children of a process, at most one for each thread that has something examined. Used in worker threads."""

    def __init__(self, limits: ExaminationLimits | None = None) -> None:
        """Starts none yet."""
        self._limits = limits or ExaminationLimits()
        self._idle: list[_Child] = []
        self._busy = 0
        self._changed = Condition()

    def warm(self) -> None:
        """Starts the first child, so that it is there when it is needed; what hinders it is said by then."""
        with self._changed:
            if not self._idle and not self._busy:
                with suppress(OSError):
                    self._idle.append(_Child())

    def examine(self, directory: Path, base: BaseModules | None, policy: Policy, stop: Stop) -> Examination:
        """Looks at everything of the adapter in a directory. A replica's own limits are the planner's matter.

        Raises:
            ArtifactError: what is wrong with it, ``examination_failed``, or the staging was stopped.
            OSError: a file cannot be read.
        """
        answer = self._answer(directory, base, policy, stop)
        if answer.objection is not None:
            objection = answer.objection
            raise ArtifactError(objection.reason, objection.message)
        if answer.examination is None:
            raise OSError(*(answer.failure or (0, "the examination gave no answer")))
        return answer.examination

    def _answer(self, directory: Path, base: BaseModules | None, policy: Policy, stop: Stop) -> ExaminationAnswer:
        for is_last in (False, True):
            try:
                with self._child(is_new=is_last) as child:
                    return child.ask(directory, base, policy, self._limits, stop)
            except _ChildEnded as error:
                _log.warning("examination_ended", directory=str(directory), error=str(error))
                if error.is_limit or is_last:
                    raise self._failed(is_limit=error.is_limit) from error
        raise AssertionError("unreachable")

    def _failed(self, *, is_limit: bool) -> ArtifactError:
        limits = self._limits
        used = f"more than {limits.processor_seconds} s of a processor or {limits.memory_bytes >> 20} MiB"
        found = f"its examination took {used}" if is_limit else "the process that examined it broke off, twice"
        message = f"{found}, as no adapter does that PEFT saved; look at where the files come from"
        return ArtifactError("examination_failed", message)

    @contextmanager
    def _child(self, *, is_new: bool) -> Iterator[_Child]:
        """A child for the caller alone, which is ended unless it did what it was asked."""
        child = self._taken(is_new=is_new)
        try:
            yield child
        finally:
            with self._changed:
                self._busy -= 1
                is_kept = child.is_ready and not self._idle
                if is_kept:
                    self._idle.append(child)
                self._changed.notify()
            if not is_kept:
                child.end()

    def _taken(self, *, is_new: bool) -> _Child:
        with self._changed:
            if self._busy and not is_new:
                self._changed.wait_for(lambda: self._idle, PATIENCE_SECONDS)
            while self._idle and not is_new:
                child = self._idle.pop()
                if child.is_alive:
                    self._busy += 1
                    return child
                child.end()
            try:
                child = _Child()
            except OSError as error:
                message = f"no process could be started to examine it: {error.strerror}; it is tried again"
                raise ArtifactError("store_io", message) from error
            self._busy += 1
            return child

    def close(self) -> None:
        """Ends the child that is kept. One that is needed later is started again."""
        with self._changed:
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()


# Of this process: its stores share the child that is kept warm.
EXAMINER = Examiner()
atexit.register(EXAMINER.close)
