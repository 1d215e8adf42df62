"""What an origin that fails, or asks for a pause, gets from all stagings of all replicas of a store."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from registry.model.replica_reasons import LONGEST_ASKED_SECONDS
from registry.sources import origins as module
from registry.sources.base import ArtifactError, ArtifactReason
from registry.sources.failures import asked_pause
from registry.sources.origins import PROBE_SECONDS, Origins, OriginVisits
from tests.unit.sources.conftest import refused

HUB, OTHER = "https://hub", "https://other"


class Host:
    """Replicas that share a store, on a clock that is set by hand; `asked`: when an origin heard of whom."""

    def __init__(self, folder: Path, replicas: int = 3) -> None:
        self.at = 1_000_000.0
        self.file = folder / "origins.json"
        self.replicas = [Origins(self.file, lambda: self.at) for _ in range(replicas)]
        self.asked: list[float] = []

    def stage(self, replica: int, error: ArtifactError | None, origin: str = HUB) -> ArtifactError | None:
        """One staging, which the origin answers with an error or not at all badly; what became of it."""
        try:
            with OriginVisits(self.replicas[replica]).visiting(origin):
                self.asked.append(self.at)
                if error is not None:
                    raise error
        except ArtifactError as told:
            return told
        return None


@pytest.fixture
def host(tmp_path) -> Host:
    return Host(tmp_path)


def limited(seconds: float) -> ArtifactError:
    return ArtifactError("rate_limited", "asked too often", pause_seconds=seconds)


def away(reason: ArtifactReason = "source_io") -> ArtifactError:
    return ArtifactError(reason, "it cannot be reached")


def test_one_asks_for_all_once_the_pause_that_was_asked_for_is_over(host):
    """S6, R8: about one request in each pause, of however many stagings and replicas."""
    for _ in range(240):
        for replica in range(3):
            told = host.stage(replica, limited(60.0))
            assert told is not None
            assert (told.reason, told.message) == ("rate_limited", "asked too often")
            assert 0 < told.pause_seconds <= 60.0
        host.at += 1.0
    assert len(host.asked) == 4
    assert min(b - a for a, b in pairwise(host.asked)) >= 60.0
    host.at -= 3600.0
    assert host.stage(1, None) is None, "R12: the clock was set back"


def test_an_answer_ends_it_for_all(host):
    """R8: also for a replica that has never asked itself."""
    host.stage(0, limited(60.0))
    assert host.stage(1, None) is not None
    assert host.stage(1, None, OTHER) is None, "another origin has nothing to do with it"
    host.at += 60.0
    assert host.stage(2, None) is None
    assert [host.stage(replica, None) for replica in range(3)] == [None] * 3
    assert not host.file.exists()
    host.at += 1.0
    told = host.stage(0, away())
    assert told is not None
    assert told.pause_seconds == 0.0, "it is the first failure since"


def test_a_staging_that_is_stopped_is_no_answer(host):
    """S6: nobody has heard anything of the origin, which wants to be left alone by others all the same."""
    host.stage(0, limited(60.0))
    host.at += 60.0
    assert host.stage(1, ArtifactError("staging_stopped", "nobody waits")) is not None
    assert host.stage(2, None) is not None, "who asked for all has heard nothing yet"


def test_the_one_that_asks_for_all_may_end_without_a_word(host):
    """R12."""
    host.stage(0, limited(60.0))
    host.at += 60.0
    host.replicas[0].enter(HUB)
    held = host.stage(1, None)
    assert held is not None
    assert held.pause_seconds == PROBE_SECONDS
    host.at += PROBE_SECONDS
    assert host.stage(1, None) is None


def test_an_answer_to_who_asked_before_says_nothing_of_the_pause(host):
    """S6: of two requests at the same time one may be answered."""
    before = OriginVisits(host.replicas[1])
    host.at += 1.0
    host.stage(0, limited(60.0))
    with suppress(ArtifactError), before.visiting(OTHER):
        pass
    host.replicas[1].answered(HUB, host.at - 1.0)
    assert host.stage(2, None) is not None


def test_what_fails_again_and_again_is_asked_by_one_with_pauses_that_grow(host):
    """R8: fifty adapters of a host that is away are not fifty loops; a single failure holds nobody up."""
    assert host.stage(0, away()).pause_seconds == 0.0
    for replica in host.replicas:
        replica.enter(HUB)
    for _ in range(600):
        for replica in (0, 1, 2) * 2:
            host.stage(replica, away())
        host.at += 1.0
    assert len(host.asked) < 600 / 60 + 20
    assert host.asked[-1] - host.asked[-2] == 60.0


def test_who_asks_too_often_pauses_at_once_and_longer_each_time_where_no_time_is_said(host):
    """R8, S6."""
    pauses = list[float]()
    for _ in range(9):
        told = host.stage(0, limited(0.0))
        assert told is not None
        pauses.append(told.pause_seconds)
        host.at += told.pause_seconds
    assert (pauses[0] >= 5.0, sorted(set(pauses)) == pauses[: len(set(pauses))], pauses[-1]) == (True, True, 300.0)


def test_a_staging_that_was_let_in_asks_on(host):
    """R8: what broke off is gone on with, though the others wait from then on."""
    host.stage(0, limited(60.0))
    host.at += 60.0
    visits = OriginVisits(host.replicas[0])
    with pytest.raises(ArtifactError), visits.visiting(HUB):
        raise limited(60.0)
    with visits.visiting(HUB):
        assert host.stage(1, None) is not None


def test_stagings_that_failed_at_the_same_time_are_one_failure(host):
    visits = [OriginVisits(host.replicas[0]) for _ in range(8)]
    host.at += 1.0
    for one in visits:
        with pytest.raises(ArtifactError) as told, one.visiting(HUB):
            raise away()
        assert told.value.pause_seconds == 0.0


@pytest.mark.parametrize(("set_back", "paused"), [(0.0, 60.0), (2 * LONGEST_ASKED_SECONDS, 5.0)])
def test_of_two_pauses_that_are_asked_for_at_the_same_time_the_longer_counts(host, set_back, paused):
    """S6; R12: but not one of a time in which the clock was ahead."""
    began, last = host.at, limited(5.0)
    host.at += 1.0
    host.replicas[0].failed(HUB, limited(60.0), began)
    host.at -= set_back
    host.replicas[1].failed(HUB, last, began)
    assert last.pause_seconds == paused
    later = host.stage(2, None)
    assert later is not None
    assert later.pause_seconds == paused


def test_a_pause_that_is_asked_for_anew_may_be_shorter_than_the_time_of_who_asks_for_all(host):
    """S6."""
    host.stage(0, limited(60.0))
    host.at += 60.0
    told = host.stage(0, limited(PROBE_SECONDS / 2))
    assert told is not None
    assert told.pause_seconds == PROBE_SECONDS / 2


def test_a_fact_about_one_file_is_an_answer(host):
    host.stage(0, away())
    host.at += 1.0
    assert host.stage(0, ArtifactError("source_missing", "no such file")).pause_seconds == 0.0
    assert not host.file.exists()
    host.stage(0, limited(60.0))
    with pytest.raises(ArtifactError), OriginVisits(host.replicas[0]).visiting(OTHER):
        raise ArtifactError("staging_stopped", "it was stopped")
    assert host.file.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"https://hub": 1}', b"[" * 100_000, None])
def test_a_file_that_cannot_be_read_hinders_nobody(host, content):
    """R12 crash-only, R13: where it cannot be written, for something stands there, each has what it knows itself."""
    host.file.mkdir() if content is None else host.file.write_bytes(content)
    assert host.stage(0, limited(60.0)) is not None
    assert host.stage(0, None) is not None
    assert (host.stage(1, None) is None) is (content is None), "else it was written anew"
    if content is not None:
        host.file.write_bytes(content)
        assert host.stage(0, None) is not None, "it knows that still"


def test_without_a_folder_each_has_what_it_knows_itself_until_there_is_one(tmp_path):
    """R13; and where nobody else is to know, too."""
    host = Host(tmp_path / "away")
    assert host.stage(0, limited(60.0)) is not None
    assert host.stage(0, None) is not None
    assert host.stage(1, None) is None
    host.at += 60.0
    host.file.parent.mkdir()
    assert host.stage(0, limited(60.0)) is not None
    assert host.stage(1, None) is not None
    host.replicas[1].answered(HUB, host.at)
    assert host.stage(0, None) is None
    alone = Origins(None, lambda: host.at)
    alone.failed(HUB, limited(60.0), host.at)
    assert refused(alone.enter, HUB).reason == "rate_limited"
    alone.enter(OTHER)


def test_whoever_was_stopped_with_the_lock_stops_nobody(host, monkeypatch):
    """R16, X3."""
    monkeypatch.setattr(module, "LOCK_TRIES", 2)
    descriptor = os.open(host.file.with_suffix(".lock"), os.O_CREAT | os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    waits = list[float]()
    monkeypatch.setattr("time.sleep", waits.append)
    assert host.stage(0, limited(60.0)) is not None
    assert host.stage(1, None) is not None
    os.close(descriptor)
    assert len(waits) == 2 * 2, "somebody may be about to write"
    assert host.stage(2, None) is not None
    assert len(waits) == 2 * 2


def test_it_does_not_grow_without_bound(host, monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(module, "MAX_ORIGINS", 20)
    for number in range(25):
        host.replicas[0].failed(f"https://{number}", limited(60.0), host.at)
        host.at += 0.001
    assert len(host.replicas[0]._known) == 20
    host.at += 2 * LONGEST_ASKED_SECONDS
    host.stage(0, limited(60.0))
    assert len(host.replicas[0]._known) == 1


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("60", 60.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("99999999999999999999", LONGEST_ASKED_SECONDS),
        ("Thu, 01 Jan 1970 00:01:30 GMT", 80.0),
        ("Thu, 01 Jan 1970 00:00:05 GMT", 0.0),
        ("Thu, 01 Jan 9999 00:00:05 GMT", LONGEST_ASKED_SECONDS),
        ("-5", 0.0),
        ("soon", 0.0),
        ("", 0.0),
        ("²", 0.0),
    ],
)
def test_a_pause_is_asked_for_in_seconds_or_until_a_time(said, seconds):
    """S6: and never for longer than a bound."""
    assert asked_pause(said, 10.0) == seconds
