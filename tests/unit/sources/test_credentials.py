"""Which credential a name stands for, where its secret comes from, and in which form it is sent."""

from __future__ import annotations

import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import parse_qs

import httpx
import pytest
import yaml

from registry.model.source_uri import parse_source
from registry.sources import credentials as module
from registry.sources import credentials_file
from registry.sources.base import StoreError
from registry.sources.credentials import Credentials, HeldCredential, fetch_secret
from registry.sources.credentials_file import (
    Entry,
    EnvSecret,
    ExchangedSecret,
    ExecSecret,
    FileSecret,
    NoSecret,
    Secret,
    SecretError,
    read_credentials,
)
from tests.support.web import Exchange, Site, serving
from tests.unit.sources.conftest import refused

MOST = 64 << 10
BOUND: Any = ("s3://team/",)
SOURCE = parse_source("s3://team/a")


@pytest.fixture
def hold_team() -> tuple[Credentials, HeldCredential]:
    """Credentials of one, for the bucket of a team: its secret is the variable SECRET."""
    credentials = Credentials({"team": EnvSecret(kind="env", prefixes=BOUND, variable="SECRET")})
    held = credentials.hold("team", SOURCE)
    assert held is not None
    return credentials, held


def text_of(entry: Entry) -> str:
    found = fetch_secret(entry)
    assert found is not None
    return found.text


def why_not(entry: Entry) -> str:
    with pytest.raises(SecretError) as told:
        fetch_secret(entry)
    assert "CANARY" not in "".join(traceback.format_exception(told.value))
    return str(told.value)


