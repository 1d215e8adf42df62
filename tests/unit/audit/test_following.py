"""Lines of the audit: each record once, over restarts, kills, compactions and renamed files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from registry.etcd3.ops import Event, KeyValue, Put, Txn
from registry.etcd3.stream import Changed, Disconnected, ListCause, Listed, Progressed
from registry.tools.audit import follow, output
from registry.tools.audit.follow import AuditFollower, StoreWentBack
from registry.tools.audit.lines import BeginLine, LinePosition, SeenLine, encode_line
from registry.tools.audit.output import LineFile, OutputUnusable, StandardOutput
from tests.support.admin import change_set, put
from tests.support.records import KEYS
from tests.unit.audit.conftest import Audited, audited


def keys_in(world: Audited) -> list[str]:
    return [line["key"] for line in world.lines() if "key" in line]


def keys_of(world: Audited) -> list[str]:
    return [kv.key.decode().removeprefix(f"{KEYS.prefix}/") for kv in world.kvs(KEYS.audits())]


async def change(world: Audited, number: int) -> None:
    await world.served.call("ApplyAdapters", change_set(put("acme/n", priority=number)))


@audited
async def test_each_record_has_one_line_in_the_order_of_revisions(world: Audited):
    """A5 tamper-evident: whole, as it stands in etcd."""
    assert keys_in(world) == keys_of(world)
    lines = world.lines()
    assert lines[0] == {"begin": {"after": 0}}
    stood = [json.loads(kv.value) for kv in world.kvs(KEYS.audits())]
    assert [one["record"] for one in lines if "key" in one] == stood
    assert world.file.stat().st_mode & 0o777 == 0o600


def told_in(tmp_path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "f").read_text().splitlines()]


def test_a_list_amid_the_following_doubles_no_line(tmp_path, monkeypatch):
    """A5 tamper-evident: where a compaction went past what was followed, all that stands is read anew."""
    places = ((b"p/4", 3), (b"p/3", 5), (b"p/2", 7), (b"p/1", 8), (b"p/5", 10), (b"p/6", 11))
    old, first, second, third, tenth, last = (KeyValue(KEYS.audits() + name, b"{}", at, at, 1) for name, at in places)
    monkeypatch.setattr(follow, "Reflector", Mock())
    sink = LineFile(tmp_path / "f", 0)
    follower = AuditFollower(Mock(), KEYS, sink, Mock())
    follower._take(Listed(3, (old,), 1, ListCause.COMPACTED))
    follower._take(Changed(5, (Event(first.key, 5, first), Event(b"gone", 5, None))))
    follower._take(Listed(8, (third, second, first, old), 1, ListCause.COMPACTED))
    with pytest.raises(StoreWentBack, match="at revision 9, and 8 was written already"):
        follower._take(Listed(9, (), 1, ListCause.WENT_BACK))
    follower._take(Changed(10, (Event(tenth.key, 10, tenth),)))
    sink.close()
    sink = LineFile(tmp_path / "f", 0)
    again = AuditFollower(Mock(), KEYS, sink, Mock())
    again._take(Changed(11, (Event(last.key, 11, last),)))
    again._take(Listed(11, (tenth, last), 1, ListCause.COMPACTED))
    sink.close()
    told = told_in(tmp_path)
    assert [line["key"] for line in told if "key" in line] == [f"audit/p/{number}" for number in (4, 3, 2, 1, 5, 6)]
    assert [line["hole"] for line in told if "hole" in line] == [
        {"after": 5, "before": 8},
        {"after": 11, "before": 11},
    ]


@pytest.mark.parametrize(("seconds", "seen"), [(600.0, [9]), (0.0, [5, 9])])
async def test_what_is_read_without_a_record_is_noted_at_times_and_at_the_end(tmp_path, monkeypatch, seconds, seen):
    """A5 tamper-evident: else a later compaction would be told as a hole. Each once, and never one that is behind."""

    async def news() -> AsyncGenerator[Progressed | Disconnected, None]:
        for revision in (5, 4, 9, 9):
            yield Progressed(revision)
            yield Disconnected("away")

    monkeypatch.setattr(follow, "SEEN_SECONDS", seconds)
    monkeypatch.setattr(follow, "Reflector", Mock(return_value=Mock(stream=news)))
    sink = LineFile(tmp_path / "f", 0)
    with capture_logs() as logged:
        await AuditFollower(Mock(), KEYS, sink, Mock()).run()
    sink.close()
    assert [(one["event"], one["times"]) for one in logged] == [("etcd_disconnected", 1)]
    assert [line["seen"]["revision"] for line in told_in(tmp_path)[1:]] == seen


@audited
async def test_a_restart_loses_no_line_and_doubles_none(world: Audited):
    """A5 tamper-evident: however the process ended, and whatever was written meanwhile."""
    for number in range(4):
        await change(world, 2 * number)
        await world.follow()
        await change(world, 2 * number + 1)
        text = world.file.read_bytes()
        cut = [len(text), len(text) - 20, text[:-1].rindex(b"\n") + 1, len(text) - 3000][number]
        world.file.write_bytes(text[:cut])
        await world.follow()
        assert keys_in(world) == keys_of(world)
    assert await world.verify() == []


@audited
async def test_what_a_killed_process_wrote_of_a_revision_is_completed(world: Audited):
    """Several records of one revision, as only somebody else than an admin service writes them."""
    puts = tuple(Put(KEYS.audit("p", f"{number}"), b"{}") for number in range(3))
    await world.served.client.txn(Txn((), puts))
    await world.follow()
    lines = world.lines()
    world.rewrite([one for one in lines if "seen" not in one or one == lines[8]][:-1])
    assert sorted(keys_in(world)) != sorted(keys_of(world))
    await world.follow()
    assert sorted(keys_in(world)) == sorted(keys_of(world))


@audited
async def test_a_compaction_before_the_reading_is_told_and_what_stands_is_written(world: Audited):
    """A5 tamper-evident: nobody takes a hole for silence."""
    reached = world.lines()[-1]["seen"]["revision"]
    await change(world, 1)
    gone = world.audits()[-1]
    await world.delete(gone.key)
    await change(world, 2)
    world.served.etcd.store.compact(world.served.etcd.store.revision)
    await world.follow()
    assert keys_in(world) == keys_of(world)
    [hole] = [one["hole"] for one in world.lines() if "hole" in one]
    assert hole["after"] == reached
    assert hole["before"] >= gone.mod_revision
    await world.follow()
    assert len([one for one in world.lines() if "hole" in one]) == 1


@audited
async def test_a_quiet_time_is_noted_so_that_a_later_compaction_is_no_hole(world: Audited, monkeypatch):
    monkeypatch.setattr(follow, "SEEN_SECONDS", 20.0)
    running = asyncio.ensure_future(world.follow(60))
    await asyncio.sleep(25)
    for number in range(50):
        await world.put(b"/other", f"{number}".encode())
    await asyncio.sleep(15)
    assert world.lines()[-1]["seen"]["revision"] == world.served.etcd.store.revision
    await running
    world.served.etcd.store.compact(world.served.etcd.store.revision)
    await world.follow()
    assert not [one for one in world.lines() if "hole" in one]


@audited
async def test_a_store_that_went_back_ends_it(world: Audited):
    """What was written is not in its past: another file has to begin."""
    with world.file.open("a") as file:
        file.write(encode_line(SeenLine(10_000)))
    with pytest.raises(StoreWentBack, match="and 10000 was written already"):
        await world.follow()


@audited
async def test_a_renamed_file_is_followed_by_another(world: Audited, tmp_path):
    running = asyncio.ensure_future(world.follow(60))
    await asyncio.sleep(5)
    await change(world, 1)
    await asyncio.sleep(5)
    world.file.rename(tmp_path / "old")
    await change(world, 2)
    await running
    new, old = world.lines(), (tmp_path / "old").read_text()
    assert next(line for line in new if "key" in line)["record"]["changes"][0]["after"]["spec"]["priority"] == 2
    assert new[0]["begin"]["after"] == json.loads(old.splitlines()[-1])["revision"]
    world.file.write_text(old + world.file.read_text())
    assert keys_in(world) == keys_of(world)
    assert await world.verify() == []


def test_a_file_has_one_writer(tmp_path):
    first = LineFile(tmp_path / "f", 0)
    with pytest.raises(OutputUnusable, match="another process writes it"):
        LineFile(tmp_path / "f", 0)
    first.close()
    first.close()
    LineFile(tmp_path / "f", 0).close()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"other things\n", "its last lines are none of loraplane-audit"),
        (b'{"revision": 1}\n', "its last lines are none of loraplane-audit"),
    ],
)
def test_what_is_no_file_of_ours_is_not_gone_on_with(tmp_path, content, told):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(OutputUnusable, match=told):
        LineFile(tmp_path / "f", 0)
    assert (tmp_path / "f").read_bytes() == content


@pytest.mark.parametrize("where", ["none/f", "."])
def test_a_place_that_cannot_be_written_is_told(tmp_path, where):
    with pytest.raises(OutputUnusable, match=str(tmp_path)):
        LineFile(tmp_path / where, 0)


def test_a_file_that_cannot_be_made_anew_ends_it_and_nothing_is_given_back_twice(tmp_path):
    file = LineFile(tmp_path / "f", 0)
    (tmp_path / "f").rename(tmp_path / "g")
    (tmp_path / "f").mkdir()
    with pytest.raises(OutputUnusable, match="directory"):
        file.write(["{}\n"], 1)
    file.close()


def test_half_a_first_line_is_begun_anew(tmp_path):
    (tmp_path / "f").write_bytes(b'{"beg')
    LineFile(tmp_path / "f", 7).close()
    assert (tmp_path / "f").read_text() == encode_line(BeginLine(7))


def test_of_a_long_file_only_the_end_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "_TAIL_BYTES", 16)
    lines = [BeginLine(0), SeenLine(5), SeenLine(123_456_789_012)]
    (tmp_path / "f").write_text("".join(map(encode_line, lines)))
    file = LineFile(tmp_path / "f", 0)
    assert file.position == LinePosition(123_456_789_012)
    file.close()


def test_standard_output_begins_where_it_is_told(capsys):
    sink = StandardOutput(7)
    sink.write([encode_line(SeenLine(9))], 9)
    sink.close()
    assert capsys.readouterr().out == encode_line(BeginLine(7)) + encode_line(SeenLine(9))
    assert sink.position == LinePosition(9)
