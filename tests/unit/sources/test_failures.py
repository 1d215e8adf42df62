"""What is tried again within one staging, how often, and what is told at the end."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import httpcore
import pytest

from registry.etcd3.backoff import Backoff
from registry.sources import failures
from registry.sources.base import ArtifactError, SourceLimits, Stop, TrustedAuthorities
from registry.sources.failures import (
    MAX_ATTEMPTS,
    MAX_STARTS,
    Passing,
    StartOver,
    connecting,
    receiving,
    retries,
    retries_from_start,
    status_error,
)
from tests.unit.sources.conftest import refused

PASSING, ANEW = Passing("source_io", "it broke"), StartOver("source_changed", "it is another")
FACT = ArtifactError("source_missing", "it is not there")


@pytest.mark.parametrize(
    ("retried", "error", "times"),
    [
        (retries, PASSING, MAX_ATTEMPTS),
        (retries, ANEW, 1),
        (retries, FACT, 1),
        (retries_from_start, ANEW, MAX_STARTS),
        (retries_from_start, PASSING, 1),
        (retries_from_start, FACT, 1),
    ],
)
def test_each_kind_of_failure_is_tried_again_as_often_as_it_may_help(retried, error, times):
    """R8: and the failure itself is what is told of it."""
    tried: list[int] = []

    def fail() -> None:
        tried.append(1)
        raise error

    told = refused(retried(Stop()), fail)
    assert (told, len(tried), str(told), told.permanent) == (error, times, error.message, False)


def test_who_is_stopped_tries_nothing_again(monkeypatch):
    """R12: however long it would have waited."""
    monkeypatch.setattr(failures, "_WAIT", Backoff(base_seconds=3600.0, cap_seconds=3600.0))
    stop, tried = Stop(), list[int]()

    def fail() -> None:
        tried.append(1)
        stop.set()
        raise PASSING

    assert (refused(retries(stop), fail).reason, len(tried)) == ("staging_stopped", 1)


def refusal(error: Exception, way: Callable) -> ArtifactError:
    with pytest.raises(ArtifactError) as told, way("https://host"):
        raise error
    assert told.value.message.startswith("https://host ")
    assert "secret" not in told.value.message
    return told.value


@pytest.mark.parametrize(
    ("error", "way", "reason", "is_passing"),
    [
        (httpcore.ConnectTimeout("secret"), connecting, "source_timeout", False),
        (httpcore.ReadTimeout("secret"), connecting, "source_timeout", False),
        (httpcore.ConnectError("secret"), connecting, "source_io", True),
        (httpcore.ReadError("secret"), connecting, "source_io", True),
        (httpcore.RemoteProtocolError("secret"), connecting, "source_io", True),
        (httpcore.ReadTimeout("secret"), receiving, "source_timeout", True),
        (httpcore.ReadError("secret"), receiving, "source_incomplete", True),
        (httpcore.RemoteProtocolError("secret"), receiving, "source_incomplete", True),
    ],
)
def test_what_goes_wrong_on_the_way_has_a_reason_and_passes_or_not(error, way, reason, is_passing):
    """A source that hangs before it answers is left to the next staging: others wait for the worker."""
    told = refusal(error, way)
    assert (told.reason, isinstance(told, Passing), told.permanent) == (reason, is_passing, False)


class Made:
    """Makes contexts that note what they load."""

    def __init__(self) -> None:
        self.count, self.error = 0, None

    def __call__(self) -> Made:
        self.count += 1
        return self

    def load_verify_locations(self, file: object) -> None:
        assert file is not None
        if self.error:
            raise self.error


def test_authorities_are_read_again_only_when_their_file_was_replaced(tmp_path):
    """R13: what is half written or comes later changes nothing, and is read once it is whole; ours is told."""
    file, make, half = tmp_path / "ca.pem", Made(), ssl.SSLError(1, "half of it is missing")
    trusted = TrustedAuthorities(file, make)  # type: ignore[arg-type]
    for text, error, count in (("one", None, 2), ("", None, 2), ("two!", half, 3), ("", None, 4), ("", None, 4)):
        if text:
            file.write_text(text)
        make.error = error
        trusted.newest()
        assert make.count == count
    file.unlink()
    make.error = half
    assert trusted.newest() is make
    nobodys = TrustedAuthorities(None, make)  # type: ignore[arg-type]
    made = make.count
    assert (nobodys.newest(), make.count) == (make, made)
    file.write_text("other")
    make.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        trusted.newest()


class Loaded:
    """A context that notes what stood in the file at each of its two looks."""

    def __init__(self, file: Path, coming: list[str]) -> None:
        self.seen = [file.read_text()]
        if coming:
            file.write_text(coming.pop(0))

    def load_verify_locations(self, file: Path) -> None:
        self.seen.append(file.read_text())


@pytest.mark.parametrize("replaced", [1, 2, 9])
def test_authorities_of_two_generations_are_never_trusted_together(tmp_path, replaced):
    """R13: a file that is replaced between two looks of one reading is looked at again; one that always is, later."""
    file, coming = tmp_path / "ca.pem", []
    file.write_text("first")
    trusted = TrustedAuthorities(file, lambda: Loaded(file, coming))  # type: ignore[arg-type, return-value]
    file.write_text("second")
    coming.extend("x" * (10 + number) for number in range(replaced))
    used = trusted.newest().seen  # type: ignore[attr-defined]
    assert used == (["first"] if replaced == 9 else [file.read_text()] * 2)
    coming.clear()
    assert trusted.newest().seen == [file.read_text()] * 2  # type: ignore[attr-defined]


def test_between_two_tries_it_waits_longer_and_longer(monkeypatch):
    """R8: at most a fifth of a second, then twice as long each time; never more than five."""
    monkeypatch.undo()
    monkeypatch.setattr(failures.random, "uniform", lambda _low, high: high)
    stop, waits = Stop(), list[float]()
    monkeypatch.setattr(stop, "check", waits.append)

    def fail() -> None:
        raise PASSING

    refused(retries(stop), fail)
    assert waits == pytest.approx([0.2, 0.4, 0.8])
    assert failures._WAIT.delay(20, lambda _low, high: high) == 5.0


@pytest.mark.parametrize(
    ("statuses", "reason", "is_passing"),
    [
        ((408, 425, 500, 502, 503, 504), "source_io", True),
        ((429,), "rate_limited", False),
        ((404, 410), "source_missing", False),
        ((401, 403), "source_denied", False),
        ((400, 405, 409, 416, 501, 505, 204, 304), "source_io", False),
    ],
)
def test_a_status_is_a_fact_or_passes(statuses, reason, is_passing):
    """R8: what is no use asking again is not asked again at once."""
    for status in statuses:
        told = status_error(status, "https://host")
        assert (told.reason, isinstance(told, Passing), told.permanent) == (reason, is_passing, False)
        assert told.message.startswith(f"https://host answered {status}")


def test_a_server_that_wants_to_be_left_alone_is_not_asked_again_at_once():
    """S6: nor is one that only has something else to do."""
    for status, reason in ((429, "rate_limited"), (503, "source_io")):
        told = status_error(status, "https://host", pause_seconds=60.0)
        assert (told.reason, isinstance(told, Passing), told.pause_seconds) == (reason, False, 60.0)


@pytest.mark.parametrize("way", [connecting, receiving])
def test_a_fault_of_ours_is_none_of_the_source(way):
    """R9: it would be tried again and said of somebody else."""
    with pytest.raises(ZeroDivisionError), way("https://host"):
        raise ZeroDivisionError
    with pytest.raises(ArtifactError) as told, way("https://host"):
        raise FACT
    assert told.value is FACT


@pytest.mark.parametrize("is_judged", [True, False])
def test_a_certificate_that_nobody_vouches_for_is_no_broken_connection(is_judged):
    cause, error = ssl.SSLError(1, "secret"), httpcore.ConnectError("secret")
    cause.reason = "CERTIFICATE_VERIFY_FAILED"
    error.__context__ = cause if is_judged else OSError("secret")
    told = refusal(error, connecting)
    assert (told.reason, told.permanent) == ("source_untrusted" if is_judged else "source_io", False)
    assert ("CERTIFICATE_VERIFY_FAILED" in told.message) is is_judged


def test_a_stop_is_told_at_once_and_else_the_time_passes():
    """R12."""
    stop = Stop()
    assert stop.check() is None
    stop.check(0.001)
    stop.set()
    for seconds in (0.0, 3600.0):
        error = refused(stop.check, seconds)
        assert (error.reason, error.permanent) == ("staging_stopped", False)


def test_a_source_has_ten_seconds_to_be_reached_and_thirty_for_each_byte():
    """R16: of what waits in the pool too, which has a connection of its own."""
    assert SourceLimits().timeouts() == {"connect": 10.0, "read": 30.0, "write": 30.0, "pool": 10.0}
    own = SourceLimits(connect_seconds=1.0, idle_seconds=2.0).timeouts()
    assert own == {"connect": 1.0, "read": 2.0, "write": 2.0, "pool": 1.0}
