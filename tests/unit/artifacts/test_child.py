"""Both ends of the pipe between a sidecar and the child that examines: what is sent, bounded and ended."""

from __future__ import annotations

import os
import resource
import select
import signal
import struct
from collections.abc import Iterator
from contextlib import nullcontext, suppress
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
from tests.unit.artifacts.conftest import EXAMINATION, MIB, raising


def frame(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def frames(content: bytes) -> list[bytes]:
    found = list[bytes]()
    while content:
        (size,) = struct.unpack(">I", content[:4])
        found.append(content[4 : 4 + size])
        content = content[4 + size :]
    return found


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

    content = b""

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
        failures = [ExaminationAnswer.model_validate_json(one).failure for one in frames(self.out.content)]
        return [failure[1] for failure in failures if failure]


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

    child = Child(monkeypatch, frame(request().model_dump_json().encode()))
    monkeypatch.setattr(examination.Examining, "answer", raising(ZeroDivisionError()))
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
        (asked, to_us), (answered, given) = os.pipe(), os.pipe()
        self._asked = os.fdopen(asked, "rb", buffering=0)
        self.stdin, self._given = (os.fdopen(one, "wb", buffering=0) for one in (to_us, given))
        self.stdout = Pieces(answered, at_once)
        self._given.write(answers)
        if is_closed:
            self._given.close()

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.returncode = self.status

    def wait(self) -> int:
        assert self.returncode is not None, "it would wait for ever"
        return self.returncode

    def asked(self) -> list[ExaminationRequest]:
        return [ExaminationRequest.model_validate_json(one) for one in frames(self._asked.read(1 << 16) or b"")]

    def close(self) -> None:
        for one in (self._asked, self.stdin, self.stdout, self._given):
            one.close()


class Processes:
    """The processes that children will be, in order, and how each was started."""

    def __init__(self) -> None:
        self.made, self.starts = list[PlayedProcess](), list[Any]()

    def start(self, command: list[str], **how: Any) -> PlayedProcess:
        self.starts.append((command, how))
        return self.made[len(self.starts) - 1]

    def add(self, answers: bytes, **how: Any) -> PlayedProcess:
        self.made.append(PlayedProcess(answers, **how))
        return self.made[-1]


@pytest.fixture
def played(monkeypatch) -> Iterator[Processes]:
    processes = Processes()
    monkeypatch.setattr(examiner.subprocess, "Popen", processes.start)
    yield processes
    for one in processes.made:
        one.close()


def answered(answer: ExaminationAnswer) -> bytes:
    return frame(answer.model_dump_json().encode())


OK = answered(ExaminationAnswer(examination=EXAMINATION))
LIMITS = ExaminationLimits(memory_bytes=5, processor_seconds=30, bytes_per_second=100)


@pytest.fixture
def adapter(tmp_path) -> Path:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"w" * 250)
    return tmp_path


def examine(one: Examiner, adapter: Path, base: BaseModules | None = None, stop: Stop | None = None) -> Examination:
    return one.examine(adapter, base, Policy(), stop or Stop())


def test_a_child_is_told_a_base_once_and_no_secret_of_ours(played, adapter, monkeypatch):
    """R16, X1."""
    monkeypatch.setenv("HF_TOKEN", "canary")
    process = played.add(OK * 4)
    base = BaseModules({"q_proj": (8, 8)})
    one = Examiner(LIMITS)
    one.warm()
    for which in (base, base, None, base):
        assert examine(one, adapter, which) == EXAMINATION
    told = BaseOfReplica.of(base)
    expected = [(True, told), (True, None), (False, None), (True, told)]
    assert [(asked.has_base, asked.base) for asked in process.asked()] == expected
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
    Examiner(limits).examine(adapter, None, Policy(remap="off"), Stop())
    (asked,) = process.asked()
    assert (asked.directory, asked.policy) == (str(adapter), Policy(remap="off").as_dict())
    assert (asked.memory_bytes, asked.processor_seconds) == told


