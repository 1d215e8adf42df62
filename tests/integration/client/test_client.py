"""The registry for programs: against the real admin service, a real etcd and real sidecars with simulated engines."""

from __future__ import annotations

import asyncio
import runpy
from contextlib import aclosing, closing
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
    RegistryError,
    ResourceExhausted,
    State,
    Tls,
    Unavailable,
)
from registry.tools.devstack.processes import free_ports
from registry.tools.devstack.stack_file import DEFAULT_FOLDER
from registry.tools.devstack.stack_parts import Folder
from registry.v1 import registry_pb2 as pb
from tests.support.adapters import write_adapter
from tests.support.admin import Admin, change_set, put
from tests.support.fleet import POOL, known_replicas
from tests.support.waiting import eventually

EXAMPLE = Path(__file__).parents[3] / "docs/examples/training_loop.py"


@pytest.fixture
async def replicas(admin, etcd, tmp_path):
    """Two replicas that the registry knows, and that may read `tmp_path/sources`."""
    async with known_replicas(admin, etcd.endpoints, etcd.prefix, tmp_path, "r1", "r2") as engines:
        yield list(engines.values())


async def test_published_is_served_by_every_replica(registry, replicas, tmp_path):
    """R3 converge: publish returns when every engine lists the weights; W6: a new spec, a new generation."""
    for step in (1, 2):
        source = tmp_path / "sources" / f"step-{step}"
        write_adapter(source, seed=step)
        published = await registry.publish(source, "acme/policy", POOL, labels={"step": str(step)}, timeout_seconds=120)
        assert (published.name, published.pool, published.generation) == ("acme/policy", POOL, step)
        assert published.uri == source.as_uri()
        listings = [await engine.listing() for engine in replicas]
        assert len({Path(listing["acme/policy"]).name for listing in listings}) == 1
    await registry.withdraw("acme/policy", POOL)
    with pytest.raises(NotFound):
        await registry.withdraw("acme/policy", POOL)


async def test_files_that_were_refused_are_served_once_they_are_mended(registry, replicas, tmp_path):
    """S3, S5: by the same publish, by a retry, and by themselves."""
    weights = "adapter_model.safetensors"
    for name in ("again", "asked", "seen"):
        source = tmp_path / "sources" / name
        write_adapter(source)
        (source / weights).rename(source / "adapter_model.bin")
        with pytest.raises(FailedPrecondition, match=r"adapter_model\.bin"):
            await registry.publish(source.as_uri(), name, POOL, timeout_seconds=120)
        (source / "adapter_model.bin").rename(source / weights)
    again = await registry.publish((tmp_path / "sources/again").as_uri(), "again", POOL, timeout_seconds=120)
    asked = await registry.retry("asked", POOL, timeout_seconds=120)
    assert (again.generation, asked.generation) == (1, 1)

    async def is_served() -> bool:
        return all([{"again", "asked", "seen"} <= (await engine.listing()).keys() for engine in replicas])

    await eventually(is_served, timeout_seconds=120)


async def test_replicas_that_refuse_are_named(registry, replicas, tmp_path):
    """R9 status-truth: publish does not return where a replica refused."""
    outside = tmp_path / "elsewhere"
    write_adapter(outside, seed=1)
    with pytest.raises(FailedPrecondition) as refused:
        await registry.publish(outside, "x", POOL, timeout_seconds=120)
    assert refused.value.reason is Reason.ROLLOUT_FAILED
    assert all("source_not_allowed" in why for why in refused.value.metadata.values())
    assert set(refused.value.metadata) <= {"r1", "r2"}


async def test_the_same_again_changes_nothing(registry, tmp_path):
    """W3 idempotent, W6: neither the same content nor the same request id makes a second generation."""
    write_adapter(tmp_path / "a", seed=1)
    first = await registry.publish(tmp_path / "a", "x", POOL, wait=False, request_id="step-1")
    assert await registry.publish(tmp_path / "a", "x", POOL, wait=False, request_id="step-1") == first
    assert (await registry.publish(tmp_path / "a", "x", POOL, wait=False)).generation == 1


async def test_an_adapter_through_its_generations(registry, tmp_path):
    """W4 etag, W6: a rollback is a new generation, too."""
    for step in (1, 2):
        write_adapter(tmp_path / f"v{step}", seed=step)
        await registry.publish(tmp_path / f"v{step}", "acme/X", POOL, labels={"step": str(step)}, wait=False)
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
    await registry.withdraw("acme/x", POOL, etag=(await registry.get("acme/x", POOL)).etag)
    with pytest.raises(NotFound):
        await registry.get("acme/x", POOL)


