"""Files that an operator replaces while a process runs."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event, Thread

import pytest

from registry.model.source_uri import parse_source
from registry.runtime.local_files import FollowedFile
from registry.sources.base import ArtifactError, StoreError
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials

OF_THE_TEAM = "team: {kind: env, variable: TEAM, prefixes: ['s3://team']}\n"


def replace(file: Path, text: str) -> None:
    """At once, as a tool does that rotates secrets."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "file").write_text("one")
    return tmp_path / "file"


def test_a_file_is_read_again_when_it_was_replaced_and_only_then(file, capsys):
    taken: list[str] = []
    followed = FollowedFile(file, Path.read_text, taken.append)
    followed.refresh()
    assert taken == ["one"]
    replace(file, "two")
    followed.refresh()
    followed.refresh()
    assert taken == ["one", "two"]
    file.write_text("three")
    followed.refresh()
    assert taken == ["one", "two", "three"]
    assert capsys.readouterr().out.count("file_taken") == 2


def test_what_cannot_be_read_is_told_once_and_changes_nothing(file, capsys):
    """R13 static-stable: half a file, and none, are what a rotation looks like from here."""
    taken: list[str] = []

    def read(path: Path) -> str:
        if len(text := path.read_text()) < 3:
            raise StoreError("half of it is missing")
        return text

    followed = FollowedFile(file, read, taken.append)
    for spoil in (lambda: file.write_text("t"), file.unlink):
        spoil()
        for times in (1, 0, 0):
            followed.refresh()
            assert capsys.readouterr().out.count("file_not_taken") == times
    assert taken == ["one"]
    file.write_text("two")
    followed.refresh()
    assert taken == ["one", "two"]


def test_what_could_not_be_read_once_is_read_again(file):
    """R13: though nothing about it has changed, as where its disk was away."""
    taken: list[str] = []
    failures = iter([OSError("away")])

    def read(path: Path) -> str:
        if taken:
            for failure in failures:
                raise failure
        return path.read_text()

    followed = FollowedFile(file, read, taken.append)
    replace(file, "two")
    followed.refresh()
    assert taken == ["one"]
    followed.refresh()
    assert taken == ["one", "two"]


def test_a_file_that_is_wrong_at_the_start_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="nowhere"):
        FollowedFile(tmp_path / "nowhere", read_credentials, lambda _: None)


def test_credentials_are_replaced_under_load(tmp_path):
    """R13, R8: no staging fails for it that could have its credential before and after."""
    file, source, stop = tmp_path / "credentials.yaml", parse_source("s3://team/a"), Event()
    file.write_text(OF_THE_TEAM)
    credentials, failures = Credentials(), []
    followed = FollowedFile(file, read_credentials, credentials.use)

    def load() -> None:
        while not stop.wait(0.0005):
            try:
                assert credentials.hold("team", source) is not None
            except ArtifactError as error:
                failures.append(error)

    threads = [Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(100):
        (replace if number % 2 else Path.write_text)(file, f"new{number}: [" if number % 10 == 0 else OF_THE_TEAM)
        followed.refresh()
    replace(file, OF_THE_TEAM + OF_THE_TEAM.replace("team", "more"))
    followed.refresh()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert credentials.hold("more", parse_source("s3://more/a")) is not None
    with pytest.raises(ArtifactError, match="is read again"):
        credentials.hold("nobody", source)


def test_a_replacement_of_the_same_size_and_time_is_seen(file):
    taken: list[str] = []
    followed = FollowedFile(file, Path.read_text, taken.append)
    before = file.stat()
    replace(file, "two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    followed.refresh()
    assert taken == ["one", "two"]
