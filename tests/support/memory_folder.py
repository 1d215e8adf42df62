"""A folder in memory, for tests that sync hundreds of small files and are not about how long a disk takes."""

from __future__ import annotations

import os
import shutil
from tempfile import TemporaryDirectory

_MEMORY = "/dev/shm"  # noqa: S108 - only as the place of a folder with a name of its own
_LEAST_BYTES = 32 << 20


def memory_folder() -> TemporaryDirectory[str]:
    """A new one, gone at the end of its context; on the disk where no memory can be written to, or too little."""
    has_room = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _LEAST_BYTES
    return TemporaryDirectory(dir=_MEMORY if has_room else None)
