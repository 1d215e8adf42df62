"""Exports a history of etcd as JSON lines, and reads it back."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import Any

from registry.etcd3.client import Client
from registry.etcd3.errors import Compacted
from registry.etcd3.ops import Event, KeyValue, Range, prefix_end
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Listed, Reflection, Resume
from registry.model.stored import read_json
from registry.tools.verify.history import HistoryBase, Revision, Step

_PAGE = 1000


async def read_history(client: Client, prefix: str, *, from_revision: int, seconds: float = 60.0) -> list[Step]:
    """Everything below a prefix from a revision on until now; from a `HistoryBase` if anything stood there before.

    Where that revision is compacted, it begins with the first one that is not.

    Raises:
        TimeoutError: it takes longer than `seconds`.
        ValueError: there is no such revision yet.
        EtcdError: etcd does not answer.
    """
    return await read_range(client, f"{prefix}/".encode(), from_revision=from_revision, seconds=seconds)


async def read_range(
    client: Client, key: bytes, *, from_revision: int, seconds: float, quiet_seconds: float = 0.0
) -> list[Step]:
    """The same of all keys that begin so.

    `quiet_seconds`: how long nothing has to come once what was told is what stands. What was made and deleted last
    leaves no other trace, and whoever is no administrator of etcd hears of no progress.
    """
    now = await client.list_prefix(key)
    if from_revision > now.revision + 1:
        raise ValueError(f"there is no revision {from_revision} yet; the newest is {now.revision}")
    from_revision = max(from_revision, 1 + await _first_kept(client, key, max(1, from_revision - 1), now.revision))
    wanted = {kv.key: kv.mod_revision for kv in now.kvs}
    resume = Resume(from_revision - 1, 0)
    reflector = Reflector(client, key, prefix_end(key), resume=resume, rng=random.Random(0))  # noqa: S311 - jitter
    seen: dict[bytes, int] = {}
    async with asyncio.timeout(seconds), aclosing(reflector.stream()) as reflections:
        steps = await _stood_before(client, key, from_revision)
        for base in steps:
            seen = _seen(base, seen)
        # Nothing says that a watch has told all, so it is read until what it told is what stands.
        is_quiet = quiet_seconds == 0
        while seen != wanted or not is_quiet:
            told = await _next(reflections, quiet_seconds if seen == wanted else None)
            step = step_of(told) if told is not None else None
            if isinstance(step, Revision) and step.revision > now.revision:
                break
            is_quiet = is_quiet or told is None
            if isinstance(step, HistoryBase):
                steps.clear()
            if step is not None:
                steps.append(step)
                seen = _seen(step, seen)
    return steps


async def _next(reflections: AsyncGenerator[Reflection, None], quiet_seconds: float | None) -> Reflection | None:
    """The next news of a watch; None: nothing for so long."""
    task = asyncio.ensure_future(anext(reflections))
    try:
        done, _ = await asyncio.wait([task], timeout=quiet_seconds)
        return task.result() if done else None
    finally:
        task.cancel()
        await asyncio.wait([task])


async def read_histories(
    client: Client, prefixes: Sequence[bytes], *, quiet_seconds: float, seconds: float = 60.0
) -> list[Step]:
    """All that is kept of what happened below several prefixes until now, for those who may not read what is beside.

    See `read_range` for `quiet_seconds`.

    Raises:
        TimeoutError: it takes longer than `seconds`.
        EtcdError: etcd does not answer.
    """
    async with asyncio.timeout(seconds):
        while True:
            now = (await client.range(Range(prefixes[0], limit=1))).revision
            first = 1 + await _first_kept(client, prefixes[0], 1, now)
            first = first if first > 2 else 1  # where the first revision is kept, all are
            read = partial(read_range, client, from_revision=first, seconds=seconds, quiet_seconds=quiet_seconds)
            parts = await asyncio.gather(*map(read, prefixes))
            if all(step.revision == first - 1 for part in parts for step in part if isinstance(step, HistoryBase)):
                return list(_merged(parts, first - 1, now))


def _merged(parts: Iterable[Iterable[Step]], base: int, until: int) -> Iterator[Step]:
    """The steps of several prefixes as one history, as far as each of them was read; with a base unless it is whole."""
    kvs: list[KeyValue] = []
    events: defaultdict[int, list[Event]] = defaultdict(list)
    for step in chain.from_iterable(parts):
        match step:
            case HistoryBase(_, stood):
                kvs += stood
            case Revision(revision, changed):
                events[revision] += changed
    if base:
        yield HistoryBase(base, tuple(kvs))
    yield from (Revision(one, tuple(events[one])) for one in sorted(events) if one <= until)


async def _first_kept(client: Client, prefix: bytes, low: int, high: int) -> int:
    """The first revision from `low` on of which etcd knows what stood then; that of `high` is known."""
    while low < high:
        middle = (low + high) // 2
        try:
            await client.range(Range(prefix, prefix_end(prefix), limit=1, revision=middle))
        except Compacted:
            low = middle + 1
        else:
            high = middle
    return low


async def _stood_before(client: Client, prefix: bytes, revision: int) -> list[Step]:
    """A `HistoryBase` of what stood below a prefix before a revision; empty: nothing did, or etcd knows it no more."""
    kvs: list[KeyValue] = []
    start, more = prefix, revision > 1
    try:
        while more:
            page = Range(start, prefix_end(prefix), limit=_PAGE, revision=revision - 1)
            found = await client.range(page)
            kvs += found.kvs
            more, start = found.more, (found.kvs[-1].key + b"\0" if found.kvs else b"")
    except Compacted:
        return []
    return [HistoryBase(revision - 1, tuple(kvs))] if kvs else []


def step_of(reflection: Reflection) -> Step | None:
    """Step of the history that a reflection tells; None: nothing."""
    match reflection:
        case Listed(revision=revision, kvs=kvs):
            return HistoryBase(revision, kvs)
        case Changed(revision, events):
            return Revision(revision, events)
        case _:
            return None


def _seen(step: Step, seen: dict[bytes, int]) -> dict[bytes, int]:
    """Keys that stand after a step, and when they were written; changes `seen`."""
    if isinstance(step, HistoryBase):
        return {kv.key: kv.mod_revision for kv in step.kvs}
    for event in step.events:
        seen.pop(event.key, None)
        if event.kv is not None:
            seen[event.key] = event.mod_revision
    return seen


def encode(steps: Iterable[Step]) -> Iterator[str]:
    """One JSON line a step."""
    for step in steps:
        match step:
            case HistoryBase(revision, kvs):
                yield json.dumps({"base": revision, "kvs": [_kv(kv) for kv in kvs]})
            case Revision(revision, events):
                yield json.dumps({"revision": revision, "events": [[_text(e.key), _kv(e.kv)] for e in events]})


def decode(lines: Iterable[str]) -> Iterator[Step]:
    """The steps of an export.

    Raises:
        ValueError: a line is not one of ours; the message says which.
    """
    for number, line in enumerate(lines, start=1):
        try:
            yield _step(read_json(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of the history is none of an export: {error}") from error


def _step(fields: dict[str, Any]) -> Step:
    if "base" in fields:
        return HistoryBase(int(fields["base"]), tuple(map(_read_kv, fields["kvs"])))
    revision = int(fields["revision"])
    events = (Event(_bytes(key), revision, None if kv is None else _read_kv(kv)) for key, kv in fields["events"])
    return Revision(revision, tuple(events))


def _kv(kv: KeyValue | None) -> list[object] | None:
    if kv is None:
        return None
    return [_text(kv.key), _text(kv.value), kv.create_revision, kv.mod_revision, kv.version, kv.lease]


def _read_kv(values: list[Any]) -> KeyValue:
    key, value, *numbers = values
    return KeyValue(_bytes(key), _bytes(value), *map(int, numbers))


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
