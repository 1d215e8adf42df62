"""Check that a file or folder is ours alone, before what stands there is believed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotOwn(Exception):
    """Others own a file or folder, or may write there; the message says which, and what to do."""


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
