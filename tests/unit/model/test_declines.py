"""What a replica refuses for good by limits of its own, and who takes it then."""

from __future__ import annotations

from dataclasses import replace

from registry.model.placement import (
    Declined,
    Member,
    decline_id,
    decline_note,
    decliners,
    heeded,
    member_of,
    members_digest,
    placed,
    rate,
    rate_evenly,
)
from registry.model.records import AdapterSpec, Placement, SourceSpec
from registry.model.status import Presence, ReportedDeclines

MEMBERS = [Member(f"r{number}", {"zone": "x"}) for number in range(3)]


def declining(member: Member, *ids: str, reason: str = "rank_too_high") -> Member:
    return replace(member, declines={reason: Declined("16", frozenset(ids))})


def test_replicas_say_whom_they_reckoned_with_and_what_those_decline():
    """R9: only who knows the same has the same digest; where nobody declines it is that of earlier releases."""
    fleet = [declining(MEMBERS[0], "1", "2"), *MEMBERS[1:]]
    assert members_digest(fleet) != members_digest(MEMBERS)
    assert members_digest(fleet) == members_digest([declining(MEMBERS[0], "2", "1"), *MEMBERS[1:]])
    assert members_digest([replace(MEMBERS[0], declines=None), *MEMBERS[1:]]) == members_digest(MEMBERS)


def test_what_is_declined_counts_once_all_replicas_are_of_releases_that_know_of_it():
    fleet = [declining(MEMBERS[0], "1"), *MEMBERS[1:]]
    assert heeded(fleet) == tuple(fleet)
    assert heeded([*fleet, Member("old", {}, declines=None)]) == (*MEMBERS, Member("old", {}))


def test_a_presence_tells_it_by_reason():
    said = Presence(pool="p", replica="r", incarnation="i", owner="o", started_at="t")
    assert member_of("r", said, reports=True, held=None).declines is None, "of an earlier release"
    assert member_of("r", Presence.parse(said.to_bytes()), reports=True, held=None).declines == {}
    told = said.model_copy(update={"declines": {"rank_too_high": ReportedDeclines(by="16", adapters=["1"])}})
    assert (
        member_of("r", Presence.parse(told.to_bytes()), reports=True, held=None)
        == declining(Member("r", {}), "1")
        == Member("r", {}, declines={"rank_too_high": Declined("16", frozenset({"1"}))})
    )


def test_it_is_said_who_does_not_take_it_and_why():
    adapter = decline_id("a", 1)
    spec = AdapterSpec(source=SourceSpec(uri="file:///a"), placement=Placement(replicas=1, selector={"zone": "x"}))
    fleet = [
        declining(MEMBERS[1], adapter),
        declining(MEMBERS[0], adapter),
        declining(MEMBERS[2], "other"),
        declining(Member("elsewhere", {}), adapter),
        Member("idle", {"zone": "x"}),
    ]
    found = decliners("a", spec, 1, fleet)
    assert found == {"r0": "rank_too_high", "r1": "rank_too_high"}
    assert decline_note(found) == "r0, r1 do not take it: rank_too_high (its engine's --max-lora-rank is lower)"
    assert decliners("a", spec, 2, fleet) == {}
    assert decliners("a", spec.model_copy(update={"placement": Placement()}), 1, fleet) == {}
    assert decline_note({}) == ""
    many = {f"r{number}": "of_a_later_release" for number in range(5)}
    assert decline_note(many) == "r0, r1, r2 and 2 more do not take it: of_a_later_release"
    both = decline_note({"r0": "unknown_credential", "r1": "of_a_later_release"})
    assert both == (
        "r0 does not take it: unknown_credential (its --credentials do not have the credential); "
        "r1 does not take it: of_a_later_release"
    )


def test_where_all_decline_it_stays_where_it_would_be():
    """R8: one that nobody takes does not wander; another generation is another matter, and all are all."""
    two, order = Placement(replicas=2), placed("p", "a", Placement(replicas=3), rate(MEMBERS, {}), 1)
    every = rate([declining(one, decline_id("a", 1)) for one in MEMBERS], {})
    assert placed("p", "a", two, every, 1) == placed("p", "a", two, every, 2) == order[:2]
    fleet = [declining(one, decline_id("a", 1)) if one.replica == order[0] else one for one in MEMBERS]
    assert placed("p", "a", Placement(replicas=3), rate(fleet, {}), 1) == order[1:], "it counts as none"
    assert set(placed("p", "a", Placement(), rate_evenly(fleet), 1)) == set(order)