async def test_what_nobody_serves_in_time_is_said(registry, tmp_path):
    write_adapter(tmp_path / "a", seed=1)

    async def told() -> str | None:
        """On a slow machine nothing may have been heard in time."""
        with pytest.raises(Unavailable) as late:
            await registry.publish(tmp_path / "a", "x", POOL, timeout_seconds=1)
        assert late.value.reason is Reason.DEADLINE_EXCEEDED
        is_heard = "x generation 1 is not served in time" in late.value.message
        return late.value.metadata["request_id"] if is_heard else None

    again = await registry.publish(tmp_path / "a", "x", POOL, wait=False, request_id=await eventually(told))
    assert again.generation == 1


async def test_bad_input_is_refused_before_anything_is_sent(admin: Admin, registry, tmp_path):
    """Each error names the field; nothing is registered."""
    write_adapter(tmp_path / "a", seed=1)
    (tmp_path / "empty").mkdir()
    wrong = "sha256:" + "0" * 64
    cases = [
        (registry.publish(tmp_path / "none", "x", POOL), InvalidArgument, "source"),
        (registry.publish(tmp_path / "empty", "x", POOL), InvalidArgument, "source"),
        (registry.publish(tmp_path / "a", "x", POOL, digest=wrong), InvalidArgument, "digest"),
        (registry.publish(tmp_path / "a", "x", POOL, priority=10**12), InvalidArgument, "priority, labels or canaries"),
        (registry.publish(tmp_path / "a", "\udcff", POOL), InvalidArgument, "name"),
        (registry.publish(tmp_path / "a", "../x", POOL), InvalidArgument, "changes[0].upsert.name"),
        (registry.publish("ftp://a/b", "x", POOL), InvalidArgument, "changes[0].upsert.spec.source.uri"),
        (registry.publish(tmp_path / "a", "x", "nowhere"), NotFound, "pool"),
    ]
    for publishing, kind, field in cases:
        with pytest.raises(kind) as refused:
            await publishing
        assert refused.value.field == field
    assert not (await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool=POOL))).adapters


async def test_a_quota_is_told_as_itself(admin: Admin, registry, tmp_path):
    write_adapter(tmp_path / "a", seed=1)
    await admin.stub.ApplyAdapters(change_set(put("acme/one"), pool=POOL))
    await admin.stub.SetTenant(pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=1)))
    with pytest.raises(ResourceExhausted) as refused:
        await registry.publish(tmp_path / "a", "acme/two", POOL)
    assert refused.value.reason is Reason.QUOTA_EXCEEDED


def test_without_an_admin_service_the_request_id_is_told(tmp_path):
    """W8 no-false-fail: who cannot know the outcome is told what to repeat."""
    write_adapter(tmp_path / "a", seed=1)
    (port,) = free_ports(1)
    with Registry(f"127.0.0.1:{port}", timeout_seconds=0.5) as registry, pytest.raises(Unavailable) as unknown:
        registry.publish(tmp_path / "a", "x", "p", request_id="mine")
    assert unknown.value.metadata["request_id"] == "mine"


@pytest.mark.parametrize("tls", [Tls(cert=Path("/none.pem")), Tls(ca=Path("/none.pem"))])
def test_wrong_certificates_are_an_error_at_once(tls):
    with pytest.raises(RegistryError, match="tls"):
        Registry("127.0.0.1:1", tls=tls)


async def test_the_example_trains(admin: Admin, replicas, tmp_path, capsys):
    """R5, W6: each sample of the example is of exactly one version."""
    run = runpy.run_path(str(EXAMPLE))["run"]

    def train() -> list[Published]:
        with Registry(admin.address) as registry:
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


async def test_a_router_follows_where_adapters_are(registry, replicas, tmp_path):
    """R9: what real sidecars report of their engines, from pending to serving, whole at each step; then one dies."""
    folder = write_adapter(tmp_path / "sources/acme/v1", seed=1).directory
    async with aclosing(registry.residency(POOL)) as states:
        assert (await anext(states)).adapters == {}
        published = await registry.publish(folder, "acme/Policy", POOL)
        async with asyncio.timeout(120):
            async for state in states:
                found = state.adapters.get("acme/policy")
                if found is not None and len(found.serving) == 2:
                    break
    assert found is not None
    assert (found.name, found.generation, found.load) == ("acme/Policy", published.generation, "eager")
    assert [one.replica for one in found.replicas] == ["r1", "r2"]
    for one, engine in zip(found.replicas, replicas, strict=True):
        assert (one.engine_url, one.state, one.loaded) == (engine.url, State.SERVING, True)
        assert one.model in await engine.listing()


async def test_a_program_without_an_event_loop_routes_too(admin, registry, tmp_path):
    def look() -> list[str]:
        with Registry(admin.address) as plain, closing(plain.residency(POOL)) as states:
            return [*next(states).adapters]

    await admin.stub.ApplyAdapters(change_set(put("A"), pool=POOL))
    assert await asyncio.to_thread(look) == ["a"]
    with pytest.raises(NotFound):
        await anext(registry.residency("nowhere"))
