"""Ways to tamper with the audit, in etcd and in the file, each of which is found; and what is none."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from registry.etcd3.ops import Delete, Event, KeyValue, Put, Txn
from registry.runtime.clock import rfc3339
from registry.store.writer import audit_id
from registry.tools.audit.compare import AuditedStore, compare
from registry.tools.audit.lines import BeginLine, HoleLine, RecordLine, RubbishLine, SeenLine, decode_line
from registry.tools.verify import export
from registry.tools.verify.export import read_histories
from registry.tools.verify.history import HistoryBase, Revision, Step
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, drop, put
from tests.support.records import KEYS
from tests.unit.audit.conftest import Audited, audited

Tamper = Callable[[Audited], Awaitable[Any]]
Edit = Callable[[list[Any]], Any]


A, Z, C = (KEYS.adapter("p", name) for name in ("acme/a", "acme/z", "other/c"))
POOL, ACME, HISTORY, DRAIN = KEYS.pool("p"), KEYS.tenant("acme"), KEYS.history("p", "acme/a", 1), KEYS.drain("p", "r1")
THIRD = b"the third audit record, of a change of acme/a"
MALLORY, EVIL, HARMLESS = {"principal": "mallory"}, {"spec": {"source": {"uri": "file:///evil"}}}, {"changes": []}
ORDER = {"schema": 1, "pool": "p", "replica": "r1", "drain": True, "at": "", "by": "mallory"}
TOO_EARLY, UNRECORDED = "its time is not up: removed", "changed without a record"
# Keys that are deleted (None), or written as they stood with these fields otherwise; and what is found.
WRITTEN: dict[str, tuple[list[tuple[bytes, dict[str, Any] | None]], str]] = {
    "a record is removed": ([(THIRD, None)], TOO_EARLY),
    "another principal": ([(THIRD, MALLORY)], "rewritten"),
    "other values": ([(THIRD, HARMLESS)], "rewritten"),
    "a record is written again": ([(THIRD, {})], "it was written 2 times: rewritten"),
    "a record is removed and put again": ([(THIRD, None), (THIRD, {})], "etcd has it as of revision"),
    "a record is removed and rewritten": ([(THIRD, None), (THIRD, MALLORY)], "etcd has it as of revision"),
    "an adapter": ([(A, EVIL)], UNRECORDED),
    "an adapter, to the same": ([(A, {})], UNRECORDED),
    "a new adapter": ([(Z, {"name": "acme/z"})], UNRECORDED),
    "a new adapter that is gone": ([(Z, {"name": "acme/z"}), (Z, None)], "0 audit records for 1 changes"),
    "an adapter is deleted": ([(C, None)], "deleted without a record"),
    "a pool": ([(POOL, {"limits": {"prove": "off"}})], UNRECORDED),
    "a pool is deleted": ([(POOL, None)], "deleted without a record"),
    "a quota": ([(ACME, {"max_adapters": 1000})], UNRECORDED),
    "history is removed": ([(HISTORY, None)], UNRECORDED),
    "history": ([(HISTORY, EVIL)], UNRECORDED),
    "an order to drain": ([(DRAIN, ORDER)], UNRECORDED),
}


@pytest.mark.parametrize(("steps", "told"), WRITTEN.values(), ids=WRITTEN)
@audited
async def test_what_is_written_past_the_admin_service_is_found(world: Audited, steps, told):
    """A5 tamper-evident."""
    third, stood = world.audits()[2], {kv.key: kv.value for kv in world.kvs(b"")}
    for key, fields in ((third.key if key == THIRD else key, fields) for key, fields in steps):
        if fields is None:
            await world.delete(key)
        else:
            value = stood.get(key, stood[A])
            await world.put(key, json.loads(value) | fields if fields else value)
    found = [f"{one}" for one in await world.verify()]
    assert any(told in one for one in found), found
    assert {one[:2] for one in found} <= {"A5", "W2", "W7"}, "of the audit alone"


async def removed_trail(world: Audited) -> None:
    await world.delete(*(kv.key for kv in world.audits()))


async def revoked_lease(world: Audited) -> None:
    await world.served.client.lease_revoke(world.audits()[0].lease)


async def removed_denial(world: Audited) -> None:
    await world.delete(world.kvs(KEYS.denied())[0].key)


async def moved_to_another_pool(world: Audited) -> None:
    kv = world.audits()[2]
    await world.delete(kv.key)
    await world.put(kv.key.replace(b"/audit/p/", b"/audit/q/"), kv.value)


async def invented_record(world: Audited) -> None:
    kv = world.audits()[2]
    await world.put(kv.key[:-4] + b"ffff", json.loads(kv.value) | MALLORY)
    await world.follow()


async def changed_and_compacted(world: Audited) -> None:
    await world.put(A, json.loads(world.kvs(A)[0].value) | EVIL)
    world.served.etcd.store.compact(world.served.etcd.store.revision)


async def changed_and_its_record_removed(world: Audited) -> None:
    """By somebody who reaches etcd and the file, after a compaction."""
    await world.served.call("ApplyAdapters", change_set(put("acme/a", uri="file:///evil")))
    kv = world.audits()[-1]
    await world.served.call("ApplyAdapters", change_set(put("acme/a", priority=5)))
    await world.follow()
    await world.delete(kv.key)
    world.rewrite([line for line in world.lines() if line.get("revision") != kv.mod_revision])
    world.served.etcd.store.compact(world.served.etcd.store.revision)


async def deleted_and_its_record_removed(world: Audited) -> None:
    await world.served.call("ApplyAdapters", change_set(drop("other/c")))
    await world.delete(world.audits()[-1].key)


async def history_beside_a_record_that_goes(world: Audited) -> None:
    """In one step: a record that is deleted is none of what else happens."""
    steps = Put(HISTORY, json.dumps(EVIL).encode()), Delete(world.audits()[2].key)
    await world.served.client.txn(Txn((), steps))


async def quota_beside_another_record(world: Audited) -> None:
    """In one step with a record that tells of something else, as nobody writes it who is an admin service."""
    tenant = json.loads(world.kvs(ACME)[0].value) | {"max_adapters": 1000}
    audit = KEYS.audit("p", audit_id(datetime.now(UTC)))
    record = json.loads(world.audits()[2].value) | HARMLESS | {"at": rfc3339(datetime.now(UTC))}
    puts = Put(ACME, json.dumps(tenant).encode()), Put(audit, json.dumps(record).encode())
    await world.served.client.txn(Txn((), puts))
    await world.follow()


IN_ETCD: dict[Tamper, str] = {
    removed_trail: TOO_EARLY,
    revoked_lease: TOO_EARLY,
    removed_denial: TOO_EARLY,
    moved_to_another_pool: "it has no line: removed from the file",
    invented_record: "1 audit records for 0 changes",
    changed_and_compacted: UNRECORDED,
    changed_and_its_record_removed: "a change without a record, or a record that was rewritten or removed",
    deleted_and_its_record_removed: "deleted without a record",
    history_beside_a_record_that_goes: "history/p/acme%2Fa/1: it was changed without a record",
    quota_beside_another_record: "tenants/acme: it is not what line",
}


@pytest.mark.parametrize("tamper", IN_ETCD)
@audited
async def test_each_way_to_tamper_in_etcd_is_found(world: Audited, tamper):
    """A5 tamper-evident."""
    await tamper(world)
    found = [f"{one}" for one in await world.verify()]
    assert any(IN_ETCD[tamper] in one for one in found), found


@audited
async def test_what_was_followed_is_vouched_for_after_its_time_too(world: Audited):
    """A5 tamper-evident: of what was written before somebody followed, nobody knows what else there was."""
    await changed_and_its_record_removed(world)
    assert await world.verify(days=31) == [], "before the change that is missing nothing was followed"
    await changed_and_its_record_removed(world)
    found = [f"{one}" for one in await world.verify(days=31)]
    assert any("a change without a record, or" in one for one in found), found


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def line_at(revision: int, minutes: int) -> RecordLine:
    """A record that was made so many minutes after noon."""
    at = NOON + timedelta(minutes=minutes)
    return RecordLine(revision, f"audit/p/{audit_id(at)}", {"at": rfc3339(at)})


EMPTY = AuditedStore("/t/", 99, {}, (), datetime(2026, 3, 1, tzinfo=UTC))
OLDER = "is older than the record before it"


@pytest.mark.parametrize(
    ("minutes", "is_found"),
    [((0, -10), False), ((0, -11), True), ((0, -6, -11), True), ((0, -11, 0), True), ((0, 30, 21), False)],
)
def test_times_go_on_as_far_as_clocks_agree(minutes, is_found):
    """A5 tamper-evident: nor by small steps can a record be called so old that it may be gone."""
    lines = [line_at(number, one) for number, one in enumerate(minutes, 1)]
    told = [one.message.partition(" ")[2] for one in compare([BeginLine(0), *lines], 0, replace(EMPTY, revision=0))]
    assert told == [OLDER] * is_found
    refusal = replace(line_at(1, 30), key=f"audit/_/denied/{audit_id(NOON)}")
    assert compare([BeginLine(0), refusal, line_at(2, 0)], 0, replace(EMPTY, revision=0)) == [], "of another clock"


@pytest.mark.parametrize(
    ("lines", "is_found"),
    [
        ([BeginLine(0), SeenLine(5), BeginLine(5)], False),
        ([BeginLine(0), SeenLine(5), SeenLine(3), BeginLine(5)], False),
        ([BeginLine(0), SeenLine(5), BeginLine(0)], True),
        ([BeginLine(0), SeenLine(5), HoleLine(5, 9), SeenLine(9), BeginLine(9)], False),
    ],
)
def test_a_file_goes_on_where_the_one_before_ended(lines, is_found):
    """A5 tamper-evident: where nothing was written for a while, too."""
    assert [one.where for one in compare(lines, 0, EMPTY)] == [f"line {len(lines)}"] * is_found


@pytest.mark.parametrize(
    ("revisions", "is_found"), [([4], True), ([5], True), ([6], False), ([6, 6], False), ([7, 6], True)]
)
def test_a_file_has_no_record_of_before_its_beginning(revisions, is_found):
    """A5 tamper-evident; nor of before the last, but several of one revision."""
    found = compare([BeginLine(5), *(line_at(one, 0) for one in revisions)], 5, replace(EMPTY, revision=0))
    told = f"revision {revisions[-1]} does not come behind {max(5, *revisions)}"
    assert [one.message for one in found] == [told] * is_found


@pytest.mark.parametrize(("revision", "is_found"), [(4, False), (5, True), (6, False), (9, True), (10, False)])
def test_what_etcd_never_had_is_known_as_far_as_its_history_goes(revision, is_found):
    """A5 tamper-evident: neither of what it has forgotten, nor of what it was not asked for yet."""
    line = line_at(revision, 0)
    put = KeyValue(f"/t/{line.key}".encode(), b"{}", 6, 6, 1)
    store = replace(EMPTY, revision=9, steps=(HistoryBase(4, ()), Revision(6, (Event(put.key, 6, put),))))
    found = [one.message for one in compare([BeginLine(0), line], 0, store)]
    assert found == ["etcd never had it: invented"] * is_found


@pytest.mark.parametrize(
    ("revision", "reaches", "seconds", "is_found"),
    [(5, 4, 59, False), (5, 4, 61, True), (5, 5, 0, True), (5, 4, None, True), (2, 4, 61, False), (3, 4, 61, True)],
)
def test_a_record_has_its_line_within_a_minute(revision, reaches, seconds, is_found):
    """A5 tamper-evident: at once where the file goes on behind it, or where its id does not tell when it was made."""
    key = "audit/p/1" if seconds is None else f"audit/p/{audit_id(EMPTY.now - timedelta(seconds=seconds))}"
    store = replace(EMPTY, kvs={key: KeyValue(b"", b"{}", revision, revision, 1)})
    found = [one.message for one in compare([BeginLine(2), SeenLine(reaches)], 2, store)]
    assert found == ["it has no line: removed from the file"] * is_found


def changed(revision: int, before: str, after: str, **more: Any) -> RecordLine:
    """A record of a change of an adapter from one value to another."""
    line = line_at(revision, revision)
    change = {"kind": "adapter", "name": "acme/a", "before": {before: 1}, "after": {after: 1}}
    return replace(line, record=line.record | {"changes": [change]} | more)


@pytest.mark.parametrize(
    ("lines", "days", "is_found"),
    [
        ([changed(1, "x", "a"), changed(3, "a", "b")], 1, False),
        ([changed(1, "x", "a"), changed(3, "b", "c")], 1, True),
        ([changed(1, "x", "a"), changed(3, "b", "c"), SeenLine(3)], 31, False),
        ([changed(1, "x", "a"), SeenLine(1), changed(3, "b", "c")], 31, True),
        ([changed(1, "x", "a"), SeenLine(1), changed(3, "unreadable", "c")], 31, False),
        ([changed(1, "x", "a", at="long ago"), changed(3, "b", "c")], 1, False),
    ],
    ids=["goes on", "a gap", "its time is up", "followed", "unreadable", "no time"],
)
def test_a_change_begins_with_what_the_one_before_left(lines, days, is_found):
    """A5 tamper-evident: unless a record between them may be gone, or nobody could read what was there."""
    store = replace(EMPTY, revision=0, now=datetime(2026, 1, 1, 13, tzinfo=UTC) + timedelta(days=days))
    found = [one.message for one in compare([BeginLine(0), *lines], 0, store)]
    assert any("a change without a record, or" in one for one in found) is is_found, found


@pytest.mark.parametrize(
    ("stands", "revision", "seen", "told"),
    [
        (b'{"a": 1}', 3, [], ""),
        (b'{"b": 1}', 3, [], "it is not what line 2, "),
        (b'{"a": 1}', 5, [], ""),
        (b'{"a": 1}', 5, [SeenLine(3)], "no record is of its revision"),
        (b'{"a": 1}', 2, [SeenLine(3)], ""),
        (None, 0, [], ""),
        (None, 0, [SeenLine(3)], "it is gone: deleted without a record"),
    ],
)
def test_what_stands_is_what_its_last_record_left(stands, revision, seen, told):
    """A5 tamper-evident: unless there may have been a later one whose time is up."""
    kvs = {} if stands is None else {"adapters/p/acme%2Fa": KeyValue(b"", stands, revision, revision, 1)}
    found = compare([BeginLine(0), changed(3, "x", "a"), *seen], 0, replace(EMPTY, revision=0, kvs=kvs))
    assert [told in one.message for one in found] == [True] * bool(told)


def edit_of(number: int, **more: Any) -> Edit:
    """Changes fields of the record in a line."""

    def edit(lines: list[Any]) -> None:
        lines[number]["record"] |= more

    return edit


def shifted(lines: list[Any]) -> None:
    lines[3]["revision"] += 1


def invented(lines: list[Any]) -> None:
    lines.insert(4, lines[3] | {"key": lines[3]["key"][:-4] + "ffff"})


IN_FILE: dict[str, tuple[Edit, str]] = {
    "a line is removed": (lambda lines: lines.pop(3), "it has no line: removed from the file"),
    "the last lines are removed": (lambda lines: lines.__delitem__(slice(-4, None)), "it has no line"),
    "the first lines are removed": (lambda lines: lines.__delitem__(slice(0, 3)), "line 1: it is not the beginning"),
    "the file says that it begins later": (
        lambda lines: lines.__setitem__(slice(0, 3), [{"begin": {"after": 5}}]),
        "line 1: it is not the beginning behind revision 0",
    ),
    "all lines are removed": (lambda lines: lines.clear(), "there are no lines"),
    "a principal is changed": (edit_of(3, principal="mallory"), "line 4"),
    "a value is changed": (edit_of(3, **HARMLESS), "etcd has it with another content"),
    "a time is changed": (edit_of(3, at="2020-01-01T00:00:00.000Z"), "says that it was made at 2020"),
    "a revision is changed": (shifted, "etcd has it as of revision"),
    "a line is invented": (invented, "etcd never had it: invented"),
    "a line is doubled": (lambda lines: lines.insert(4, lines[3]), "has a line already, which is line 4"),
    "lines are swapped": (lambda lines: lines.insert(2, lines.pop(3)), "does not come behind"),
    "a line is rubbish": (lambda lines: lines.insert(4, "rubbish\n"), "line 5: it is none of loraplane-audit"),
    "a line is of nobody": (lambda lines: lines.insert(4, {"x": 1}), "line 5: it is none of loraplane-audit"),
    "an id is none": (lambda lines: lines[3].update(key="audit/p/1"), "has no id or no time of ours"),
    "a second beginning hides lines": (
        lambda lines: lines.__setitem__(slice(3, 5), [{"begin": {"after": 900}}]),
        "line 4: it begins behind revision 900",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_FILE)
@audited
async def test_each_way_to_tamper_with_the_file_is_found(world: Audited, name):
    """A5 tamper-evident."""
    edit, told = IN_FILE[name]
    lines = world.lines()
    edit(lines)
    world.rewrite(lines)
    found = [f"{one}" for one in await world.verify()]
    assert any(told in one for one in found), found


@pytest.mark.parametrize(
    ("key", "at", "must"),
    [
        *(("audit/p/1", "2026-01-01T00:00:00.001Z", True), ("audit/p/1", "2026-01-01T00:00:00.000Z", False)),
        *(("audit/_/denied/1", "2026-01-24T00:00:00.001Z", True), ("audit/_/denied/1", "2026-01-24T00:00:00Z", False)),
        ("audit/p/1", "long ago", True),
    ],
)
def test_a_record_stands_as_long_as_it_is_kept(key, at, must):
    """One that does not say when it was made is none of ours that expired."""
    store = AuditedStore("/t/", 1, {}, (), datetime(2026, 1, 31, tzinfo=UTC))
    assert store.must_stand(key, {"at": at}) is must


@audited
async def test_parts_of_a_store_are_read_as_one_history(world: Audited):
    """A5: whole where nothing is compacted, else with what stood before; of other keys nothing is told."""
    client, store, prefixes = world.served.client, world.served.etcd.store, [KEYS.audits(), *KEYS.audited()]
    whole = await read_histories(client, prefixes, quiet_seconds=1.0)
    made = {kv.mod_revision for prefix in prefixes for kv in world.kvs(prefix)}
    assert made <= {one.revision for one in whole if isinstance(one, Revision)}
    assert all(isinstance(one, Revision) for one in whole)
    store.compact(4)
    base, *later = await read_histories(client, prefixes, quiet_seconds=1.0)
    assert (base.revision, later) == (4, [one for one in whole if one.revision > 4])
    stood = {kv.key for one in whole if one.revision <= 4 for event in one.events if (kv := event.kv)}
    assert isinstance(base, HistoryBase)
    assert {kv.key for kv in base.kvs} == stood


@audited
async def test_what_is_compacted_between_two_parts_is_read_anew(world: Audited, monkeypatch):
    """A5: one part would begin later than another, and what happened between would be nobody's."""
    client, store, prefixes = world.served.client, world.served.etcd.store, [KEYS.audits(), *KEYS.audited()]
    third, read = world.audits()[2].mod_revision, export.read_range

    async def overtaken(*arguments: Any, **options: Any) -> list[Step]:
        if store.compacted < third:
            store.compact(third)
        return [*await read(*arguments, **options), Revision(1 << 40, ())]

    store.compact(3)
    monkeypatch.setattr(export, "read_range", overtaken)
    base, *later = await read_histories(client, prefixes, quiet_seconds=1.0)
    assert isinstance(base, HistoryBase)
    assert base.revision == third
    assert {kv.key for kv in base.kvs} >= {kv.key for kv in world.audits()[:3]}
    assert all(third < one.revision < 1 << 40 for one in later), "what comes later is not known of all parts"


