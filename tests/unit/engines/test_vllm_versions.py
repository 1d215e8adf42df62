"""What a driver tells our plugin of versions, and when it tells it again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.engines.driver import ProvesAnswers
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.transport import Reply
from sidecar.engines.vllm.process import MOST_BYTES, VERSIONS_PATH, parts
from sidecar.vllm_plugin.routes import MAX_BODY_BYTES
from tests.simulation.loop import virtual
from tests.support.engine_in_memory import WITH_PLUGIN, InMemory, driver_of

ONE, TWO = ({("x", "/s/x"): f"x@{number} sha256:{'0' * 64}"} for number in (1, 2))
MORE = {("y", "/s/y"): f"y@1 sha256:{'1' * 64}"}


def told(way: InMemory) -> list[list[str]]:
    """The names and generations in each call."""
    bodies = [body["versions"] for _, path, body in way.asked if path == VERSIONS_PATH]
    return [[row["version"].partition(" ")[0] for row in rows] for rows in bodies]  # type: ignore[attr-defined]


@virtual
async def test_only_what_is_new_is_told():
    """R26 answered-by: what came back after it was gone, too, since its generation is another."""
    engine = SimulatedVllm(WITH_PLUGIN)
    driver, way = driver_of(engine)
    assert isinstance(driver, ProvesAnswers)
    await driver.tell_versions(ONE)
    assert told(way) == [], "it was not looked at yet"
    assert (await driver.observe()).facts.proves_answers
    for versions in (ONE, ONE, ONE | MORE, TWO | MORE, MORE, TWO):
        await driver.tell_versions(versions)
    assert told(way) == [["x@1"], ["y@1"], ["x@2"], ["x@2"]]
    engine.started_at += 1
    await driver.observe()
    way.instead[VERSIONS_PATH].append(Reply(503, b""))
    for _ in range(3):
        await driver.tell_versions(TWO)
    assert told(way)[4:] == [["x@2"], ["x@2"]], "another process everything, and what did not arrive again"


EARLIER = b'{"schema": 1, "incarnation": "i", "capabilities": ["swap", "unload", "state"]}'


@pytest.mark.parametrize("has_plugin", [True, False], ids=["of an earlier release", "none"])
@virtual
async def test_a_plugin_that_proves_no_answers_is_told_nothing(has_plugin):
    driver, way = driver_of(SimulatedVllm(replace(WITH_PLUGIN, plugin=has_plugin)))
    way.instead["/v1/loraplane/plugin"].append(Reply(200, EARLIER) if has_plugin else None)
    assert not (await driver.observe()).facts.proves_answers
    await driver.tell_versions(ONE)
    assert told(way) == []


def test_many_are_told_in_portions_that_the_plugin_takes():
    """R16 bounded."""
    many = {(f"n{number}", "/" + "p" * 4000): f"n{number}@1 sha256:{'0' * 64}" for number in range(40)}
    found = list(parts(many))
    assert {use: version for part in found for use, version in part.items()} == many
    assert 4 < len(found) < 10
    assert all(sum(len(path) for _, path in part) < MOST_BYTES for part in found)
    assert len(list(parts({("n", "/" + "p" * MOST_BYTES): "n@1"}))) == 1
    assert list(parts({})) == []
    assert MOST_BYTES + 8192 < MAX_BODY_BYTES
