"""Base of all sources: protocol, errors, limits, cancellation, trust."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Literal, Protocol

from registry.lora.digest import OTHER_FILES, WEIGHTS_FILE
from registry.lora.findings import Finding, FindingReason, leading, summary
from registry.lora.signatures import SignatureReason
from registry.lora.signing.bundle import MAX_BUNDLE_BYTES
from registry.model.replica_reasons import RetryClass, retry_rule

# Stable names of why an artifact could not be staged. Programs may depend on them, not on the sentences beside them.
SourceReason = Literal[
    "address_not_allowed",
    "artifact_damaged",
    "bad_archive",
    "credential_not_bound",
    "credential_unavailable",
    "digest_mismatch",
    "disk_full",
    "examination_failed",
    "fetcher_failed",
    "internal_error",
    "invalid_source",
    "not_a_regular_file",
    "rate_limited",
    "redirect_not_allowed",
    "source_changed",
    "source_denied",
    "source_io",
    "source_is_html",
    "source_missing",
    "source_not_allowed",
    "source_timeout",
    "source_untrusted",
    "staging_stopped",
    "staging_timeout",
    "store_full",
    "store_io",
    "too_large",
    "unsupported_policy",
    "unknown_credential",
    "unsupported_scheme",
]
ArtifactReason = SourceReason | FindingReason | SignatureReason


class ArtifactError(Exception):
    """An artifact could not be staged. `reason` is stable, and decides when it is tried again: see `RETRY_RULES`.

    The message says what was found, what was expected, and what to do; never a secret, nor where a path of this host
    leads: whoever may write a record reads it in a status. That is in `detail`, for this host's own log.

    `pause_seconds`: nothing is worth trying before. `version`: of the source whose files were refused, see
    `Source.version`; empty: it is not known.
    """

    def __init__(self, reason: ArtifactReason, message: str, *, detail: str = "", pause_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.reason: ArtifactReason = reason
        self.message = message
        self.detail = detail
        self.version = ""
        self.pause_seconds = pause_seconds

    @property
    def permanent(self) -> bool:
        """True if repeating cannot help: something has to change first."""
        return retry_rule(self.reason).retry is RetryClass.CHANGE


class SourceUnchanged(Exception):
    """A source still has the files that were refused, as it was looked at for a change of them."""


def unfit(findings: Sequence[Finding]) -> ArtifactError:
    """An adapter that cannot be served: the first finding's reason, and how many there are beside it."""
    found = leading(findings)
    return ArtifactError(found[0].reason, summary(found))


# What is asked for at other hosts where the weights are missing: each is a request.
ASKED_FOR = ("adapter_model.bin", "adapters.safetensors", "pytorch_lora_weights.safetensors")


def other_format(place: str, name: str) -> ArtifactError:
    """A place has a file of `OTHER_FILES` and no weights as they are expected."""
    found = OTHER_FILES[name]
    message = f"{place} has {name}, {found.what}; expected {WEIGHTS_FILE}: {found.remedy}"
    return ArtifactError(found.reason, message)


def explained(error: ArtifactError, name: str, place: str, has: Callable[[str], bool]) -> ArtifactError:
    """The error of one file; where it says that the weights are missing, what is there instead, if anything is.

    `has`: whether a file is there, as far as the source can be asked.
    """
    if name != WEIGHTS_FILE or error.reason != "source_missing":
        return error
    with suppress(ArtifactError):
        other = next((one for one in ASKED_FOR if has(one)), None)
        return error if other is None else other_format(place, other)
    return error


class StoreError(Exception):
    """The store cannot be used at all, or was configured wrongly; the message names the path and the remedy."""


class Stop:
    """Tells a worker thread that nobody waits for it any more."""

    def __init__(self) -> None:
        self._event = Event()

    def set(self) -> None:
        self._event.set()

    def check(self, wait_seconds: float = 0.0) -> None:
        """Returns after the time.

        Raises:
            ArtifactError: ``staging_stopped``, at once when `set` is called.
        """
        if self._event.wait(wait_seconds) if wait_seconds else self._event.is_set():
            raise ArtifactError("staging_stopped", "the staging was stopped before its end")


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """Limits of the time that a source may keep us waiting.

    Attributes:
        connect_seconds: for a connection, and for TLS on it.
        idle_seconds: without a byte.
        min_bytes_per_second: on average over the time that was spent waiting for bytes.
        pace_seconds: how often the average is looked at.
    """

    connect_seconds: float = 10.0
    idle_seconds: float = 30.0
    min_bytes_per_second: int = 4096
    pace_seconds: float = 30.0

    def timeouts(self) -> dict[str, float]:
        """As httpcore takes them."""
        idle = self.idle_seconds
        return {"connect": self.connect_seconds, "read": idle, "write": idle, "pool": self.connect_seconds}


