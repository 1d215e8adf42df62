"""The registry for programs: against the real admin service, a real etcd and real sidecars with simulated engines."""

from __future__ import annotations

import asyncio
import runpy
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path

import pytest

from loraplane import (
    Conflict,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Published,
    Reason,
    Registry,
    ResourceExhausted,
    State,
    Unavailable,
)
from registry.tools.devstack.processes import free_ports
from registry.tools.devstack.stack_file import DEFAULT_FOLDER
from registry.tools.devstack.stack_parts import Folder
from registry.v1 import registry_pb2 as pb
from tests.support.adapters import write_adapter
from tests.support.admin import Admin
from tests.support.fleet import POOL, known_replicas
from tests.support.waiting import eventually

EXAMPLE = Path(__file__).parents[3] / "docs/examples/training_loop.py"


@pytest.fixture
async def replicas(admin, etcd, tmp_path):
    """Two replicas that the registry knows, and that may read `tmp_path/sources`."""
    async with known_replicas(admin, etcd.endpoints, etcd.prefix, tmp_path, "r1", "r2") as engines:
        yield list(engines.values())


async def test_what_is_published_is_served_by_every_replica_or_refused_by_name(registry, replicas, tmp_path):
    """R3 converge, R9 status-truth, W6: a new spec, a new generation; routers follow where it is."""
    weights, source = "adapter_model.safetensors", tmp_path / "sources/step"
    async with aclosing(registry.residency(POOL)) as states:
        assert (await anext(states)).adapters == {}
        for step in (1, 2):
            folder = write_adapter(tmp_path / f"sources/{step}", seed=step).directory
            published = await registry.publish(folder, "acme/Policy", POOL, timeout_seconds=120)
            assert (published.name, published.generation, published.uri) == ("acme/Policy", step, folder.as_uri())
            listings = [await engine.listing() for engine in replicas]
            assert len({Path(listing["acme/Policy"]).name for listing in listings}) == 1
        async with asyncio.timeout(120):
            async for state in states:
                found = state.adapters.get("acme/policy")
                if found is not None and found.generation == 2 and len(found.serving) == 2:
                    break
    for one, engine in zip(found.replicas, replicas, strict=True):
        assert (one.engine_url, one.state, one.loaded) == (engine.url, State.SERVING, True)
    with pytest.raises(FailedPrecondition) as refused:
        await registry.publish(write_adapter(tmp_path / "elsewhere").directory, "x", POOL, timeout_seconds=120)
    assert refused.value.reason is Reason.ROLLOUT_FAILED
    assert all("source_not_allowed" in why for why in refused.value.metadata.values())
    write_adapter(source)
    (source / weights).rename(source / "adapter_model.bin")
    with pytest.raises(FailedPrecondition, match=r"adapter_model\.bin"):
        await registry.publish(source.as_uri(), "again", POOL, timeout_seconds=120)
    (source / "adapter_model.bin").rename(source / weights)
    again = await registry.publish(source.as_uri(), "again", POOL, timeout_seconds=120)
    assert again.generation == 1
    for _ in range(2):  # W3: a repetition with its id is the same request
        assert (await registry.retry("again", POOL, timeout_seconds=120, request_id="mine")).generation == 1


async def is_gone(engine, name: str) -> bool:
    return name not in await engine.listing()


async def test_what_is_disabled_is_unloaded_everywhere_and_comes_back_as_it_was(registry, replicas, tmp_path):
    """R6 unload-eventual, W6: its name, its history and its settings are kept meanwhile."""
    folder = write_adapter(tmp_path / "sources/a", seed=1).directory
    await registry.publish(folder, "acme/a", POOL, labels={"team": "bi"}, timeout_seconds=120)
    await registry.disable("acme/a", POOL)
    for engine in replicas:
        await eventually(partial(is_gone, engine, "acme/a"))
    found = await registry.get("acme/a", POOL)
    assert (found.enabled, found.generation, dict(found.labels)) == (False, 2, {"team": "bi"})
    assert [one.adapters for one in await registry.tenants() if one.name == "acme"] == [1]
    await registry.publish(folder, "acme/a", POOL, priority=3, timeout_seconds=120)
    back = await registry.enable("acme/a", POOL, timeout_seconds=120)
    assert (back.generation, back.model, len(back.engine_urls)) == (4, "acme/a", 2)
    assert all(["acme/a" in await engine.listing() for engine in replicas])
    assert len((await registry.history("acme/a", POOL)).generations) == 4


