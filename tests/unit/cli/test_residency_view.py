"""How an adapter and a pool are, from where replicas say that it is."""

from __future__ import annotations

from typing import Any

from registry.cli.views.residency_view import (
    AdapterRow,
    PoolStatus,
    pool_status,
    reasons,
    reasons_cell,
    residency_dict,
    rows,
    serving,
    state,
    status_dict,
    where_cell,
)
from registry.v1 import registry_pb2 as pb

SERVING, PENDING, FAILED, UNKNOWN = map(pb.RolloutReplica.State.Value, ("SERVING", "PENDING", "FAILED", "UNKNOWN"))


def count(replicas: int, state: int, reason: str = "", **wanted: Any) -> pb.ResidenceCount:
    return pb.ResidenceCount(replicas=replicas, state=state, reason=reason, **wanted)


def counted(*counts: pb.ResidenceCount, **fields: Any) -> pb.AdapterResidency:
    return pb.AdapterResidency(**{"name": "a", "generation": 3, "counts": counts, **fields})


def row(residency: pb.AdapterResidency | None, generation: int = 3, halted: str = "") -> AdapterRow:
    record = pb.Adapter(name="a", generation=generation)
    if halted:
        record.rollout.halted = halted
    return AdapterRow(record, residency)


def test_reasons_come_the_most_first_and_then_by_name():
    loading = count(1, SERVING, wanted_state=PENDING, wanted_reason="loading")
    others = (loading, count(3, UNKNOWN), count(9, SERVING), count(1, PENDING, "bad"))
    one = counted(count(1, PENDING, "staging"), count(2, FAILED, "bad"), *others)
    assert list(reasons(one).items()) == [("bad", 3), ("unknown", 3), ("loading", 1), ("staging", 1)]
    assert reasons_cell(row(one)) == "3 × bad, 3 × unknown, 1 × loading, 1 × staging"
    assert reasons_cell(row(one, halted="2 of 2 refused")).startswith("2 of 2 refused, 3 × bad")
    assert (reasons_cell(row(None)), reasons_cell(row(counted(note="no replica lives")))) == ("-", "no replica lives")
    assert reasons_cell(row(counted(count(1, SERVING)))) == "-"
    assert reasons_cell(row(counted(count(1, SERVING)), halted="refused")) == "refused"


PARTS = {
    "r1": pb.Residence(replica="r1", state=SERVING, generation=3),
    "r1@2": pb.Residence(replica="r1", state=SERVING, generation=2),
    "r1@?": pb.Residence(replica="r1", state=SERVING),
    "r1 pending: staging": pb.Residence(replica="r1", state=PENDING, generation=3, reason="staging"),
    "r1 leaving": pb.Residence(replica="r1", state=SERVING, generation=3, reason="leaving"),
    "r1 used today": pb.Residence(replica="r1", state=SERVING, generation=3, last_used="today"),
    "r1@2 (generation 3 failed: bad)": pb.Residence(
        replica="r1", state=SERVING, generation=2, wanted_generation=3, wanted_state=FAILED, wanted_reason="bad"
    ),
}


def test_only_what_is_not_as_it_should_be_is_spelled_out():
    cells = [where_cell(row(pb.AdapterResidency(generation=3, replicas=[part]))) for part in PARTS.values()]
    assert cells == [*PARTS]


def listed(*replicas: tuple[bool | None, bool], lacking: int = 0) -> pb.ListReplicasResponse:
    """Live replicas by whether they say that they are ready, and whether they drain."""
    status = {True: '{"ready": true}', False: '{"ready": false}', None: ""}
    live = [
        pb.Replica(name=f"r{at}", status_json=status[ready], leaving=away) for at, (ready, away) in enumerate(replicas)
    ]
    return pb.ListReplicasResponse(replicas=live, lacking=lacking)


