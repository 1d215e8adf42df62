"""Bodies of replies, whatever was sent."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from sidecar.engines import transport
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.transport import MAX_METRICS_BYTES, MetricLines, fields_of, json_of
from sidecar.engines.vllm.http import metric_lines


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"a": ', b"\xff", b"[" * 100_000], ids=["empty", "html", "cut", "no text", "deep"]
)
def test_what_is_no_json_is_nothing_and_only_an_object_has_fields(body):
    assert (json_of(body), fields_of(body)) == (None, {})
    assert (json_of(b"[1]"), fields_of(b"[1]"), fields_of(b'{"a": 1}')) == ([1], {}, {"a": 1})


def test_a_body_of_a_million_parts_is_read_and_not_one_part_more():
    """X2 unbreakable: its reader would hold the event loop for seconds. An engine lists a tenth of it at most."""
    most = b"[" + b"0," * 999_999 + b"0]"
    found = json_of(most)
    assert isinstance(found, list)
    assert len(found) == 1_000_000
    for body in (most[:-1] + b",0]", b"[[]" + b",[]" * 1_500_000 + b"]"):
        assert (json_of(body), fields_of(body)) == (None, {})


LINES = MetricLines((b"a{", b"b "), newest=b"s{")


def test_of_metrics_only_what_is_read_is_kept():
    """X2 unbreakable: an engine may have written a sample for each set of adapters that it ever served."""
    page = b'# HELP a\na{x="1"} 1\nc 3\n' + b"".join(b's{n="%d"} %d.0\n' % (n, n % 1000) for n in range(2999)) + b"b 2"
    assert LINES.of(page) == 'a{x="1"} 1\nb 2s{n="999"} 999.0\ns{n="1999"} 999.0\n'
    assert MetricLines((b"s{n",)).of(b's{n="1"} 1.0\ns{n="2"} 2.0\n') == 's{n="1"} 1.0\ns{n="2"} 2.0\n'


@pytest.mark.parametrize(
    ("value", "is_met"), [("1e999", True), ("-", True), ("inf", False), ("NaN", False), ("", False)]
)
def test_a_sample_without_a_time_hides_no_other(value, is_met):
    """R7, X2: a reader meets a number that is none, and says so; what is no sample is passed over by readers too."""
    kept = LINES.of(f's{{n="1"}} 5.0\ns{{n="2"}} {value}\ns{{n="3"}} 4.0\n'.encode())
    assert kept == (f's{{n="2"}} {value}\n' if is_met else 's{n="1"} 5.0\n')


async def test_metrics_without_end_are_refused():
    """X2: what is read of them is bounded, and so is the time that its reader takes."""
    page = b"a{} 1\n" * (MAX_METRICS_BYTES // 6 + 1)
    with pytest.raises(EngineUnreachable, match="more than 1048576 bytes"):
        await metric_lines(page, LINES, "http://e")
    assert len(await metric_lines(page[6:], LINES, "http://e")) <= MAX_METRICS_BYTES


@pytest.mark.parametrize(("size_bytes", "is_beside"), [(256 << 10, False), ((256 << 10) + 1, True)])
async def test_256_kib_of_metrics_are_looked_through_at_once(monkeypatch, size_bytes, is_beside):
    """R19: that takes less time than to hand them to a thread."""
    to_thread, handed = asyncio.to_thread, list[int]()

    async def noting(function, page):
        handed.append(len(page))
        return await to_thread(function, page)

    monkeypatch.setattr(asyncio, "to_thread", noting)
    assert await metric_lines(b"b 1\n".ljust(size_bytes, b"x"), LINES, "http://e") == "b 1\n"
    assert handed == [size_bytes] * is_beside


async def test_a_fault_of_our_own_is_no_body_that_cannot_be_read(monkeypatch):
    """R12: it is told, and nothing is concluded of the engine."""
    fault = Mock(side_effect=ZeroDivisionError)
    monkeypatch.setattr(transport, "read_json", fault)
    with pytest.raises(ZeroDivisionError):
        json_of(b"{}")
    monkeypatch.setattr(MetricLines, "of", fault)
    with pytest.raises(ZeroDivisionError):
        await metric_lines(b"b 1", LINES, "http://e")
