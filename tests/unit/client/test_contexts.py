"""The admin service that a program means where it names none: by variables, or by contexts of `loraplane config`."""

from __future__ import annotations

from pathlib import Path

import pytest

from loraplane import AsyncRegistry, FailedPrecondition, InvalidArgument, Registry, Tls, TokenCommand, TokenFile
from registry.cli.contexts import ContextFile
from registry.client.contexts import AdminContext, Connection, connection_of, read_contexts
from registry.model.errors import Reason

PROD = AdminContext("prod:7600", tls_ca="/ca.pem", tls_cert="/c.pem", tls_key="/k.pem", token_file="/token")  # noqa: S106
TEST = AdminContext("test:7600", token_command="helper --for 'a b'")  # noqa: S106
OF_PROD = Connection("prod:7600", Tls(Path("/ca.pem"), Path("/c.pem"), Path("/k.pem")), TokenFile(Path("/token")))
OF_TEST = Connection("test:7600", None, TokenCommand(["helper", "--for", "a b"]))


@pytest.fixture(autouse=True)
def saved(monkeypatch, tmp_path) -> Path:
    """The file of contexts, prod being the current one; no variable but what a test sets."""
    for name in ("ADMIN", "CONTEXT", "TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN_FILE", "TOKEN_COMMAND", "TOKEN_SECONDS"):
        monkeypatch.delenv(f"LORAPLANE_{name}", raising=False)
    path = tmp_path / "own/contexts.json"
    monkeypatch.setenv("LORAPLANE_CONFIG", str(path))
    ContextFile("prod", {"prod": PROD, "test": TEST}, path=path).save()
    return path


def test_what_is_named_goes_before_variables_and_these_before_the_current_context(monkeypatch):
    """Of a context, and with an address in a variable, credentials go along; what is given goes before them."""
    assert connection_of("", None, None) == OF_PROD
    mine = (Tls(ca=Path("/mine.pem")), TokenFile("/mine"))
    assert connection_of("", *mine) == Connection("prod:7600", *mine)
    assert connection_of("here:1", None, None) == Connection("here:1", None, None)
    monkeypatch.setenv("LORAPLANE_CONTEXT", "test")
    assert connection_of("", None, None) == OF_TEST
    monkeypatch.setenv("LORAPLANE_ADMIN", "env:7600")
    with pytest.raises(InvalidArgument, match="both name an admin service") as told:
        connection_of("", None, None)
    assert told.value.field == "address"
    monkeypatch.delenv("LORAPLANE_CONTEXT")
    assert connection_of("", None, None) == Connection("env:7600", None, None)
    monkeypatch.setenv("LORAPLANE_TLS_CA", "/ca.pem")
    monkeypatch.setenv("LORAPLANE_TOKEN_FILE", "/token")
    assert connection_of("", None, None) == Connection("env:7600", Tls(ca=Path("/ca.pem")), TokenFile(Path("/token")))


def test_nothing_is_guessed_where_nothing_is_named(saved, monkeypatch):
    monkeypatch.setenv("LORAPLANE_CONTEXT", "none")
    with pytest.raises(InvalidArgument, match=r"there is no context 'none' \(known: prod, test\)"):
        Registry()
    monkeypatch.delenv("LORAPLANE_CONTEXT")
    saved.write_text('{"current": "", "contexts": {}}')
    for kind in (Registry, AsyncRegistry):
        with pytest.raises(InvalidArgument, match="name the admin service: HOST:PORT, LORAPLANE_ADMIN, or"):
            kind()
    saved.unlink()
    assert read_contexts(saved).contexts == {}
    with pytest.raises(InvalidArgument, match="there is none yet"):
        read_contexts(saved).named("a")


def test_contexts_that_others_may_write_or_nobody_can_read_are_refused(saved, monkeypatch):
    """Also a token that is named twice, or whose command is none."""
    saved.chmod(0o666)
    with pytest.raises(FailedPrecondition, match="may be written by others") as told:
        Registry()
    assert told.value.reason is Reason.STACK_NOT_TRUSTED
    saved.chmod(0o600)
    of_one = '{"current": "a", "contexts": {"a": %s}}'
    wrong = [of_one % '{"adress": "a:1"}', of_one % '{"address": 1}', of_one % "7", '{"current": "a"}', "{", "[]", "["]
    for content in [*wrong, "[" * 60_000, '{"contexts": {}}', '{"current": "", "contexts": []}']:
        saved.write_text(content)
        with pytest.raises(InvalidArgument, match="has not the form of loraplane config"):
            Registry()
    monkeypatch.setenv("LORAPLANE_ADMIN", "127.0.0.1:7600")
    monkeypatch.setenv("LORAPLANE_TOKEN_COMMAND", "helper 'open")
    with pytest.raises(InvalidArgument, match="quote it as for a shell"):
        Registry()
    monkeypatch.setenv("LORAPLANE_TOKEN_FILE", "/token")
    with pytest.raises(InvalidArgument, match="name one"):
        Registry()


def test_a_token_command_has_two_seconds_unless_its_host_says_more(monkeypatch):
    assert OF_TEST.token == TokenCommand(["helper", "--for", "a b"], 2.0)
    monkeypatch.setenv("LORAPLANE_CONTEXT", "test")
    monkeypatch.setenv("LORAPLANE_TOKEN_SECONDS", "7.5")
    assert connection_of("", None, None).token == TokenCommand(["helper", "--for", "a b"], 7.5)
    for wrong in ("soon", "0", "-1", "61", "nan"):
        monkeypatch.setenv("LORAPLANE_TOKEN_SECONDS", wrong)
        with pytest.raises(InvalidArgument, match=f"LORAPLANE_TOKEN_SECONDS={wrong}: write seconds, more than 0 and"):
            connection_of("", None, None)
