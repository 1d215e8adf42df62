"""Failpoints: handlers of this process, which only code in it can install."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from registry.runtime.failpoints import Point, handling, hit

ROOT = Path(__file__).parents[3]


def test_a_handler_hears_of_each_point_within_the_body_and_of_none_after_it():
    """In the thread that passes it. Handlers are nested, and what one raises reaches the code that passes."""
    passed: list[Point] = []
    with handling(passed.append):
        hit(Point.LOAD_SENT)
        hit(Point.LOADED)
    hit(Point.UNLOADED)
    assert passed == [Point.LOAD_SENT, Point.LOADED]
    names: list[str] = []
    with handling(lambda _: names.append(thread.name)):
        thread = Thread(target=hit, args=[Point.RECEIVED], name="staging")
        thread.start()
        thread.join()
    assert names == ["staging"]
    outer: list[Point] = []

    def die(_: Point) -> None:
        raise SystemExit

    with handling(outer.append):
        with pytest.raises(SystemExit), handling(die):
            hit(Point.PLACED)
        hit(Point.PINNED)
    assert outer == [Point.PLACED, Point.PINNED]


def test_no_program_installs_a_handler_and_each_point_is_passed_somewhere():
    """Nothing from outside ends a process: only tests have handlers."""
    product = [path for room in ("registry", "sidecar", "loraplane") for path in (ROOT / room).rglob("*.py")]
    texts = {path: path.read_text() for path in product}
    assert [path for path, text in texts.items() if "handling(" in text] == [ROOT / "registry/runtime/failpoints.py"]
    assert [point for point in Point if not any(f"Point.{point.name}" in text for text in texts.values())] == []
