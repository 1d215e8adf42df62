"""A headless Chromium for tests, in a process and an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

from tests.support.processes import END_SECONDS, child

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-page" / "bin" / "python"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
LACKING = "a browser: make .venv-page/.installed, and Debian's package chromium (or CHROMIUM=path)"
IS_THERE = PYTHON.exists() and bool(CHROMIUM)


class Browser:
    """One page of a browser, of no event loop: see `tests.support.browser_driver` for what it does."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    async def do(self, what: str, **how: Any) -> Any:
        """What the browser answers."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": what, **how}).encode() + b"\n")
        self._process.stdin.flush()
        answer = await asyncio.to_thread(self.answer)
        assert "failed" not in answer, f"{what} {how}: {answer['failed']}"
        return answer["ok"]

    def answer(self) -> dict[str, Any]:
        """The next line of the driver, which itself ends what takes too long."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line or b'{"failed": "the driver ended"}')
        return found

    async def text(self, selector: str = "main") -> str:
        """The text of an element, as it is shown."""
        found = await self.do("eval", script=f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return str(found)

    async def sees(self, text: str, selector: str = "main") -> None:
        """Waits until the text is shown."""
        shown = f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"
        await self.do("wait", script=f"({shown}).includes({json.dumps(text)})")


@contextmanager
def started_browser() -> Iterator[Browser]:
    """A browser that has shown nothing yet."""
    driver = str(Path(__file__).with_name("browser_driver.py"))
    with child([str(PYTHON), driver, CHROMIUM], stdin=PIPE, stdout=PIPE) as process:
        one = Browser(process)
        assert "ready" in one.answer()
        yield one
        assert process.stdin
        process.stdin.close()
        process.wait(END_SECONDS)
