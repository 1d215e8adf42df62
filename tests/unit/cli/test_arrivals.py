"""What a source of another host sends to this machine: whole or not at all, from nowhere but where it was named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from registry.cli import source_reader
from registry.cli.failure import CliError, Exit
from registry.cli.source_reader import Arrival, SourceReader, known_credentials, stopped_after, unreadable
from registry.lora.config import MAX_CONFIG_BYTES
from registry.lora.digest import CONFIG_FILE, FileEntry, manifest_digest
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.sources.allowed import DEFAULT_HUB, RemoteOptions
from registry.sources.base import ArtifactError, Stop

WEIGHTS = "adapter_model.safetensors"
FILES = {CONFIG_FILE: [b"{", b"}"], WEIGHTS: [b"abc", b"", b"de"]}
DIGEST = manifest_digest(
    FileEntry(name, len(b"".join(chunks)), hashlib.sha256(b"".join(chunks)).hexdigest())
    for name, chunks in FILES.items()
)


def test_nothing_more_is_taken_once_it_is_stopped(tmp_path, monkeypatch):
    """R4 digest-true: the digest is that of the bytes that came, whether they are written or not."""
    monkeypatch.chdir(tmp_path)
    for folder, kept in ((None, {}), (tmp_path, {CONFIG_FILE: b"{}", WEIGHTS: b"abcde"})):
        arrival = Arrival(Stop(), folder)
        for name, chunks in FILES.items():
            arrival.take(name, 100, iter(chunks))
        found = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
        assert (arrival.digest, found) == (DIGEST, kept)
    stop, taken = Stop(), list[int]()

    def chunks() -> Iterator[bytes]:
        for number in range(9):
            taken.append(number)
            if number == 2:
                stop.set()
            yield b"x"

    with pytest.raises(ArtifactError) as raised:
        Arrival(stop, tmp_path).take(WEIGHTS, 9, chunks())
    assert (raised.value.reason, taken) == ("staging_stopped", [0, 1, 2])


class Allowed:
    """Stands for the sources of prefixes: gives the files that are laid down, and remembers what it was asked."""

    asked: list[tuple[Any, ...]]
    error: Exception | None
    versions: list[str]

    def __init__(self, prefixes: list[str], remote: RemoteOptions) -> None:
        self.asked.append(("allowed", *prefixes, remote.hub))

    def source(self, uri: str, credential: str | None) -> Allowed:
        self.asked.append((uri, credential))
        return self

    def fetch(self, receive: Any, _stop: Stop) -> None:
        if self.error is not None:
            raise self.error
        for name, chunks in FILES.items():
            receive(name, len(b"".join(chunks)), iter(chunks))

    def version(self, _stop: Stop) -> str:
        return self.versions.pop(0) if self.versions else ""

    def is_gone(self, _stop: Stop) -> bool:
        return False

    def signature(self, _stop: Stop) -> bytes:
        return b"bundle"

    def close(self) -> None:
        self.asked.append(("closed",))


@pytest.fixture
def allowed(monkeypatch) -> type[Allowed]:
    Allowed.asked, Allowed.error, Allowed.versions = [], None, []
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr(source_reader, "AllowedSources", Allowed)
    return Allowed


@pytest.mark.parametrize(
    ("error", "code", "reason", "told"),
    [
        (ArtifactError("bad_archive", "no"), Exit.REFUSED, "SOURCE_REFUSED", "bad_archive: no"),
        (ArtifactError("away", "no"), Exit.UNAVAILABLE, "SOURCE_UNREADABLE", "away: no"),
        (OSError(28, "No room"), Exit.USAGE, "USAGE", "cannot write what s3://b/a sends: No room; see TMPDIR"),
    ],
)
def test_what_a_source_did_is_told_as_a_command_does(allowed, error, code, reason, told):
    allowed.error = error
    with pytest.raises(CliError) as raised:
        SourceReader(None).digest("s3://b/a", None, 60.0)
    failure = raised.value.failure
    assert (failure.exit, failure.reason, failure.message, allowed.asked[-1]) == (code, reason, told, ("closed",))
    failure = unreadable("https://kim:secret@h/a/?token=t", ArtifactError("away", "no")).failure
    assert (failure.metadata, "secret" in failure.line()) == ({"finding": "away"}, False), "X1 secret-free"


def test_the_word_to_stop_is_given_at_the_end_too():
    with stopped_after(3600.0) as stop:
        stop.check()
    with pytest.raises(ArtifactError):
        stop.check()
    with stopped_after(0.0) as stop, pytest.raises(ArtifactError):
        stop.check(wait_seconds=60.0)


@pytest.mark.parametrize(
    ("name", "size_bytes", "reason", "permanent"),
    [
        (WEIGHTS, 0, "source_incomplete", False),
        (CONFIG_FILE, 0, "source_incomplete", False),
        (CONFIG_FILE, MAX_CONFIG_BYTES + 1, "too_large", True),
        (WEIGHTS, (16 << 30) + 1, "too_large", True),
        *((name, size_bytes, None, None) for name, size_bytes in ((WEIGHTS, 1), (CONFIG_FILE, MAX_CONFIG_BYTES))),
        (WEIGHTS, MAX_CONFIG_BYTES + 1, None, None),
    ],
)
def test_a_size_that_cannot_be_is_refused_before_anything_is_taken(tmp_path, name, size_bytes, reason, permanent):
    """R16 bounded: a promise of too much is not waited for."""
    arrival = Arrival(Stop(), tmp_path)
    if reason is None:
        arrival.take(name, size_bytes, iter([b"x"]))
        assert (tmp_path / name).read_bytes() == b"x"
        return
    with pytest.raises(ArtifactError) as raised:
        arrival.take(name, size_bytes, iter([b"x"]))
    assert (raised.value.reason, raised.value.permanent, list(tmp_path.iterdir())) == (reason, permanent, [])


def test_no_digest_is_told_of_files_that_changed_while_they_were_read(allowed):
    """R4: it would be that of the configuration of before and the weights of after."""
    allowed.versions = ["1", "2", "2"]
    with pytest.raises(CliError, match="source_changed"):
        SourceReader(None).digest("s3://b/a", None, 60.0)


@pytest.mark.parametrize(
    ("uri", "refusal"),
    [
        *((f"{host}/a/", None) for host in ("https://10.0.0.1", "http://127.0.0.1:80", "http://localhost")),
        *((uri, None) for uri in ("https://example.org/a/", "s3://169.254.169.254/a")),
        ("https://169.254.169.254/a/", "address_not_allowed"),
        ("http://[fe80::1]/a/", "address_not_allowed"),
        ("https://h/a", "invalid_source: 'https://h/a' names no source"),
    ],
)
def test_a_source_is_asked_with_its_credential_and_closed(allowed, uri, refusal):
    """X1: a manifest of somebody else leads to no service that gives credentials away; a bucket is no host."""
    if refusal:
        with pytest.raises(CliError, match=refusal) as raised:
            SourceReader(None).digest(uri, None, 60.0)
        assert (raised.value.failure.exit, allowed.asked) == (Exit.REFUSED, [])
        return
    assert SourceReader(None).digest(uri, "mine", 60.0) == DIGEST
    (_, prefix, _), asked, closed = allowed.asked
    assert (prefix.rstrip("/"), asked, closed) == (uri.replace(":80", "").rstrip("/"), (uri, "mine"), ("closed",))
    with SourceReader(None).fetched(uri, None, 60.0) as folder:
        assert (folder / WEIGHTS).read_bytes() == b"abcde"
        assert (folder / SIGNATURE_FILE).read_bytes() == b"bundle"
    assert not folder.exists()


def test_the_hub_is_that_of_the_flag_or_of_the_environment_and_what_is_none_is_told(allowed, monkeypatch, tmp_path):
    hubs = [(None, None, DEFAULT_HUB), (None, "e://", "e://"), ("f://", "e://", "f://"), ("", "", DEFAULT_HUB)]
    for given, environment, hub in hubs:
        if environment is not None:
            monkeypatch.setenv("HF_ENDPOINT", environment)
        SourceReader(None, given).digest("s3://b/a", None, 60.0)
        assert allowed.asked[-3][-1] == hub
    monkeypatch.undo()
    (tmp_path / "c.yaml").write_text("{")
    for asked in (
        lambda: known_credentials(tmp_path / "c.yaml"),
        lambda: SourceReader(None, "ftp://hub").digest("hf://a/b@" + "0" * 40, None, 60.0),
    ):
        with pytest.raises(CliError) as raised:
            asked()
        assert (raised.value.failure.exit, raised.value.failure.reason) == (Exit.REFUSED, "INVALID_FIELD")
    assert known_credentials(None) is not None
