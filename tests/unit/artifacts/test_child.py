"""Both ends of the pipe between a sidecar and the child that examines: what is sent, bounded and ended."""

from __future__ import annotations

import os
import resource
import select
import signal
import struct
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedWriter, BytesIO, RawIOBase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from registry.lora.base import BaseModules
from registry.lora.policy import Policy
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import examination, examiner
from sidecar.artifacts.examination import (
    BaseOfReplica,
    Examination,
    ExaminationAnswer,
    ExaminationRequest,
    Objection,
)
from sidecar.artifacts.examiner import ExaminationLimits, Examiner

MIB = 1 << 20
FOUND = Examination(
    rank=8,
    modules={"q_proj": False},
    base_model=None,
    warnings=(),
    renamed={},
    dropped=(),
    config={},
    new_config=None,
    new_weights=None,
    start=8,
)


def frame(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def request(**changes: object) -> ExaminationRequest:
    fields: dict[str, Any] = {
        "directory": "/a",
        "policy": {},
        "has_base": False,
        "base": None,
        "memory_bytes": 7,
        "processor_seconds": 9,
    }
    return ExaminationRequest(**fields | changes)


@pytest.mark.parametrize(
    ("hard", "expected"), [(resource.RLIM_INFINITY, (35, 300 * MIB, 32, 0, 0)), (20, (20, 20, 20, 0, 0))]
)
def test_a_child_bounds_itself_and_asks_for_no_more_than_it_may_have(monkeypatch, hard, expected):
    """R16, X2, docs/sources.md: time beside what it has used, memory, 32 open files, nothing written, no core."""
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(examination.resource, "getrusage", lambda _: SimpleNamespace(ru_utime=3.9, ru_stime=0.2))
    monkeypatch.setattr(examination.resource, "getrlimit", lambda _: (5, hard))
    monkeypatch.setattr(examination.resource, "setrlimit", limits.__setitem__)
    examination.limit(300 * MIB, 30)
    kinds = (
        resource.RLIMIT_CPU,
        resource.RLIMIT_AS,
        resource.RLIMIT_NOFILE,
        resource.RLIMIT_FSIZE,
        resource.RLIMIT_CORE,
    )
    assert limits == {kind: (soft, hard) for kind, soft in zip(kinds, expected, strict=True)}


class Ended(Exception):
    """What `os._exit` does in a test."""


@pytest.fixture
def exits(monkeypatch) -> list[int]:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(examination.os, "_exit", leave)
    return codes


class Pipe(RawIOBase):
    """The other end of the answers: what has come through it, and not what is still held back."""

    def __init__(self) -> None:
        super().__init__()
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.content += bytes(content)
        return len(content)


class Child:
    """The program of a child, in this process: its pipes, what it did in which order, and whom it watches."""

    def __init__(self, monkeypatch, *requests: bytes) -> None:
        self.out, self.did, self.threads = Pipe(), list[object](), list[dict[str, Any]]()
        streams: dict[str, Any] = {
            "stdin": BytesIO(b"".join(requests)),
            "stdout": BufferedWriter(self.out, buffer_size=1 << 20),
        }
        for name, stream in streams.items():
            monkeypatch.setattr(examination.sys, name, SimpleNamespace(buffer=stream, fileno=lambda: 77))
        monkeypatch.setattr(examination.signal, "signal", lambda *what: self.did.append(what))
        monkeypatch.setattr(examination, "limit", lambda *what: self.did.append(what))
        monkeypatch.setattr(examination, "import_module", self.did.append)
        monkeypatch.setattr(examination.threading, "Thread", self._thread)
        monkeypatch.setattr(examination.Examining, "answer", self._answer)

    def _thread(self, **what: Any) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: self.threads.append(what))

    def _answer(self, asked: ExaminationRequest) -> ExaminationAnswer:
        self.did.append(asked.directory)
        if asked.directory == "/large":
            raise MemoryError
        return ExaminationAnswer(failure=(5, asked.directory))

    def answers(self) -> list[str]:
        found, content = list[str](), self.out.content
        while content:
            (size,) = struct.unpack(">I", content[:4])
            failure = ExaminationAnswer.model_validate_json(content[4 : 4 + size]).failure
            assert failure is not None
            found.append(failure[1])
            content = content[4 + size :]
        return found


