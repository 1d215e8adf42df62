"""Why a replica serves an adapter or answers 404: one sentence, true for each kind of standing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from registry.cli.views.replica_view import missing_view, replica_view
from registry.cli.views.residency_view import serving_cell
from registry.cli.views.why import explanations, not_placed
from registry.residency.health import AdapterRow
from registry.v1 import registry_pb2 as pb

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERVING, FAILED, PENDING = pb.RolloutReplica.SERVING, pb.RolloutReplica.FAILED, pb.RolloutReplica.PENDING


def record(**placement: Any) -> pb.Adapter:
    spec = pb.AdapterSpec(placement=pb.Placement(**placement))
    return pb.Adapter(name="acme/sql", pool="dev", generation=2, spec=spec)


def disabled(**placement: Any) -> pb.Adapter:
    adapter = record(**placement)
    adapter.spec.enabled = False
    return adapter


def replica(name: str, **fields: Any) -> Any:
    status = json.dumps(fields.pop("status", {}))
    return replica_view(pb.Replica(name=name, pool="dev", status_json=status, **fields))


def part(name: str, **fields: Any) -> pb.Residence:
    return pb.Residence(
        **{"replica": name, "model": "acme/sql", "generation": 2, "state": SERVING, "loaded": True} | fields
    )


def why(adapter: pb.Adapter, parts: list[pb.Residence], *replicas: Any) -> dict[str, tuple[bool, bool, str]]:
    told = explanations(adapter, pb.AdapterResidency(replicas=parts), replicas, NOW)
    return {one.replica: (one.answers, one.meant, one.sentence) for one in told}


SQL = "it answers with generation 2 to the name acme/sql"
GONE = missing_view("dev", pb.MissingReplica(name="r1", last_seen="2025-12-31T23:58:00Z"))
REFUSED = {"failed": [{"name": "acme/sql", "reason": "rank_too_high", "message": "rank 64 of at most 16"}]}


R1, STAGING = replica("r1"), {"state": PENDING, "reason": "staging"}
WANTED = {"wanted_generation": 2, "wanted_state": PENDING, "wanted_reason": "staging"}
NOT_PLACED, LATE = "it is not placed there", "generation 2 is pending: staging"
LAZILY, DRAINS = f"{SQL}, and loads it at the first request", "it drains; loraplane undrain r1 --pool dev ends that"
EARLIER = "it answers with generation 1 to the name acme/sql"
DEAD = "it does not live, last seen 2 min ago; start it, or loraplane replica forget r1"
DISABLED = "the adapter is disabled; loraplane enable acme/sql --pool dev serves it again"
UNTOLD = f"{NOT_PLACED} (its sidecar has not said what it serves)"


@pytest.mark.parametrize(
    ("adapter", "parts", "one", "told"),
    [
        (record(), [part("r1")], R1, (True, True, SQL)),
        (record(), [part("r1", loaded=False)], R1, (True, True, LAZILY)),
        (record(), [part("r1", generation=1, **WANTED)], R1, (True, False, f"{EARLIER}; {LATE}")),
        (record(), [part("r1", generation=0, **STAGING)], R1, (False, False, f"it does not serve it: {LATE}")),
        (record(replicas=6), [], R1, (False, True, f"{NOT_PLACED} (placement.replicas: 6)")),
        (record(selector={"gpu": "a"}), [], R1, (False, True, f"{NOT_PLACED} (placement.selector: gpu=a)")),
        (record(), [], R1, (False, True, UNTOLD)),
        (record(), [], replica("r1", leaving=True), (False, True, DRAINS)),
        (record(), [], GONE, (False, False, DEAD)),
        (disabled(replicas=6), [], R1, (False, True, DISABLED)),
        (disabled(), [], replica("r1", leaving=True), (False, True, DISABLED)),
        (disabled(), [], GONE, (False, False, DEAD)),
    ],
)
def test_each_standing_has_its_sentence(adapter, parts, one, told):
    assert why(adapter, parts, one) == {"r1": told}


def test_a_failure_is_told_in_the_replicas_own_words_with_what_helps():
    told = why(record(), [part("r1", state=FAILED, reason="rank_too_high")], replica("r1", status=REFUSED))
    answers, meant, sentence = told["r1"]
    assert (answers, meant) == (False, False)
    assert sentence.startswith(
        "it does not serve it: generation 2 is failed: rank_too_high: rank 64 of at most 16; rank_too_high: "
    )
    assert "loraplane retry adapter acme/sql --pool dev" in sentence


def test_replicas_that_are_left_out_by_the_placement_are_named_with_its_field():
    live = [*(replica(f"r{number}") for number in range(1, 12)), replica("r0", leaving=True), GONE]
    where = pb.AdapterResidency(replicas=[part("r1"), part("r2")], pool_replicas=11)
    where.counts.add(replicas=2, state=SERVING)
    row = AdapterRow(record(replicas=2), where)
    assert not_placed(row, live) == "r3, r4, r5, r6, r7, r8, r9, r10, … (9) (placement.replicas: 2)"
    assert serving_cell(row) == "2/2 of 11"
    assert not_placed(row, live[:2]) == ""
    assert not_placed(AdapterRow(record(replicas=2)), live) == ""
    assert not_placed(AdapterRow(record(), where), live) == ""


def test_the_command_tells_of_all_or_of_one(cli, admin):
    admin.answers["GetAdapter"] = [record(replicas=1)]
    where = pb.AdapterResidency(name="acme/sql", replicas=[part("r1")])
    admin.answers["WatchResidency"] = [lambda _: [pb.WatchResidencyResponse(adapters=[where])]]
    admin.answers["ListReplicas"] = [
        pb.ListReplicasResponse(replicas=[pb.Replica(name=name, pool="dev") for name in ("r1", "r2")])
    ]
    assert cli("why", "acme/sql", "--pool", "dev").lines == [
        "REPLICA ANSWERS WHY",
        f"r1 yes {SQL}",
        "r2 no it is not placed there (placement.replicas: 1)",
    ]
    assert cli("why", "acme/sql", "--replica", "r2", "--pool", "dev").lines == [
        "r2: it is not placed there (placement.replicas: 1)"
    ]
    assert cli("-o", "json", "why", "acme/sql", "--replica", "r1", "--pool", "dev").json == {
        "replica": "r1",
        "answers": True,
        "meant": True,
        "why": SQL,
    }
    where.note = "no replica of the role prefill"
    assert cli("why", "acme/sql", "--pool", "dev").lines[-1] == "no replica of the role prefill"
    admin.answers["WatchResidency"] = [lambda _: [pb.WatchResidencyResponse()]]
    assert cli("why", "acme/sql", "--pool", "dev").lines[1].startswith("r1 no "), "nobody says where it is"
    refused = cli("why", "acme/sql", "--replica", "r9", "--pool", "dev")
    assert (refused.code, "pool dev has no replica 'r9'" in refused.err) == (3, True)
