"""Adapters that are wrong by what their files are, not by what is in them; and archives that attack their reader."""

from __future__ import annotations

import gzip
import io
import os
import socket
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.corpus.drafts import CONFIG, WEIGHTS, Draft

Write = Callable[[Path, Draft], object]
Pack = Callable[[Draft], bytes]


@dataclass(frozen=True)
class HostileFolder:
    """`write` makes a folder below one that is allowed; `reason` is what we say."""

    name: str
    reason: str
    write: Write
    permanent: bool = True


@dataclass(frozen=True)
class HostileArchive:
    """`pack` makes an archive of that suffix; `reason` is what we say."""

    name: str
    reason: str
    pack: Pack
    permanent: bool = True
    suffix: str = ".tar"


def instead(name: str, make: Callable[[Path], object]) -> Write:
    """One of the files is something else."""

    def write(folder: Path, draft: Draft) -> None:
        draft.write(folder)
        (folder / name).unlink()
        make(folder / name)

    return write


def linked(name: str) -> Write:
    """One of the files is a link to a whole one, as in a hub's cache."""

    def write(folder: Path, draft: Draft) -> None:
        draft.write(folder.with_name(f"{folder.name}-blobs"))
        draft.write(folder)
        (folder / name).unlink()
        (folder / name).symlink_to(folder.with_name(f"{folder.name}-blobs") / name)

    return write


def out_of_the_root(folder: Path, draft: Draft) -> None:
    """The folder itself leads to where nothing is allowed."""
    outside = folder.parents[1] / "outside" / folder.name
    draft.write(outside)
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(outside)


def looped(folder: Path, _: Draft) -> None:
    folder.symlink_to(folder)


def a_file(folder: Path, draft: Draft) -> None:
    folder.write_bytes(draft.files()[WEIGHTS])


def a_socket(path: Path) -> None:
    """A name of a socket; shorter paths than ours are all that bind takes, so it is made from within."""
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def sparse(path: Path) -> None:
    """Seventeen gigabytes that take no space."""
    with path.open("wb") as file:
        file.truncate(17 << 30)


_FILES = (CONFIG, WEIGHTS)
FOLDERS: tuple[HostileFolder, ...] = (
    *(HostileFolder(f"link_{name}", "not_a_regular_file", linked(name)) for name in _FILES),
    *(HostileFolder(f"fifo_{name}", "not_a_regular_file", instead(name, os.mkfifo)) for name in _FILES),
    *(HostileFolder(f"folder_{name}", "not_a_regular_file", instead(name, Path.mkdir)) for name in _FILES),
    *(HostileFolder(f"socket_{name}", "not_a_regular_file", instead(name, a_socket)) for name in _FILES),
    HostileFolder(
        "link_to_nothing", "not_a_regular_file", instead(WEIGHTS, lambda path: path.symlink_to("/nowhere/at/all"))
    ),
    HostileFolder(
        "link_to_a_secret", "not_a_regular_file", instead(CONFIG, lambda path: path.symlink_to("/etc/passwd"))
    ),
    HostileFolder("link_to_a_device", "not_a_regular_file", instead(CONFIG, lambda path: path.symlink_to("/dev/zero"))),
    HostileFolder("out_of_the_root", "source_not_allowed", out_of_the_root),
    HostileFolder("loop", "source_not_allowed", looped),
    HostileFolder("a_file", "not_an_adapter", a_file),
    HostileFolder("nothing", "source_missing", lambda folder, draft: None, permanent=False),
    HostileFolder("empty", "source_incomplete", lambda folder, draft: folder.mkdir(), permanent=False),
    HostileFolder("sparse", "too_large", instead(WEIGHTS, sparse)),
)


Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "") -> Member:
    found = tarfile.TarInfo(name)
    found.size, found.type, found.linkname = len(content), kind, target
    return found, content


