"""Which credential a record's name stands for."""

from __future__ import annotations

import traceback

import pytest

from registry.model.source_uri import parse_source
from registry.sources.base import ArtifactError, StoreError
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import MAX_SECRET_BYTES, read_credentials


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


FIRST = "team: {kind: env, variable: SECRET, prefixes: ['s3://team/']}\n"


@pytest.fixture
def held(tmp_path):
    """A credential whose secret is the variable SECRET."""
    file = tmp_path / "credentials.yaml"
    file.write_text(FIRST)
    return Credentials(read_credentials(file)).hold("team", parse_source("s3://team/a"))


def test_a_secret_is_fetched_when_it_is_needed_and_once_more_when_it_is_refused(held, monkeypatch):
    """A staging reads one and the same secret, though it is rotated meanwhile."""
    assert not held.renew(), "nothing was fetched that could be old"
    for value in (" one\n", "two", "three"):
        monkeypatch.setenv("SECRET", value)
        assert held.authorization() == "Bearer one"
    assert held.renew()
    assert held.authorization() == "Bearer three"
    assert not held.renew()


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        (None, "the variable is empty or not there"),
        (" \n", "the variable is empty or not there"),
        ("x" * (MAX_SECRET_BYTES + 1), f"the variable has more than {MAX_SECRET_BYTES} bytes"),
        ("\udcff", "the variable is not UTF-8"),
    ],
)
def test_a_secret_that_cannot_be_had_is_told_and_not_shown(held, monkeypatch, secret, why):
    """X1."""
    monkeypatch.delenv("SECRET", raising=False)
    if secret is not None:
        monkeypatch.setenv("SECRET", secret)
    with pytest.raises(ArtifactError) as refused:
        held.secret()
    assert (refused.value.reason, refused.value.permanent) == ("credential_unavailable", False)
    assert refused.value.message.startswith(f"the credential 'team' cannot be used: {why};")


@pytest.mark.parametrize(
    "entry",
    [
        "team: {kind: env, variable: SECRET, prefixes: [5]}",
        "team: {kind: env, variable: SECRET, prefixes: [null]}",
        "team: {kind: env, variable: SECRET, prefixes: []}",
        "team: {kind: env, variable: SECRET, prefixes: ['s3://team'], store: {endpoint: 5}}",
        "team: {kind: env, variable: SECRET, prefixes: ['s3://team'], store: {endpoint: 'nowhere'}}",
        "a: {kind: file, path: x}",
        "a: {kind: file, path: x, prefixes: ['file:///x']}",
        "a: {kind: file, path: x, prefixes: ['https://u:tCANARY@host/']}",
        "a: {kind: env, variable: 'tCANARY x', prefixes: ['s3://b']}",
        "a: {kind: token, token: tCANARY, prefixes: ['s3://b']}",
        "a: {kind: env, variable: X, secret: tCANARY, prefixes: ['s3://b']}",
        "a: {kind: exec, command: [], prefixes: ['s3://b']}",
        "a: {kind: token_exchange, url: 'https://[bad', subject_token_file: x, prefixes: ['s3://b']}",
        "a: {kind: none, prefixes: ['s3://b'], store: {endpoint: 'https://u:tCANARY@host'}}",
        "a: {kind: none, prefixes: ['s3://b'], store: {endpoint: 'http://host:99999999'}}",
        "a: {kind: none, prefixes: ['s3://b'], store: {endpoint: 'http://[bad'}}",
        "tCANARY",
        "- tCANARY",
        "a: !!python/object/apply:os.system ['tCANARY']",
        "a: 'tCANARY",
        "a: " + "[" * 5000,
        "CANARY: " + "9" * 5000,
    ],
)
def test_an_entry_that_makes_no_sense_is_an_error_of_its_file(tmp_path, entry):
    """R13, X1: a start says what is wrong, and quotes nothing: a secret may stand where only its place should."""
    file = tmp_path / "credentials.yaml"
    file.write_text(entry)
    with pytest.raises(StoreError, match=f"--credentials {file}") as refused:
        read_credentials(file)
    assert "CANARY" not in "".join(traceback.format_exception(refused.value))
