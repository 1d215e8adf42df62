"""One trace a change, over real processes, each with its own exporter: command line, admin service, sidecar."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from registry.runtime.spans import span_id_of, trace_id_of
from tests.support.adapters import write_adapter
from tests.support.admin import admin_program
from tests.support.fleet import BASE, POOL, Sidecar, SimulatedEngine
from tests.support.waiting import eventually

STAGES = ("seen", "staged", "checked", "loaded", "served")
Told = list[tuple[str, Span]]


@contextmanager
def collector() -> Iterator[tuple[str, Told]]:
    """Stands in for OpenTelemetry's collector: its URL, and each span with the service that it is of."""
    told: Told = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                (service,) = (one.value for one in resource.resource.attributes if one.key == "service.name")
                told.extend((service.string_value, span) for scope in resource.scope_spans for span in scope.spans)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def of_change(told: Told) -> Told:
    return [(who, one) for who, one in told if one.trace_id == trace_id_of("rollout-7").to_bytes(16)]


async def loraplane(address: str, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "registry.cli.main", "--admin", address, *arguments]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    _, told = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, told.decode()


@pytest.mark.no_cover
async def test_each_stage_of_an_apply_is_in_one_trace(etcd, tmp_path):
    """The processes share nothing but the request id, which the record has."""
    write_adapter(tmp_path / "sources/sql", seed=1, base=BASE)
    engine = SimulatedEngine(tmp_path)
    admin = admin_program(tmp_path, etcd.endpoints, etcd.prefix)
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url, sources=tmp_path / "sources")
    with collector() as (url, told):
        traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100", "PATH": ""}
        admin.program.environment = sidecar.program.environment = traced
        try:
            for program in (engine.program, admin.program, sidecar.program):
                program.start()
            add = ("add", "sql", "--pool", POOL, "--source", f"file://{tmp_path}/sources/sql", "--wait")
            assert (await loraplane(admin.address, traced, "pool", "create", POOL, "--base-model", BASE))[0] == 0
            code, said = await loraplane(admin.address, traced, *add, "--request-id", "rollout-7")
            assert code == 0, said
            wanted = {f"loraplane {name}" for name in ("request", "change", *STAGES)}
            await eventually(lambda: {one.name for _, one in of_change(told)} >= wanted)
        finally:
            for program in (engine.program, admin.program, sidecar.program):
                program.kill()
        spans = {one.name.removeprefix("loraplane "): (who, one) for who, one in of_change(told)}
    assert {name: who for name, (who, _) in spans.items()} == {
        "request": "loraplane",
        "change": "loraplane-admin",
        **dict.fromkeys(STAGES, "loraplane-sidecar"),
    }
    change = span_id_of("change", "rollout-7").to_bytes(8)
    parents = {name: one.parent_span_id for name, (_, one) in spans.items()}
    assert parents.pop("request") == b""
    assert parents.pop("change") == spans["request"][1].span_id == span_id_of("request", "rollout-7").to_bytes(8)
    assert {*parents.values()} == {change} == {spans["change"][1].span_id}
    assert len(of_change(told)) == len(spans), "a stage is told once"
