"""Socket for callers on the host itself, known by the user of their process.

It is the way in before there is an access file, and after a lock-out.

gRPC does not tell which user a Unix socket's peer is. So we accept its connections, ask the kernel, and hand each on
to gRPC's own socket from an address that names the user; that socket is in a folder that only our user can enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import secrets
import shutil
import socket
import stat
import struct
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from registry.access.principal import RESERVED_PREFIX, Credential, Principal
from registry.runtime.http import CannotListen

_CHUNK_BYTES = 64 << 10
MAX_CONNECTIONS = 32
_PEER = re.compile(r"unix-abstract:loraplane-[0-9]+-[0-9a-f]{16}-uid-([0-9]+)-[0-9]+")


def socket_principal(peer: str) -> Principal | None:
    """The user of the host that a peer is, as gRPC names it; None: it came by another way."""
    found = _PEER.fullmatch(peer)
    return Principal(f"{RESERVED_PREFIX}host:{found[1]}", Credential.SOCKET) if found else None


class HostSocket:
    """Socket for callers on this host. `inner` is the address at which gRPC has to listen for it.

    Args:
        path: of the socket; it is made so that our user alone, and root, can connect.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = tempfile.mkdtemp(prefix="loraplane-")
        self.inner = f"unix:{self._folder}/grpc"
        self._names = (f"\0loraplane-{os.getpid()}-{secrets.token_hex(8)}-uid-%d-{n}" for n in itertools.count())
        self._open: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Accepts connections while the context is open. Raises CannotListen."""
        try:
            self._make_way()
            server = await asyncio.start_unix_server(self._accept, self._path)
            self._path.chmod(0o600)
        except OSError as error:
            raise CannotListen(f"--socket {self._path}: {error.strerror}") from error
        try:
            async with server:
                yield
        finally:
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            self._path.unlink(missing_ok=True)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _make_way(self) -> None:
        """Removes what a process that was killed left; what is no socket stays, and is an error."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(self._path.lstat().st_mode):
                self._path.unlink()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = _uid_of(writer.get_extra_info("socket"))
        if uid not in {0, os.geteuid()} or len(self._open) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.create_task(self._serve(uid, reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, uid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._hand_on(uid, reader, writer)
        except* OSError:
            pass  # one end is gone, which ends the other
        finally:
            writer.close()

    async def _hand_on(self, uid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with socket.socket(socket.AF_UNIX) as inner:
            inner.setblocking(False)  # noqa: FBT003 - the socket's own name
            inner.bind(next(self._names) % uid)
            await asyncio.get_running_loop().sock_connect(inner, self.inner.removeprefix("unix:"))
            their_reader, their_writer = await asyncio.open_unix_connection(sock=inner)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(reader, their_writer))
                    both.create_task(_pump(their_reader, writer))
            finally:
                their_writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Hands on what comes until one end closes."""
    while chunk := await source.read(_CHUNK_BYTES):
        target.write(chunk)
        await target.drain()
    target.close()


def _uid_of(peer: socket.socket) -> int:
    """The user of the process that connected."""
    found = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(found[1])
