"""Drives a headless Chromium by commands on standard input, one JSON object a line; each gets one line in answer.

Runs in an environment of its own, .venv-page, which has playwright and axe-core, and nothing of ours.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

SERIOUS = {"serious", "critical"}
_WAIT_SECONDS = 60


def _axe(page: Any) -> list[str]:
    """What axe-core finds that is serious or worse."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:3]}"
        for one in found
        if one["impact"] in SERIOUS
    ]


def main() -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox", "--disable-gpu"])
        page, complaints = browser.new_page(), list[str]()

        def renew(**how: Any) -> None:
            nonlocal page
            page.context.close()
            page = browser.new_context(**how).new_page()
            page.set_default_timeout(1000 * _WAIT_SECONDS)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)

        def wait(script: str) -> None:
            """Asks from outside: the page's own policy forbids it to evaluate texts."""
            end = time.monotonic() + _WAIT_SECONDS
            while not page.evaluate(script):
                if time.monotonic() > end:
                    raise TimeoutError(f"not within {_WAIT_SECONDS} s; shown is: {page.inner_text('body')[:2000]}")
                time.sleep(0.05)

        def shoot(path: str, **how: Any) -> None:
            page.screenshot(path=path, **how)

        renew()
        do: dict[str, Callable[..., Any]] = {
            "renew": renew,
            "goto": lambda url: page.goto(url, wait_until="commit") and None,
            "wait": wait,
            "eval": lambda script: page.evaluate(script),  # noqa: PLW0108 - `page` is another one after "renew"
            "click": lambda selector: page.click(selector),  # noqa: PLW0108 - `page` is another one after "renew"
            "shown": lambda selector: page.wait_for_selector(selector) and None,
            "fill": lambda selector, text: page.fill(selector, text),  # noqa: PLW0108 - `page` is another one after "renew"
            "press": lambda key: page.keyboard.press(key),  # noqa: PLW0108 - `page` is another one after "renew"
            "size": lambda width, height: page.set_viewport_size({"width": width, "height": height}),
            "shoot": shoot,
            "axe": lambda: _axe(page),
            "complaints": lambda: [complaints.pop(0) for _ in [*complaints]],  # since this was last asked
        }
        print(json.dumps({"ready": browser.version}), flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                answer = {"ok": do[asked.pop("do")](**asked)}
            except Exception as error:  # noqa: BLE001 - whatever it is, the test that asked tells it
                answer = {"failed": f"{error}"}
            print(json.dumps(answer), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
