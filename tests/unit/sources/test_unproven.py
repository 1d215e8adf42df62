"""Fetching where no digest tells which files they are to be."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from registry.lora.digest import FILES
from registry.sources.base import ArtifactError, Receive, Source, Stop, fetch_unproven


@dataclass
class PlayedSource(Source):
    """Tells these versions, one after the other; None: it cannot be asked."""

    versions: list[str | None]
    has_gone: bool = False
    looks: list[str] = field(default_factory=list)

    def fetch(self, receive: Receive, stop: Stop) -> None:
        stop.check()
        self.looks.append("fetch")
        for name in FILES:
            receive(name, 1, iter([b"x"]))

    def signature(self, stop: Stop) -> bytes | None:
        stop.check()
        return None

    def version(self, stop: Stop) -> str:
        self.looks.append("version")
        told = self.versions.pop(0)
        if told is None:
            stop.check()
            raise ArtifactError("source_io", "it does not answer")
        return told

    def is_gone(self, stop: Stop) -> bool:
        stop.check()
        return self.has_gone


def fetched(source: PlayedSource) -> list[str]:
    names: list[str] = []
    fetch_unproven(source, lambda name, _size, _chunks: names.append(name), Stop())
    return names


def test_files_that_changed_while_they_were_read_are_refused():
    """R4: else the configuration of before is taken with the weights of after."""
    with pytest.raises(ArtifactError, match="changed while they were read") as refused:
        fetched(PlayedSource(["1", "2", "2"]))
    assert (refused.value.reason, refused.value.permanent) == ("source_changed", False)


@pytest.mark.parametrize(
    "source",
    [
        PlayedSource(["1", "1"]),
        PlayedSource(["1", "2", "3"]),
        PlayedSource(["1", "2", "1"]),
        PlayedSource(["1", "2", ""]),
        PlayedSource(["1", ""]),
        PlayedSource([""]),
        PlayedSource([None]),
        PlayedSource(["1", None]),
        PlayedSource(["1", "2", "2"], has_gone=True),
    ],
    ids=[
        "same",
        "another-each-time",
        "of-several-servers",
        "last-untold",
        "untold-after",
        "untold",
        "unasked",
        "unasked-after",
        "gone",
    ],
)
def test_a_source_that_tells_nothing_of_a_change_is_taken(source):
    assert fetched(source) == list(FILES)
    assert source.looks[:2] == ["version", "fetch"]
    assert source.versions == []


def test_a_stopped_fetch_ends_where_the_source_was_asked():
    source, stop = PlayedSource([None]), Stop()
    stop.set()
    with pytest.raises(ArtifactError) as refused:
        fetch_unproven(source, lambda *_: None, stop)
    assert (refused.value.reason, source.looks) == ("staging_stopped", ["version"])
