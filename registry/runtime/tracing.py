"""Stages of changes, for traces.

All stages of a change are one trace, whose id is derived from its request id. So nothing else has to travel with a
record: every process that knows the request id, of any release that traces, finds the same trace, and records made
before have one as well. While tracing is off, which it is unless OpenTelemetry's own variables name an exporter,
telling of a stage is one comparison, and no module of OpenTelemetry is imported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
Attributes = Mapping[str, str | int]
NOTHING: Attributes = {}


@dataclass(frozen=True, slots=True)
class TracedStage:
    """One stage of a change at one process.

    Attributes:
        name: such as ``staged``.
        request_id: of the change.
        begin_ns: in nanoseconds since 1970.
        end_ns: the same.
        failed: why it did not succeed; empty: it did.
        attributes: what it was about.
        caller: W3C's ``traceparent`` of who asked for it; empty: not known.
    """

    name: str
    request_id: str
    begin_ns: int
    end_ns: int
    failed: str = ""
    attributes: Attributes = field(default_factory=dict)
    caller: str = ""


class StageSink(Protocol):
    """Receiver of stages, from any thread."""

    def take(self, stage: TracedStage) -> None:
        """Takes one; it never raises, and never waits."""
        ...

    def header(self, request_id: str) -> str:
        """The ``traceparent`` to send along with a request that we make."""
        ...

    def close(self) -> None:
        """Sends what it has yet, for a few seconds at most."""
        ...


class _Switch:
    """Receiver of this process; None: tracing is off."""

    sink: StageSink | None = None


_about: ContextVar[tuple[str, Attributes] | None] = ContextVar("loraplane_change", default=None)


def is_on() -> bool:
    """True while somebody takes stages."""
    return _Switch.sink is not None


def use(sink: StageSink | None) -> None:
    """Has stages given to this one from now on; None: to nobody."""
    _Switch.sink = sink


def record(
    name: str,
    request_id: str,
    attributes: Attributes = NOTHING,
    *,
    seconds: float = 0.0,
    failed: str = "",
    caller: str = "",
) -> None:
    """Tells of a stage that ends now and took so long; without a request id it is nobody's."""
    sink = _Switch.sink
    if sink is not None and request_id:
        now = time.time_ns()
        begin = now - max(0, int(seconds * 1e9))
        sink.take(TracedStage(name, request_id, begin, now, failed, attributes, caller))


def record_since(name: str, request_id: str, updated_at: str, attributes: Attributes) -> None:
    """Tells of a stage that ends now and began with a record's commit, as the record says when that was."""
    if _Switch.sink is not None:
        record(name, request_id, attributes, seconds=time.time() - _seconds_of(updated_at))


def _seconds_of(updated_at: str) -> float:
    """Seconds since 1970; now, if the text is no time with a zone."""
    try:
        at = datetime.fromisoformat(updated_at)
    except ValueError:
        return time.time()
    return at.timestamp() if at.tzinfo is not None else time.time()


@contextmanager
def about(request_id: str, attributes: Attributes) -> Iterator[None]:
    """Within the body, also in threads that get its context, `part` tells of stages of this change."""
    if _Switch.sink is None:
        yield
        return
    token = _about.set((request_id, attributes))
    try:
        yield
    finally:
        _about.reset(token)


@contextmanager
def stage(name: str, request_id: str, attributes: Attributes, *, caller: str = "") -> Iterator[None]:
    """The body is a stage, which failed if it raises, or is cancelled; `attributes` may be added to until its end."""
    begun, failed = time.monotonic(), ""
    try:
        yield
    except BaseException as error:
        failed = str(getattr(error, "reason", type(error).__name__))
        raise
    finally:
        record(name, request_id, attributes, seconds=time.monotonic() - begun, failed=failed, caller=caller)


@contextmanager
def part(name: str) -> Iterator[None]:
    """The body is a stage of the change that `about` says; elsewhere it is none."""
    with stage(name, *(_about.get() or ("", NOTHING))):
        yield


def headers(request_id: str) -> tuple[tuple[str, str], ...]:
    """Metadata that tells the admin service of which trace a request is.

    That of our own where this process traces; else that of the span that the program around us is in.
    """
    if not request_id:
        return ()
    if _Switch.sink is not None:
        return (("traceparent", _Switch.sink.header(request_id)),)
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return ()
    known = api.get_current_span().get_span_context()
    if not known.is_valid:
        return ()
    return (("traceparent", f"00-{known.trace_id:032x}-{known.span_id:016x}-{int(known.trace_flags):02x}"),)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """True if OpenTelemetry's variables name somewhere to send traces to."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() != "otlp":
        return False
    return any(environment.get(name, "").strip() for name in ENDPOINTS)


def start(program: str, environment: Mapping[str, str], on_trouble: Callable[[str], object], **attributes: str) -> None:
    """Switches tracing on if the environment asks for it; `attributes` are of every stage of this process.

    `on_trouble` is told, once, why there are no traces although they were asked for.
    """
    if not is_wanted(environment):
        return
    protocol = next((environment[name].strip() for name in _PROTOCOLS if environment.get(name, "").strip()), "")
    if protocol not in {"", "http/protobuf"}:
        on_trouble(f"traces are sent as http/protobuf alone, not {protocol}: change or unset {_PROTOCOLS[1]}")
        return
    try:
        from registry.runtime.spans import exported  # noqa: PLC0415 - OpenTelemetry takes long to import
    except ImportError as error:
        on_trouble(f"{error}: install loraplane[otel], or unset {ENDPOINTS[0]}")
        return
    use(exported(program, environment, attributes))


def stop() -> None:
    """Sends what is left and switches tracing off."""
    sink, _Switch.sink = _Switch.sink, None
    if sink is not None:
        sink.close()
