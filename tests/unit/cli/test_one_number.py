"""One number for one thing: every view of a pool, in many situations, each from one simulated state of etcd.

What a situation is to say is written down by hand: of each adapter and of each replica how many parts are served, and
of how many; `p`, `f` and `u` are those that are pending, failed and unknown, `b` those that are served and of another
generation than they are to be. Each view is then read as a person reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from registry.admin.rpc import encode, encode_residency, streams
from registry.cli.commands import top
from registry.cli.failure import usage
from registry.cli.views.replica_view import ReplicaView
from registry.model.keys import last_part
from registry.model.messages import adapter_message, pool_message
from registry.model.names import name_key
from registry.model.placement import Member
from registry.model.records import Canary, CanaryRollout, Placement, PoolSpec, Strategy
from registry.model.replica_state import status_of
from registry.model.status import Failed, Found, Kept, LastKnown, Lazy, Leaving, Pending, Resident, Warned
from registry.residency.hub import ResidencyUpdate
from registry.rollout.status import Question, derive_rollout
from registry.store.reader import ReplicaValues
from registry.transactions.decode import read_adapter
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import Hold, Refusal
from tests.support.records import KEYS, POOL, record
from tests.support.residency_world import World, among, assigned, engine_status, members

NAMES = ("r1", "r2", "r3")
DEAD = engine_status(incarnation="")


@dataclass(frozen=True)
class Numbers:
    """What is said of an adapter, or of a replica."""

    served: int
    wanted: int
    pending: int = 0
    failed: int = 0
    unknown: int = 0
    behind: int = 0

    @classmethod
    def of(cls, text: str) -> tuple[str, Numbers]:
        """Of ``r1 1/2 u1``."""
        name, share, *more = text.split()
        served, wanted = map(int, share.split("/"))
        letters = {one[0]: int(one[1:]) for one in more}
        return name, cls(served, wanted, *(letters.get(letter, 0) for letter in "pfub"))


def numbers(text: str) -> dict[str, Numbers]:
    return dict(map(Numbers.of, text.split(", "))) if text else {}


def pending(name: str = "a", reason: str = "staging", generation: int = 1) -> Pending:
    return Pending(name=name, generation=generation, reason=reason)


def failed(name: str = "a", reason: str = "rank_too_high", generation: int = 1) -> Failed:
    return Failed(name=name, generation=generation, reason=reason, message="m", attempts=1, retry_at=None)


def all_say(world: World, *names: str, **fields: Any) -> None:
    for name in names or NAMES:
        world.says(name, **fields)


def disk_full(world: World) -> None:
    world.says("r1", pending=[pending("a", "disk_full"), pending("b", "disk_full")], ready=False)


def one_each(world: World) -> None:
    world.says("r1", failed=[failed()])
    world.says("r2", pending=[pending()])


def kept(world: World) -> None:
    world.put("a", 2)
    all_say(world)
    world.says("r1", failed=[failed(generation=2)], kept=[Kept(name="a", generation=1)])


def coming(world: World) -> None:
    world.put("a", 2)
    all_say(world, pending=[pending(generation=2)], kept=[Kept(name="a", generation=1)])


def not_seen(world: World) -> None:
    world.look()
    world.update("a", 2)
    all_say(world, "r2", "r3")


def new_one(world: World) -> None:
    world.put("c")
    all_say(world, "r2", "r3")


def gone(world: World) -> None:
    world.dead("r1")
    world.remember(*NAMES)


def groups(world: World) -> None:
    world.alive(*NAMES, labels={"zone": "x"})
    world.expect(({"zone": "x"}, 5))


def zones(world: World) -> None:
    world.alive("r1", labels={"zone": "x"})
    world.put("a", placement=Placement(selector={"zone": "x"}))
    all_say(world)


def gone_of_zone(world: World) -> None:
    zones(world)
    world.dead("r1")
    world.remember("r1", labels={"zone": "x"})


TWO = Placement(replicas=2)


def owners(name: str, spec: Placement, *alive: str) -> frozenset[str]:
    made = record(name, placement=spec).spec
    return assigned(POOL, name, made, [Member(one, {}) for one in alive], {frozenset(): 1}).serving


def by_number(world: World) -> None:
    world.put("a", placement=TWO)
    all_say(world, **among(members(*NAMES), {frozenset(): 1}))


def owners_behind(world: World) -> None:
    by_number(world)
    first = min(owners("a", TWO, *NAMES))
    world.says(first, failed=[failed()], **among(members(*NAMES), {frozenset(): 1}))


def owner_gone(world: World) -> None:
    by_number(world)
    lost = next(one for one in NAMES if one not in owners("a", TWO, *NAMES))
    world.dead(lost)
    world.remember(*NAMES)
    left = [one for one in NAMES if one != lost]
    all_say(world, *left, **among(members(*left), {frozenset(): 1}))


def drained(world: World) -> None:
    world.alive("r3", leaving=True)
    all_say(world)


def last_drains(world: World) -> None:
    drained(world)
    all_say(world, "r1", "r2", failed=[failed("a"), failed("b")])


def drained_and_dead(world: World) -> None:
    last_drains(world)
    world.says("r3", engine=DEAD, leaving=[Leaving(name="a", generation=1)])


def over_capacity(world: World) -> None:
    world.says("r1", pending=[pending("b", "over_capacity")])


def too_many(world: World) -> None:
    all_say(world, omitted=2, omitted_reason="over_capacity", serves=[])


def lazily(world: World) -> None:
    world.put("c", load="lazy")
    loaded = Lazy(count=1, servable=True, resident=[Resident(name="c", generation=1, last_used="now")])
    all_say(world, lazy=Lazy(count=1, servable=True))
    world.says("r1", lazy=loaded)


def lazily_nowhere(world: World) -> None:
    lazily(world)
    world.says("r2", lazy=Lazy(count=1, reason="needs_plugin"))


def disabled(world: World) -> None:
    world.put("a", enabled=False)
    all_say(world)


STRATEGY = Strategy(canary=Canary(replicas=1), promote="manual")


def canary(world: World, **rollout: Any) -> None:
    stable = record("a", 1).spec
    started = CanaryRollout(stable_generation=1, stable_spec=stable, started_at="2026-01-01T00:00:00.000Z", **rollout)
    world.put("a", 2, started, source="v2", strategy=STRATEGY)
    all_say(world, **among(members(*NAMES)))


def canary_waits(world: World) -> None:
    canary(world)
    spec = record("a", 2, source="v2", strategy=STRATEGY).spec
    (first,) = assigned(POOL, "a", spec, [Member(name, {}) for name in NAMES], {}).canaries
    waits = {"pending": [pending(generation=2)], "kept": [Kept(name="a", generation=1)]}
    world.says(first, **waits, **among(members(*NAMES)))


def differing(world: World) -> None:
    world.put("a", pinned=False)
    for name in NAMES:
        world.says(name, found=[Found(name="a", generation=1, digest=f"sha256:{int(name == 'r1')}")])


def handoff(world: World) -> None:
    zones(world)
    world.says("r2", leaving=[Leaving(name="a", generation=1)])


BLOCKED = [Warned(name="", generation=0, reason="blocked", message="no")]
B, R23 = "b 3/3", "r2 2/2, r3 2/2"
UNKNOWN = "a 2/3 u1, b 2/3 u1", f"r1 0/2 u2, {R23}"
WAITING = "a 2/3 p1, b 2/3 p1", f"r1 0/2 p2, {R23}"
Prepare = Callable[[World], object]
SITUATIONS: dict[str, tuple[Prepare, str, str]] = {
    "all well": (all_say, f"a 3/3, {B}", f"r1 2/2, {R23}"),
    "engine dead": (lambda world: world.says("r1", engine=DEAD), *UNKNOWN),
    "disk full": (disk_full, *WAITING),
    "refused once": (lambda world: world.says("r1", failed=[failed()]), f"a 2/3 f1, {B}", f"r1 1/2 f1, {R23}"),
    "one failed, one waits": (one_each, f"a 1/3 p1 f1, {B}", "r1 1/2 f1, r2 1/2 p1, r3 2/2"),
    "kept": (kept, f"a 3/3 f1 b1, {B}", f"r1 2/2 f1 b1, {R23}"),
    "coming": (coming, f"a 3/3 p3 b3, {B}", "r1 2/2 p1 b1, r2 2/2 p1 b1, r3 2/2 p1 b1"),
    "not seen": (not_seen, f"a 3/3 p1 b1, {B}", f"r1 2/2 p1 b1, {R23}"),
    "a new one": (new_one, f"a 3/3, {B}, c 2/3 p1", "r1 2/3 p1, r2 3/3, r3 3/3"),
    "no status": (lambda world: world.statuses.pop(KEYS.status(POOL, "r1")), *WAITING),
    "unreadable": (lambda world: world.raw("r1", b'{"schema": 1}'), *UNKNOWN),
    "stale": (lambda world: world.says("r1", stale=True), *UNKNOWN),
    "blocked": (lambda world: world.says("r1", warnings=BLOCKED), *UNKNOWN),
    "gone": (gone, *UNKNOWN),
    "gone and not expected": (lambda world: world.dead("r1"), "a 2/2, b 2/2", R23),
    "two of five are expected": (groups, "a 3/5 u2, b 3/5 u2", f"r1 2/2, {R23}"),
    "in one zone": (zones, f"a 1/1, {B}", "r1 2/2, r2 1/1, r3 1/1"),
    "its zone is gone": (gone_of_zone, "a 0/1 u1, b 2/3 u1", "r1 0/2 u2, r2 1/1, r3 1/1"),
    "on two of three": (by_number, f"a 2/2, {B}", ""),
    "on two of three, one refuses": (owners_behind, f"a 1/2 f1, {B}", ""),
    "on two of two": (owner_gone, "a 2/2, b 2/3 u1", ""),
    "drained": (drained, "a 2/2, b 2/2", "r1 2/2, r2 2/2, r3 0/0"),
    "only who drains serves": (last_drains, "a 0/2 f2, b 0/2 f2", "r1 0/2 f2, r2 0/2 f2, r3 0/0"),
    "drained with a dead engine": (drained_and_dead, "a 0/2 f2, b 0/2 f2", "r1 0/2 f2, r2 0/2 f2, r3 0/0"),
    "over capacity": (over_capacity, "a 3/3, b 2/3 p1", f"r1 1/2 p1, {R23}"),
    "too many to tell": (too_many, "a 0/3 p3, b 0/3 p3", "r1 0/2 p2, r2 0/2 p2, r3 0/2 p2"),
    "lazy": (lazily, f"a 3/3, {B}, c 3/3", "r1 3/3, r2 3/3, r3 3/3"),
    "lazy, and nowhere on r2": (lazily_nowhere, f"a 3/3, {B}, c 2/3 f1", "r1 3/3, r2 2/3 f1, r3 3/3"),
    "disabled": (disabled, B, "r1 1/1, r2 1/1, r3 1/1"),
    "canary": (canary, f"a 3/3, {B}", f"r1 2/2, {R23}"),
    "canary waits": (canary_waits, f"a 3/3 p1 b1, {B}", ""),
    "canary halted": (lambda world: canary(world, halted="they refuse it"), f"a 3/3, {B}", f"r1 2/2, {R23}"),
    "digests differ": (differing, f"a 0/3 f3, {B}", "r1 1/2 f1, r2 1/2 f1, r3 1/2 f1"),
    "URL not allowed": (lambda world: world.allow("r2", "r3"), "a 2/3 f1, b 2/3 f1", f"r1 0/2 f2, {R23}"),
    "handed over": (handoff, f"a 1/1, {B}", "r1 2/2, r2 1/1, r3 1/1"),
}


class PlayedPool:
    """Answers of an admin service in whose etcd a world stands, by the code of the real one."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.look()
        self.lacking = encode.lacking(world.view.snapshot.lacking, world.view.engine_hosts)

    @property
    def answers(self) -> dict[str, list[Any]]:
        pool = pool_message(PoolSpec(name=POOL, base_models=["base"]), 1)
        return {
            "ListPools": [pb.ListPoolsResponse(pools=[pool])],
            "GetPool": [pool],
            "ListAdapters": [pb.ListAdaptersResponse(adapters=map(self._adapter, sorted(self.world.records)))],
            "GetAdapter": [lambda asked: self._adapter(KEYS.adapter(POOL, asked.name))],
            "ListReplicas": [self._listed()],
            "GetReplica": [self._replica],
            "WatchResidency": [self._residency],
            "WatchRollout": [self._rollout],
        }

    def _adapter(self, key: bytes) -> pb.Adapter:
        kv = self.world.records[key]
        return adapter_message(read_adapter(POOL, kv), kv.mod_revision)

    def _listed(self) -> pb.ListReplicasResponse:
        listed = pb.ListReplicasResponse(replicas=map(self._encoded, sorted(self.world.presences)))
        listed.MergeFrom(self.lacking)
        return listed

    def _encoded(self, key: bytes) -> pb.Replica:
        presence = self.world.presences[key]
        status = status_of(presence, self.world.statuses.get(KEYS.status(POOL, last_part(key))))
        return encode.replica(POOL, ReplicaValues(presence, status, self.world.view.engine_hosts))

    def _replica(self, asked: pb.GetReplicaRequest) -> Any:
        key = KEYS.replica(POOL, asked.name)
        if key not in self.world.presences:
            return Refusal(grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "none")
        return self._encoded(key)

    def _residency(self, asked: pb.WatchResidencyRequest) -> list[Any]:
        keys = (name_key(asked.name),) if asked.name else tuple(sorted(self.world.view.records))
        update = ResidencyUpdate(1, self.world.view, keys, snapshot=True)
        starts = encode_residency.starts(update, asked.detail)
        return [*(encode_residency.response(update, start, asked.detail) for start in starts), Hold()]

    def _rollout(self, asked: pb.WatchRolloutRequest) -> list[Any]:
        question = Question(POOL, asked.name, asked.generation)
        record = self.world.records[KEYS.adapter(POOL, asked.name)]
        return [streams._rollout(derive_rollout(question, record, self.world.view.snapshot)), Hold()]


