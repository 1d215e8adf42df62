"""Settings that every daemon has: addresses, lists, files, and how etcd is reached."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from registry.etcd3.errors import EtcdUnauthenticated
from registry.etcd3.options import TlsFiles
from registry.runtime.settings import Address, DaemonSettings, List, Listen, is_loopback

LISTEN: TypeAdapter[Address] = TypeAdapter(Listen)


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        *(("a:1", "a", 1, "a:1"), ("a:65535", "a", 65535, "a:65535"), ("a:0", "a", 0, "a:0")),
        *(("[::1]:80", "::1", 80, "[::1]:80"), ("::1:80", "::1", 80, "[::1]:80")),
        *((text, None, 0, "") for text in ("", "a", "a:", ":1", "a:b", "a:-1", "a:65536", "a:1:", "a:1x", "a: 1")),
    ],
)
def test_an_address_is_a_host_and_a_port(text, host, port, shown):
    if host is None:
        with pytest.raises(ValidationError) as told:
            LISTEN.validate_python(text)
        assert f"{text!r} is not HOST:PORT" in str(told.value)
        return
    read = LISTEN.validate_python(text)
    assert (read, str(read), LISTEN.validate_python(read)) == (Address(host=host, port=port), shown, read)
    for wrong in (-1, 65536):
        with pytest.raises(ValidationError):
            Address(host="a", port=wrong)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LocalHost"])
def test_only_what_surely_is_this_host_is_taken_for_it(host):
    """X1 secret-free: a name that has to be looked up may be anybody's tomorrow."""
    assert is_loopback(host)
    others = ("10.0.0.1", "0.0.0.0", "::", "localhost.example", "etcd-0", "")  # noqa: S104 - nothing listens
    assert [other for other in others if is_loopback(other)] == []


def daemon(**values: Any) -> DaemonSettings:
    return DaemonSettings(**{"etcd": "127.0.0.1:1,[::1]:2", **values})


def test_etcd_is_reached_in_plain_text_unless_there_are_files():
    """Parts of a list have commas between them. What was checked together is never changed alone."""
    plain = daemon().client_options()
    assert (plain.endpoints, plain.tls, plain.user, plain.password) == (("127.0.0.1:1", "[::1]:2"), None, None, None)
    assert [TypeAdapter(List).validate_python(one) for one in (",a,,b,", "", ["a,b"])] == [("a", "b"), (), ("a,b",)]
    files = {"ca": Path("ca"), "certificate": Path("certificate"), "key": Path("key")}
    flags = dict(zip(files, ("etcd_tls_ca", "etcd_tls_cert", "etcd_tls_key"), strict=True))
    for some in (("ca",), ("certificate", "key"), (*files,)):
        reached = daemon(**{flags[one]: files[one] for one in some})
        assert reached.client_options().tls == TlsFiles(**{one: files[one] for one in some})
        ends = {"--etcd-tls-ca": "ca", "--etcd-tls-cert": "certificate"}
        assert reached.certificates() == {flag: files[one] for flag, one in ends.items() if one in some}
    for one, field in ((daemon(), "prefix"), (Address(host="a", port=1), "host")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(one, field, "/other")


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
