"""Reading adapters from directories of this host, on a real file system."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from registry.sources.allowed import AllowedSources
from registry.sources.base import BUNDLE_BYTES, Stop
from tests.support.adapters import WrittenAdapter, write_adapter
from tests.unit.sources.conftest import got, refused

WEIGHTS = "adapter_model.safetensors"
BUNDLE = b'{"mediaType": "any"}' * 100
LARGE_BUNDLE = b" " * (BUNDLE_BYTES + 5)


@pytest.fixture
def adapter(tmp_path) -> WrittenAdapter:
    return write_adapter(tmp_path / "allowed" / "a")


@pytest.fixture
def allowed(tmp_path) -> AllowedSources:
    return AllowedSources([(tmp_path / "allowed").as_uri()])


def fetch(allowed: AllowedSources, uri: str) -> dict[str, bytes]:
    return got(allowed.source(uri))


def test_exactly_the_two_known_files_are_read(allowed, adapter):
    (adapter.directory / "training_args.bin").write_bytes(b"x")
    expected = {name: (adapter.directory / name).read_bytes() for name in ("adapter_config.json", WEIGHTS)}
    assert fetch(allowed, adapter.uri) == expected


@pytest.mark.parametrize("suffix", ["", "/", "/.", "/../a", "/%2e%2e/a", "//"])
def test_other_spellings_of_an_allowed_directory_are_allowed(allowed, adapter, suffix):
    """Also where the directory itself is all that is allowed, or everything is."""
    for one in (allowed, AllowedSources([adapter.uri]), AllowedSources(["file:///"])):
        assert fetch(one, adapter.uri + suffix)


@pytest.mark.parametrize("ask", ["fetch", "signature", "version", "is_gone"])
def test_nobody_is_asked_any_more_once_the_staging_is_stopped(allowed, adapter, monkeypatch, ask):
    """X3 given-back: a mount may hang, so that it is not even looked at."""
    source, stop = allowed.source(adapter.uri), Stop()
    stop.set()
    arguments = [mock.Mock(), stop] if ask == "fetch" else [stop]
    with monkeypatch.context() as patched:
        for call in ("open", "stat", "lstat"):
            patched.setattr(
                f"registry.sources.file.os.{call}", mock.Mock(side_effect=AssertionError("it was looked at"))
            )
        assert refused(getattr(source, ask), *arguments).reason == "staging_stopped"


def test_a_name_is_percent_decoded(allowed, tmp_path):
    adapter = write_adapter(tmp_path / "allowed" / "ein Ü?#%41")
    assert fetch(allowed, adapter.uri)
    assert fetch(allowed, adapter.uri.replace("file:///", "file://localhost/"))


@pytest.mark.parametrize(
    "uri",
    [
        "file://{root}/outside",
        "file://{root}/allowed/../outside",
        "file://{root}/allowed/%2e%2e/outside",
        "file://{root}/allowed/%2E%2E%2Foutside",
        "file://{root}/allowed-twin",
        "file://{root}/allowed/link",
        "file://{root}/allowed/loop",
        "file://{root}/allowed/a%00",
        "file://{root}",
        "file:///",
        "file://elsewhere{root}/allowed/a",
        "file://{root}/allowed/a?x=1",
        "file://{root}/allowed/a#x",
        "file://[{root}/allowed/a",
        "file://",
    ],
)
def test_whatever_leads_out_of_the_allowed_roots_is_refused(allowed, adapter, tmp_path, uri):
    """Fail closed: symlinks, dots and percent signs are resolved before the roots are compared."""
    write_adapter(tmp_path / "outside")
    write_adapter(tmp_path / "allowed-twin")
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "allowed" / "loop").symlink_to(tmp_path / "allowed" / "loop")
    error = refused(fetch, allowed, uri.format(root=tmp_path))
    assert (error.reason, error.permanent) == ("source_not_allowed", True)


HOST = "where-nobody-should-look"


@pytest.mark.parametrize(
    "way", ["out", "loop", "in to nothing", "in to a file", "in to no adapter", "in to a link", "exe", "root"]
)
def test_where_a_path_leads_is_not_told(tmp_path, way):
    """X1 in spirit: whoever may write a record reads what a status says of it, and is told the URI as written."""
    root, secret = tmp_path / "allowed", tmp_path / HOST
    (root / HOST / "empty").mkdir(parents=True)
    (root / HOST / "file").touch()
    write_adapter(root / HOST / "a")
    (root / HOST / "a" / WEIGHTS).unlink()
    (root / HOST / "a" / WEIGHTS).mkdir()
    targets = {"out": secret, "loop": root / "x", "in to nothing": root / HOST / "none"}
    targets |= {"in to a file": root / HOST / "file", "in to no adapter": root / HOST / "empty"}
    targets |= {"in to a link": root / HOST / "a", "exe": Path("/proc/self/exe"), "root": Path("/proc/self/root")}
    (root / "x").symlink_to(targets[way])
    (tmp_path / "alias").symlink_to(root)
    allowed = AllowedSources([(tmp_path / "alias").as_uri()])
    uri = (tmp_path / "alias" / "x").as_uri()
    error = refused(fetch, allowed, uri)
    told = error.message.replace(uri, "")
    assert told != error.message
    for place in (HOST, str(root), sys.executable, os.path.realpath(sys.executable), "/proc"):
        assert place not in told
    assert os.path.realpath(targets[way]) in error.detail or str(root) in error.detail


def test_a_directory_exchanged_for_a_symlink_after_the_check_leads_nowhere(allowed, adapter, tmp_path):
    """Fail closed: what was judged is what is opened."""
    source = allowed.source(adapter.uri)
    write_adapter(tmp_path / "outside")
    adapter.directory.rename(tmp_path / "away")
    adapter.directory.symlink_to(tmp_path / "outside")
    refused(source.fetch, lambda name, size_bytes, chunks: pytest.fail("something was read"), Stop())


def test_what_is_not_there_yet_is_tried_again_but_not_weights_that_may_hold_code(allowed, adapter, tmp_path):
    """R8: the training job may not have begun to write, or still be writing; whatever lies beside the configuration."""
    error = refused(fetch, allowed, f"{adapter.uri}-later")
    assert (error.reason, error.permanent) == ("source_missing", False)
    assert str(tmp_path / "allowed" / "a-later") in error.message
    for name, beside, told, reason in (
        (WEIGHTS, "readme.md", WEIGHTS, "source_incomplete"),
        ("adapter_config.json", "adapter_model.bin", "adapter_config.json", "source_incomplete"),
        (WEIGHTS, "adapter_model.bin", "adapter_model.bin", "weights_not_safetensors"),
        (WEIGHTS, "adapter_model.pt", "adapter_model.pt", "weights_not_safetensors"),
    ):
        adapter = write_adapter(tmp_path / "allowed" / f"{name}-{beside}")
        (adapter.directory / name).unlink()
        (adapter.directory / beside).write_bytes(b"x")
        error = refused(fetch, allowed, adapter.uri)
        assert (error.reason, error.permanent) == (reason, reason == "weights_not_safetensors")
        assert told in error.message


@pytest.mark.parametrize("kind", ["symlink", "dangling", "fifo", "directory", "socket"])
def test_only_regular_files_are_read(allowed, adapter, kind):
    """Fault 29: symlinked hub snapshots, FIFOs that would block for ever, and other things that are no files."""
    path = adapter.directory / WEIGHTS
    path.rename(adapter.directory / "blob")
    make_other(path, kind)
    error = refused(fetch, allowed, adapter.uri)
    assert (error.reason, error.permanent) == ("not_a_regular_file", True)
    assert f"{path.name} at {adapter.uri}" in error.message


def make_other(path: Path, kind: str) -> None:
    if kind == "symlink":
        path.symlink_to("blob")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)  # the full path may be longer than a socket's may be


@pytest.mark.parametrize("change", ["grow", "shrink", "rewrite", "replace", "remove"])
@pytest.mark.parametrize("when", ["adapter_config.json", WEIGHTS])
def test_a_source_that_changes_while_it_is_read_is_not_taken(allowed, adapter, change, when):
    """R4: what is staged was at one time the whole source; a mixture of two states is refused."""
    path = adapter.directory / WEIGHTS
    os.utime(path, (0, 0))  # clocks of file systems tick slowly: what is written next has another time for sure

    def receive(name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        if name == when:
            alter(path, change)
        # R16: neither an endless file nor a shortened one is handed on as if it had the size that was said.
        assert sum(len(chunk) for chunk in chunks) == size_bytes

    told = refused(allowed.source(adapter.uri).fetch, receive, Stop())
    assert (told.reason, told.permanent) == ("source_changed", False)


def alter(path: Path, change: str) -> None:
    content = path.read_bytes()
    if change == "grow":
        path.write_bytes(content + b"x")
    elif change == "shrink":
        path.write_bytes(content[:-1])
    elif change == "rewrite":
        path.write_bytes(content)
    elif change == "replace":
        path.rename(path.with_name("old"))
        path.write_bytes(content)
    else:
        path.unlink()


@pytest.mark.parametrize(("call", "of"), [("read", None), ("open", None), ("open", WEIGHTS)])
def test_a_disk_that_fails_under_the_source_is_said_and_tried_again(allowed, adapter, monkeypatch, call, of):
    """R8: EIO is the source's, and passes or not; it is no file in place of a directory, or of a regular file."""
    real = getattr(os, call)

    def fails(*args: Any, **named: Any) -> Any:
        if of in {None, args[0]}:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args, **named)

    monkeypatch.setattr(f"registry.sources.file.os.{call}", fails)
    told = refused(fetch, allowed, adapter.uri)
    assert (told.reason, told.permanent) == ("source_io", False)


def test_no_descriptor_is_left_open(allowed, adapter, tmp_path):
    """R16 bounded."""
    with (adapter.directory / WEIGHTS).open("rb"):
        assert opened_below(tmp_path) == [str(adapter.directory / WEIGHTS)]
    fetch(allowed, adapter.uri)
    (adapter.directory / WEIGHTS).unlink()
    refused(fetch, allowed, adapter.uri)
    assert opened_below(tmp_path) == []


def opened_below(folder: Path) -> list[str]:
    """What this process has open there. What else it has open may change while a test runs."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(str(folder))]


def test_a_bundle_is_a_regular_file_of_which_not_more_is_read_than_counts(allowed, adapter):
    source = allowed.source(adapter.uri)
    assert source.signature(Stop()) is None
    bundle = adapter.directory / "model.sig"
    for content in (BUNDLE, LARGE_BUNDLE):
        bundle.write_bytes(content)
        assert source.signature(Stop()) == content[:BUNDLE_BYTES]
    bundle.unlink()
    bundle.symlink_to("/etc/hostname")
    assert refused(source.signature, Stop()).reason == "not_a_regular_file"