@pytest.fixture(params=SITUATIONS)
def seen(request, cli, admin) -> Any:
    """A situation: what is to be said, and the program that says it."""
    prepare, of_adapters, of_replicas = SITUATIONS[request.param]
    world = World()
    for name in ("a", "b"):
        world.put(name)
    world.alive(*NAMES)
    all_say(world)
    prepare(world)
    played = PlayedPool(world)
    admin.answers |= played.answers
    return SimpleNamespace(
        cli=cli, world=world, played=played, adapters=numbers(of_adapters), replicas=numbers(of_replicas)
    )


def row_of(line: str, titles: str) -> dict[str, str]:
    return dict(zip(titles.split(), line.split(), strict=False))


def told(cells: dict[str, str]) -> Numbers:
    """A row of `get replicas`, whose SERVED may have a remark."""
    served, wanted = map(int, cells["served"].split(" ")[0].split("/"))
    behind = int(found[1]) if (found := re.search(r"\((\d+) not as", cells["served"])) else 0
    rest = (int(cells[title]) for title in ("pending", "failed", "unknown"))
    return Numbers(served, wanted, *rest, behind)


COLUMNS = "custom-columns=NAME:.name,S:.adapters.serving,W:.adapters.wanted,P:.adapters.pending,F:.adapters.failed"
COLUMNS += ",U:.adapters.unknown,B:.adapters.behind"


