"""Settings that every daemon has: addresses, lists, files, and how etcd is reached."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from registry.etcd3.errors import EtcdUnauthenticated
from registry.etcd3.options import TlsFiles
from registry.runtime.settings import Address, DaemonSettings, List, Listen, go_together, is_loopback

LISTEN: TypeAdapter[Address] = TypeAdapter(Listen)


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("a:1", "a", 1, "a:1"),
        ("0.0.0.0:0", "0.0.0.0", 0, "0.0.0.0:0"),  # noqa: S104 - nothing listens
        ("a:65535", "a", 65535, "a:65535"),
        ("[::1]:80", "::1", 80, "[::1]:80"),
        ("::1:80", "::1", 80, "[::1]:80"),
    ],
)
def test_an_address_is_a_host_and_a_port(text, host, port, shown):
    read = LISTEN.validate_python(text)
    assert (read, str(read)) == (Address(host=host, port=port), shown)
    assert LISTEN.validate_python(read) == read


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:b", "a:-1", "a:65536", "a:1:", "a:1x", "a: 1"])
def test_what_is_no_address_is_told_as_it_was_given(text):
    with pytest.raises(ValidationError) as told:
        LISTEN.validate_python(text)
    assert f"{text!r} is not HOST:PORT" in str(told.value)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_is_one_that_there_is(port):
    with pytest.raises(ValidationError):
        Address(host="a", port=port)


@pytest.mark.parametrize(
    ("value", "parts"), [("a,b", ("a", "b")), ("a", ("a",)), (",a,,b,", ("a", "b")), ("", ()), (["a,b"], ("a,b",))]
)
def test_a_list_has_commas_between_its_parts(value, parts):
    assert TypeAdapter(List).validate_python(value) == parts


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LocalHost", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - nothing listens
        ("::", False),
        ("localhost.example", False),
        ("etcd-0", False),
        ("", False),
    ],
)
def test_only_what_surely_is_this_host_is_taken_for_it(host, is_it):
    """X1 secret-free: a name that has to be looked up may be anybody's tomorrow."""
    assert is_loopback(host) is is_it


@pytest.mark.parametrize(
    ("one", "other", "fits"), [(None, None, True), ("a", "b", True), ("a", None, False), (None, "b", False)]
)
def test_two_flags_of_which_one_says_nothing_without_the_other(one, other, fits):
    if fits:
        go_together("--one", one, "--other", other)
        return
    with pytest.raises(ValueError, match="--one and --other go together"):
        go_together("--one", one, "--other", other)


def daemon(**values: Any) -> DaemonSettings:
    return DaemonSettings(**{"etcd": "127.0.0.1:1,[::1]:2", **values})


def test_etcd_is_reached_in_plain_text_unless_there_are_files():
    plain = daemon().client_options()
    assert (plain.endpoints, plain.tls, plain.user, plain.password) == (("127.0.0.1:1", "[::1]:2"), None, None, None)
    ca, certificate, key = Path("ca"), Path("certificate"), Path("key")
    for given, files in (
        ({"etcd_tls_ca": ca}, TlsFiles(ca=ca)),
        ({"etcd_tls_cert": certificate, "etcd_tls_key": key}, TlsFiles(certificate=certificate, key=key)),
        (
            {"etcd_tls_ca": ca, "etcd_tls_cert": certificate, "etcd_tls_key": key},
            TlsFiles(ca=ca, certificate=certificate, key=key),
        ),
    ):
        assert daemon(**given).client_options().tls == files


def test_the_password_is_read_at_each_login(tmp_path):
    """R13: a rotation needs no restart; a file that cannot be read is a login that fails."""
    file = tmp_path / "password"
    file.write_text(" one\n")
    options = daemon(etcd_user="lora", etcd_password_file=file).client_options()
    assert options.user == "lora"
    assert options.password is not None
    assert options.password() == "one"
    file.write_text("two")
    assert options.password() == "two"
    file.unlink()
    with pytest.raises(EtcdUnauthenticated, match=f"cannot read {file}: No such file"):
        options.password()
    file.write_bytes(b"\xff")
    with pytest.raises(EtcdUnauthenticated, match="is not UTF-8; write the password alone into it"):
        options.password()
    os.truncate(file, 8 << 30)  # X3 given-back: no more of it is read than a password may have
    with pytest.raises(EtcdUnauthenticated, match="it has more than 65536 bytes"):
        options.password()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"etcd": ""}, "at least 1"),
        ({"etcd": "http://a:1"}, "leave the scheme out"),
        ({"etcd": "a:1,b"}, "'b' is not HOST:PORT"),
        ({"prefix": "x"}, "starts with /"),
        ({"prefix": "/x/"}, "does not end with it"),
        ({"prefix": "/"}, "does not end with it"),
        ({"etcd_tls_cert": "c"}, "--etcd-tls-cert and --etcd-tls-key go together"),
        ({"etcd_tls_key": "c"}, "--etcd-tls-cert and --etcd-tls-key go together"),
        ({"etcd_user": "u"}, "--etcd-user and --etcd-password-file go together"),
        ({"etcd_password_file": "f"}, "--etcd-user and --etcd-password-file go together"),
    ],
)
def test_what_makes_no_sense_for_etcd_is_refused(values, says):
    with pytest.raises(ValidationError, match=says):
        daemon(**values)
    assert daemon(prefix="/x").prefix == "/x"


REMOTE, LOGIN = {"etcd": "127.0.0.1:1,10.0.0.1:2"}, {"etcd_user": "u", "etcd_password_file": "f"}


@pytest.mark.parametrize(
    ("values", "is_bare"),
    [
        (REMOTE | LOGIN, True),
        (LOGIN, False),
        (REMOTE, False),
        (REMOTE | LOGIN | {"etcd_tls_ca": "a"}, False),
        (REMOTE | LOGIN | {"etcd_tls_cert": "c", "etcd_tls_key": "k"}, False),
    ],
)
def test_a_password_leaves_this_host_only_encrypted(values, is_bare):
    """X1 secret-free: unless somebody says that the network may be trusted."""
    if is_bare:
        with pytest.raises(ValidationError, match="--insecure where the network may be trusted"):
            daemon(**values)
        [found] = daemon(**values, insecure=True).unprotected()
        assert "unencrypted to 10.0.0.1:2" in found
    else:
        assert daemon(**values).unprotected() == ()
        assert daemon(**values).insecure is False


def test_settings_stay_as_a_process_was_started_with_them():
    """What was checked together is never changed alone."""
    for one, field in ((daemon(), "prefix"), (Address(host="a", port=1), "host")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(one, field, "/other")
