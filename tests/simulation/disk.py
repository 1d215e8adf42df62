"""A disk that forgets at a power cut: content, and names in folders, that nobody synced.

It lies over a real folder, which is what all processes see; beside it stands what a cut would leave. A sync of a file
keeps its content, a sync of a folder the names in it. Of the rest a cut takes what chance says. A change of names comes
to the disk as a whole or not at all, in any order but for changes of the same name or of the same file. Of content
there may be the old or the new, the beginning of the new, or zeros where bytes had not come yet.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any
from unittest import mock

from sidecar.desired.snapshot import AdaptersChanged, SnapshotDamaged, decode_base, decode_entries


@dataclass(frozen=True)
class Kept:
    """What a disk kept under a path; `content` None: a folder."""

    mode: int
    content: bytes | None


# By the path below the disk's root; folders come before what is in them.
Image = dict[str, Kept]


@dataclass(eq=False)
class Node:
    """A file or a folder. `synced`: the content that a cut leaves; `last`: that of a file without any name."""

    mode: int
    synced: bytes = b""
    last: bytes = b""

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


Names = dict[Node, dict[str, Node]]


@dataclass(eq=False)
class Change:
    """A change of names: what stands under each of them from then on."""

    names: dict[tuple[Node, str], Node | None]
    node: Node

    def hangs_on(self, other: Change) -> bool:
        """Whether it cannot come to the disk without that."""
        return self.node is other.node or not self.names.keys().isdisjoint(other.names)

    def is_in(self, folder: Node) -> bool:
        return any(one is folder for one, _ in self.names)

    def make(self, names: Names) -> None:
        for (folder, name), node in self.names.items():
            under = names.setdefault(folder, {})
            if node is None:
                under.pop(name, None)
            else:
                under[name] = node
                if node.is_folder:
                    names.setdefault(node, {})


class SimDisk:
    """One disk. `on_step` is called before each of its steps; the disk waits for it, whatever thread it is in."""

    def __init__(self, root: Path) -> None:
        """Whatever is in the folder is on the disk."""
        self.root = root
        self.on_step: Callable[[str], None] = unwatched
        self.lock = RLock()
        self._scan()

    def _scan(self) -> None:
        self._top = Node(self.root.lstat().st_mode)
        self._seen: Names = {self._top: {}}
        self._synced: Names = {self._top: {}}
        self._pending: list[Change] = []
        self._inodes = {_inode(self.root.lstat()): self._top}
        for path in sorted(self.root.rglob("*")):
            change = self._addition(path)
            change.make(self._synced)
            change.make(self._seen)
            if not change.node.is_folder:
                change.node.synced = path.read_bytes()

    def _addition(self, path: Path) -> Change:
        found = path.lstat()
        node = self._inodes[_inode(found)] = Node(found.st_mode)
        return Change({self._slot(path): node}, node)

    def _slot(self, path: Path) -> tuple[Node, str]:
        return self._node(path.parent), path.name

    def _node(self, path: Path) -> Node:
        node = self._top
        for part in path.relative_to(self.root).parts:
            node = self._seen[node][part]
        return node

    def make(self, path: Path, call: Callable[[], Any]) -> Any:
        """Has a file or a folder made, if it is not there."""
        with self.lock:
            if os.path.lexists(path):
                self.on_step(f"open {path.name}")
                return call()
            self.on_step(f"make {path.name}")
            made = call()
            self._take(self._addition(path))
            return made

    def remove(self, path: Path, call: Callable[[], Any]) -> None:
        """Has a name taken away."""
        with self.lock:
            self.on_step(f"remove {path.name}")
            self._lose(path)
            call()
            self._take(Change({self._slot(path): None}, self._node(path)))

    def rename(self, path: Path, target: Path, call: Callable[[], Any]) -> None:
        """Has a name exchanged for another."""
        with self.lock:
            self.on_step(f"rename {path.name}")
            self._lose(target)
            call()
            node = self._node(path)
            self._take(Change({self._slot(path): None, self._slot(target): node}, node))

    def _take(self, change: Change) -> None:
        change.make(self._seen)
        self._pending.append(change)

    def _lose(self, path: Path) -> None:
        """What has no name from now on may still be found under it after a cut."""
        if path.is_file() and not path.is_symlink():
            self._node(path).last = path.read_bytes()

    def has(self, descriptor: int) -> bool:
        """Whether an open file or folder is of this disk."""
        return _inode(os.fstat(descriptor)) in self._inodes

    def write(self, descriptor: int, call: Callable[[], Any]) -> Any:
        """Has something written to a file."""
        with self.lock:
            self.on_step(f"write {_path(descriptor).resolve().name}")
            return call()

    def sync(self, descriptor: int) -> None:
        """Keeps the content of a file, or the names in a folder."""
        with self.lock:
            self.on_step(f"sync {_path(descriptor).resolve().name}")
            node = self._inodes[_inode(os.fstat(descriptor))]
            if node.is_folder:
                self._settle(node)
            else:
                node.synced = _path(descriptor).read_bytes()

    def _settle(self, folder: Node) -> None:
        needed: list[Change] = []
        for change in reversed(self._pending):
            if change.is_in(folder) or any(one.hangs_on(change) for one in needed):
                needed.append(change)
        for change in reversed(needed):
            change.make(self._synced)
            self._pending.remove(change)

    def kept(self, rng: random.Random) -> Image:
        """What a power cut would leave now."""
        with self.lock:
            names = {folder: dict(under) for folder, under in self._synced.items()}
            share, lost = rng.choice((0.0, 0.3, 0.7, 1.0)), list[Change]()
            for change in self._pending:
                if rng.random() < share and not any(change.hangs_on(one) for one in lost):
                    change.make(names)
                else:
                    lost.append(change)
            paths = {node: path for path, node in _walk(self.root, self._top, self._seen)}
            share, image = rng.choice((0.0, 0.5, 1.0)), Image()
            for path, node in _walk(self.root, self._top, names):
                found = paths.get(node)
                mode = stat.S_IMODE(found.lstat().st_mode if found else node.mode)
                content = None if node.is_folder else found.read_bytes() if found else node.last
                if content is not None and content != node.synced and rng.random() >= share:
                    content = torn(rng, node.synced, content)
                image[str(path.relative_to(self.root))] = Kept(mode, content)
            return image

    def cut(self, image: Image) -> None:
        """Has nothing but that from now on."""
        with self.lock, mock.patch.object(self, "on_step", unwatched):
            for path in self.root.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            write(image, self.root)
            self._scan()


def unwatched(_what: str) -> None:
    """Nobody waits for a step."""


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _path(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


def _walk(path: Path, folder: Node, names: Names) -> Iterator[tuple[Path, Node]]:
    for name, node in sorted(names[folder].items()):
        yield path / name, node
        if node.is_folder:
            yield from _walk(path / name, node, names)


def torn(rng: random.Random, old: bytes, new: bytes) -> bytes:
    """What a file may have whose new content was not synced."""
    start = len(old) if new.startswith(old) else 0
    ends = [start, len(new), rng.randint(start, max(start, len(new)))]
    ends += [at + 1 for at in range(start, len(new)) if new[at : at + 1] == b"\n"]
    end = rng.choice(ends)
    match rng.choice(("old", "shorter", "shorter", "zeros", "hole")):
        case "old":
            return old
        case "zeros":  # its size came to the disk, and not its bytes
            return new[:end] + bytes(len(new) - end)
        case "hole":  # what was written last came first
            return new[:start] + bytes(end - start) + new[end:]
    return new[:end]


def write(image: Image, root: Path) -> None:
    """Puts into a folder what a disk kept."""
    for name, kept in image.items():
        if kept.content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(kept.content)
    for name, kept in reversed(image.items()):
        (root / name).chmod(kept.mode)


@dataclass
class _Calls:
    """The calls of the system as all of this process make them while disks are played; those of other paths go by."""

    disks: Iterable[SimDisk]
    real: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def _found(self, path: Any, dir_fd: int | None = None) -> tuple[SimDisk, Path] | None:
        if isinstance(path, int):
            return None
        start = "" if dir_fd is None else f"{_path(dir_fd).readlink()}/"
        where = Path(os.path.abspath(start + os.fsdecode(path)))  # noqa: PTH100 - no link is followed
        return next(((disk, where) for disk in self.disks if where.is_relative_to(disk.root)), None)

    def _disk(self, descriptor: int) -> SimDisk | None:
        return next((disk for disk in self.disks if disk.has(descriptor)), None)

    def _make(self, found: tuple[SimDisk, Path] | None, call: Callable[[], Any]) -> Any:
        return call() if found is None else found[0].make(found[1], call)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        is_named = flags & os.O_CREAT and flags & os.O_TMPFILE != os.O_TMPFILE
        found = self._found(path, dir_fd) if is_named else None
        return int(self._make(found, lambda: self.real["open"](path, flags, mode, dir_fd=dir_fd)))

    def io_open(self, path: Any, mode: str = "r", *how: Any, **more: Any) -> Any:
        found = self._found(path) if set(mode) & set("wxa") else None
        return self._make(found, lambda: self.real["io_open"](path, mode, *how, **more))

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._make(self._found(path, dir_fd), lambda: self.real["mkdir"](path, mode, dir_fd=dir_fd))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("unlink", path, dir_fd)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("rmdir", path, dir_fd)

    def _remove(self, verb: str, path: Any, dir_fd: int | None) -> None:
        def call() -> None:
            self.real[verb](path, dir_fd=dir_fd)

        found = self._found(path, dir_fd)
        call() if found is None else found[0].remove(found[1], call)

    def rename(self, path: Any, target: Any) -> None:
        def call() -> None:
            self.real["rename"](path, target)

        old, new = self._found(path), self._found(target)
        call() if old is None or new is None else old[0].rename(old[1], new[1], call)

    def write(self, descriptor: int, content: Any) -> int:
        def call() -> int:
            return int(self.real["write"](descriptor, content))

        disk = self._disk(descriptor)
        return call() if disk is None else int(disk.write(descriptor, call))

    def fsync(self, descriptor: int) -> None:
        disk = self._disk(descriptor)
        self.real["fsync"](descriptor) if disk is None else disk.sync(descriptor)


_PLAYED = ("open", "mkdir", "unlink", "rmdir", "rename", "write", "fsync")


@contextmanager
def plugged_in(disks: Iterable[SimDisk]) -> Iterator[None]:
    """Has all work on files below the roots of these disks, which may become more, be theirs."""
    real = {name: getattr(os, name) for name in _PLAYED} | {"io_open": io.open}
    calls = _Calls(disks, real)
    with ExitStack() as stack:
        for name in _PLAYED:
            stack.enter_context(mock.patch.object(os, name, getattr(calls, name)))
        stack.enter_context(mock.patch.object(os, "replace", calls.rename))
        stack.enter_context(mock.patch.object(os, "remove", calls.unlink))
        stack.enter_context(mock.patch.object(io, "open", calls.io_open))
        yield


def kept_revision(state: Path) -> int | None:
    """Up to which change of the records a restart would come; None: it would find nothing.

    Beside the newest base there may be a journal of before that was torn: a power cut brings back what was removed.
    """
    bases = {}
    for file in state.glob("snapshot-*"):
        with suppress(SnapshotDamaged), file.open("rb") as lines:
            bases[int(file.name.removeprefix("snapshot-"))] = decode_base(lines).revision
    if not bases:
        return None
    newest = max(bases)
    kept = bases[newest]
    with suppress(SnapshotDamaged, FileNotFoundError):
        for number in count(newest):
            for entry in decode_entries((state / f"journal-{number}").read_bytes()):
                kept = max(kept, entry.revision if isinstance(entry, AdaptersChanged) else 0)
    return kept