def replicas_of(seen: Any) -> dict[str, Numbers]:
    lines = seen.cli("-o", COLUMNS, "get", "replicas", "--pool", POOL).lines[1:]
    return {name: Numbers(*map(int, rest)) for name, *rest in map(str.split, lines)}


def test_adapters_are_told_as_they_are(seen):
    """R9 status-truth: `get`, `describe` and what programs get, of each adapter."""
    for name, wanted in seen.adapters.items():
        share = f"{wanted.served}/{wanted.wanted}"
        row = row_of(seen.cli("get", "adapter", name, "--pool", POOL).lines[1], "name pool state serving")
        assert row["serving"] == share
        one = seen.cli("-o", "json", "get", "adapter", name, "--pool", POOL).json
        behind = wanted.pending + wanted.failed + wanted.unknown
        assert (one["status"]["serving"], one["status"]["replicas"]) == (wanted.served, wanted.wanted)
        assert sum(count for why, count in one["status"]["reasons"].items() if why != "leaving") == behind
        lines = seen.cli("describe", "adapter", name, "--pool", POOL).lines
        assert re.search(rf"State: \w+, {share}(?: of \d+)? replicas serve it", lines[1])
        assert ("an earlier generation" in lines[1]) == bool(wanted.behind)
        waits = re.search(r"(\d+) of (\d+) replicas do not serve it yet(?:, and (\d+) failed)?", "\n".join(lines))
        if waits:
            assert (int(waits[1]), int(waits[2])) == (wanted.pending + wanted.unknown, wanted.wanted)
            assert int(waits[3] or 0) == wanted.failed


