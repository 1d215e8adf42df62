"""Files and folders of ours alone: checked before use, written as a whole."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotOwn(Exception):
    """Others own a file or folder, or may write there; the message says which, and what to do."""


def write_whole(file: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Writes a file whole or not at all, in place of what stands there; it survives a power cut.

    Args:
        file: in a folder that is there.
        content: all of it.
        mode: who may read and write it, whatever the umask; else its owner alone.

    Raises:
        OSError: it cannot be written, or is there and neither a file nor a folder; what it held is as it was.
    """
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise FileExistsError(errno.EEXIST, "it is a device or a pipe, which is not replaced", str(file))
    written = file.with_name(f".{file.name}.new")
    written.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fchmod(opened.fileno(), mode)
            os.fsync(opened.fileno())
        written.replace(file)
    except OSError:
        written.unlink(missing_ok=True)
        raise


def check_own(path: Path) -> None:
    """Refuses a file or folder, which must be there, that somebody else may have made.

    Raises:
        NotOwn: it, or a link to it, is another user's, or others may write there.
    """
    try:
        owners, mode = {path.lstat().st_uid, path.stat().st_uid}, path.stat().st_mode
    except OSError as error:
        raise NotOwn(f"{path} cannot be looked at: {error.strerror}; remove it") from error
    if owners != {os.geteuid()}:
        raise NotOwn(f"{path} is another user's; work in a folder of your own")
    if mode & _OF_OTHERS:
        raise NotOwn(f"{path} may be written by others; if all in it is yours: chmod go-w {path}")
