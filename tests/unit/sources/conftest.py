"""What tests of sources share: nothing is waited for, what a source hands over, and credentials."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from registry.etcd3.backoff import Backoff
from registry.model.source_uri import parse_source
from registry.sources import failures
from registry.sources.base import ArtifactError, Source, Stop
from registry.sources.credentials import Credentials, HeldCredential
from registry.sources.credentials_file import read_credentials


@pytest.fixture(autouse=True)
def _at_once(monkeypatch) -> None:
    """What is tried again is tried at once."""
    monkeypatch.setattr(failures, "_WAIT", Backoff(base_seconds=0.0, cap_seconds=0.0))


def got(source: Source, stop: Stop | None = None) -> dict[str, bytes]:
    """The files that a source hands over, each as long as it was said to be."""
    files: dict[str, bytes] = {}

    def receive(name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        files[name] = b"".join(chunks)
        assert len(files[name]) == size_bytes

    source.fetch(receive, stop or Stop())
    return files


def refused(ask: Callable[..., object], *arguments: object, **options: object) -> ArtifactError:
    with pytest.raises(ArtifactError) as told:
        ask(*arguments, **options)
    return told.value


def refusal(source: Source, stop: Stop | None = None) -> ArtifactError:
    return refused(got, source, stop)


@pytest.fixture
def hold(tmp_path, monkeypatch):
    """Holds the credential `team`: the variable SECRET, which has this value, bound to these prefixes."""

    def held(uri: str, secret: object, *prefixes: str) -> HeldCredential:
        monkeypatch.setenv("SECRET", secret if isinstance(secret, str) else json.dumps(secret))
        file = tmp_path / "credentials.yaml"
        file.write_text(f"team: {{kind: env, variable: SECRET, prefixes: {json.dumps(prefixes)}}}")
        found = Credentials(read_credentials(file)).hold("team", parse_source(uri))
        assert found is not None
        return found

    return held
