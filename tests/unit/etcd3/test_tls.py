"""TLS files that are replaced: taken whole, and only as they fit each other."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import grpc
import pytest

from registry.etcd3 import tls
from registry.etcd3.channel import MemberConnection, tls_reader
from registry.etcd3.errors import TlsFailed
from registry.etcd3.options import TlsFiles
from registry.etcd3.tls import MAX_PEM_BYTES, Pem, TlsReader, TlsUnusable
from tests.support.tls import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture
def files(tmp_path) -> TlsFiles:
    return TlsFiles(ca=tmp_path / "ca.pem", certificate=tmp_path / "own.pem", key=tmp_path / "own.key")


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def reader(files, told) -> TlsReader:
    return TlsReader(files, lambda error: told.append(f"{error.file.name}: {error}"))


def install(issued: TlsFiles, files: TlsFiles, *names: str) -> Pem:
    """Copies those files, and gives what all of them hold."""
    for name in names or ("ca", "certificate", "key"):
        shutil.copy(getattr(issued, name), getattr(files, name))
    return Pem(issued.ca.read_bytes(), issued.key.read_bytes(), issued.certificate.read_bytes())


@pytest.mark.parametrize("order", [("certificate", "key"), ("key", "certificate")])
def test_half_a_rotation_is_not_taken(authority, files, reader, told, order):
    """R13 static-stable: told once for each; the new pair is taken as soon as it is whole."""
    before = install(authority.issue("old"), files)
    assert reader.newest() == before
    for turn in range(2):
        renewed = authority.issue(f"renewed{turn}")
        install(renewed, files, order[0])
        assert [reader.newest(), reader.newest()] == [before, before]
        after = install(renewed, files, order[1])
        assert reader.newest() == after
        before = after
    trouble = f"own.pem: {files.certificate} is no certificate that fits the key {files.key}: "
    assert [one.startswith(trouble) for one in told] == [True, True]


HALF, NONE, ABSENT, LARGE = 0.5, 0.0, None, 8 << 30


@pytest.mark.parametrize("name", ["ca", "certificate", "key"])
@pytest.mark.parametrize("share", [HALF, NONE, ABSENT, LARGE])
def test_a_file_that_is_being_written_or_is_of_8_gibibytes_is_not_taken(authority, files, reader, told, name, share):
    """R13 static-stable, X3 given-back: what fitted before is used on, and what is too large not read whole."""
    before = install(authority.issue("old"), files)
    reader.newest()
    file: Path = getattr(files, name)
    content = file.read_bytes()
    if share is ABSENT:
        file.unlink()
    else:
        os.truncate(file, share if share == LARGE else int(len(content) * share))
    assert [reader.newest(), reader.newest()] == [before, before]
    assert len(told) == 1
    assert (f"has more than {MAX_PEM_BYTES} bytes" if share == LARGE else file.name) in told[0]
    file.write_bytes(content)
    assert reader.newest() == before


def test_a_key_with_a_pass_phrase_asks_nobody(authority, files, reader):
    """At the first look there is nothing to go on with, which is an error."""
    install(authority.issue("old"), files)
    locked = ["-aes256", "-passout", "pass:abcd", "-in", str(files.key), "-out", str(files.key)]
    subprocess.run(["openssl", "ec", *locked], check=True, capture_output=True)
    with pytest.raises(TlsUnusable, match=r"is no certificate that fits the key .*own\.key: "):
        reader.newest()


def test_what_is_taken_is_what_was_checked(authority, files, reader, monkeypatch):
    """A replacement between the look and the check, which reads the files itself, is looked at again."""
    old, new = authority.issue("old"), authority.issue("new")
    install(old, files)
    replace, check = [lambda: install(new, files)], tls._check

    def checked(checked_files: TlsFiles) -> None:
        if replace:
            replace.pop()()
        check(checked_files)

    monkeypatch.setattr(tls, "_check", checked)
    assert reader.newest() == install(new, files)


async def test_etcd_s_files_are_named_with_the_endpoint(tmp_path, caplog):
    """X2: at the first use an error, later a line of the log."""
    file = tmp_path / "ca.pem"
    reader = tls_reader(TlsFiles(ca=file))
    with pytest.raises(TlsFailed, match=r"^etcd:2379: cannot read .*ca\.pem: No such file"):
        MemberConnection("etcd:2379", reader)
    shutil.copy(Authority(tmp_path / "ours", "ours").certificate, file)
    await MemberConnection("etcd:2379", reader).close()
    file.unlink()
    for _ in range(2):
        await MemberConnection("etcd:2379", reader).close()
    (told,) = caplog.messages
    assert f"cannot read {file}" in told


async def test_a_connection_that_does_not_stand_knows_that_its_files_were_replaced(authority, files, reader):
    """A6 rotates, R13 static-stable: files that cannot be used are no reason to make it anew."""
    install(authority.issue("old"), files)
    plain, secret = MemberConnection("127.0.0.1:1", None), MemberConnection("127.0.0.1:1", reader)
    assert (plain.has_old_files(), secret.has_old_files()) == (False, False)
    new = authority.issue("new")
    install(new, files, "certificate")
    assert not secret.has_old_files()
    install(new, files, "key")
    assert secret.has_old_files()
    secret.channel.get_state = lambda: grpc.ChannelConnectivity.READY  # type: ignore[method-assign]
    assert not secret.has_old_files(), "what stands is used on"
    for one in (plain, secret):
        await one.close()


class Defect(Exception):
    """A fault of ours."""


@pytest.mark.parametrize("fails", ["load_cert_chain", "load_verify_locations", "open"])
def test_a_fault_of_ours_is_no_trouble_with_files(authority, files, reader, told, monkeypatch, fails):
    """R12: it is told as it is, and what fitted last does not hide it."""
    install(authority.issue("old"), files)
    reader.newest()
    install(authority.issue("new"), files)

    def breaks(*_: object, **__: object) -> None:
        raise Defect

    monkeypatch.setattr(Path if fails == "open" else ssl.SSLContext, fails, breaks)
    with pytest.raises(Defect):
        reader.newest()
    assert told == []
    monkeypatch.setattr(Path, "open", breaks)
    with pytest.raises(Defect):
        tls.certificate_spans({"--tls-cert": files.certificate})


def test_the_same_files_are_not_checked_again_and_a_new_trouble_is_told_again(
    authority, files, reader, told, monkeypatch
):
    """Each connection asks; what was mended and is broken again is news."""
    install(authority.issue("old"), files)
    checked: list[TlsFiles] = []
    check = tls._check
    monkeypatch.setattr(tls, "_check", lambda one: (checked.append(one), check(one)))
    before = reader.newest()
    assert (reader.newest(), len(checked)) == (before, 1)
    for _ in range(2):
        files.ca.unlink()
        assert [reader.newest(), reader.newest()] == [before, before]
        install(authority.issue("old"), files, "ca")
        assert reader.newest() == before
    assert len(told) == 2


@pytest.mark.parametrize("name", ["certificate", "ca"])
def test_files_that_change_with_each_look_are_waited_for(authority, files, told, monkeypatch, name):
    """R16 bounded, X2: so many times; the file is named, be it our own certificate or, without one, the authorities."""
    read = files if name == "certificate" else TlsFiles(ca=files.ca)
    reader = TlsReader(read, lambda error: told.append(f"{error.file.name}: {error}"))
    before = install(authority.issue("old"), files)
    reader.newest()
    turns = iter(range(100))
    monkeypatch.setattr(tls, "_check", lambda _: getattr(read, name).write_bytes(b"%d" % next(turns)))
    getattr(read, name).write_bytes(b"new")
    assert reader.newest() == (before if read is files else Pem(before.ca, None, None))
    assert told == [f"{getattr(read, name).name}: {getattr(read, name)} changes with each look at it"]
    assert next(turns) == 3


def test_the_end_of_a_certificate_is_known_by_the_flag_of_its_file(tmp_path, authority):
    """Ours is the first of its file. Of authorities the last to end counts, since the old ones stay for a while."""
    own, younger = authority.issue("own", days=2), Authority(tmp_path, "younger")
    chain, both, broken = tmp_path / "chain.pem", tmp_path / "both.pem", tmp_path / "broken.pem"
    chain.write_bytes(own.certificate.read_bytes() + own.ca.read_bytes())
    longer = younger.issue("long", days=9000).certificate.read_bytes()
    both.write_bytes(own.certificate.read_bytes() + longer)
    broken.write_text("none")
    files = {"--tls-cert": chain, "--tls-ca": both, "--etcd-tls-cert": broken, "--etcd-tls-ca": tmp_path / "absent"}
    ours, theirs = tls.certificate_spans(files)
    assert (ours.flag, (ours.ends - ours.begins).days in {1, 2}) == ("--tls-cert", True)
    assert (theirs.flag, (theirs.ends - theirs.begins).days > 1000) == ("--tls-ca", True)