def test_a_file_is_read_each_time_up_to_64_kib(tmp_path, monkeypatch):
    """R16 bounded; what a secret is rotated to is taken. A fault of ours is no file that cannot be read."""
    file = tmp_path / "secret"
    entry = FileSecret(kind="file", prefixes=BOUND, path=file)
    assert why_not(entry) == f"the file {file} cannot be read: No such file or directory"
    for text in ("one", "x" * MOST):
        file.write_text(f" {text}\n" if text == "one" else text)
        assert text_of(entry) == text
    for text, why in (("x" * (MOST + 1), f"has more than {MOST} bytes"), ("\n", "is empty or not there")):
        file.write_text(text)
        assert why_not(entry) == f"the file {why}"
    monkeypatch.setattr(Path, "open", mock.Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        fetch_secret(entry)


def test_where_nothing_is_sent_nothing_is_fetched_and_nothing_is_had_anew():
    held = HeldCredential("open", NoSecret(kind="none", prefixes=BOUND))
    assert (held.secret(), held.authorization(), held.renew()) == (None, None, False)
    assert held.prefixes[0].covers("s3", "team", SOURCE.path)


@pytest.fixture
def ran(monkeypatch) -> dict[str, Any]:
    """What a program was started with; `result` is what comes of it."""
    seen: dict[str, Any] = {}

    def run(command: tuple[str, ...], **options: object) -> SimpleNamespace:
        seen.update(options, command=command)
        if isinstance(seen["result"], Exception):
            raise seen["result"]
        return seen["result"]

    monkeypatch.setattr(subprocess, "run", run)
    return seen


PROGRAM = ExecSecret(kind="exec", prefixes=BOUND, command=("vault", "read"), timeout_seconds=7.0)


def test_a_program_prints_its_secret_and_nothing_else_of_it_is_heard(ran):
    """X1 secret-free: what it writes to the standard error could be one; it reads nothing of ours."""
    ran["result"] = SimpleNamespace(returncode=0, stdout=b"one\n")
    assert text_of(PROGRAM) == "one"
    assert ran["command"] == ("vault", "read")
    ends = (ran["stdin"], ran["stdout"], ran["stderr"])
    assert ends == (subprocess.DEVNULL, subprocess.PIPE, subprocess.DEVNULL)
    assert (ran["timeout"], ran["check"]) == (7.0, False)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (SimpleNamespace(returncode=3, stdout=b"CANARY"), "the program ended with 3"),
        (SimpleNamespace(returncode=0, stdout=b""), "what the program printed is empty or not there"),
        (subprocess.TimeoutExpired("secret", 7.0), "the program did not end within 7 s"),
        (PermissionError("secret"), "the program cannot be started"),
        (ValueError("embedded null byte"), "the program cannot be started"),
    ],
    ids=["failed", "nothing", "too long", "not started", "no name"],
)
def test_a_program_that_gives_no_secret_is_told_without_what_it_said(ran, result, why):
    """X1, R16: but a fault of ours is told."""
    ran["result"] = result
    assert why_not(PROGRAM) == why
    ran["result"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        fetch_secret(PROGRAM)


@pytest.fixture
def site() -> Iterator[Site]:
    """A token endpoint."""
    with serving(Site()) as site:
        yield site


@pytest.fixture
def clients(monkeypatch) -> list[dict[str, Any]]:
    """The options of each client that was made. Reading all authorities would take longer than the rest."""
    made, client = list[dict[str, Any]](), httpx.Client

    def noted(**options: Any) -> httpx.Client:
        made.append(options)
        return client(**options | {"verify": False})

    monkeypatch.setattr(httpx, "Client", noted)
    monkeypatch.setattr(httpx, "create_ssl_context", lambda: "authorities")
    return made


def exchanged(site: Site, file: Path, **options: object) -> ExchangedSecret:
    return ExchangedSecret(
        kind="token_exchange", prefixes=BOUND, url=f"{site.url}/token", subject_token_file=file, **options
    )


@pytest.fixture
def subject(tmp_path) -> Path:
    (tmp_path / "subject").write_text("subject\n")
    return tmp_path / "subject"


def answering(status: int, content: bytes, asked: list[str] | None = None) -> Callable[[Exchange], None]:
    def answer(exchange: Exchange) -> None:
        body = exchange.body()
        if asked is not None and body is not None:
            asked.append(body.decode())
        exchange.send(status, content, Location="/elsewhere")

    return answer


def test_a_token_is_exchanged_for_another_at_one_place_alone(site, subject, clients, monkeypatch):
    """X1, RFC 8693: not through a proxy."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    asked: list[str] = []
    site.answers["/token"] = answering(200, b'{"access_token": "two", "token_type": "Bearer"}', asked)
    assert text_of(exchanged(site, subject)) == "two"
    assert text_of(exchanged(site, subject, audience="store", scope="read", timeout_seconds=9.0)) == "two"
    fields = {
        "grant_type": ["urn:ietf:params:oauth:grant-type:token-exchange"],
        "subject_token": ["subject"],
        "subject_token_type": ["urn:ietf:params:oauth:token-type:jwt"],
    }
    assert [parse_qs(one) for one in asked] == [fields, fields | {"audience": ["store"], "scope": ["read"]}]
    assert [(one["trust_env"], one["verify"], one["timeout"]) for one in clients] == [
        (False, "authorities", 10.0),
        (False, "authorities", 9.0),
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (answering(400, b"CANARY"), "the token endpoint answered 400"),
        (answering(302, b""), "the token endpoint answered 302"),
        (answering(201, b'{"access_token": "two"}'), "the token endpoint answered 201"),
        (answering(200, b'{"token": "two"}'), "the token endpoint's answer is empty or not there"),
        (answering(200, b"CANARY"), "the token endpoint's answer is empty or not there"),
        (lambda exchange: exchange.cut(), "the token endpoint cannot be reached"),
    ],
    ids=["refused", "redirected", "created", "other field", "no object", "broken off"],
)
def test_an_answer_without_a_token_is_told_and_not_followed(site, subject, clients, answer, why):
    """X1, R16: a redirect would send the subject's token elsewhere."""
    site.answers["/token"] = answer
    assert why_not(exchanged(site, subject)) == why
    assert site.paths == ["/token"]


def test_no_more_of_an_answer_is_read_than_a_secret_can_have():
    """R16 bounded: whoever answers may do so without end."""
    read: list[int] = []

    def chunks() -> Iterator[bytes]:
        for number in range(99):
            read.append(number)
            yield b" " * (MOST // 2)

    assert module._token(SimpleNamespace(status_code=200, iter_bytes=chunks)) == b""  # type: ignore[arg-type]
    assert read == [0, 1, 2]
    whole = b'{"access_token": "two"}'.ljust(MOST)
    assert module._token(SimpleNamespace(status_code=200, iter_bytes=lambda: iter([whole]))) == b"two"  # type: ignore[arg-type]


def test_what_keeps_a_token_from_being_exchanged_is_told(site, subject, clients, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    assert why_not(exchanged(site, gone)) == f"the file {gone} cannot be read: No such file or directory"

    def unreadable() -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(httpx, "create_ssl_context", unreadable)
    found = why_not(exchanged(site, subject))
    assert found == "the authorities that SSL_CERT_FILE names cannot be read: No such file or directory"


def test_a_credential_is_held_for_what_it_is_bound_to_by_what_the_file_says_now(hold_team):
    """X1 secret-free: and for nothing else; what keeps it from being used is told with its name."""
    credentials, held = hold_team
    assert held.name == "team"
    why = held.unavailable("it cannot be read")
    assert (why.reason, why.permanent) == ("credential_unavailable", False)
    assert "credential 'team' cannot be used: it cannot be read" in why.message
    assert credentials.hold(None, SOURCE) is None
    for name, uri, reason in (
        ("team", "s3://other/a", "credential_not_bound"),
        ("nobody", "s3://team/a", "unknown_credential"),
    ):
        error = refused(credentials.hold, name, parse_source(uri))
        assert (error.reason, error.permanent) == (reason, True)
    credentials.use({})
    assert "no credential 'team' is known here" in refused(credentials.hold, "team", SOURCE).message


def test_a_secret_is_fetched_when_it_is_needed_and_once_more_when_it_is_refused(hold_team, monkeypatch):
    """A staging reads one and the same secret, though it is rotated meanwhile."""
    _, held = hold_team
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
        ("x" * (MOST + 1), f"the variable has more than {MOST} bytes"),
        ("\udcff", "the variable is not UTF-8"),
    ],
)
def test_a_secret_that_cannot_be_had_is_told_and_not_shown(hold_team, monkeypatch, secret, why):
    """X1."""
    monkeypatch.delenv("SECRET", raising=False)
    if secret is not None:
        monkeypatch.setenv("SECRET", secret)
    error = refused(hold_team[1].secret)
    assert (error.reason, error.permanent) == ("credential_unavailable", False)
    assert error.message.startswith(f"the credential 'team' cannot be used: {why};")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("one", "Bearer one"),
        ('{"token": "one"}', "Bearer one"),
        ('{"access_token": "one"}', "Bearer one"),
        ('{"AccessToken": "one", "token": "two"}', "Bearer two"),
        ('{"token": "", "access_token": "one"}', "Bearer one"),
        ('{"username": "me", "password": "pä ss"}', "Basic bWU6cMOkIHNz"),
        ('{"username": "me", "password": "p", "token": "one"}', "Basic bWU6cA=="),
        ('{"username": "me", "token": "one"}', "Bearer one"),
        ('{"password": "p", "token": "one"}', "Bearer one"),
        ('["a"]', 'Bearer ["a"]'),
    ],
)
def test_a_secret_is_sent_as_a_token_or_as_a_name_and_a_password(text, value):
    assert Secret(text).authorization() == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"username": "me"}', "it has neither a token nor a username and password"),
        ('{"token": 5}', "it has neither a token nor a username and password"),
        ('{"token": "a b"}', "its token is empty, or has characters that cannot stand in a header"),
        ("a\nb", "its token is empty, or has characters that cannot stand in a header"),
        ("a\x7f", "its token is empty, or has characters that cannot stand in a header"),
        ("", "it has neither a token nor a username and password"),
    ],
)
def test_what_cannot_be_sent_is_told_and_not_shown(monkeypatch, text, why):
    """X1."""
    with pytest.raises(SecretError, match=why):
        Secret(text).authorization()
    monkeypatch.setattr(module, "fetch_secret", lambda _: Secret(text))
    error = refused(HeldCredential("team", NoSecret(kind="none", prefixes=BOUND)).authorization)
    assert (error.reason, error.permanent, why in error.message) == ("credential_unavailable", False, True)


