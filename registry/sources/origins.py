"""Origins of sources that are left alone for a while, by all stagings of a host.

An origin is what answers for a source: scheme, host and port, or a bucket. One that asks for a pause (`Retry-After`)
gets it from everybody: all stagings of all replicas that share a store. So does one that fails again and again, for a
pause that grows. When the pause is over, one staging asks for all; the others wait until it knows, or for
`PROBE_SECONDS`. Any answer that is none of these ends it.

What is remembered is in one small file of the store, which nobody needs: where it is damaged, from another time, or
cannot be written, each process goes by what it knows itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from registry.etcd3.backoff import Backoff
from registry.model.replica_reasons import LONGEST_ASKED_SECONDS
from registry.sources.base import ArtifactError, ArtifactReason

# What says that an origin is of no use to anybody now, rather than that one file is not there.
PAUSING: frozenset[ArtifactReason] = frozenset({"rate_limited", "source_io", "source_timeout"})
# From the second staging in a row on that failed; stagings that ran at the same time count as one.
PAUSE = Backoff(base_seconds=1.0, cap_seconds=60.0)
# Of an origin that answers 429 without saying for how long.
PAUSE_UNSAID = Backoff(base_seconds=5.0, cap_seconds=300.0)
PROBE_SECONDS = 10.0
MAX_ORIGINS = 1000
# It is held for a moment only, unless whoever holds it was stopped.
LOCK_TRIES = 50
LOCK_PAUSE_SECONDS = 0.01
MAX_FILE_BYTES = 1 << 20


class PausedOrigin(BaseModel):
    """Notes on an origin that fails.

    Attributes:
        until: seconds of the wall clock before which nobody asks it.
        failures: stagings in a row.
        failed_at: seconds of the wall clock.
        reason: of the last failure.
        message: of the last failure.
    """

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    until: float
    failures: int = Field(ge=0, le=1_000_000)
    failed_at: float
    reason: str
    message: str = Field(max_length=1000)


_File = RootModel[dict[str, PausedOrigin]]


class Origins:
    """The origins that fail, of one process and of all that share a file. Safe for threads."""

    def __init__(self, file: Path | None = None, now: Callable[[], float] = time.time) -> None:
        """`file` None: nobody else is to know. `now`: seconds of the wall clock."""
        self._file = file
        self._known: dict[str, PausedOrigin] = {}
        self._is_alone = False  # the file cannot be written
        self._mutex = Lock()
        self.now = now

    def enter(self, origin: str) -> None:
        """Returns if the origin may be asked now; whoever asks one first that failed asks for all.

        Raises:
            ArtifactError: the failure that it is paused for, with the time that is left.
        """
        with self._mutex:
            if self._has_any():
                with self._shared() as paused:
                    self._enter(origin, paused)

    def _enter(self, origin: str, paused: dict[str, PausedOrigin]) -> None:
        one, now = paused.get(origin), self.now()
        if one is None:
            return
        if now < one.until <= now + LONGEST_ASKED_SECONDS + PROBE_SECONDS:  # else the clock was set back
            raise ArtifactError(_reason_of(one), one.message, pause_seconds=one.until - now)
        if one.until > 0:
            paused[origin] = one.model_copy(update={"until": now + PROBE_SECONDS})

    def failed(self, origin: str, error: ArtifactError, began: float) -> None:
        """Notes that the origin was of no use to a staging that began then; the error says how long nobody asks it."""
        with self._mutex, self._shared() as paused:
            now, before = self.now(), paused.get(origin)
            is_one_more = before is None or before.failed_at <= began
            failures = (before.failures if before else 0) + is_one_more
            seconds = min(error.pause_seconds or _pause(error, failures), LONGEST_ASKED_SECONDS)
            until = now + seconds if seconds else 0.0
            if before is not None and not is_one_more and now < before.until <= now + LONGEST_ASKED_SECONDS:
                until = max(until, before.until)
            error.pause_seconds = max(0.0, until - now)
            paused[origin] = PausedOrigin(
                until=until, failures=failures, failed_at=now, reason=error.reason, message=error.message[:1000]
            )

    def answered(self, origin: str, began: float) -> None:
        """Notes that the origin answers, whatever it says of one file, to a staging that began then."""
        with self._mutex:
            if self._has_any():
                with self._shared() as paused:
                    if origin in paused and paused[origin].failed_at <= began:
                        del paused[origin]

    def _has_any(self) -> bool:
        return bool(self._known) if self._file is None or self._is_alone else self._file.exists()

    @contextmanager
    def _shared(self) -> Iterator[dict[str, PausedOrigin]]:
        """The shared file's content, for changes; written back if changed."""
        with _locked(self._file):
            before = self._read()
            after = dict(before)
            yield after
            if after != before:
                self._known = _pruned(after, self.now())
                self._write()

    def _read(self) -> dict[str, PausedOrigin]:
        if self._file is None or self._is_alone:
            return self._known
        try:
            with open(self._file, "rb", opener=_open_at_once) as file:
                return _File.model_validate_json(file.read(MAX_FILE_BYTES)).root
        except FileNotFoundError:
            return {}  # somebody found that all of them answer
        except (OSError, ValidationError, RecursionError):
            return self._known

    def _write(self) -> None:
        if self._file is None:
            return
        temporary = self._file.with_suffix(".new")
        try:
            if self._known:
                temporary.write_text(json.dumps({name: one.model_dump() for name, one in self._known.items()}))
                temporary.replace(self._file)
            else:
                self._file.unlink(missing_ok=True)
            self._is_alone = False
        except OSError:
            self._is_alone = True


