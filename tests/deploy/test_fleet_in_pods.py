"""The rendered chart, played pod by pod: what callers notice of updates and losses while versions are published.

Engines are simulated in `make test`. `make pods` plays all of it, with TLS, roles and three members of etcd, and
two real vLLM once.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from loraplane import Unavailable
from registry.cli.doctor.pod_findings import pod_findings
from registry.tools.devstack.engine_environment import MAX_CPU_LORAS, MAX_LORA_RANK
from tests.support.manifests import Manifest, containers_of, of_kind, pod_of
from tests.support.netns import why_not
from tests.support.pods.fleet import PodFleet, production, trial
from tests.support.pods.images import real_vllm, simulated_vllm
from tests.support.pods.router import Router
from tests.support.waiting import eventually

WHY_NOT = why_not()
IS_WHOLE = os.environ.get("PODS") == "whole"
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"pods need network namespaces: {WHY_NOT}")
whole = pytest.mark.skipif(not IS_WHOLE, reason="it takes minutes: make pods")
EVERYWHERE, ON_TWO = "acme/everywhere", "acme/two"
BEGAN = time.monotonic()


def say(text: str) -> None:
    sys.stdout.write(f"{time.monotonic() - BEGAN:5.0f} s  {text}\n")
    sys.stdout.flush()


@asynccontextmanager
async def publishing(fleet: PodFleet, *adapters: str) -> AsyncIterator[list[int]]:
    """New versions of the adapters, one after the other, while the context lasts; gives how many there were."""
    published = [1]

    async def publish() -> None:
        while True:
            published[0] += 1
            for adapter in adapters:
                await fleet.place(adapter, published[0], replicas=2 if adapter == ON_TWO else 0)
            await asyncio.sleep(1)

    work = asyncio.create_task(publish())
    try:
        yield published
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    if not work.cancelled() and (error := work.exception()):
        raise error


async def test_an_update_of_all_replicas_fails_no_request(tmp_path):
    """R1 and R24 through a rolling update: every request is answered by the first replica that residency names."""
    tmp_path.chmod(0o755)
    async with trial(tmp_path, simulated_vllm(), replicas=2) as fleet:
        await fleet.place(EVERYWHERE, 1)
        before = {one.name for one in fleet.cluster.pods_of("replica")}
        router = Router("main")
        async with router.load(fleet.registry, EVERYWHERE, per_second=40):
            fleet.cluster.restart("replica")
            await fleet.settled()
            await fleet.place(EVERYWHERE, 2)
        assert not before & {one.name for one in fleet.cluster.pods_of("replica")}
        assert (router.failed, dict(router.passed_over)) == ([], {})
        assert router.answered[EVERYWHERE] > 100


@whole
@pytest.mark.timeout(1800)
async def test_updates_scaling_and_losses_fail_no_request(tmp_path):
    """For an adapter on every replica and for one on two, with TLS, roles, tokens and three members of etcd."""
    tmp_path.chmod(0o755)
    async with production(tmp_path, simulated_vllm(), {}, replicas=3) as fleet:
        say("three replicas are ready")
        await fleet.place(EVERYWHERE, 1)
        await fleet.place(ON_TWO, 1, replicas=2)
        router = Router("main")
        async with (
            publishing(fleet, EVERYWHERE, ON_TWO) as versions,
            router.load(fleet.registry, EVERYWHERE, ON_TWO, per_second=40),
        ):
            for name, (play, is_planned) in STEPS.items():
                await play(fleet)
                await fleet.settled()
                told = dict(router.passed_over)
                still = f"the router stood still for {router.stood_still_seconds:.1f} s at most"
                counts = f"{router.answered.total()} answered, {len(router.failed)} failed, passed over {told}"
                say(f"{name}: {counts}; {still}")
                assert router.failed == [], f"{name}; {still}"
                assert not is_planned or told == {}, f"{name}; {still}"
                router.passed_over.clear()
        say(f"the slowest request took {router.slowest_seconds:.1f} s")
        assert router.failed == [], "of those that were on their way at the end"
        assert versions[0] > 10
        assert min(router.answered[EVERYWHERE], router.answered[ON_TWO]) > 500


@whole
@pytest.mark.engine
@pytest.mark.timeout(1800)
async def test_real_engines_fail_no_request_either(tmp_path, tiny):
    """Two replicas of vLLM's CPU build, with the plugin that the init container copies."""
    tmp_path.chmod(0o755)
    limits = {"engine": {"maxLoraRank": MAX_LORA_RANK, "maxCpuLoras": MAX_CPU_LORAS}}
    async with production(tmp_path, real_vllm(tiny.model), limits, replicas=2) as fleet:
        say("two real vLLM are ready")
        await fleet.place(EVERYWHERE, 1)
        # Where two vLLM keep the machine busy, etcd breaks watches off now and then: a sidecar is stale for a moment.
        router = Router("main", patience_seconds=5)
        async with (
            publishing(fleet, EVERYWHERE) as versions,
            router.load(fleet.registry, EVERYWHERE, per_second=5, seconds=60),
        ):
            for play in (update, kill_sidecars):
                await play(fleet)
                await fleet.settled(seconds=600)
                still = f"the router stood still for {router.stood_still_seconds:.1f} s at most"
                say(f"{play.__name__}: {router.answered.total()} answered, {router.waited} waited; {still}")
                assert router.failed == [], f"{play.__name__}; {still}"
        assert (router.failed, dict(router.passed_over)) == ([], {})
        assert (versions[0] > 5, router.answered[EVERYWHERE] > 100) == (True, True)