def test_replicas_are_told_as_they_are(seen):
    """R9 status-truth: the same parts, counted by replica: what is told of adapters adds up to them."""
    found = replicas_of(seen)
    if seen.replicas:
        assert found == seen.replicas
    nameless = seen.played.lacking.lacking - len(seen.played.lacking.missing)
    for field in ("served", "wanted", "pending", "failed", "behind"):
        of_adapters = sum(getattr(one, field) for one in seen.adapters.values())
        lost = nameless * len(seen.adapters) if field == "wanted" else 0
        assert of_adapters == sum(getattr(one, field) for one in found.values()) + lost, field
    rows = seen.cli("get", "replicas", "--pool", POOL).lines[1:]
    for row in rows:
        name, _, ready, served = row.split()[:4]
        assert (served, ready in {"yes", "no"}) == (f"{found[name].served}/{found[name].wanted}", True)


def test_one_replica_is_told_as_in_the_table(seen):
    for name, wanted in replicas_of(seen).items():
        if KEYS.replica(POOL, name) not in seen.world.presences:
            continue
        lines = seen.cli("describe", "replica", name, "--pool", POOL).lines
        [line] = [one for one in lines if one.startswith("Served: ")]
        parts = [one.rsplit(" ", 1) for one in line.removeprefix("Served: ").split(", ")]
        cells = {"served": " ".join(parts[0]), **dict(parts[1:])}
        assert told(cells) == wanted


