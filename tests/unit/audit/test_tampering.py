"""Ways to tamper with the audit, in etcd and in the file, each of which is found; and what is none."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from registry.tools.audit.lines import RubbishLine, decode_line
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, drop, put
from tests.support.records import KEYS
from tests.unit.audit.conftest import Audited

Tamper = Callable[[Audited], Awaitable[Any]]
Edit = Callable[[list[Any]], Any]


def value_of(kv: Any) -> dict[str, Any]:
    return json.loads(kv.value)


async def removed_record(world: Audited) -> None:
    await world.delete(world.audits()[2].key)


async def removed_trail(world: Audited) -> None:
    await world.delete(*(kv.key for kv in world.audits()))


async def revoked_lease(world: Audited) -> None:
    await world.served.client.lease_revoke(world.audits()[0].lease)


async def removed_denial(world: Audited) -> None:
    await world.delete(world.kvs(KEYS.denied())[0].key)


async def other_principal(world: Audited) -> None:
    kv = world.audits()[2]
    await world.put(kv.key, {**value_of(kv), "principal": "mallory"})


async def other_value(world: Audited) -> None:
    kv = world.audits()[2]
    record = value_of(kv)
    record["changes"][0]["after"]["spec"]["source"]["uri"] = "file:///harmless"
    await world.put(kv.key, record)


async def written_again(world: Audited) -> None:
    kv = world.audits()[2]
    await world.put(kv.key, kv.value)


async def removed_and_put_again(world: Audited) -> None:
    kv = world.audits()[2]
    await world.delete(kv.key)
    await world.put(kv.key, kv.value)


async def removed_and_rewritten(world: Audited) -> None:
    kv = world.audits()[2]
    await world.delete(kv.key)
    await world.put(kv.key, {**value_of(kv), "principal": "mallory"})


async def moved_to_another_pool(world: Audited) -> None:
    kv = world.audits()[2]
    await world.delete(kv.key)
    await world.put(kv.key.replace(b"/audit/p/", b"/audit/q/"), kv.value)


async def invented_record(world: Audited) -> None:
    kv = world.audits()[2]
    await world.put(kv.key[:-4] + b"ffff", {**value_of(kv), "principal": "mallory"})
    await world.follow()


async def changed_adapter(world: Audited) -> None:
    key = KEYS.adapter("p", "acme/a")
    record = value_of(world.kvs(key)[0])
    record["spec"]["source"]["uri"] = "file:///evil"
    await world.put(key, record)


async def same_adapter_again(world: Audited) -> None:
    key = KEYS.adapter("p", "acme/a")
    await world.put(key, world.kvs(key)[0].value)


async def new_adapter(world: Audited) -> None:
    record = value_of(world.kvs(KEYS.adapter("p", "acme/a"))[0])
    await world.put(KEYS.adapter("p", "acme/z"), {**record, "name": "acme/z"})


async def new_adapter_and_gone(world: Audited) -> None:
    await new_adapter(world)
    await world.delete(KEYS.adapter("p", "acme/z"))


async def deleted_adapter(world: Audited) -> None:
    await world.delete(KEYS.adapter("p", "other/c"))


async def loosened_pool(world: Audited) -> None:
    record = value_of(world.kvs(KEYS.pool("p"))[0])
    record["limits"]["prove"] = "off"
    await world.put(KEYS.pool("p"), record)


async def deleted_pool(world: Audited) -> None:
    await world.delete(KEYS.pool("p"))


async def raised_quota(world: Audited) -> None:
    key = KEYS.tenant("acme")
    await world.put(key, {**value_of(world.kvs(key)[0]), "max_adapters": 1000})


async def removed_history(world: Audited) -> None:
    await world.delete(KEYS.history("p", "acme/a", 1))


async def rewritten_history(world: Audited) -> None:
    key = KEYS.history("p", "acme/a", 1)
    record = value_of(world.kvs(key)[0])
    record["spec"]["source"]["uri"] = "file:///evil"
    await world.put(key, record)


async def order_to_drain(world: Audited) -> None:
    order = {"schema": 1, "pool": "p", "replica": "r1", "drain": True, "at": "", "by": "mallory"}
    await world.put(KEYS.drain("p", "r1"), order)


async def changed_and_compacted(world: Audited) -> None:
    await changed_adapter(world)
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


IN_ETCD: dict[Tamper, str] = {
    removed_record: "its time is not up: removed",
    removed_trail: "its time is not up: removed",
    revoked_lease: "its time is not up: removed",
    removed_denial: "its time is not up: removed",
    other_principal: "rewritten",
    other_value: "rewritten",
    written_again: "it was written 2 times: rewritten",
    removed_and_put_again: "etcd has it as of revision",
    removed_and_rewritten: "etcd has it as of revision",
    moved_to_another_pool: "it has no line: removed from the file",
    invented_record: "1 audit records for 0 changes",
    changed_adapter: "changed without a record",
    same_adapter_again: "changed without a record",
    new_adapter: "changed without a record",
    new_adapter_and_gone: "0 audit records for 1 changes",
    deleted_adapter: "deleted without a record",
    loosened_pool: "changed without a record",
    deleted_pool: "deleted without a record",
    raised_quota: "changed without a record",
    removed_history: "changed without a record",
    rewritten_history: "changed without a record",
    order_to_drain: "changed without a record",
    changed_and_compacted: "changed without a record",
    changed_and_its_record_removed: "a change without a record, or a record that was rewritten or removed",
    deleted_and_its_record_removed: "deleted without a record",
}


@pytest.mark.parametrize("tamper", IN_ETCD)
def test_each_way_to_tamper_in_etcd_is_found(audited, tamper):
    """A5 tamper-evident."""

    async def scene(world: Audited) -> None:
        assert await world.verify() == []
        await tamper(world)
        found = [f"{one}" for one in await world.verify()]
        assert any(IN_ETCD[tamper] in one for one in found), found

    audited(scene)


def edit_of(number: int, **more: Any) -> Edit:
    """Changes fields of the record in a line."""

    def edit(lines: list[Any]) -> None:
        lines[number]["record"] |= more

    return edit


def shifted(lines: list[Any]) -> None:
    lines[3]["revision"] += 1


def swapped(lines: list[Any]) -> None:
    lines[2], lines[3] = lines[3], lines[2]


def invented(lines: list[Any]) -> None:
    made = json.loads(json.dumps(lines[3]))
    made["key"] = made["key"][:-4] + "ffff"
    lines.insert(4, made)


def aged(lines: list[Any]) -> None:
    """Makes a record look as if its time were up, and takes its key for gone."""
    lines[3]["record"]["at"] = "2020-01-01T00:00:00.000Z"


def other_value_in_line(lines: list[Any]) -> None:
    lines[3]["record"]["changes"][0]["after"]["spec"]["priority"] = 77


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
    "a value is changed": (other_value_in_line, "etcd has it with another content"),
    "a time is changed": (aged, "says that it was made at 2020"),
    "a revision is changed": (shifted, "etcd has it as of revision"),
    "a line is invented": (invented, "etcd never had it: invented"),
    "a line is doubled": (lambda lines: lines.insert(4, lines[3]), "has a line already, which is line 4"),
    "lines are swapped": (swapped, "does not come behind"),
    "a line is rubbish": (lambda lines: lines.insert(4, "rubbish\n"), "line 5: it is none of loraplane-audit"),
    "a line is of nobody": (lambda lines: lines.insert(4, {"x": 1}), "line 5: it is none of loraplane-audit"),
    "an id is none": (lambda lines: lines[3].update(key="audit/p/1"), "has no id or no time of ours"),
    "a second beginning hides lines": (
        lambda lines: lines.__setitem__(slice(3, 5), [{"begin": {"after": 900}}]),
        "line 4: it begins behind revision 900",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_FILE)
def test_each_way_to_tamper_with_the_file_is_found(audited, name):
    """A5 tamper-evident."""
    edit, told = IN_FILE[name]

    async def scene(world: Audited) -> None:
        assert await world.verify() == []
        lines = world.lines()
        edit(lines)
        world.rewrite(lines)
        found = [f"{one}" for one in await world.verify()]
        assert any(told in one for one in found), found

    audited(scene)


def test_an_untouched_store_has_no_findings_whatever_becomes_of_it(audited):
    """A5 tamper-evident: changes of all kinds, records that expire, compactions, and lines that are behind."""

    async def scene(world: Audited) -> None:
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

    audited(scene)


def test_lines_may_be_a_moment_behind(audited):
    """A record of a refusal is written up to an hour after it."""

    async def scene(world: Audited) -> None:
        await world.served.call("ApplyAdapters", change_set(put("acme/n")))
        await world.deny(timedelta(minutes=50))
        assert await world.verify(minutes=0) == []
        assert len(await world.verify()) == 2

    audited(scene)


def test_a_file_that_begins_later_is_told_so(audited):
    async def scene(world: Audited) -> None:
        after = world.audits()[-1].mod_revision
        world.file.unlink()
        await world.served.call("ApplyAdapters", change_set(put("acme/n")))
        await world.follow(after=after)
        assert await world.verify(after=after) == []
        assert (await world.verify())[0].where == "line 1"

    audited(scene)


@pytest.mark.parametrize("text", ["", "[]", '{"revision": "1"}', '{"begin": {}}', "{" * 100_000])
def test_what_is_no_line_is_none(text):
    assert isinstance(decode_line(text), RubbishLine)
