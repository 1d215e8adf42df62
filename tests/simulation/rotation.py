"""TLS files that are replaced while connections are made: by renames, in place, or all at once behind a link."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from weakref import WeakKeyDictionary

from registry.etcd3 import tls
from registry.etcd3.options import TlsFiles
from registry.etcd3.tls import Pem, TlsReader, TlsUnusable
from tests.support.tls import Authority

# So many generations there are; the last stays.
GENERATIONS = 6
NAMES = ("ca.pem", "tls.crt", "tls.key")
# So many looks of a reader are overtaken by whoever replaces the files.
OVERTAKEN = 0.5
_PAUSES = (0.0, 0.01, 2.0)
Step = Callable[[], object]


@cache
def _made() -> tuple[tuple[bytes, ...], ...]:
    """Generations of files in the order of their names, each of an authority of its own."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(GENERATIONS):
            files = Authority(Path(folder) / str(number), f"authority {number}").issue("everybody")
            paths = (files.ca, files.certificate, files.key)
            found.append(tuple(path.read_bytes() for path in paths if path is not None))
    return tuple(found)


class Rotation:
    """Whoever replaces the files, and the rule for who reads them.

    Attributes:
        files: those that all processes are given.
    """

    def __init__(self, folder: Path, rng: random.Random, violated: Callable[[str], None], told: Counter[str]) -> None:
        self._folder, self._rng = folder, rng
        self._violated, self._told = violated, told
        self._newest = 0
        self._steps: list[Step] = []
        self._done = 0
        self._taken: WeakKeyDictionary[TlsReader, int] = WeakKeyDictionary()
        folder.mkdir()
        self._link(0)
        self.files = TlsFiles(*(folder / "data" / name for name in NAMES))

    async def work(self, seconds: float, plays: Callable[[str, str], bool]) -> None:
        """Replaces the files again and again for so long; each time is over before the next, and all at the end."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        for number in range(1, GENERATIONS if seconds else 0):
            await asyncio.sleep(self._rng.uniform(0.0, 2 * seconds / GENERATIONS))
            if loop.time() < end and plays(f"r{number}", "files are replaced"):
                self._newest, self._steps = number, self._steps_to(number)
            while self._steps:
                await asyncio.sleep(self._rng.choice(_PAUSES))
                self._step()

    def _steps_to(self, number: int) -> list[Step]:
        how, files = self._rng.choice((_renamed, _in_place, None)), list(zip(NAMES, _made()[number], strict=True))
        if how is None:
            return [partial(self._link, number)]
        self._rng.shuffle(files)
        return [step for name, content in files for step in how(self._folder / "data" / name, content)]

    def _link(self, number: int) -> None:
        folder, link = self._folder / f"data{number}", self._folder / ".data"
        folder.mkdir()
        for name, content in zip(NAMES, _made()[number], strict=True):
            (folder / name).write_bytes(content)
        link.symlink_to(folder)
        link.replace(self._folder / "data")

    def _step(self) -> None:
        if self._steps:
            self._done += 1
            self._steps.pop(0)()

    def _overtake(self) -> None:
        """Between two looks of a reader."""
        while self._rng.random() < OVERTAKEN and self._steps:
            self._step()

    @contextmanager
    def played(self) -> Iterator[None]:
        """Has files replaced amid a reading, and each reading looked at."""
        content, check, newest = tls._content, tls._check, TlsReader.newest

        def read(file: Path | None) -> bytes | None:
            found = content(file)
            self._overtake()
            return found

        def checked(files: TlsFiles) -> None:
            check(files)
            self._overtake()

        silent = SimpleNamespace(warning=lambda *_: None)
        with (
            mock.patch("registry.etcd3.channel._log", silent),
            mock.patch("registry.client.transport._log", silent),
            mock.patch.object(tls, "_content", read),
            mock.patch.object(tls, "_check", checked),
            mock.patch.object(TlsReader, "newest", lambda reader: self._looked_at(reader, newest)),
        ):
            yield

    def _looked_at(self, reader: TlsReader, newest: Callable[[TlsReader], Pem]) -> Pem:
        done, is_whole, before = self._done, not self._steps, self._taken.get(reader, -1)
        try:
            pem = newest(reader)
        except TlsUnusable as error:
            if before >= 0 or is_whole:
                self._violated(f"R13 what was read last is not used: {error}")
            raise
        self._check(reader, pem, before, is_newest=is_whole and done == self._done)
        return pem

    def _check(self, reader: TlsReader, pem: Pem, before: int, *, is_newest: bool) -> None:
        """R13 static-stable: a key goes with its certificate, nobody goes back, and what is whole is used at once."""
        self._told["TLS files"] += 1
        found = next((at for at, (_, *pair) in enumerate(_made()) if pair == [pem.certificate, pem.key]), -1)
        self._taken[reader] = found
        if found < max(before, 0):
            self._violated(f"R13 a key and a certificate of no one generation are used, or older ones than {before}")
        elif is_newest and (pem.ca, pem.certificate, pem.key) != _made()[self._newest]:
            self._violated(f"R13 generation {found} is used, and {self._newest} is there")
        elif pem.ca not in {ca for ca, *_ in _made()}:
            self._violated("R13 half a file of authorities is used")


def _renamed(file: Path, content: bytes) -> list[Step]:
    def rename() -> None:
        (new := file.with_name(f".{file.name}")).write_bytes(content)
        new.replace(file)

    return [rename]


def _in_place(file: Path, content: bytes) -> list[Step]:
    return [partial(file.write_bytes, part) for part in (b"", content[: len(content) // 2], content)]
