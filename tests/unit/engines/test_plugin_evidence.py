"""What the plugin and the engine's metrics prove together, if both are of one process."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.vllm import plugin_calls as plugin
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.engines.vllm.process import VllmProcess

METRICS = """# TYPE vllm:lora_requests_info gauge
vllm:num_requests_running{engine="0",model_name="base"} 0.0
vllm:num_requests_waiting{engine="0",model_name="base"} 0.0
process_start_time_seconds %s
"""
STATE = json.dumps({"schema": 1, "adapters": [{"path": "/a"}]}).encode()


class Answers:
    """Implements `VllmHttp.get`: each read of the metrics tells of the next process of `started`."""

    def __init__(self, *started: str) -> None:
        self._started = iter(started)

    url = "http://e"

    async def get(self, paths: Sequence[str], _seconds: float) -> list[bytes]:
        return [STATE if path == plugin.STATE_PATH else (METRICS % next(self._started)).encode() for path in paths]


def engine(*started: str) -> VllmEngine:
    found = VllmEngine("http://e")
    found._process = VllmProcess(started[0], "0.32.0", plugin.About())
    found._http = Answers(*started)  # type: ignore[assignment]
    return found


async def test_of_one_process_it_is_evidence():
    found = await engine("1.5", "1.5").drain_evidence()
    assert (found.incarnation, found.paths) == ("1.5", {"/a"})


async def test_of_two_processes_it_proves_nothing():
    """R7 files-pinned: the state is of the one, what is said of requests of the other."""
    with pytest.raises(EngineUnreachable, match="restarted"):
        await engine("1.5", "2.5").drain_evidence()
