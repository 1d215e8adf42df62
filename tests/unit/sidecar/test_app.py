"""What a sidecar does before any of its parts runs, and which of them run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from unittest.mock import Mock

import pytest

from sidecar.app import Sidecar


@pytest.mark.parametrize("is_readable", [True, False])
def test_what_the_process_before_left_is_taken_up_before_anything_runs(is_readable):
    """R12 crash-only, R13: a snapshot that ends its reader is done without."""
    world = Mock()
    sidecar = Sidecar(**{one.name: getattr(world, one.name) for one in fields(Sidecar)})

    def survives(part: str, work: Callable[[], None]) -> bool:
        assert part == "snapshot"
        work()
        return is_readable

    world.supervisor.survives.side_effect = survives
    sidecar.start(world.tasks)
    did = [name for name, *_ in world.mock_calls]
    wanted = [
        "ports.store.take_over",
        "supervisor.survives",
        "cache.restore",
        *([] if is_readable else ["cache.forget"]),
    ]
    assert did[: len(wanted)] == wanted
    assert ("cache.forget" in did) is not is_readable
    names = {call.kwargs["name"] for call in world.tasks.create_task.call_args_list}
    serving = {
        "engine watch",
        "engine pulse",
        "changes watch",
        "reconciler",
        "resolver",
        "files watch",
        "sources watch",
        "lease collector",
        "scrub",
    }
    assert (
        names
        == {
            "watcher",
            "certificates watch",
            "status writer",
            "handoff watch",
            "last good finder",
            "drain orders",
            "load sampler",
            "use teller",
            "drain list",
        }
        | serving
    )
    kept = {call.args[0] for call in world.supervisor.keep.call_args_list}
    assert kept == names - {"watcher"}, "which keeps itself, and what it has read"
    world.ports.answer = None
    world.tasks.create_task.reset_mock()
    sidecar.start_serving(world.tasks)
    names = {call.kwargs["name"] for call in world.tasks.create_task.call_args_list}
    assert names == serving - {"resolver"}
