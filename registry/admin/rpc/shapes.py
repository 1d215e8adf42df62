"""Fingerprints of large base models, found in a child process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping

from registry.admin.rpc.calls import CallContext
from registry.admin.rpc.limiter import FairLimiter
from registry.lora.base import MAX_MODULES, Shape, count_modules, fingerprint_of_patterns
from registry.model.errors import Reason, Unavailable
from registry.v1 import registry_pb2 as pb

# So many modules are expanded and hashed in a hundredth of a second.
FEW_MODULES = 2000
_KEPT = 1000
# A thread would take turns with the event loop at each of its steps. The child gives way to all else on the machine.
_CHILD = """
import json, os, sys
from registry.lora.base import fingerprint_of_patterns
os.nice(10)
sys.stdout.write(fingerprint_of_patterns(json.load(sys.stdin)))
"""


class ShapesWorker:
    """Finds fingerprints of base models, one after another, and keeps them for those who need them again."""

    def __init__(self) -> None:
        self._turns = FairLimiter(1)
        self._known: OrderedDict[bytes, str] = OrderedDict()

    async def prepare(self, request: pb.CreatePoolRequest | pb.UpdatePoolRequest, call: CallContext) -> None:
        """Prepares a request with many modules; of one that is wrong, its validation tells.

        Raises:
            Unavailable: others took all the time, or the child came to no end.
        """
        modules = {one.pattern: (one.outputs, one.inputs) for one in request.pool.base.modules}
        if not _is_large(modules) or _key(modules) in self._known:
            return
        async with self._turns.held(call.origin, call.connection, timeout_seconds=call.deadline.spend()):
            self._known[_key(modules)] = await _found(_text(modules), call.deadline.spend())
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def fingerprint_of(self, modules: Mapping[str, Shape]) -> str:
        """The fingerprint of what patterns stand for: as it was found, or found now.

        Raises:
            ValueError: they are no patterns.
        """
        return self._known.get(_key(modules)) or fingerprint_of_patterns(modules)


def _is_large(modules: Mapping[str, Shape]) -> bool:
    try:
        return FEW_MODULES < count_modules(modules) <= MAX_MODULES
    except ValueError:
        return False


def _key(modules: Mapping[str, Shape]) -> bytes:
    return hashlib.sha256(_text(modules)).digest()


def _text(modules: Mapping[str, Shape]) -> bytes:
    return json.dumps(modules).encode()


async def _found(modules: bytes, timeout_seconds: float) -> str:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            told, _ = await child.communicate(modules)
    except TimeoutError as error:
        raise Unavailable(Reason.DEADLINE_EXCEEDED, "the base model has too many modules to expand") from error
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        raise Unavailable(Reason.ADMIN_UNAVAILABLE, "the process that expands the base model ended; ask again")
    return told.decode()