def test_what_a_replica_serves_is_told_beside_what_it_does(seen, monkeypatch):
    """`top` asks sidecars, and still has the number of all other views."""

    def active(replica: ReplicaView, *_: object) -> dict[str, object]:
        if replica.missing:
            raise usage("it does not live")
        return {"replica": replica.name}

    monkeypatch.setattr(top, "activity_of", active)
    ran = seen.cli("top", "--pool", POOL)
    rows = {line.split()[0]: line.split()[1] for line in ran.lines[1 : ran.lines.index("")]}
    shown = replicas_of(seen)
    assert rows == {
        name: f"{one.served}/{one.wanted}"
        for name, one in shown.items()
        if KEYS.replica(POOL, name) in seen.world.presences
    }
    told = seen.cli("-o", "json", "top", "--pool", POOL).json
    assert {one["name"]: (one["served"], one["wanted"]) for one in told["replicas"]} == {
        name: (shown[name].served, shown[name].wanted) for name in rows
    }
    assert {*told["unreached"]} == shown.keys() - rows.keys()


def test_a_pool_is_told_as_its_parts_are(seen):
    """Its adapters that anybody answers to, and who of those that are to live is ready."""
    [row] = [row_of(line, "name state replicas adapters") for line in seen.cli("get", "pool", POOL).lines[1:]]
    served = sum(one.served > 0 for one in seen.adapters.values())
    assert row["adapters"] == f"{served}/{len(seen.adapters)}"
    rows = seen.cli("get", "replicas", "--pool", POOL).lines[1:]
    leaving = sum(b'"leaving":true' in kv.value for kv in seen.world.presences.values())
    expected = len(seen.world.presences) - leaving + seen.played.lacking.lacking
    assert row["replicas"].split("/")[1] == str(expected)
    whole = seen.cli("describe", "pool", POOL).lines
    assert f"Replicas: {row['replicas']}" in whole
    first = whole.index("") + 2
    assert [line.split()[:4] for line in whole[first : first + len(rows)]] == [line.split()[:4] for line in rows]
    found = seen.cli("doctor").out
    if lacks := re.search(r"(\d+) of (\d+) replicas do not live", found):
        assert lacks.groups() == (str(seen.played.lacking.lacking), str(expected))


