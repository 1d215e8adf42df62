"""Sources that are rotated away while stores still have their files."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from registry.sources.allowed import AllowedSources
from registry.sources.base import ArtifactError, Source, Stop
from sidecar.artifacts import maintenance
from sidecar.artifacts.maintenance import RotatedSources
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.support.adapters import write_adapter

ONCE_A_MINUTE = maintenance.SOURCE_PERIOD_SECONDS
HOUR = 3600.0


class Clock:
    at = 100.0

    def __call__(self) -> float:
        return self.at


class Asked(Source):
    """A source on the network that answers as a test says: it is gone or not, or cannot be asked."""

    def __init__(self) -> None:
        self.answer: bool | ArtifactError = False
        self.questions = 0

    def is_gone(self, stop: Stop) -> bool:
        stop.check()
        self.questions += 1
        if isinstance(self.answer, ArtifactError):
            raise self.answer
        return self.answer


def staged(ref: ArtifactRef) -> dict[ArtifactRef, Staged]:
    return {ref: Staged("id", "/store/id", "sha256:0", 8)}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def watching(clock: Clock, uri: str = "s3://b/a", **how: Any) -> tuple[RotatedSources, ArtifactRef, Asked]:
    """One source on the network."""
    ref, source = ArtifactRef(uri, None), Asked()
    return RotatedSources(lambda: [ref], lambda _: source, clock, **how), ref, source


def reasons(looks: RotatedSources, ref: ArtifactRef) -> list[str]:
    return [one.reason for one in looks.marked(staged(ref))[ref].warnings]


def opened(ref: ArtifactRef) -> Source:
    return AllowedSources(["file:///"]).source(ref.uri)


@pytest.mark.parametrize("kept", [[], ["adapter_config.json"]])
def test_a_folder_that_is_gone_is_told_until_it_is_back(tmp_path, clock, kept):
    """Also one of which a file is left. It is looked at once a minute."""
    folder = tmp_path / "a b"
    write_adapter(folder)
    ref = ArtifactRef(folder.as_uri(), None)
    looks = RotatedSources(lambda: [ref], opened, clock)
    looks.look(Stop())
    assert looks.marked(staged(ref)) == staged(ref)
    for file in folder.iterdir():
        if file.name not in kept:
            file.unlink()
    if not kept:
        folder.rmdir()
    looks.look(Stop())
    assert reasons(looks, ref) == []
    clock.at += ONCE_A_MINUTE
    looks.look(Stop())
    assert reasons(looks, ref) == ["source_gone"]
    assert str(folder) in looks.marked(staged(ref))[ref].warnings[0].message
    write_adapter(folder)
    clock.at += ONCE_A_MINUTE
    looks.look(Stop())
    assert reasons(looks, ref) == []


@pytest.mark.parametrize(
    "uri", ["s3://bucket/a", "wandb-artifact:///a/b:v1", "file://other-host/a", "file:///" + "a" * 300]
)
def test_what_nobody_can_tell_is_not_told(clock, uri):
    ref = ArtifactRef(uri, None)
    looks = RotatedSources(lambda: [ref], opened, clock)
    for _ in range(2000):
        clock.at += 30
        looks.look(Stop())
    assert reasons(looks, ref) == []


def test_of_very_many_all_have_their_turn_and_what_the_store_lost_is_forgotten(tmp_path, clock, monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(maintenance, "MOST_SOURCES", 2)
    refs = [ArtifactRef((tmp_path / f"{number}").as_uri(), None) for number in range(5)]
    there = list(refs)
    looks = RotatedSources(lambda: there, opened, clock)
    found = []
    for _ in range(3):
        looks.look(Stop())
        clock.at += 1
        found.append(sum(bool(reasons(looks, ref)) for ref in refs))
    assert found == [2, 4, 5]
    there.clear()
    looks.look(Stop())
    assert [ref for ref in refs if reasons(looks, ref)] == []


def passed(looks: RotatedSources, clock: Clock, seconds: float) -> None:
    """Time goes by, with a look each 10 s."""
    for _ in range(int(seconds / 10)):
        clock.at += 10
        looks.look(Stop())


@pytest.mark.parametrize(
    "uri", ["s3://b/a", "gs://b/a", "az://b/a", "hf://o/r@" + "0" * 40, "oci://h/r:1", "https://h/a/"]
)
def test_a_source_on_the_network_is_told_once_it_says_twice_that_it_is_gone(clock, uri):
    """Within an hour after the first look and six later; one that is back within an hour."""
    looks, ref, source = watching(clock, uri)
    passed(looks, clock, HOUR + 10)
    assert (source.questions, reasons(looks, ref)) == (1, [])
    source.answer = True
    while source.questions == 1:
        passed(looks, clock, 10)
    assert reasons(looks, ref) == [], "one answer may be that of a moment"
    passed(looks, clock, maintenance.ASK_AGAIN_SECONDS)
    assert reasons(looks, ref) == ["source_gone"]
    assert uri in looks.marked(staged(ref))[ref].warnings[0].message
    questions = source.questions
    passed(looks, clock, HOUR + 10)
    assert (reasons(looks, ref), source.questions) == (["source_gone"], questions + 1), "it is asked once an hour"
    source.answer = False
    passed(looks, clock, HOUR)
    assert (reasons(looks, ref), clock.at < 100 + 10 * HOUR) == ([], True)


def test_a_blip_is_no_loss(clock):
    looks, ref, source = watching(clock, between=min)
    source.answer = True
    looks.look(Stop())
    source.answer = False
    passed(looks, clock, maintenance.ASK_AGAIN_SECONDS)
    source.answer = True
    while source.questions == 2:
        passed(looks, clock, 10)
    assert (source.questions, reasons(looks, ref)) == (3, [])


@pytest.mark.parametrize(
    "reason", ["source_denied", "source_timeout", "source_io", "rate_limited", "unknown_credential"]
)
def test_who_cannot_ask_or_is_refused_neither_says_that_it_is_gone_nor_takes_it_back(clock, reason):
    looks, ref, source = watching(clock)
    unknown = ArtifactError(reason, "no")
    source.answer = unknown
    passed(looks, clock, 24 * HOUR)
    assert (source.questions >= 4, reasons(looks, ref)) == (True, [])
    source.answer = True
    passed(looks, clock, 7 * HOUR)
    assert reasons(looks, ref) == ["source_gone"]
    source.answer = unknown
    passed(looks, clock, 24 * HOUR)
    assert reasons(looks, ref) == ["source_gone"]


def test_hundreds_of_sources_put_little_on_those_who_answer(clock):
    """R16 bounded: one source in two minutes for a replica, and each of few once in some hours; all have their turn."""
    refs = [ArtifactRef(f"s3://b/{number}", None) for number in range(300)]
    asked: Counter[ArtifactRef] = Counter()

    def source(ref: ArtifactRef) -> Source:
        asked[ref] += 1
        return Asked()

    many = RotatedSources(lambda: refs, source, clock)
    passed(many, clock, 6 * HOUR)
    most = 6 * HOUR / maintenance.ASK_GAP_SECONDS
    assert most - 1 <= sum(asked.values()) <= most
    assert max(asked.values()) == 1
    asked.clear()
    few = RotatedSources(lambda: refs[:3], source, clock)
    passed(few, clock, 24 * HOUR)
    assert all(4 <= times <= 6 for times in asked.values())


def test_replicas_that_start_together_do_not_ask_together(clock):
    first = []
    for _ in range(20):
        own = Clock()
        looks, _, source = watching(own)
        while not source.questions:
            passed(looks, own, 10)
        first.append(own.at)
    assert max(first) - min(first) > maintenance.ASK_FIRST_SECONDS / 3


def test_who_is_stopped_asks_nobody(clock):
    (looks, _, source), stop = watching(clock, between=min), Stop()
    stop.set()
    with pytest.raises(ArtifactError, match="stopped"):
        looks.look(stop)
    assert source.questions == 0


async def test_a_store_serves_on_what_was_rotated_and_warns_of_it(tmp_path):
    """R13 static-stable: the files stay, and the status says that they are the last ones."""
    folder: Path = tmp_path / "sources" / "step-7"
    write_adapter(folder)
    store = LocalStore(tmp_path / "store", "r1", [(tmp_path / "sources").as_uri()])
    ref = ArtifactRef(folder.as_uri(), None, pin_key="p/a@1")
    before = await store.ensure(ref)
    shutil.rmtree(folder)
    store.maintenance.look_at_sources(Stop())
    assert [one.reason for one in store.seen[ref].warnings] == [*[one.reason for one in before.warnings], "source_gone"]
    assert (store.lookup(ref), store.is_intact(before.path)) == (before, True)
    store.close()
