"""The program ``loraplane-admin``: its settings, what it does first, when it stops, and with which code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog.testing
from pydantic import ValidationError

from registry.admin import main as program
from registry.admin.settings import AdminSettings
from registry.etcd3.errors import EtcdUnauthenticated, TlsFailed
from registry.etcd3.options import TlsFiles
from registry.runtime.http import CannotListen


def test_it_reads_its_settings_before_anything_else_and_is_supervised(monkeypatch):
    """R12: a mistake in a flag is told in plain words; all that follows is logged."""
    told: list[object] = []
    settings = AdminSettings(etcd="127.0.0.1:1")  # type: ignore[arg-type]

    def read(model: type, **options: object) -> AdminSettings:
        told.append((model, options["program"], options["arguments"]))
        return settings

    monkeypatch.setattr(program.sys, "argv", ["loraplane-admin", "--etcd", "x"])
    monkeypatch.setattr(program, "read_settings", read)
    monkeypatch.setattr(program, "spare_collector", lambda: told.append("spared"))
    monkeypatch.setattr(program, "raise_descriptor_limit", lambda: told.append("descriptors"))
    monkeypatch.setattr(program, "configure_logging", lambda: told.append("logs"))
    monkeypatch.setattr(program, "_serve", lambda given: ("serves", given))
    monkeypatch.setattr(program, "supervise", lambda *given: told.append(given))
    program.main()
    (first, *between, (name, work, exits)) = told  # type: ignore[misc]
    assert first == (AdminSettings, "loraplane-admin", ["--etcd", "x"])
    assert set(between) == {"spared", "descriptors", "logs"}
    assert (name, work) == ("loraplane-admin", ("serves", settings))
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
        serving = asyncio.create_task(program._serve(AdminSettings(etcd="127.0.0.1:1")))  # type: ignore[arg-type]
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
    values = {"etcd": "127.0.0.1:1", **values}
    told = AdminSettings(**values, insecure=True).unprotected()
    assert len(told) == len(found)
    assert all(words in line for words, line in zip(found, told, strict=True))
    if found:
        with pytest.raises(ValidationError, match="or --insecure"):
            AdminSettings(**values)


def test_the_admin_service_is_at_home_unless_somebody_says_otherwise():
    """X1: nobody else reaches an API that everybody may use."""
    settings = AdminSettings(etcd="127.0.0.1:1")  # type: ignore[arg-type]
    assert (str(settings.listen), str(settings.http), settings.max_txn_ops) == ("127.0.0.1:7600", "127.0.0.1:7601", 128)


def test_the_names_of_its_pages_are_those_where_it_listens_and_those_that_are_said():
    values = {"listen": "api.lab.example:1", "http": "pages.lab.example:2", "http_names": "lora.example.com,b"}
    settings = AdminSettings(etcd="127.0.0.1:1", insecure=True, **values)  # type: ignore[arg-type]
    assert settings.own_names() == ("api.lab.example", "pages.lab.example", "lora.example.com", "b")


@pytest.mark.parametrize(("number", "fits"), [(7, False), (8, True), (100_000, True), (100_001, False)])
def test_a_transaction_has_room_for_a_change_and_an_end(number, fits):
    """`--max-txn-ops` of etcd is 128 by itself; below 8 no change fits."""
    if fits:
        assert AdminSettings(etcd="127.0.0.1:1", max_txn_ops=number).max_txn_ops == number  # type: ignore[arg-type]
        return
    with pytest.raises(ValidationError):
        AdminSettings(etcd="127.0.0.1:1", max_txn_ops=number)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [{"tls_cert": "c"}, {"tls_key": "k"}, {"tls_ca": "a"}])
def test_certificates_of_the_api_come_together(values):
    with pytest.raises(ValidationError, match="--tls-"):
        AdminSettings(etcd="127.0.0.1:1", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "least", "usual"), [("request_retention", 3600, 86_400), ("audit_retention", 86_400, 30 * 86_400)]
)
def test_records_of_changes_are_kept_for_a_time_that_is_not_too_short(field, least, usual):
    """W3 idempotent: a request is repeated within minutes; W7."""
    assert getattr(AdminSettings(etcd="127.0.0.1:1"), field) == usual  # type: ignore[arg-type]
    assert getattr(AdminSettings(etcd="127.0.0.1:1", **{field: least}), field) == least  # type: ignore[arg-type]
    for wrong in (least - 1, 315_360_001):
        with pytest.raises(ValidationError, match=field):
            AdminSettings(etcd="127.0.0.1:1", **{field: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"token_listen": "127.0.0.1:1"}, "--token-listen needs --access"),
        ({"socket": "s"}, "--socket needs --access"),
        ({"access": "f", "token_listen": "0.0.0.0:1"}, "--token-listen needs --tls-cert and --tls-key"),
    ],
)
def test_ways_in_need_what_tells_who_comes_by_them(values, told):
    """X1: a token that others could read is none. A1."""
    with pytest.raises(ValidationError, match=told):
        AdminSettings(etcd="127.0.0.1:1", **values)  # type: ignore[arg-type]
    whole = {**values, "access": "f", **FILES}
    assert AdminSettings(etcd="127.0.0.1:1", **whole).access is not None  # type: ignore[arg-type]


def test_callers_with_tokens_show_no_certificate():
    settings = AdminSettings(etcd="127.0.0.1:1", **FILES, tls_ca="a")  # type: ignore[arg-type]
    plain = AdminSettings(etcd="127.0.0.1:1")  # type: ignore[arg-type]
    assert (settings.tls(), settings.token_tls()) == (
        TlsFiles(Path("a"), Path("c"), Path("k")),
        TlsFiles(None, Path("c"), Path("k")),
    )
    assert (plain.tls(), plain.token_tls()) == (None, None)