def _pause(error: ArtifactError, failures: int) -> float:
    """For how long an origin is left alone that does not say so itself."""
    backoff = PAUSE_UNSAID if error.reason == "rate_limited" else PAUSE
    return backoff.delay(failures if backoff is PAUSE_UNSAID else failures - 1, lambda _low, high: high)


def _reason_of(one: PausedOrigin) -> ArtifactReason:
    return next((reason for reason in PAUSING if reason == one.reason), "source_io")


def _pruned(paused: dict[str, PausedOrigin], now: float) -> dict[str, PausedOrigin]:
    """Those of late, and not more than are looked through at once."""
    late = {name: one for name, one in paused.items() if abs(now - one.failed_at) < 2 * LONGEST_ASKED_SECONDS}
    return dict(sorted(late.items(), key=lambda item: item[1].failed_at)[-MAX_ORIGINS:])


@contextmanager
def _locked(file: Path | None) -> Iterator[None]:
    """Holds the lock beside a file, if there is one and it can be had soon; without it, a pause may be lost."""
    descriptor = None
    with suppress(OSError):
        if file is not None:
            descriptor = _open_at_once(f"{file.with_suffix('.lock')}", os.O_RDONLY | os.O_CREAT)
            _try_lock(descriptor)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_at_once(path: str, flags: int) -> int:
    """Opens a file without waiting, whatever kind of file it is."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int) -> None:
    for _ in range(LOCK_TRIES):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_SECONDS)
    return None


class OriginVisits:
    """The visits of one staging, which asks an origin on that it was let to."""

    def __init__(self, origins: Origins) -> None:
        """It begins now."""
        self._origins = origins
        self._began = origins.now()
        self._entered: set[str] = set()

    @contextmanager
    def visiting(self, origin: str) -> Iterator[None]:
        """Asks an origin in the body; how that ends is noted for all.

        Raises:
            ArtifactError: the origin is paused; or what the body raises.
        """
        if origin not in self._entered:
            self._origins.enter(origin)
            self._entered.add(origin)
        try:
            yield
        except ArtifactError as error:
            if error.reason in PAUSING:
                self._origins.failed(origin, error, self._began)
            elif error.reason != "staging_stopped":
                self._origins.answered(origin, self._began)
            raise
        else:
            self._origins.answered(origin, self._began)
