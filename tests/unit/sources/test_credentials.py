"""Which credential a record's name stands for."""

from __future__ import annotations

import pytest

from registry.model.source_uri import parse_source
from registry.sources.base import ArtifactError
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials


@pytest.fixture
def credentials(tmp_path) -> Credentials:
    """One, for the bucket of a team."""
    file = tmp_path / "credentials.yaml"
    file.write_text("team: {kind: file, prefixes: ['s3://team/'], path: /nowhere/secret}\n")
    return Credentials(read_credentials(file))


def test_a_credential_is_held_for_what_it_is_bound_to(credentials):
    """X1 secret-free: and for nothing else; what keeps it from being used is told with its name."""
    held = credentials.hold("team", parse_source("s3://team/a"))
    assert held.name == "team"
    why = held.unavailable("it cannot be read")
    assert (why.reason, why.permanent) == ("credential_unavailable", False)
    assert "credential 'team' cannot be used: it cannot be read" in why.message
    assert credentials.hold(None, parse_source("s3://team/a")) is None
    for name, uri, reason in (
        ("team", "s3://other/a", "credential_not_bound"),
        ("nobody", "s3://team/a", "unknown_credential"),
    ):
        with pytest.raises(ArtifactError) as refused:
            credentials.hold(name, parse_source(uri))
        assert (refused.value.reason, refused.value.permanent) == (reason, True)


def test_who_reads_the_file_again_knows_what_it_says_now(credentials):
    credentials.use({})
    with pytest.raises(ArtifactError, match="no credential 'team' is known here"):
        credentials.hold("team", parse_source("s3://team/a"))