def test_a_child_answers_one_after_another_until_nobody_asks(monkeypatch, exits):
    """R16, R12: each within its own limits; it is warm before the first, and watches whoever started it."""
    asked = [
        request(directory=name, memory_bytes=number).model_dump_json().encode() for number, name in enumerate("ab")
    ]
    child = Child(monkeypatch, *map(frame, asked), b"\0\0")
    examination.main()
    assert child.answers() == ["a", "b"]
    assert child.did == [(signal.SIGINT, signal.SIG_IGN), "numpy", (0, 9), "a", (1, 9), "b"]
    assert [(one["target"], one["args"], one["daemon"]) for one in child.threads] == [
        (examination._end_with, (77,), True)
    ]
    assert exits == []


def test_a_child_without_memory_says_so_by_its_end(monkeypatch, exits):
    """R16: that is for good, and no other adapter's matter; a fault of ours ends it otherwise."""
    child = Child(monkeypatch, frame(request(directory="/large").model_dump_json().encode()))
    with pytest.raises(Ended):
        examination.main()
    assert (exits, child.answers()) == ([66], [])

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    child = Child(monkeypatch, frame(request().model_dump_json().encode()))
    monkeypatch.setattr(examination.Examining, "answer", broken)
    with pytest.raises(ZeroDivisionError):
        examination.main()
    assert exits == [66]


def test_a_child_ends_when_whoever_asks_has_and_not_because_something_was_asked(monkeypatch, exits):
    """R12: whatever it is at."""

    class Waiting(Exception):
        """Nothing has happened that would wake it."""

    class Poll:
        def __init__(self) -> None:
            self._real = poll()

        def register(self, *what: int) -> None:
            self._real.register(*what)

        def poll(self) -> None:
            if not self._real.poll(0):
                raise Waiting

    poll = select.poll
    monkeypatch.setattr(examination.select, "poll", Poll)
    ours, theirs = os.pipe()
    os.write(theirs, b"a request")
    with pytest.raises(Waiting):
        examination._end_with(ours)
    os.close(theirs)
    with pytest.raises(Ended):
        examination._end_with(ours)
    assert exits == [0]
    os.close(ours)


class Pieces:
    """The reading end of a pipe through which at most so many bytes come in one go."""

    def __init__(self, descriptor: int, at_once: int) -> None:
        self._file, self._at_once = os.fdopen(descriptor, "rb", buffering=0), at_once
        self.wanted: list[int] = []
        self.fileno, self.close = self._file.fileno, self._file.close

    @property
    def closed(self) -> bool:
        return self._file.closed

    def read(self, size_bytes: int) -> bytes | None:
        self.wanted.append(size_bytes)
        return self._file.read(min(size_bytes, self._at_once))


class PlayedProcess:
    """A child without a process: `answers` stand in its pipe already; what it is asked can be read."""

    def __init__(self, answers: bytes, *, status: int = -9, is_closed: bool = True, at_once: int = 1 << 20) -> None:
        self.returncode, self.status = None, status
        asked, self.stdin = self._pipe()
        self._asked = os.fdopen(asked, "rb", buffering=0)
        answered, given = os.pipe()
        self.stdout = Pieces(answered, at_once)
        os.write(given, answers)
        self._given = None if is_closed else given
        if is_closed:
            os.close(given)

    def _pipe(self) -> tuple[int, Any]:
        ours, theirs = os.pipe()
        return ours, os.fdopen(theirs, "wb", buffering=0)

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.returncode = self.status

    def wait(self) -> int:
        assert self.returncode is not None, "it would wait for ever"
        return self.returncode

    def asked(self) -> list[ExaminationRequest]:
        content, found = self._asked.read(1 << 16) or b"", list[ExaminationRequest]()
        while content:
            (size,) = struct.unpack(">I", content[:4])
            found.append(ExaminationRequest.model_validate_json(content[4 : 4 + size]))
            content = content[4 + size :]
        return found

    def close(self) -> None:
        for one in (self._asked, self.stdin, self.stdout):
            one.close()
        if self._given is not None:
            os.close(self._given)