def archive(*members: Member, form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as packed:
        for found, content in members:
            packed.addfile(found, io.BytesIO(content) if content else None)
    return buffer.getvalue()


def files(draft: Draft, folder: str = "adapter/") -> list[Member]:
    return [member(f"{folder}{name}", content) for name, content in draft.files().items()]


def as_kind(kind: bytes, target: str = "") -> Pack:
    """The weights are a member of another kind."""
    return lambda draft: archive(files(draft)[0], member(f"adapter/{WEIGHTS}", b"", kind, target))


def named(name: str) -> Pack:
    """Before the adapter stands a member whose name leads elsewhere."""
    return lambda draft: archive(member(name, b"x"), *files(draft))


def with_a_long_extension(draft: Draft) -> bytes:
    found, content = files(draft)[0]
    found.pax_headers = {"comment": "x" * (1 << 20)}
    return archive((found, content), files(draft)[1])


def many(draft: Draft) -> bytes:
    return archive(*(member(f"adapter/{number}") for number in range(10_001)), *files(draft))


def bomb(draft: Draft) -> bytes:
    """A few bytes that claim to become more than is taken."""
    filler = tarfile.TarInfo("adapter/filler")
    filler.size = 33 << 30
    return gzip.compress(filler.tobuf(tarfile.GNU_FORMAT)) + gzip.compress(b"\0" * (1 << 20), 9)


def two_places(draft: Draft) -> bytes:
    """One file at the top, the other in a folder: not one adapter."""
    return archive(files(draft, "")[0], files(draft, "adapter/")[1])


def twice(draft: Draft) -> bytes:
    """The second configuration is another one, which must not count."""
    return archive(*files(draft), member(f"adapter/{CONFIG}", b"{}"))


ARCHIVES: tuple[HostileArchive, ...] = (
    *(
        HostileArchive(f"name_{number}", "bad_archive", named(name))
        for number, name in enumerate(("../../evil", "/etc/cron.d/evil", f"adapter/../../{CONFIG}", f"/{WEIGHTS}"))
    ),
    HostileArchive("symlink", "bad_archive", as_kind(tarfile.SYMTYPE, "/etc/passwd")),
    HostileArchive("hardlink", "bad_archive", as_kind(tarfile.LNKTYPE, f"adapter/{CONFIG}")),
    HostileArchive("fifo", "bad_archive", as_kind(tarfile.FIFOTYPE)),
    HostileArchive("device", "bad_archive", as_kind(tarfile.CHRTYPE)),
    HostileArchive("folder", "bad_archive", as_kind(tarfile.DIRTYPE)),
    HostileArchive("sparse", "bad_archive", as_kind(tarfile.GNUTYPE_SPARSE)),
    HostileArchive("long_extension", "bad_archive", with_a_long_extension),
    HostileArchive("many_members", "bad_archive", many),
    HostileArchive("garbage", "bad_archive", lambda draft: b"\x01" * 4096),
    HostileArchive("html", "bad_archive", lambda draft: b"<!DOCTYPE html>" + b" " * 4096),
    HostileArchive("no_gzip", "bad_archive", lambda draft: archive(*files(draft)), suffix=".tar.gz"),
    HostileArchive("bomb", "too_large", bomb, suffix=".tar.gz"),
    HostileArchive("two_places", "source_incomplete", two_places, permanent=False),
    HostileArchive("cut", "source_incomplete", lambda draft: archive(*files(draft))[:2000], permanent=False),
    HostileArchive("without_weights", "source_incomplete", lambda draft: archive(files(draft)[0]), permanent=False),
    HostileArchive(
        "pickled",
        "weights_not_safetensors",
        lambda draft: archive(files(draft)[0], member("adapter/adapter_model.bin", b"\x80\x04.")),
    ),
)

# Names under which the engine takes an adapter, and nobody here does.
NAMES: tuple[str, ...] = (
    "../../etc/passwd",
    "a/../b",
    "a/b/c",
    "/a",
    ".hidden",
    "a b",
    "a,b",
    "a\nb",
    "a\x00b",
    "a\x1b[2J",
    "ä",
    "a" * 161,
    "-rf",
    "text",
    "Image",
    "audio",
    "video",
    "file",
    "tool",
    "",
)