# Takes a file's name, its size in bytes and its content. A file that comes again takes the place of what came of it.
Receive = Callable[[str, int, Iterator[bytes]], None]


# Of a bundle so much is read, so that one that is larger is known for it.
BUNDLE_BYTES = MAX_BUNDLE_BYTES + 1


def beginning(chunks: Iterator[bytes], size_bytes: int = BUNDLE_BYTES) -> bytes:
    """The first so many bytes of what comes. Raises what it raises."""
    found = b""
    for chunk in chunks:
        found += chunk
        if len(found) >= size_bytes:
            break
    return found[:size_bytes]


class Source(Protocol):
    """One place that an adapter's files can be had from."""

    def fetch(self, receive: Receive, stop: Stop) -> None:
        """Hands over the files of `manifest.FILES`, each as it was at one moment; ends soon after it is stopped.

        Raises:
            ArtifactError: they cannot be had, or changed while they were read; or what `receive` raises.
        """
        ...

    def signature(self, stop: Stop) -> bytes | None:
        """The bundle beside the files, and of a larger one the beginning; None: there is none.

        Raises:
            ArtifactError: the source cannot be asked.
        """
        ...

    def opened(self, stop: Stop) -> AbstractContextManager[Source]:  # noqa: ARG002 - of those that begin with something
        """The same source for several looks, where each would begin anew with what can be done once.

        Raises:
            ArtifactError: it cannot be had.
        """
        return nullcontext(self)

    def is_gone(self, stop: Stop) -> bool:  # noqa: ARG002 - of those that can be asked
        """True if the source says that it has one of the files no more; False also where it does not tell.

        Raises:
            ArtifactError: it cannot be asked, or refuses to tell.
        """
        return False

    def version(self, stop: Stop) -> str:
        """Mark that changes when one of the files does, without reading them; empty: the source does not tell.

        Raises:
            ArtifactError: the source cannot be asked.
        """
        ...


def fetch_unproven(source: Source, receive: Receive, stop: Stop) -> None:
    """Fetches where no digest tells which files they are to be, so that one of before is not taken with one of after.

    Raises:
        ArtifactError: as `Source.fetch`; ``source_changed``: the source tells that they are others by now. One that
            tells another version at each look tells nothing, and what is gone was whole before.
    """
    before = _told(source, stop)
    source.fetch(receive, stop)
    now = _told(source, stop) if before else ""
    if now and now != before and now == _told(source, stop) and not source.is_gone(stop):
        raise ArtifactError("source_changed", "the files changed while they were read; it is tried again")


def _told(source: Source, stop: Stop) -> str:
    """The version of a source; empty: it tells none, or cannot be asked."""
    try:
        return source.version(stop)
    except ArtifactError:
        stop.check()
        return ""


def version_of(path: Path) -> tuple[int, ...]:
    """Changes when a file is replaced or written to. Look before reading it, so that no change is missed."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def joined_versions(versions: Sequence[str]) -> str:
    """The version of several files; empty where one of them does not tell its own."""
    return " ".join(versions) if all(versions) else ""


# A replacement may come between two looks at a file; more than this is somebody who writes all the time.
_LOOKS = 3


class TrustedAuthorities:
    """The authorities that certificates are checked with, read again when their file was replaced."""

    def __init__(self, file: Path | None, make: Callable[[], ssl.SSLContext]) -> None:
        """Takes the file that `make` reads them from; None: none that anybody replaces. Raises what `make` raises."""
        self._file = file
        self._make = make
        self._version = version_of(file) if file is not None else ()
        self._context = make()

    def newest(self) -> ssl.SSLContext:
        """For the next connection; as they were before while the file is half written, gone, or replaced all the time.

        It is read twice: by `make`, and here. What was replaced between the two would be trusted together.
        """
        for _ in range(_LOOKS):
            version = version_of(self._file) if self._file is not None else ()
            if self._file is None or version == self._version:
                break
            try:
                context = self._make()
                context.load_verify_locations(self._file)  # `make` may pass over what it cannot read
            except OSError:
                break
            if version_of(self._file) == version:
                self._context, self._version = context, version
        return self._context