@pytest.fixture
def played(monkeypatch) -> Iterator[list[PlayedProcess]]:
    """The processes that children will be, in order; how each was started is in `started` of the first."""
    processes: list[PlayedProcess] = []
    left: list[PlayedProcess] = []

    def start(command: list[str], **how: Any) -> PlayedProcess:
        process = left.pop(0) if left else processes[len(starts)]
        starts.append((command, how))
        return process

    starts: list[Any] = []
    monkeypatch.setattr(examiner.subprocess, "Popen", start)
    processes_of_test = _Processes(processes, starts)
    yield processes_of_test
    for one in processes:
        one.close()


class _Processes(list):
    def __init__(self, made: list[PlayedProcess], starts: list[Any]) -> None:
        super().__init__()
        self.made, self.starts = made, starts

    def add(self, answers: bytes, **how: Any) -> PlayedProcess:
        self.made.append(PlayedProcess(answers, **how))
        return self.made[-1]


def answered(answer: ExaminationAnswer) -> bytes:
    return frame(answer.model_dump_json().encode())


OK = answered(ExaminationAnswer(examination=FOUND))


@pytest.fixture
def adapter(tmp_path) -> Path:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"w" * 250)
    return tmp_path


LIMITS = ExaminationLimits(memory_bytes=5, processor_seconds=30, bytes_per_second=100)


def test_a_child_is_asked_with_its_limits_and_told_a_base_once(played, adapter, monkeypatch):
    """R16, docs/sources.md: and a second more for so many bytes of weights."""
    monkeypatch.setenv("HF_TOKEN", "canary")
    process = played.add(OK * 4)
    base = BaseModules({"q_proj": (8, 8)})
    one = Examiner(LIMITS)
    one.warm()
    for which in (base, base, None, base):
        assert one.examine(adapter, which, Policy(), Stop()) == FOUND
    told = BaseOfReplica.of(base)
    assert [(asked.has_base, asked.base) for asked in process.asked()] == [
        (True, told),
        (True, None),
        (False, None),
        (True, told),
    ]
    ((command, how),) = played.starts
    assert command[1:3] == ["-I", "-c"]
    assert set(how["env"]) <= {"LD_LIBRARY_PATH", "PATH", "OPENBLAS_NUM_THREADS"}
    assert (how["env"]["OPENBLAS_NUM_THREADS"], how["bufsize"]) == ("1", 0)


@pytest.mark.parametrize(
    ("limits", "size_bytes", "told"),
    [
        (LIMITS, 250, (5, 32)),
        (None, 299_999_999, (1024 * MIB, 32)),
        (None, 300_000_000, (1024 * MIB, 33)),
    ],
    ids=["its own", "below 300 MB", "300 MB"],
)
def test_what_is_asked_has_the_directory_the_policy_and_the_limits(played, adapter, limits, size_bytes, told):
    """R16, docs/sources.md: usually 30 seconds, one more for each 100 MB, and 1 GiB."""
    os.truncate(adapter / "adapter_model.safetensors", size_bytes)
    process = played.add(OK)
    policy = Policy(remap="off") if "remap" in Policy().as_dict() else Policy()
    Examiner(limits).examine(adapter, None, policy, Stop())
    (asked,) = process.asked()
    assert (asked.directory, asked.policy) == (str(adapter), policy.as_dict())
    assert (asked.memory_bytes, asked.processor_seconds) == told


