"""A program of ours that notes in which of our modules code runs.

``python -m tests.support.profiled FOLDER MODULE FLAGS…`` notes while FOLDER has a file `BEGIN` and no file `END`, or
until it ends, and then writes the modules into a file of FOLDER. It makes the file `NOTES` once it notes. What an
import runs is not noted.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType

import loraplane
import registry
import sidecar

BEGIN, NOTES, END = "begin", "notes", "end"
ROOT = Path(str(registry.__file__)).parents[1]
_ROOMS = tuple(str(Path(str(room.__file__)).parent) + os.sep for room in (loraplane, registry, sidecar))
_EVERY_SECONDS = 0.01


class Notes:
    """Code that ran, as `sys.setprofile` tells it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_noting = (folder / BEGIN).exists()
        self._codes: set[CodeType] = set()
        self._imports = threading.local()

    def hear(self, frame: FrameType, event: str, _: object) -> None:
        """Notes a call. A coroutine that goes on is called once more."""
        code = frame.f_code
        if code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            self._imports.depth = self._depth + {"call": 1, "return": -1}.get(event, 0)
        elif self._is_noting and event == "call" and not self._depth:
            self._codes.add(code)

    @property
    def _depth(self) -> int:
        return getattr(self._imports, "depth", 0)

    def watch(self) -> None:
        """Notes from `BEGIN` to `END`."""
        while not (self._folder / BEGIN).exists():
            time.sleep(_EVERY_SECONDS)
        self._is_noting = True
        (self._folder / NOTES).touch()
        while not (self._folder / END).exists():
            time.sleep(_EVERY_SECONDS)
        self.write()

    def write(self) -> None:
        """Writes the modules."""
        self._is_noting = False
        files = {code.co_filename for code in self._codes}
        found = sorted(str(Path(file).relative_to(ROOT)) for file in files if file.startswith(_ROOMS))
        written = self._folder / "modules.new"
        written.write_text(json.dumps(found))
        written.rename(written.with_suffix(".json"))


def main() -> None:
    """Entry point."""
    folder, module = Path(sys.argv[1]), sys.argv[2]
    sys.argv[1:3] = []
    notes = Notes(folder)
    threading.Thread(target=notes.watch, daemon=True).start()
    atexit.register(notes.write)
    threading.setprofile(notes.hear)
    sys.setprofile(notes.hear)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
