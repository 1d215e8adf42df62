"""A headless Chromium for tests, in a process and an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-page" / "bin" / "python"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
LACKING = "a browser: make .venv-page/.installed, and Debian's package chromium (or CHROMIUM=path)"
IS_THERE = PYTHON.exists() and bool(CHROMIUM)
_ANSWER_SECONDS = 60


class Browser:
    """One page of a browser: see `tests.support.browser_driver` for what it does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def do(self, what: str, **how: Any) -> Any:
        """What the browser answers."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": what, **how}).encode() + b"\n")
        answer = await self.answer()
        assert "failed" not in answer, f"{what} {how}: {answer['failed']}"
        return answer["ok"]

    async def answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = await asyncio.wait_for(self._process.stdout.readline(), _ANSWER_SECONDS)
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


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser that has shown nothing yet."""
    driver = str(Path(__file__).with_name("browser_driver.py"))
    process = await asyncio.create_subprocess_exec(
        str(PYTHON), driver, CHROMIUM, stdin=PIPE, stdout=PIPE, limit=64 << 20
    )
    try:
        one = Browser(process)
        assert "ready" in await one.answer()
        yield one
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()
            await process.wait()