SET = {
    "replicas": {"kind": "StatefulSet"},
    "plugin": {"source": "imageVolume"},
    "sidecar": {"store": {"claim": {"size": "1Gi"}}},
}


@whole
async def test_names_and_stores_of_a_set_come_back(tmp_path):
    """A StatefulSet with claims: whoever is replaced has its adapters at once, without its source."""
    tmp_path.chmod(0o755)
    async with production(tmp_path, simulated_vllm(), SET, replicas=2) as fleet:
        await fleet.place(EVERYWHERE, 1)
        names = [one.name for one in fleet.cluster.pods_of("replica")]
        router = Router("main")
        async with router.load(fleet.registry, EVERYWHERE, per_second=20):
            shutil.rmtree(fleet.sources / EVERYWHERE)
            await update(fleet)
            await fleet.settled()
        assert sorted(one.name for one in fleet.cluster.pods_of("replica")) == sorted(names)
        assert (router.failed, dict(router.passed_over)) == ([], {})


def mount_elsewhere(manifests: list[Manifest]) -> None:
    """The mistake of docs/deployment.md: the engine has the store, and at another path."""
    engine = containers_of(pod_of(of_kind(manifests, "Deployment", "replica")))["vllm"]
    (mount,) = (one for one in engine["volumeMounts"] if one["name"] == "loraplane-store")
    mount["mountPath"] = "/elsewhere"
    (found,) = pod_findings(manifests)
    assert found.reason == "store_not_shared"


@whole
async def test_a_store_that_is_mounted_elsewhere_is_told_by_the_replica_too(tmp_path):
    tmp_path.chmod(0o755)
    async with trial(tmp_path, simulated_vllm(), replicas=1, change=mount_elsewhere) as fleet:
        with pytest.raises(Unavailable, match="engine_cannot_see_store"):
            await fleet.registry.publish(fleet.version(EVERYWHERE, 1), EVERYWHERE, "main", timeout_seconds=20)


async def update(fleet: PodFleet) -> None:
    fleet.cluster.restart("replica")


async def scale_up(fleet: PodFleet) -> None:
    fleet.cluster.scale("replica", 5)


async def scale_down(fleet: PodFleet) -> None:
    fleet.cluster.scale("replica", 3)


async def drain_a_node(fleet: PodFleet) -> None:
    pod = fleet.cluster.pods_of("replica")[0]
    assert fleet.cluster.evict(pod)
    await pod.gone.wait()


async def kill_sidecars(fleet: PodFleet) -> None:
    """One after the other: what all of them said before stands for two seconds, and a busy machine needs longer."""
    for pod in fleet.cluster.pods_of("replica"):
        sidecar = pod.containers["loraplane-sidecar"]
        sidecar.kill()
        await eventually(lambda one=sidecar: one.restarts > 0 and one.ready, timeout_seconds=60)
        await fleet.settled()


async def kill_engines(fleet: PodFleet) -> None:
    for pod in fleet.cluster.pods_of("replica"):
        pod.containers["vllm"].kill()
        await eventually(lambda one=pod: one.containers["vllm"].restarts > 0)
        await fleet.settled()


async def lose_a_node(fleet: PodFleet) -> None:
    apart = {one.node for one in fleet.cluster.pods if not one.name.startswith("fleet-loraplane-replica")}
    pod = next(one for one in fleet.cluster.pods_of("replica") if one.node not in apart)
    await fleet.cluster.lose_node(pod.node)


# By name; and whether it is planned: then no request meets a replica that does not answer.
STEPS: dict[str, tuple[Callable[[PodFleet], Awaitable[None]], bool]] = {
    "a rolling update": (update, True),
    "five replicas": (scale_up, True),
    "three again": (scale_down, True),
    "an eviction": (drain_a_node, True),
    "killed sidecars": (kill_sidecars, False),
    "killed engines": (kill_engines, False),
    "a node lost": (lose_a_node, False),
}