@pytest.mark.parametrize("at_once", [1, 7])
def test_however_little_a_pipe_takes_requests_are_whole_and_answers_are_told_apart(
    played, adapter, monkeypatch, at_once
):
    """R14: not a byte of the next one is read with one, nor is one cut short."""
    write = os.write
    process = played.add(OK * 3, at_once=at_once)
    monkeypatch.setattr(examiner.os, "write", lambda descriptor, content: write(descriptor, content[:5]))
    one = Examiner(LIMITS)
    assert [examine(one, adapter) for _ in range(3)] == [EXAMINATION] * 3
    assert [asked.directory for asked in process.asked()] == [str(adapter)] * 3
    assert len(played.starts) == 1


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "bad pipe"), ZeroDivisionError()])
def test_a_child_that_hears_nothing_has_ended_and_another_failure_is_told(played, adapter, monkeypatch, error):
    """R8: the next child is asked where one has ended, and in no other case."""
    played.add(b"")
    played.add(OK)
    one, write, has_ended = Examiner(LIMITS), os.write, isinstance(error, BrokenPipeError)
    fail = raising(error)
    monkeypatch.setattr(
        examiner.os, "write", lambda *what: fail() if played.made[0].returncode is None else write(*what)
    )
    with nullcontext() if has_ended else pytest.raises(type(error)):
        assert examine(one, adapter) == EXAMINATION
    assert len(played.starts) == 1 + has_ended
    assert played.made[0].returncode is not None, "whatever it was, it is ended"
    assert one._busy == 0


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
        examine(one, adapter)
    assert (refused.value.reason, refused.value.permanent) == (reason, is_permanent)
    with pytest.raises(OSError, match="bad sector") as failed:
        examine(one, adapter)
    assert failed.value.errno == 5
    with pytest.raises(OSError, match="gave no answer"):
        examine(one, adapter)
    assert len(played.starts) == 1, "it did what it was asked each time"


@pytest.mark.parametrize(("status", "starts"), [(-signal.SIGXCPU, 1), (66, 1), (-signal.SIGKILL, 2), (1, 2), (0, 2)])
def test_a_child_that_ends_at_a_limit_is_not_asked_for_again_and_another_is_once(played, adapter, status, starts):
    """R8, R16: of what used too much it is said at once, of what somebody ended after a second try."""
    for _ in range(2):
        played.add(b"", status=status)
    with pytest.raises(ArtifactError, match="30 s of a processor" if starts == 1 else "broke off, twice") as refused:
        examine(Examiner(LIMITS), adapter)
    assert (refused.value.reason, refused.value.permanent) == ("examination_failed", True)
    assert len(played.starts) == starts
    assert all(one.stdin.closed and one.stdout.closed for one in played.made[:starts])


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (struct.pack(">I", 128 * MIB), [4, 128 * MIB]),
        (struct.pack(">I", 128 * MIB + 1), [4]),
        (OK[:-1], [4, len(OK) - 4, 1]),
    ],
    ids=["128 MiB", "larger", "cut off"],
)
def test_an_answer_that_is_cut_off_or_larger_than_128_mib_is_none(played, adapter, answer, wanted):
    """R16, X2, R8: nothing of a larger one is asked for; the next child is asked."""
    process = played.add(answer)
    played.add(OK)
    assert examine(Examiner(LIMITS), adapter) == EXAMINATION
    assert process.stdout.wanted == wanted


def test_a_staging_that_is_stopped_ends_its_child(played, adapter, monkeypatch):
    """R12: looked at ten times a second while it takes its time."""
    process = played.add(b"", is_closed=False)
    waits: list[float] = []
    stop = Stop()
    stop.set()
    poll = SimpleNamespace(register=lambda *_: None, poll=waits.append)
    monkeypatch.setattr(examiner.select, "poll", lambda: poll)
    one = Examiner(LIMITS)
    with pytest.raises(ArtifactError) as stopped:
        examine(one, adapter, stop=stop)
    assert (stopped.value.reason, waits) == ("staging_stopped", [100.0])
    assert process.returncode is not None
    assert one._busy == 0


