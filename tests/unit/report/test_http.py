"""What a sidecar tells at its HTTP port of its newest round, and of parts of it that fail."""

from __future__ import annotations

from dataclasses import replace

import httpx
from prometheus_client.parser import text_string_to_metric_families

from registry.cli.views.columns import REPLICAS
from registry.cli.views.replica_view import replica_view
from registry.model.status import ReplicaStatus
from registry.runtime.clock import Clock
from registry.runtime.process import Trouble
from registry.v1 import registry_pb2 as pb
from sidecar.plan.types import (
    FailedAdapter,
    KeptAdapter,
    LastSeen,
    LazySituation,
    PendingAdapter,
    RoundReport,
    ServedAdapter,
    WarnedAdapter,
)
from sidecar.report.cache import StatusCache
from sidecar.report.events import EventRing
from sidecar.report.http import make_app
from tests.support.worlds import observed
from tests.unit.report.test_status import REPLICA, plan, situation

NOW = 1000.0


class Scene:
    """A sidecar's port, and what its parts have to say."""

    def __init__(self) -> None:
        scene = self

        class Time(Clock):
            def monotonic(self) -> float:
                return scene.now

        self.now, self.troubles = NOW, dict[str, Trouble]()
        self.offered = 0
        clock = Time()
        self.cache = StatusCache(REPLICA, clock, self.offer, self.troubles)
        self.app = make_app(self.cache, ["--insecure"], None, EventRing(clock, bool), None)  # type: ignore[arg-type]

    def offer(self, _newest: object) -> None:
        self.offered += 1

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://sidecar") as client:
            return await client.get(path)

    async def figures(self) -> dict[str, float]:
        """By name, with the value of the label if there is one."""
        families = text_string_to_metric_families((await self.get("/metrics")).text)
        return {
            " ".join((sample.name.removeprefix("loraplane_"), *sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }


SERVED, LOST = ServedAdapter("a", 2, "d"), FailedAdapter("b", 1, "rank_too_high", "m", 1, None, "q", is_settled=True)
SWAPS = replace(observed(), facts=replace(observed().facts, swap="refused"))
ROUND = situation(
    plan(
        served=(SERVED,),
        failed=(LOST,),
        pending=(PendingAdapter("c", 1, "staging", "q"),),
        residents=(ServedAdapter("lazy", 1, "d"),),
    ),
    observed=SWAPS,
    lazy=LazySituation(count=5, room=2, used_at={"lazy": NOW}),
)


async def test_before_the_first_round_a_sidecar_lives_and_is_not_ready():
    """R9 status-truth, R18: and claims nothing of adapters."""
    scene = Scene()
    assert ((await scene.get("/livez")).status_code, (await scene.get("/livez")).json()) == (200, {"alive": True})
    told = await scene.get("/readyz")
    assert (told.status_code, told.json()["stale"], told.json()["note"]) == (503, True, "starting")
    status = ReplicaStatus.parse((await scene.get("/status")).content)
    assert (status.ready, status.served.count, status.engine.incarnation) == (False, 0, "")
    assert (status.observed_revision, status.last_request_id, status.engine.base_models) == (0, "", [])
    assert (status.lazy.count, status.lazy.servable, status.lazy.reason) == (0, False, "")
    figures = await scene.figures()
    names = ("ready", "stale", "desired_adapters", "served_adapters", "lazy_resident")
    assert [figures[name] for name in names] == [0, 1, 0, 0, 0]


async def test_each_page_tells_of_the_newest_round():
    """R9 status-truth, R18: load balancers, people and alerts are told the same. R20: of a drain before all else."""
    scene = Scene()
    assert ROUND.plan is not None
    warned = (WarnedAdapter("", 0, "file_not_taken", "line 4"), WarnedAdapter("", 0, "base_unknown", "m"))
    round_plan = replace(ROUND.plan, warnings=warned)
    told_round = replace(ROUND, plan=round_plan, held="12 of 13 would go", degraded="it refuses")
    scene.cache.take(RoundReport(told_round, 3))
    assert scene.offered == 1
    told = await scene.get("/readyz")
    assert (told.status_code, told.headers["content-type"]) == (200, "application/json")
    assert told.json() == {
        "ready": True,
        "stale": False,
        "note": "",
        "held": "12 of 13 would go",
        "degraded": "it refuses",
        "observed_revision": 7,
        "served": 1,
        "served_not_as_desired": 0,
        "served_seen_at": "",
        "pending": 1,
        "failed": 1,
        "files_not_taken": ["line 4"],
        "insecure": ["--insecure"],
        "failing": [],
    }
    assert ReplicaStatus.parse((await scene.get("/status")).content) == scene.cache.status
    figures = await scene.figures()
    expected = {"desired_adapters": 3, "served_adapters": 1, "lazy_resident": 1, "failed_adapters rank_too_high": 1}
    expected |= {"files_not_taken": 1}
    expected |= {
        "ready": 1,
        "stale": 0,
        "list_held": 1,
        "degraded": 1,
        "draining": 0,
        "engine_swap refused": 1,
    }
    expected |= {"lora_syncer_adapter_status a": 1, "lora_syncer_adapter_status b": 0}
    assert {name: figures.get(name) for name in expected} == expected
    gone = replace(ROUND, observed=None, plan=None, ready=False, last_seen=LastSeen((SERVED,), "then"))
    scene.cache.take(RoundReport(gone, 3))
    told = await scene.get("/readyz")
    assert (told.status_code, told.json()["served"], told.json()["served_seen_at"]) == (503, 1, "then")
    figures = await scene.figures()
    assert (figures["lazy_resident"], figures["ready"], figures["desired_adapters"]) == (0, 0, 3)
    assert (figures["list_held"], figures["degraded"], figures["served_adapters"]) == (0, 0, 1)
    assert not {name for name in figures if name.startswith(("failed_adapters ", "lora_syncer", "engine_swap "))}
    scene.cache.take(RoundReport(ROUND, 3))
    scene.cache.take_drain("it drains")
    assert scene.offered == 4
    told, figures = await scene.get("/readyz"), await scene.figures()
    assert (told.status_code, told.json()["note"], figures["ready"], figures["draining"]) == (503, "it drains", 0, 1)


async def test_a_status_is_old_once_a_part_that_it_comes_from_has_failed_for_a_while():
    """R9 status-truth, R12: not at its first failure, after which it is run again, nor for any other part."""
    scene = Scene()
    scene.cache.take(RoundReport(ROUND, 3))

    async def told(now: float, **since: float) -> tuple[bool, list[str]]:
        scene.now = now
        scene.troubles.clear()
        scene.troubles.update({part: Trouble("E", at) for part, at in since.items()})
        scene.cache.look_again()
        body = (await scene.get("/readyz")).json()
        warnings = [(one.reason, one.name, one.generation) for one in scene.cache.status.warnings]
        assert warnings == [("internal_error", "", 0)] * len(since), "it is of no one adapter"
        return body["stale"], body["failing"]

    assert await told(NOW + 9.9, reconciler=NOW) == (False, ["reconciler"])
    assert await told(NOW + 10.0, reconciler=NOW) == (True, ["reconciler"])
    for part in ("reconciler", "pool", "adapters"):
        assert await told(NOW + 30.0, **{part: NOW}) == (True, [part])
    assert await told(NOW + 30.0, reconciler=NOW + 29.0, pool=NOW) == (True, ["pool", "reconciler"])
    assert await told(NOW + 30.0, scrub=NOW) == (False, ["scrub"])
    assert await told(NOW + 30.0) == (False, [])


async def test_what_is_answered_with_other_weights_is_counted_as_served():
    """R13, R9: a last good generation is served; of what did not fit into the status the numbers stay."""
    scene = Scene()
    kept = (KeptAdapter("b", 1), KeptAdapter("c", 0), KeptAdapter("a", 1, is_counted=True))
    scene.cache.take(RoundReport(situation(plan(served=(SERVED,), failed=(LOST,), kept=kept, omitted=7)), 3))
    told = (await scene.get("/readyz")).json()
    assert (told["served"], told["served_not_as_desired"], told["pending"], told["failed"]) == (3, 2, 7, 1)
    figures = await scene.figures()
    assert (figures["served_adapters"], figures["kept_adapters"]) == (1, 2)
    shown = replica_view(pb.Replica(name="r", pool="p", status_json=scene.cache.status.to_bytes().decode()))
    assert REPLICAS.columns["SERVED"](shown) == "3 (2 not as desired)"
