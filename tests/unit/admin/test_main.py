"""The program ``loraplane-admin``: its settings, what it does first, when it stops, and with which code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from pydantic import ValidationError

from registry.admin import main as program
from registry.admin.settings import AdminSettings
from registry.etcd3.errors import EtcdUnauthenticated, TlsFailed
from registry.etcd3.options import TlsFiles
from registry.runtime.http import CannotListen


def settings(**values: Any) -> AdminSettings:
    return AdminSettings(**{"etcd": "127.0.0.1:1", **values})


def test_it_reads_its_settings_before_anything_else_and_is_supervised(monkeypatch):
    """R12: a mistake in a flag is told in plain words; all that follows is logged."""
    told: list[object] = []
    made = settings()

    def read(model: type, **options: object) -> AdminSettings:
        told.append((model, options["program"], options["arguments"]))
        return made

    monkeypatch.setattr(program.sys, "argv", ["loraplane-admin", "--etcd", "x"])
    monkeypatch.setattr(program, "read_settings", read)
    monkeypatch.setattr(program, "spare_collector", lambda: told.append("spared"))
    monkeypatch.setattr(program, "raise_descriptor_limit", lambda: told.append("descriptors"))
    monkeypatch.setattr(program, "configure_logging", lambda: told.append("logs"))
    monkeypatch.setattr(program, "_serve", lambda given: ("serves", given))
    monkeypatch.setattr(program.tracing, "start", lambda name, *_: told.append(f"traces as {name}"))
    monkeypatch.setattr(program.tracing, "stop", lambda: told.append("traces are sent"))
    monkeypatch.setattr(program, "supervise", lambda *given: told.append(given))
    program.main()
    (first, *between, (name, work, exits), last) = told  # type: ignore[misc]
    assert first == (AdminSettings, "loraplane-admin", ["--etcd", "x"])
    assert set(between) == {"spared", "descriptors", "logs", "traces as loraplane-admin"}
    assert last == "traces are sent"
    assert (name, work) == ("loraplane-admin", ("serves", made))
    assert exits == {CannotListen: 2, TlsFailed: 2, EtcdUnauthenticated: 2}


async def test_it_serves_until_a_signal(monkeypatch):
    """R18: the end is told twice, when it begins and when all is closed."""
    told: list[str] = []
    stops: list[Callable[[], object]] = []

    @asynccontextmanager
    async def running(_: AdminSettings) -> AsyncIterator[None]:
        told.append("serves")
        yield
        told.append("closed")

    monkeypatch.setattr(program, "running", running)
    monkeypatch.setattr(program, "on_stop_signal", stops.append)
    with structlog.testing.capture_logs() as logged:
        serving = asyncio.create_task(program._serve(settings()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (told, serving.done()) == (["serves"], False)
        [stop] = stops
        stop()
        await serving
    assert told == ["serves", "closed"]
    assert [line["event"] for line in logged] == ["stopping", "stopped"]


REMOTE, LOGIN = {"etcd": "127.0.0.1:1,10.0.0.1:2"}, {"etcd_user": "u", "etcd_password_file": "f"}
FILES = {"tls_cert": "c", "tls_key": "k"}


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, []),
        ({"listen": "0.0.0.0:1"}, ["read and change everything"]),
        ({"listen": "0.0.0.0:1", **FILES}, ["anybody may change everything there: give --access"]),
        (
            {"listen": "0.0.0.0:1", **FILES, "tls_ca": "a"},
            ["anybody with a certificate of --tls-ca may change"],
        ),
        ({"listen": "0.0.0.0:1", **FILES, "tls_ca": "a", "access": "f"}, []),
        ({"listen": "0.0.0.0:1", **FILES, "access": "f"}, []),
        (
            {"listen": "0.0.0.0:1", "access": "f"},
            ["everything there: give --tls-cert, --tls-key and --access"],
        ),
        ({"listen": "0.0.0.0:1", **REMOTE, **LOGIN}, ["unencrypted to 10.0.0.1:2", "read and change everything"]),
        ({"listen": "127.0.0.1:1", **REMOTE, **LOGIN}, ["unencrypted to 10.0.0.1:2"]),
    ],
)
def test_what_is_open_to_anybody_is_named_and_refused(values, found):
    """X1: each with its remedy."""
    told = settings(**values, insecure=True).unprotected()
    assert len(told) == len(found)
    assert all(words in line for words, line in zip(found, told, strict=True))
    if found:
        with pytest.raises(ValidationError, match="or --insecure"):
            settings(**values)


def test_the_admin_service_is_at_home_unless_somebody_says_otherwise():
    """X1: nobody else reaches an API that everybody may use."""
    usual = settings()
    assert (str(usual.listen), str(usual.http), usual.max_txn_ops) == ("127.0.0.1:7600", "127.0.0.1:7601", 128)


def test_the_names_of_its_pages_are_those_where_it_listens_and_those_that_are_said():
    ports = {"listen": "api.lab.example:1", "http": "pages.lab.example:2"}
    named = settings(**ports, http_names="lora.example.com,b", insecure=True)
    assert named.own_names() == ("api.lab.example", "pages.lab.example", "lora.example.com", "b")


@pytest.mark.parametrize(
    ("field", "least", "most", "usual"),
    [
        ("max_txn_ops", 8, 100_000, 128),
        ("request_retention", 3600, 315_360_000, 86_400),
        ("audit_retention", 86_400, 315_360_000, 30 * 86_400),
    ],
)
def test_numbers_are_neither_too_small_nor_too_large(field, least, most, usual):
    """W3 idempotent: a request is repeated within minutes; W7. Below 8 operations no change fits into a transaction."""
    assert getattr(settings(), field) == usual
    for number in (least, most):
        assert getattr(settings(**{field: number}), field) == number
    for wrong in (least - 1, most + 1):
        with pytest.raises(ValidationError, match=field):
            settings(**{field: wrong})


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"tls_cert": "c"}, "--tls-"),
        ({"tls_key": "k"}, "--tls-"),
        ({"tls_ca": "a"}, "--tls-"),
        ({"token_listen": "127.0.0.1:1"}, "--token-listen needs --access"),
        ({"socket": "s"}, "--socket needs --access"),
        ({"access": "f", "token_listen": "0.0.0.0:1"}, "--token-listen needs --tls-cert and --tls-key"),
    ],
)
def test_ways_in_need_what_tells_who_comes_by_them(values, told):
    """X1: a token that others could read is none. A1. Certificates of the API come together."""
    with pytest.raises(ValidationError, match=told):
        settings(**values)
    assert settings(**{**values, **FILES, "access": "f"}).access is not None


def test_callers_with_tokens_show_no_certificate():
    secure, plain = settings(**FILES, tls_ca="a"), settings()
    own = TlsFiles(None, Path("c"), Path("k"))
    assert (secure.tls(), secure.token_tls()) == (TlsFiles(Path("a"), own.certificate, own.key), own)
    assert (plain.tls(), plain.token_tls()) == (None, None)