WELL, LATE, BAD = counted(count(1, SERVING)), counted(count(1, PENDING)), counted(count(1, FAILED))
POOLS = {
    "empty": (listed(), [], PoolStatus("Healthy", 0, 0, 0, 0)),
    "well": (listed((True, False), (True, False)), [WELL, WELL], PoolStatus("Healthy", 2, 2, 2, 2)),
    "one is not ready": (listed((True, False), (False, False)), [WELL], PoolStatus("Progressing", 1, 2, 1, 1)),
    "one has not reported": (listed((True, False), (None, False)), [WELL], PoolStatus("Progressing", 1, 2, 1, 1)),
    "one drains": (listed((True, False), (False, True)), [WELL], PoolStatus("Healthy", 1, 1, 1, 1)),
    "an adapter is late": (listed((True, False)), [WELL, LATE], PoolStatus("Progressing", 1, 1, 1, 2)),
    "an adapter is bad": (listed((True, False)), [WELL, BAD, LATE], PoolStatus("Degraded", 1, 1, 1, 3)),
    "one is halted": (listed((True, False)), [counted(halted="no")], PoolStatus("Degraded", 1, 1, 0, 1)),
    "one is missing": (listed((True, False), lacking=2), [WELL], PoolStatus("Degraded", 1, 3, 1, 1)),
}


WELL_OFF, OLD = [count(1, SERVING)], 4
STATES = [
    ("Healthy", row(counted(count(2, SERVING)))),
    ("Progressing", row(counted(count(2, SERVING), count(1, PENDING, "staging")))),
    ("Degraded", row(counted(count(2, SERVING), count(1, FAILED, "bad")))),
    ("Degraded", row(counted(count(2, SERVING), count(1, UNKNOWN)))),
    ("Degraded", row(counted(count(1, SERVING, wanted_state=FAILED)))),
    ("Progressing", row(counted(count(1, SERVING, wanted_state=PENDING)))),
    ("Healthy", row(counted(count(1, SERVING), count(1, FAILED, "leaving")))),
    ("Progressing", row(counted(count(1, SERVING, "leaving")))),
    ("Progressing", row(counted())),
    ("Halted", row(counted(*WELL_OFF), halted="refused")),
    ("Halted", row(counted(*WELL_OFF, halted="refused"))),
    ("", row(None)),
    ("Halted", row(None, halted="refused")),
    ("Progressing", row(counted(*WELL_OFF), OLD)),
    ("Degraded", row(counted(count(1, FAILED)), OLD)),
]


def test_the_state_of_an_adapter_and_of_a_pool():
    """R9 status-truth, as it is told: nothing is healthy of which a replica says otherwise, or what is not known."""
    assert [state(of) for _, of in STATES] == [expected for expected, _ in STATES]
    told = {case: pool_status(found, adapters) for case, (found, adapters, _) in POOLS.items()}
    assert told == {case: expected for case, (*_, expected) in POOLS.items()}


def test_how_an_adapter_and_its_replicas_are_for_programs():
    """Also where a service does not count: it is counted for."""
    wanted = {"wanted_generation": 3, "wanted_state": PENDING, "wanted_reason": "staging"}
    behind = pb.Residence(
        replica="r1", model="a", state=SERVING, loaded=True, engine_url="http://r1", last_used="now", **wanted
    )
    labels = {"b": "2", "a": "1"}
    plain = pb.Residence(replica="r2", model="a@3", generation=3, state=FAILED, reason="bad", labels=labels)
    one = pb.AdapterResidency(name="a", generation=3, load="lazy", note="n", replicas=[behind, plain])
    assert (serving(one), reasons(one)) == ((1, 2), {"bad": 1, "staging": 1})
    assert rows(one) == [
        ("r1", "a", "?", "serving", "generation 3 pending: staging", "yes", "now", "http://r1"),
        ("r2", "a@3", "3", "failed", "bad", "no", "-", "-"),
    ]
    value = residency_dict(one)
    first, second = value.pop("replicas")
    assert value == {"name": "a", "generation": 3, "load": "lazy", "note": "n"}
    assert first["wanted"] == {"generation": 3, "state": "pending", "reason": "staging"}
    said = {"replica": "r2", "model": "a@3", "generation": 3, "state": "failed", "reason": "bad", "loaded": False}
    assert second == said | {"engine_url": "", "last_used": "", "wanted": None, "labels": {"a": "1", "b": "2"}}
    assert [*second["labels"]] == ["a", "b"]
    told = {"state": "Degraded", "serving": 1, "replicas": 2, "reasons": {"bad": 1, "staging": 1}, "note": "n"}
    assert (status_dict(row(one)), status_dict(row(None))) == (told, None)
    assert [where_cell(row(of)) for of in (None, counted())] == ["-", "-"]