async def test_an_adapter_through_its_generations(admin, registry, tmp_path):
    """W3 idempotent, W4 etag, W6: the same again changes nothing; a rollback is a new generation, too."""
    for step in (1, 2):
        folder = write_adapter(tmp_path / f"v{step}", seed=step).directory
        for _ in range(2):
            made = await registry.publish(
                folder, "acme/X", POOL, labels={"step": str(step)}, wait=False, request_id=f"s{step}"
            )
            assert made.generation == step
    second = await registry.get("ACME/x", POOL)
    assert (second.name, second.tenant, second.generation, dict(second.labels)) == ("acme/X", "acme", 2, {"step": "2"})
    assert (await registry.list(POOL)).adapters == (second,)
    assert (await registry.list(POOL, matching="label.step=1")).adapters == ()
    back = await registry.rollback("acme/x", POOL, etag=second.etag, wait=False)
    assert (back.generation, back.uri) == (3, (tmp_path / "v1").as_uri())
    history = await registry.history("acme/x", POOL)
    assert [(one.generation, one.labels["step"]) for one in history.generations] == [(3, "1"), (2, "2"), (1, "1")]
    for changed in (registry.withdraw, registry.rollback):
        with pytest.raises(Conflict) as stale:
            await changed("acme/x", POOL, etag=second.etag)
        assert stale.value.reason is Reason.ETAG_MISMATCH
    await admin.stub.SetTenant(pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=1)))
    with pytest.raises(ResourceExhausted) as full:
        await registry.publish(tmp_path / "v1", "acme/two", POOL)
    assert full.value.reason is Reason.QUOTA_EXCEEDED
    await registry.withdraw("acme/x", POOL, etag=(await registry.get("acme/x", POOL)).etag)
    with pytest.raises(NotFound):
        await registry.get("acme/x", POOL)


async def test_what_a_publish_does_not_say_stays_as_somebody_set_it(registry, tmp_path):
    """W3 idempotent, W6: a job that pushes weights makes no lazy adapter eager, also where it repeats a call."""
    folders = [write_adapter(tmp_path / f"v{step}", seed=step).directory for step in (1, 2)]
    settings = {"load": "lazy", "priority": 7, "labels": {"team": "bi"}}
    await registry.publish(folders[0], "acme/X", POOL, **settings, wait=False)
    for _ in range(2):
        made = await registry.publish(folders[1], "acme/X", POOL, wait=False, request_id="step-2")
        assert made.generation == 2
    found = await registry.get("acme/X", POOL)
    assert (found.load, found.priority, dict(found.labels), found.uri) == ("lazy", 7, {"team": "bi"}, made.uri)
    await registry.publish(folders[1], "acme/X", POOL, replace=True, wait=False)
    found = await registry.get("acme/X", POOL)
    assert (found.generation, found.load, found.priority, dict(found.labels)) == (3, "eager", 0, {})


async def test_bad_input_is_refused_by_its_field(admin: Admin, registry, tmp_path):
    """Some before anything is sent; nothing is registered."""
    write_adapter(tmp_path / "a", seed=1)
    cases = [
        (registry.publish(tmp_path / "none", "x", POOL), InvalidArgument, "source"),
        (registry.publish(tmp_path / "a", "x", POOL, digest="sha256:" + "0" * 64), InvalidArgument, "digest"),
        (registry.publish(tmp_path / "a", "\udcff", POOL), InvalidArgument, "name"),
        (registry.publish(tmp_path / "a", "../x", POOL), InvalidArgument, "changes[0].update.name"),
        (registry.publish(tmp_path / "a", "x", "nowhere"), NotFound, "pool"),
    ]
    for publishing, kind, field in cases:
        with pytest.raises(kind) as refused:
            await publishing
        assert refused.value.field == field
    assert not (await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool=POOL))).adapters


def test_without_an_admin_service_the_request_id_is_told(tmp_path):
    """W8 no-false-fail: who cannot know the outcome is told what to repeat."""
    write_adapter(tmp_path / "a", seed=1)
    (port,) = free_ports(1)
    with Registry(f"127.0.0.1:{port}", timeout_seconds=0.5) as registry, pytest.raises(Unavailable) as unknown:
        registry.publish(tmp_path / "a", "x", "p", request_id="mine")
    assert unknown.value.metadata["request_id"] == "mine"


async def test_the_example_trains(admin: Admin, replicas, tmp_path, capsys):
    """R5, W6: each sample of the example is of exactly one version; without an event loop, and so is a router."""
    run = runpy.run_path(str(EXAMPLE))["run"]

    def train() -> list[Published]:
        with Registry(admin.address) as registry, closing(registry.residency(POOL)) as states:
            assert next(states).adapters == {}
            engines = [engine.url for engine in replicas]
            return run(registry, engines, "acme/policy", POOL, tmp_path / "sources", 3)

    published = await asyncio.to_thread(train)
    assert [one.generation for one in published] == [1, 2, 3]
    assert "step 2: generation 3, 2 samples of one version" in capsys.readouterr().out


def test_the_example_names_a_folder_that_the_stack_reads():
    """As it is written it works: sidecars of the local stack refuse whatever lies elsewhere."""
    command = next(line for line in EXAMPLE.read_text().splitlines() if "--folder" in line)
    folder = Path(command.split("--folder ")[1])
    assert folder.parent == Folder(DEFAULT_FOLDER).adapters