def test_the_fields_of_a_secret_are_known_in_either_spelling():
    assert Secret('{"AccessKeyId": "a", "secret_access_key": "b", "expires": 5}').fields() == {
        "accesskeyid": "a",
        "secretaccesskey": "b",
    }
    assert "secret" not in repr(Secret("secret"))


HEAD = "team: {kind: token_exchange, prefixes: ['s3://team'], subject_token_file: /f, url: '%s'}"


@pytest.mark.parametrize(
    ("url", "is_taken"),
    [
        ("https://idp.example/token", True),
        ("http://127.0.0.1:8200/token", True),
        ("http://localhost:8200/token", True),
        ("http://idp.example/token", False),
        ("http://localhost.evil.example/token", False),
        ("https://", False),
    ],
)
def test_a_subject_token_is_sent_over_tls_or_to_this_host(tmp_path, url, is_taken):
    """X1."""
    file = tmp_path / "credentials.yaml"
    file.write_text(HEAD % url)
    if is_taken:
        assert read_credentials(file)["team"].url == url  # type: ignore[union-attr]
        return
    with pytest.raises(StoreError, match=str(file)):
        read_credentials(file)


def test_a_file_of_credentials_that_cannot_be_read_says_where_and_quotes_nothing(tmp_path, monkeypatch):
    """X1, X2: it may be empty or as large as it may be, but not missing; a fault of ours is told."""
    file = tmp_path / "credentials.yaml"
    file.write_text("n" * 96 + ": {kind: none, prefixes: ['s3://b']}")
    assert list(read_credentials(file)) == ["n" * 96], "as long as in a record"
    file.unlink()
    monkeypatch.setattr(credentials_file, "MAX_FILE_BYTES", 100)
    with pytest.raises(StoreError, match="No such file or directory"):
        read_credentials(file)
    for content in (b"", b"#" * 100):
        file.write_bytes(content)
        assert read_credentials(file) == {}
    for content, why in (
        (b"a: 1\nb: [", "it is neither YAML nor JSON (line 2)"),
        (b"a: 2020-13-99", "it is neither YAML nor JSON"),
        (b"#" * 101, "it has more than 100 bytes"),
        (b"team: {kind: none}", None),
    ):
        file.write_bytes(content)
        with pytest.raises(StoreError) as told:
            read_credentials(file)
        head, message = f"--credentials {file}: ", str(told.value)
        assert message.startswith(head)
        assert why in {None, message.removeprefix(head)}
    for error in (RecursionError(), ZeroDivisionError()):
        monkeypatch.setattr(yaml, "safe_load", mock.Mock(side_effect=error))
        with pytest.raises(StoreError if isinstance(error, RecursionError) else ZeroDivisionError):
            read_credentials(file)


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
        "'': {kind: none, prefixes: ['s3://b']}",
        "a" * 97 + ": {kind: none, prefixes: ['s3://b']}",
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
    with pytest.raises(StoreError, match=f"--credentials {file}") as told:
        read_credentials(file)
    assert "CANARY" not in "".join(traceback.format_exception(told.value))
