"""Order in which the suite's files are played, and which of them one worker plays after another."""

from __future__ import annotations

from collections import Counter

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Each ask one real vLLM of their worker's session: to start one takes as long as most tests of it. The first begin with
# test_proof.py, which needs an engine that has served no adapter yet; the last of each end their engines.
_WITH_THE_PLUGIN = (
    "tests/contract/engine/test_proof.py",
    "tests/contract/engine/test_plugin.py",
    "tests/contract/engine/test_resolver.py",
    "tests/contract/engine/test_beside_a_load.py",
    "tests/e2e/test_lazy.py",
    "tests/e2e/test_fleet_swaps.py",
    "tests/e2e/test_other_base.py",
)
_WITHOUT_IT = (
    "tests/contract/engine/test_driver.py",
    "tests/contract/engine/test_drain.py",
    "tests/contract/engine/test_http_contract.py",
    "tests/contract/engine/test_paused.py",
    "tests/contract/engine/test_files_pinned.py",
    "tests/integration/convert/test_conversions.py",
    "tests/integration/convert/test_served.py",
    "tests/corpus/test_engine.py",
    "tests/contract/test_played_torch.py",
    "tests/contract/engine/test_vllm_inside.py",
    "tests/e2e/test_plain_engine.py",
)
_ON_ONE_ENGINE = (*_WITH_THE_PLUGIN, *_WITHOUT_IT)
# These take a processor all the time; what is elsewhere waits for other processes, mostly.
_COMPUTING = ("tests/properties/", "tests/simulation/", "tests/unit/")


def sort(items: list[pytest.Item]) -> None:
    """Files that share an engine first, then those of nothing but engines: so no worker ends with one, alone."""
    engine_tests = Counter(item.path for item in items if item.get_closest_marker("engine"))
    tests = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[float, float]:
        file = _file(item.nodeid)
        shared = _ON_ONE_ENGINE.index(file) if file in _ON_ONE_ENGINE else len(_ON_ONE_ENGINE)
        return shared, -engine_tests[item.path] / tests[item.path]

    items.sort(key=place)


class ByEngine(LoadFileScheduling):  # type: ignore[misc] # which has no types
    """One worker plays all tests of a file, and all files that share an engine.

    The last worker computes while the others wait, so that the processors are idle at no time; whoever has no more of
    its own takes of what is left.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        computes = node is self.nodes[-1]
        wanted = (scope for scope in self.workqueue if scope.startswith(_COMPUTING) is computes)
        if (scope := next(wanted, None)) is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        if file in _WITH_THE_PLUGIN:
            return "with the plugin"
        return "without the plugin" if file in _WITHOUT_IT else file


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
