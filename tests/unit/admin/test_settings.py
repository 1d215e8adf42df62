"""Settings of the admin service beside those that every daemon has."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from registry.admin.settings import AdminSettings

REMOTE, LOGIN = {"etcd": "127.0.0.1:1,10.0.0.1:2"}, {"etcd_user": "u", "etcd_password_file": "f"}
FILES = {"tls_cert": "c", "tls_key": "k"}


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, []),
        ({"listen": "0.0.0.0:1"}, ["read and change everything"]),
        ({"listen": "0.0.0.0:1", **FILES}, ["change everything there: give --tls-ca as well"]),
        ({"listen": "0.0.0.0:1", **FILES, "tls_ca": "a"}, []),
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
