"""Work as it grows: what a change, a restart and a view cost with ever more records or replicas.

The parts whose work could grow are called alone, in this process, without etcd, network or engine. Processor time is
counted, which depends far less on what else the machine does than the time on a clock.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial

from bench.etcd import catalogue
from registry.etcd3.ops import Event, KeyValue
from registry.model.keys import Keys
from registry.model.names import name_key
from registry.residency.derive import changed, residency
from registry.residency.view import PoolView, renew_view
from registry.rollout.status import Question, derive_rollout
from sidecar.desired.informer import Informer
from tests.support.fleet import POOL
from tests.support.records import POOL as WORLD_POOL
from tests.support.residency_world import World

CHANGES, TURNS, ADAPTERS = 200, 15, 100


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value: `x` records or replicas, `value` in milliseconds of processor time."""

    line: str
    x: int
    value: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure of the page.

    Attributes:
        name: by which it is measured alone.
        title: above the figure.
        told: what was measured, and how.
        across: what grows, along the horizontal axis.
        sizes: how much of it there was.
        lines: what is drawn.
        measure: the points of one size.
    """

    name: str
    title: str
    told: str
    across: str
    sizes: tuple[int, ...]
    lines: tuple[str, ...]
    measure: Callable[[int], list[Point]]


def _ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def _records(count: int) -> list[Point]:
    """A sidecar's informer: the whole list, then changes of one record after another."""
    kvs = [KeyValue(put.key, put.value, 1, number, 1) for number, put in enumerate(catalogue(Keys(), count), 1)]
    informer = Informer(POOL)
    whole = _ms(partial(informer.replace, count, kvs))
    samples = []
    for number in range(CHANGES):
        kv, revision = kvs[number % count], count + number + 1
        event = Event(kv.key, revision, KeyValue(kv.key, kv.value, 1, revision, 2))
        samples.append(_ms(partial(informer.apply, revision, (event,))))
    return [Point(_CHANGE, count, statistics.median(samples)), Point(_LIST, count, whole)]


def _replicas(count: int) -> list[Point]:
    """An admin service's view of a pool: a status that is new, everything anew, and one rollout."""
    world, names = World(), [f"replica-{number:04}" for number in range(count)]
    for number in range(ADAPTERS):
        world.put(f"adapter-{number:03}")
    world.alive(*names)
    for name in names:
        world.says(name)
    view, keys = renew_view(world.view, world.values), [name_key(f"adapter-{number:03}") for number in range(ADAPTERS)]
    told, whole, rollouts = list[float](), list[float](), list[float]()
    record, question = next(iter(world.records.values())), Question(WORLD_POOL, "adapter-000", 0)
    for turn in range(TURNS):
        world.says(names[turn % count], stale=turn % 2 == 0)
        before, values = view, world.values
        began = time.process_time()
        view = renew_view(before, values)
        changed(before, view)
        told.append((time.process_time() - began) * 1000)
        whole.append(_ms(partial(_whole, view, keys)))
        rollouts.append(_ms(partial(derive_rollout, question, record, view.snapshot)))
    found = {_STATUS: told, _VIEW: whole, _ROLLOUT: rollouts}
    return [Point(line, count, statistics.median(samples)) for line, samples in found.items()]


def _whole(view: PoolView, keys: Iterable[str]) -> None:
    for key in keys:
        residency(view, key)


_CHANGE, _LIST = "one change", "the whole list, after a restart"
_STATUS, _VIEW, _ROLLOUT = "one replica's new status", "who serves all of it", "one rollout"
CURVES = (
    Curve(
        "records",
        "A replica, by the records of its pool",
        f"A sidecar folds records into its desired state: the whole list once, then {CHANGES} changes of one record "
        "each, of which the median is told.",
        "records",
        (100, 10_000, 100_000),
        (_CHANGE, _LIST),
        _records,
    ),
    Curve(
        "replicas",
        "An admin service, by the replicas of a pool",
        f"A view of {ADAPTERS} adapters that every replica serves: a replica's status is new, and what that changes is "
        f"found; who serves each of them is derived anew; and so is how far one rollout is. The median of {TURNS}.",
        "replicas",
        (1, 10, 100, 1000),
        (_STATUS, _VIEW, _ROLLOUT),
        _replicas,
    ),
)


def machine() -> dict[str, object]:
    """Kind of the machine: cores that may be used, memory, and how busy it was; nothing by which it could be found."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "load": round(os.getloadavg()[1], 1),
    }