@audited
async def test_an_untouched_store_has_no_findings_whatever_becomes_of_it(world: Audited):
    """A5 tamper-evident: changes of all kinds, records that expire, compactions, and lines that are behind."""
    assert await world.verify() == []
    call = world.served.call
    await call("RollbackAdapter", pb.RollbackAdapterRequest(pool="p", name="acme/a", to_generation=1))
    await call("ApplyAdapters", change_set(put("acme/b", uri="file:///new")))
    await call("ApplyAdapters", change_set(put("acme/b", uri="file:///new"), retry=True))
    await call("ApplyAdapters", change_set(drop("other/c"), drop("acme/a"), drop("acme/b")))
    await call("DeletePool", pb.DeletePoolRequest(name="p"))
    await world.served.make_pool("q")
    await call("ApplyAdapters", change_set(put("acme/a"), pool="q"))
    await world.follow()
    assert await world.verify() == []
    world.served.etcd.store.compact(world.served.etcd.store.revision)
    assert await world.verify() == []
    for kv in world.audits()[:4]:
        await world.delete(kv.key)
    assert await world.verify(days=31) == [], "their time is up"
    assert len(await world.verify(days=29)) >= 4


@audited
async def test_lines_may_be_a_moment_behind(world: Audited):
    """A record of a refusal is written up to an hour after it."""
    await world.served.call("ApplyAdapters", change_set(put("acme/n")))
    await world.deny(timedelta(minutes=50))
    assert await world.verify(minutes=0) == []
    assert len(await world.verify()) == 2


@audited
async def test_a_file_that_begins_later_is_told_so(world: Audited):
    after = world.audits()[-1].mod_revision
    world.file.unlink()
    await world.served.call("ApplyAdapters", change_set(put("acme/n")))
    await world.follow(after=after)
    assert await world.verify(after=after) == []
    assert (await world.verify())[0].where == "line 1"


@pytest.mark.parametrize("text", ["", "[]", '{"revision": "1"}', '{"begin": {}}', "{" * 100_000])
def test_what_is_no_line_is_none(text):
    assert isinstance(decode_line(text), RubbishLine)