def test_a_child_that_cannot_be_started_leaves_nobody_at_work(adapter, monkeypatch):
    """R8, R19: and to be warm is no need; a fault of ours is told."""
    monkeypatch.setattr(examiner.subprocess, "Popen", raising(OSError(11, "Resource temporarily unavailable")))
    one = Examiner(LIMITS)
    one.warm()
    with pytest.raises(ArtifactError, match="no process could be started") as refused:
        examine(one, adapter)
    assert (refused.value.reason, refused.value.permanent, one._busy) == ("store_io", False, 0)
    monkeypatch.setattr(examiner.subprocess, "Popen", raising(ZeroDivisionError()))
    for start in (one.warm, lambda: examine(one, adapter)):
        with pytest.raises(ZeroDivisionError):
            start()


class Kept:
    """An examiner whose children are no processes; how often each was ended, how long and for what somebody waited."""

    def __init__(self, monkeypatch) -> None:
        self.one, self.children, self.waits = Examiner(LIMITS), list[Any](), list[object]()
        monkeypatch.setattr(examiner, "_Child", self._start)
        monkeypatch.setattr(
            self.one._changed, "wait_for", lambda is_there, seconds: self.waits.append((is_there(), seconds))
        )

    def _start(self) -> SimpleNamespace:
        child = SimpleNamespace(is_alive=True, is_ready=True, times_ended=0, end=lambda: self._end(child))
        self.children.append(child)
        return child

    def _end(self, child: SimpleNamespace) -> None:
        child.is_alive, child.times_ended = False, child.times_ended + 1

    @property
    def ended(self) -> list[int]:
        return [one.times_ended for one in self.children]


@pytest.fixture
def kept(monkeypatch) -> Kept:
    return Kept(monkeypatch)


def test_a_free_child_is_taken_again_and_what_ended_meanwhile_is_cleared_away(kept):
    """R19, R16: nobody waits where none is at work; pipes are closed before another is started."""
    for _ in range(3):
        with kept.one._child(is_new=False) as child:
            assert child.is_alive
    kept.one.warm()
    assert kept.ended == [0]
    kept.children[0].is_alive = False
    with kept.one._child(is_new=False) as child:
        assert child.is_alive
    assert (kept.ended, kept.waits) == ([1, 0], [])


def test_who_finds_a_child_at_work_waits_two_seconds_for_it_and_then_takes_another(kept):
    """R19, R16: to start one takes longer than most examinations. One is kept of several, each other ended once."""
    with kept.one._child(is_new=False) as first, kept.one._child(is_new=False) as second:
        assert second is not first
        kept.one.warm()
        assert (len(kept.children), kept.waits) == (2, [([], 2.0)])
    assert kept.ended == [1, 0]
    with kept.one._child(is_new=False) as third:
        assert third is second
        with kept.one._child(is_new=True):
            assert len(kept.waits) == 1, "R8: a second try needs one of its own, at once"
    with kept.one._child(is_new=True):
        assert len(kept.children) == 4, "what was kept may have what broke the first"
    kept.one.close()
    assert (sum(kept.ended), kept.one._idle) == (4, [])
    assert max(kept.ended) == 1


def test_who_waits_is_woken_when_one_is_done_and_what_broke_off_is_ended(kept, monkeypatch):
    """R19, R16: whatever broke off, also the staging itself."""
    told, notify = list[int](), kept.one._changed.notify
    monkeypatch.setattr(kept.one._changed, "notify", lambda: (told.append(len(kept.one._idle)), notify()))
    for is_ready in (True, False):
        with suppress(ZeroDivisionError), kept.one._child(is_new=False) as child:
            child.is_ready = is_ready
            raise ZeroDivisionError
    assert (told, kept.ended, kept.one._busy) == ([1, 0], [1], 0)