@pytest.mark.parametrize("at_once", [1, 3, 7, 100])
def test_answers_are_told_apart_however_they_come_through_the_pipe(played, adapter, at_once):
    """R14: not a byte of the next one is read with one, nor is one cut short."""
    played.add(OK * 3, at_once=at_once)
    one = Examiner(LIMITS)
    assert [one.examine(adapter, None, Policy(), Stop()) for _ in range(3)] == [FOUND] * 3
    assert len(played.starts) == 1


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "bad pipe"), ZeroDivisionError()])
def test_a_child_that_hears_nothing_has_ended_and_another_failure_is_told(played, adapter, monkeypatch, error):
    """R8: the next child is asked where one has ended, and in no other case."""
    played.add(b"")
    played.add(OK)
    one, write = Examiner(LIMITS), os.write

    def failing(descriptor: int, content: bytes) -> int:
        if played.made[0].returncode is None:
            raise error
        return write(descriptor, content)

    monkeypatch.setattr(examiner.os, "write", failing)
    if isinstance(error, BrokenPipeError):
        assert one.examine(adapter, None, Policy(), Stop()) == FOUND
    else:
        with pytest.raises(type(error)):
            one.examine(adapter, None, Policy(), Stop())
    assert len(played.starts) == (2 if isinstance(error, BrokenPipeError) else 1)
    assert played.made[0].returncode is not None, "whatever it was, it is ended"
    assert one._busy == 0


def test_a_request_is_sent_to_its_last_byte(played, adapter, monkeypatch):
    """R14: however little of it a pipe takes at once."""
    process, write = played.add(OK), os.write
    monkeypatch.setattr(examiner.os, "write", lambda descriptor, content: write(descriptor, content[:5]))
    Examiner(LIMITS).examine(adapter, None, Policy(), Stop())
    assert [asked.directory for asked in process.asked()] == [str(adapter)]


@pytest.mark.parametrize(("reason", "is_permanent"), [("not_finite", True), ("source_incomplete", False)])
def test_an_objection_and_a_failure_reach_whoever_asked(played, adapter, reason, is_permanent):
    """R14, R8."""
    objection = Objection(reason=reason, message="a number is none")
    answers = (
        ExaminationAnswer(objection=objection),
        ExaminationAnswer(failure=(5, "bad sector")),
        ExaminationAnswer(),
    )
    played.add(b"".join(map(answered, answers)))
    one = Examiner(LIMITS)
    with pytest.raises(ArtifactError, match="a number is none") as refused:
        one.examine(adapter, None, Policy(), Stop())
    assert (refused.value.reason, refused.value.permanent) == (reason, is_permanent)
    with pytest.raises(OSError, match="bad sector") as failed:
        one.examine(adapter, None, Policy(), Stop())
    assert failed.value.errno == 5
    with pytest.raises(OSError, match="gave no answer"):
        one.examine(adapter, None, Policy(), Stop())
    assert len(played.starts) == 1, "it did what it was asked each time"


@pytest.mark.parametrize(("status", "starts"), [(-signal.SIGXCPU, 1), (66, 1), (-signal.SIGKILL, 2), (1, 2), (0, 2)])
def test_a_child_that_ends_at_a_limit_is_not_asked_for_again_and_another_is_once(played, adapter, status, starts):
    """R8, R16: of what used too much it is said at once, of what somebody ended after a second try."""
    for _ in range(2):
        played.add(b"", status=status)
    with pytest.raises(ArtifactError, match="30 s of a processor" if starts == 1 else "broke off, twice") as refused:
        Examiner(LIMITS).examine(adapter, None, Policy(), Stop())
    assert (refused.value.reason, refused.value.permanent) == ("examination_failed", True)
    assert len(played.starts) == starts
    assert all(one.stdin.closed and one.stdout.closed for one in played.made[:starts])