def test_why_says_yes_of_those_that_are_counted(seen):
    for name, wanted in seen.adapters.items():
        rows = seen.cli("-o", "json", "why", name, "--pool", POOL).json["items"]
        staying = [one for one in rows if one["answers"] and "leaving" not in one["why"]]
        assert len(staying) >= wanted.served


LAST = LastKnown(engine_url="http://gone:1", host="boot-9", observed_revision=7, engine="vllm 0.32.0", version="0.1.9")


def test_a_row_of_who_is_gone_keeps_what_was_known(cli, admin):
    """R9 status-truth: where it ran, what it was and since when it is gone; programs see that it is of the past."""
    world = World()
    world.put("a")
    world.alive("r2")
    all_say(world, "r2")
    world.remember("r1", labels={"zone": "x"}, last_seen="2026-01-01T00:00:00Z", last_known=LAST)
    admin.answers |= PlayedPool(world).answers
    *_, row = cli("get", "replicas", "-o", "wide", "--pool", POOL).lines
    assert re.search(r"^r1 +p +no +0/1 .* http://gone:1 +last seen \d+ h ago .* 7 +vllm 0.32.0 +boot-9 +zone=x$", row)
    assert cli("get", "replicas", "--pool", POOL, "--color", "always").lines[2].startswith("\x1b[2mr1 ")
    one = cli("-o", "json", "get", "replica", "r1", "--pool", POOL).json
    assert (one["missing"], one["last_seen"], one["engine_url"]) == (True, "2026-01-01T00:00:00Z", None)
    assert one["last_known"] == LAST.model_dump()
    told = cli("describe", "replica", "r1", "--pool", POOL).out
    for line in (
        "Ready: +no",
        "Served: +0/1, pending 0, failed 0, unknown 1",
        "Engine: +vllm 0.32.0 at http://gone:1",
        "Host: +boot-9",
        "Revision: +7",
        "Version: +0.1.9",
        "Last seen: +2026-01-01T00:00:00Z; all that stands here is of then",
    ):
        assert re.search(f"^{line}$", told, re.MULTILINE), line
    world.remember("r1")
    admin.answers |= PlayedPool(world).answers
    [row] = [line for line in cli("get", "replicas", "-o", "wide", "--pool", POOL).lines if line.startswith("r1")]
    assert re.search(r" 1 +- +- +- +- +-$", row), row
    assert "last_known" not in cli("-o", "json", "get", "replica", "r1", "--pool", POOL).json
    assert "of then" not in cli("describe", "replica", "r1", "--pool", POOL).out
