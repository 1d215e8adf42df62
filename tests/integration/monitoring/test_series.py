"""Alerts and dashboards beside a real scrape of etcd, an admin service, a sidecar, a picker and an engine.

What nothing answers would never be told: a panel stays empty, and an alert silent, without an error anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import yaml
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from loraplane import AsyncRegistry
from registry.access.control import AccessControl
from registry.admin.health import AdminMetrics
from registry.picker.metrics import PickerMetrics
from tests.support.adapters import write_adapter
from tests.support.admin import admin_program
from tests.support.expressions import COMPOSE, Asked, Scraped, asked, names_of, read
from tests.support.fleet import BASE, POOL, Sidecar, SimulatedEngine
from tests.support.http_client import http_client
from tests.support.promql import selectors
from tests.support.routed_fleet import picker_program
from tests.support.waiting import eventually

ACCESS = "apiVersion: loraplane/v1\nkind: Access\nbindings: [{role: security, users: [root]}]\n"
NAMESPACE = "lora"  # as Prometheus' operator adds it
OURS = ("loraplane_", "lora_syncer_")


async def page(url: str) -> str:
    async with http_client(base_url=url, timeout=60) as client:
        await client.get("/no/such/page")
        return (await client.get("/metrics")).text


@asynccontextmanager
async def playing(etcd, folder: Path) -> AsyncIterator[Mapping[str, str]]:
    """Each job's URL, of parts that serve one adapter, failed with another, and answered a request."""
    for seed, name in enumerate(("sql", "law")):
        write_adapter(folder / "sources" / name, seed=seed, base=BASE)
    engine = SimulatedEngine(folder)
    admin = admin_program(folder, etcd.endpoints, etcd.prefix)
    sidecar = Sidecar(folder, etcd.endpoints, etcd.prefix, engine.url, sources=folder / "sources")
    picker = picker_program(folder, "a", admin.address)
    programs = (engine.program, admin.program, sidecar.program, picker.program)
    try:
        for program in programs:
            program.start()
        async with AsyncRegistry(admin.address) as registry:
            await registry.create_pool(POOL, [BASE])
            await registry.publish(str(folder / "sources/sql"), "sql", POOL, timeout_seconds=60)
            lost = folder / "sources/lost"
            write_adapter(lost, seed=3, base=BASE)
            (lost / "adapter_model.safetensors").write_bytes(b"no tensors")
            await registry.publish(str(lost), "lost", POOL, wait=False)
        await engine.request("sql")
        await eventually(lambda: has_failed(sidecar))
        await eventually(lambda: has_counted_replicas(admin.http))
        await eventually(picker.is_ready)
        yield {"admin": admin.http, "sidecar": sidecar.http, "picker": picker.http, "engine": engine.url}
    finally:
        for program in programs:
            program.kill()


async def has_failed(sidecar: Sidecar) -> bool:
    return bool((await sidecar.metrics()).get("loraplane_failed_adapters", 0))


async def has_counted_replicas(url: str) -> bool:
    """An admin service looks for missing replicas a moment after their pool is created."""
    return "\nloraplane_admin_missing_replicas{" in await page(url)


def declared(*registries: CollectorRegistry) -> dict[str, frozenset[str]]:
    """Label names of every family of ours, by the names of its series, with those that Prometheus adds."""
    found = {}
    for registry in registries:
        for collector in {*registry._collector_to_names}:
            for metric in collector.describe() if hasattr(collector, "describe") else ():
                labels = {*getattr(collector, "_labelnames", ()), "job", "instance"}
                labels |= {"le"} if metric.type == "histogram" else set()
                found |= dict.fromkeys(names_of(metric.name, metric.type), frozenset(labels))
    return found


async def scrape(etcd, folder: Path) -> Scraped:
    (folder / "access.yaml").write_text(ACCESS)
    guarded = AdminMetrics()
    guarded.show_access(AccessControl(folder / "access.yaml", lambda: datetime.now(UTC)))
    async with playing(etcd, folder) as urls:
        texts = dict(zip(urls, await asyncio.gather(*map(page, urls.values())), strict=True))
        texts["etcd"] = await page(f"http://{etcd.endpoints[0]}")
    jobs = yaml.safe_load((COMPOSE / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    series: dict[str, list[Mapping[str, str]]] = {
        "up": [
            {"job": one["job_name"], "instance": one["static_configs"][0]["targets"][0], "namespace": NAMESPACE}
            for one in jobs
        ]
    }
    # Pages of an admin service with an access file ask for a role: its collector is read where it is.
    for job, text in (*texts.items(), ("admin", generate_latest(guarded.registry).decode())):
        for name, found in read(text, job=job, instance=job, namespace=NAMESPACE).items():
            series.setdefault(name, []).extend(found)
    return Scraped(series, declared(REGISTRY, guarded.registry, PickerMetrics().registry))


async def test_every_expression_of_alerts_and_dashboards_is_answered_and_every_metric_is_shown(etcd, tmp_path):
    """A metric that is renamed, or loses a label, fails here; so does a new one that no dashboard shows."""
    scraped = await scrape(etcd, tmp_path)
    assert [told for one in asked() for told in scraped.lacks(one)] == []
    shown = {one.name for expression in asked() for one in selectors(expression.expr)}
    exported = {name for name in (*scraped.series, *scraped.declared) if name.startswith(OURS)}
    families = {name.removesuffix("_bucket") for name in exported if not name.endswith(("_created", "_count", "_sum"))}
    assert families - {name.removesuffix("_bucket") for name in shown} == set()
    gone = Asked("here", 'sum by (reason) (loraplane_gone) + loraplane_ready{zone="a"}')
    assert scraped.lacks(gone) == ["here: nothing is called loraplane_gone"]
    for expr, label in (
        ('loraplane_ready{zone="a"}', ""),
        ("sum by (pool) (loraplane_ready)", ""),
        ("loraplane_ready", "x"),
    ):
        assert len(scraped.lacks(Asked("here", expr, frozenset(filter(None, [label]))))) == 1, expr
