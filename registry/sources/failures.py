"""Classifies failures of a source: passing ones are tried again at once."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime

import httpcore
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from registry.etcd3.backoff import Backoff
from registry.model.replica_reasons import LONGEST_ASKED_SECONDS
from registry.sources.base import ArtifactError, ArtifactReason, Stop

# Worth asking again, soon or when the server says; every other status is a fact until somebody changes something.
PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
TOO_MANY_REQUESTS = 429
MISSING_STATUSES = frozenset({404, 410})
DENIED_STATUSES = frozenset({401, 403})
MAX_ATTEMPTS = 4
MAX_STARTS = 2
_WAIT = Backoff(base_seconds=0.2, cap_seconds=5.0)


class Passing(ArtifactError):
    """A failure that a repetition within the same staging may cure."""

    def __init__(self, reason: ArtifactReason, message: str) -> None:
        super().__init__(reason, message)


class StartOver(ArtifactError):
    """A failure after which the part that arrived is no use; within the same staging the whole may be had anew."""

    def __init__(self, reason: ArtifactReason, message: str) -> None:
        super().__init__(reason, message)


def retries(stop: Stop) -> Retrying:
    """Attempts at one thing while it fails in passing; the waits between them end when the staging is stopped."""
    return _retrying(stop, MAX_ATTEMPTS, lambda error: isinstance(error, Passing))


def retries_from_start(stop: Stop) -> Retrying:
    """Attempts at the whole of what cannot be continued."""
    return _retrying(stop, MAX_STARTS, lambda error: isinstance(error, StartOver))


def _retrying(stop: Stop, attempts: int, is_worth_it: Callable[[BaseException], bool]) -> Retrying:
    return Retrying(
        stop=stop_after_attempt(attempts),
        wait=lambda state: _WAIT.delay(state.attempt_number, random.uniform),
        retry=retry_if_exception(is_worth_it),
        sleep=stop.check,
        reraise=True,
    )


@contextmanager
def connecting(place: str) -> Iterator[None]:
    """Translates what goes wrong until an answer has begun.

    Raises:
        ArtifactError: a hanging source is left to the next staging, since waiting for it again would keep others.
    """
    try:
        yield
    except httpcore.TimeoutException:
        message = f"{place} did not answer in time; it is tried again"
        raise ArtifactError("source_timeout", message) from None
    except httpcore.ConnectError as error:
        if isinstance(error.__context__, ssl.SSLError):
            raise _untrusted(place, error.__context__) from None
        raise Passing("source_io", f"{place} cannot be reached; it is tried again") from None
    except (httpcore.NetworkError, httpcore.ProtocolError):
        raise Passing("source_io", f"{place} broke the connection; it is tried again") from None


@contextmanager
def receiving(place: str) -> Iterator[None]:
    """Translates what goes wrong in the middle of a body.

    Raises:
        Passing: it may be continued.
    """
    try:
        yield
    except httpcore.TimeoutException:
        raise Passing("source_timeout", f"{place} sends too slowly or not at all; it is tried again") from None
    except (httpcore.NetworkError, httpcore.ProtocolError):
        raise Passing("source_incomplete", f"{place} broke off before the end; it is tried again") from None


def asked_pause(retry_after: str, now: float) -> float:
    """Seconds for which a server wants to be left alone, by its Retry-After; 0: it does not say. `now`: since 1970."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:9])
    else:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), LONGEST_ASKED_SECONDS)


def status_error(status: int, place: str, name: str = "", pause_seconds: float = 0.0) -> ArtifactError:
    """Meaning of an HTTP status other than success.

    `name`: of the file; empty: it is not to be told. `pause_seconds`: what the server asked for.
    """
    if status == TOO_MANY_REQUESTS:
        message = f"{place} answered {status}: it is asked too often; it is tried again after the pause that it wants"
        return ArtifactError("rate_limited", message, pause_seconds=pause_seconds)
    if status in PASSING_STATUSES and pause_seconds:
        message = f"{place} answered {status}, and wants to be asked later; it is tried again then"
        return ArtifactError("source_io", message, pause_seconds=pause_seconds)
    if status in PASSING_STATUSES:
        return Passing("source_io", f"{place} answered {status}; it is tried again")
    if status in MISSING_STATUSES:
        message = f"{place} answered {status}{name and f' for {name}'}; put it there, it is tried again"
        return ArtifactError("source_missing", message)
    if status in DENIED_STATUSES:
        return denied(f"{place} answered {status}")
    message = f"{place} answered {status}, expected 200; check the source's URI. It is tried again"
    return ArtifactError("source_io", message)


def denied(found: str) -> ArtifactError:
    """The source did not accept the credential, or wants one."""
    message = f"{found}; check the credential that spec.credentials names, and that it may read this source"
    return ArtifactError("source_denied", message)


def _untrusted(place: str, error: ssl.SSLError) -> ArtifactError:
    message = f"{place} has a TLS certificate that is not trusted ({error.reason}); SSL_CERT_FILE names the authorities"
    return ArtifactError("source_untrusted", message)


def no_authorities(error: OSError) -> ArtifactError:
    """No certificate can be judged here, whatever the source."""
    message = f"the authorities that SSL_CERT_FILE or SSL_CERT_DIR names cannot be read: {error.strerror}"
    return ArtifactError("source_untrusted", message)
