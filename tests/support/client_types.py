"""Types that programs see of both clients. Never run: `make check` compares them."""

from __future__ import annotations

from collections.abc import Generator
from typing import assert_type

from loraplane import (
    AdapterHistory,
    AdapterListing,
    AsyncRegistry,
    PoolResidency,
    Publication,
    Published,
    RecordedEvent,
    RegisteredAdapter,
    RegisteredPool,
    Registry,
    ReplicaListing,
    TenantQuota,
    Withdrawal,
)


def of_a_program(registry: Registry) -> None:
    """The plain client's, which are those of the other without its coroutines."""
    with registry as same:
        assert_type(same, Registry)
    published = registry.publish("s3://b/a", "a", "p", labels={"step": "1"}, wait=False)
    assert_type(published, Published)
    assert_type(registry.retry("a", "p", replica="r"), Published)
    assert_type(registry.rollback("a", "p", to_generation=1), Published)
    assert_type(registry.wait(published, timeout_seconds=1.0), None)
    assert_type(registry.withdraw("a", "p", etag="7"), None)
    assert_type(registry.get("a", "p"), RegisteredAdapter)
    assert_type(registry.list("p", matching="load=lazy"), AdapterListing)
    assert_type(registry.history("a", "p"), AdapterHistory)
    assert_type(registry.residency("p"), Generator[PoolResidency, None, None])
    assert_type(registry.watch("p"), Generator[AdapterListing, None, None])
    assert_type(registry.events("p"), Generator[RecordedEvent, None, None])
    assert_type(registry.apply([Publication(name="a", source="s3://b/a"), Withdrawal("b")], "p"), tuple[Published, ...])
    assert_type(registry.promote("a", "p"), Published)
    assert_type(registry.pools(), tuple[RegisteredPool, ...])
    assert_type(registry.replicas("p"), ReplicaListing)
    assert_type(registry.drain("r", "p"), bool)
    assert_type(registry.set_quota("t", None), TenantQuota)
    registry.publish("s3://b/a", "a", "p", load="fast")  # type: ignore[arg-type] # no way to load
    registry.get("a")  # type: ignore[call-arg] # no pool
    registry.get("a", 1)  # type: ignore[arg-type] # no name
    registry.publish("s3://b/a", "a", "p", timeout=1)  # type: ignore[call-arg] # no such parameter


async def of_a_program_with_a_loop(registry: AsyncRegistry) -> None:
    """The other's."""
    assert_type(await registry.publish("s3://b/a", "a", "p"), Published)
    assert_type(await registry.get("a", "p"), RegisteredAdapter)
