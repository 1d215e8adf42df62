"""Stages of a change as spans: one trace by the request id alone; and nothing at all while tracing is off."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import use_span

from registry.runtime import tracing
from registry.runtime.spans import SpanMaker, trace_id_of
from registry.sources.base import ArtifactError

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.fixture
def spans():
    """Finished spans by the ends of their names, of a process that traces."""
    exporter = InMemorySpanExporter()
    maker = SpanMaker("test", SimpleSpanProcessor(exporter), {"replica": "r1"})
    tracing.use(maker)
    yield lambda: {span.name.removeprefix("loraplane "): span for span in exporter.get_finished_spans()}
    tracing.use(None)
    maker.close()


def of_a_change(request_id: str, caller: str) -> None:
    tracing.record("seen", request_id, {"adapter": "sql", "generation": 3})
    tracing.record("change", request_id, {"revision": 7}, seconds=0.5, caller=caller)
    tracing.record("request", request_id)


def test_stages_are_below_the_change_and_the_change_below_the_request_in_whatever_order_they_come(spans):
    ((name, header),) = tracing.headers("req-1")
    of_a_change("req-1", header)
    seen, change, request = (spans()[one] for one in ("seen", "change", "request"))
    assert name == "traceparent"
    assert {one.context.trace_id for one in (seen, change, request)} == {trace_id_of("req-1")}
    assert (request.parent, change.parent.span_id, seen.parent.span_id) == (
        None,
        request.context.span_id,
        change.context.span_id,
    )
    assert seen.attributes == {
        "loraplane.adapter": "sql",
        "loraplane.generation": 3,
        "loraplane.request_id": "req-1",
    }
    assert change.end_time - change.start_time == 500_000_000
    assert seen.resource.attributes["loraplane.replica"] == "r1"
    assert trace_id_of("req-2") != trace_id_of("req-1")


def test_a_change_that_a_traced_program_asks_for_is_linked_to_its_span(spans):
    tracing.use(None)
    with use_span(TracerProvider().get_tracer("job").start_span("train")) as span:
        ((_, header),) = tracing.headers("req-1")
    assert (tracing.headers(""), tracing.headers("req-1")) == ((), ())
    assert f"{span.get_span_context().trace_id:032x}" in header
    assert f"{span.get_span_context().span_id:016x}" in header
    assert int(header.rpartition("-")[2], 16) & 1
    exporter = InMemorySpanExporter()
    tracing.use(SpanMaker("admin", SimpleSpanProcessor(exporter), {}))
    tracing.record("change", "req-1", caller=header)
    (change,) = exporter.get_finished_spans()
    assert (change.parent, change.context.trace_id) == (None, trace_id_of("req-1"))
    assert [link.context.span_id for link in change.links] == [span.get_span_context().span_id]


def test_what_failed_says_why_and_another_try_of_it_does_not_take_its_place(spans):
    tracing.record("change", "req-1", failed="CONFLICT")
    failed = spans()["change"]
    tracing.record("change", "req-1")
    assert (failed.status.is_ok, failed.status.description) == (False, "CONFLICT")
    assert spans()["change"].context.span_id != failed.context.span_id


async def test_a_stage_that_is_cancelled_did_not_succeed_and_tells_what_it_was_about(spans):
    async def work() -> None:
        about: dict[str, str | int] = {"revision": 0}
        with tracing.stage("change", "req-1", about):
            about["revision"] = 7
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work(), 0.01)
    change = spans()["change"]
    assert (change.status.description, change.attributes["loraplane.revision"]) == ("CancelledError", 7)


def test_a_stage_that_counts_from_the_commit_begins_there_and_never_ends_before_it_begins(spans):
    now = datetime.now(UTC)
    for text, least in (
        ((now - timedelta(seconds=9)).isoformat(), 9),
        ((now + timedelta(hours=1)).isoformat(), 0),
        ("2026-01-01T00:00:00", 0),
        ("long ago", 0),
    ):
        tracing.record_since("served", "req-1", text, {})
        span = spans()["served"]
        assert least <= (span.end_time - span.start_time) / 1e9 < least + 5, text


def test_a_part_is_of_the_change_that_its_thread_works_for(spans):
    def check() -> None:
        with tracing.part("checked"):
            raise ArtifactError("not_a_lora", "no")

    with tracing.about("req-1", {"adapter": "sql"}), ThreadPoolExecutor(1) as threads:
        error = threads.submit(contextvars.copy_context().run, check).exception()
    assert isinstance(error, ArtifactError)
    assert spans()["checked"].attributes["loraplane.adapter"] == "sql"
    assert spans()["checked"].status.description == "not_a_lora"
    with tracing.part("nobody's"):
        tracing.record("nobody's", "")
    assert "nobody's" not in spans()


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "TRUE"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "otlp"}, True),
    ],
)
def test_it_is_on_if_opentelemetrys_own_variables_say_so(environment, wanted):
    assert tracing.is_wanted(environment) is wanted


def test_what_keeps_traces_from_being_sent_is_told_once(monkeypatch):
    told: list[str] = []
    tracing.start("p", {}, told.append)
    tracing.start("p", ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, told.append)
    monkeypatch.setitem(sys.modules, "registry.runtime.spans", None)
    tracing.start("p", ENDPOINT, told.append)
    assert told[0] == ("traces are sent as http/protobuf alone, not grpc: change or unset OTEL_EXPORTER_OTLP_PROTOCOL")
    assert told[1].endswith("install loraplane[otel], or unset OTEL_EXPORTER_OTLP_ENDPOINT")
    assert (len(told), tracing.is_on()) == (2, False)


@pytest.mark.parametrize("module", ["registry.cli.main", "registry.admin.main", "sidecar.main", "loraplane"])
def test_while_it_is_off_nothing_of_opentelemetry_is_imported(module):
    program = f"""
import sys, {module}
from registry.runtime import tracing
tracing.start("p", {{}}, print)
with tracing.about("req", {{}}), tracing.part("checked"):
    tracing.record("seen", "req", {{"adapter": "a"}})
tracing.record_since("served", "req", "2026-01-01T00:00:00Z", {{}})
assert tracing.headers("req") == ()
tracing.stop()
sys.exit(any(name.startswith("opentelemetry") for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