@pytest.mark.parametrize(("size_bytes", "is_read"), [(128 * MIB, True), (128 * MIB + 1, False)])
def test_an_answer_has_128_mib_at_most(played, adapter, size_bytes, is_read):
    """R16, X2: what follows of a larger one is never asked for."""
    process = played.add(struct.pack(">I", size_bytes))
    played.add(OK)
    assert Examiner(LIMITS).examine(adapter, None, Policy(), Stop()) == FOUND
    assert process.stdout.wanted == [4, size_bytes][: 1 + is_read]


@pytest.mark.parametrize(("size_bytes", "starts"), [(128 * MIB + 1, 2), (100, 1)])
def test_an_answer_that_is_too_large_is_not_read(played, adapter, size_bytes, starts):
    """R16, X2: a hostile adapter may have taken the child over."""
    head = struct.pack(">I", size_bytes)
    content = head if starts == 2 else frame(OK[4:].ljust(100))
    played.add(content)
    played.add(OK)
    assert Examiner(LIMITS).examine(adapter, None, Policy(), Stop()) == FOUND
    assert len(played.starts) == starts


def test_an_answer_in_the_middle_of_which_a_child_ends_is_none(played, adapter):
    """R8: the next child is asked."""
    played.add(OK[:-1])
    played.add(OK)
    assert Examiner(LIMITS).examine(adapter, None, Policy(), Stop()) == FOUND
    assert len(played.starts) == 2


def test_a_staging_that_is_stopped_ends_its_child(played, adapter, monkeypatch):
    """R12: looked at ten times a second while it takes its time."""
    process = played.add(b"", is_closed=False)
    waits: list[float] = []
    stop = Stop()
    stop.set()

    class Poll:
        def register(self, *_: object) -> None:
            """What it is."""

        def poll(self, milliseconds: float) -> list[object]:
            waits.append(milliseconds)
            return []

    monkeypatch.setattr(examiner.select, "poll", Poll)
    one = Examiner(LIMITS)
    with pytest.raises(ArtifactError) as stopped:
        one.examine(adapter, None, Policy(), stop)
    assert (stopped.value.reason, waits) == ("staging_stopped", [100.0])
    assert process.returncode is not None
    assert one._busy == 0


def test_a_child_that_cannot_be_started_leaves_nobody_at_work(played, adapter, monkeypatch):
    """R8, R19: and to be warm is no need."""

    def failing(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(examiner.subprocess, "Popen", failing)
    one = Examiner(LIMITS)
    one.warm()
    with pytest.raises(ArtifactError, match="no process could be started") as refused:
        one.examine(adapter, None, Policy(), Stop())
    assert (refused.value.reason, refused.value.permanent, one._busy) == ("store_io", False, 0)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(examiner.subprocess, "Popen", broken)
    with pytest.raises(ZeroDivisionError):
        one.warm()
    with pytest.raises(ZeroDivisionError):
        one.examine(adapter, None, Policy(), Stop())


def test_who_finds_a_child_at_work_waits_two_seconds_for_it_and_then_takes_another(played, adapter, monkeypatch):
    """R19: to start one takes longer than most examinations."""
    for _ in range(3):
        played.add(OK)
    one, waits = Examiner(LIMITS), list[object]()

    def wait_for(is_there, seconds: float) -> None:
        waits.append((is_there(), seconds))

    monkeypatch.setattr(one._changed, "wait_for", wait_for)
    with one._child(is_new=False) as first:
        assert waits == []
        with one._child(is_new=False) as second:
            assert second is not first
            assert waits == [([], 2.0)]
            with one._child(is_new=True):
                assert len(waits) == 1, "a second try needs one of its own"
    one.close()


def test_who_waits_is_woken_when_one_is_done(played, monkeypatch):
    """R19."""
    played.add(OK)
    one, told = Examiner(LIMITS), list[int]()
    notify = one._changed.notify
    monkeypatch.setattr(one._changed, "notify", lambda: (told.append(len(one._idle)), notify()))
    with suppress(ZeroDivisionError), one._child(is_new=False):
        raise ZeroDivisionError
    assert told == [1]
    assert one._busy == 0
    one.close()
    assert one._idle == []
