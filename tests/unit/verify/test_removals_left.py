"""Removals that wait for somebody to account for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from registry.tools.verify.history import Violation
from registry.tools.verify.removals import LoggedRemoval, Removals, claims_of

A, B = ("p", "acme%2Fa"), ("p", "b")


def removal(revision: int, name: tuple[str, str] = A, **record: object) -> LoggedRemoval:
    return LoggedRemoval(revision, name, f"/t/adapters/{'/'.join(name)}", record)


def test_a_claim_settles_the_newest_removal_of_just_that_record():
    """W7: a name may have been deleted more than once, and another record of it is another removal."""
    waiting = [removal(3), removal(4), removal(5, generation=2), removal(6, B)]
    removals = Removals(list(waiting))
    assert removals.settle(removal(9))
    assert removals.waiting == [waiting[0], waiting[2], waiting[3]]
    assert removals.settle(removal(9))
    assert removals.waiting == waiting[2:]
    assert not removals.settle(removal(9))
    assert not removals.settle(removal(9, ("q", "acme%2Fa"), generation=2))
    assert removals.waiting == waiting[2:]


def test_a_claim_settles_what_was_deleted_before_the_history_begins():
    """W7: as many as the counter was off by, of its own tenant, and only where no removal waits."""
    removals = Removals([removal(3)], Counter({"acme": 1, "default": 0}))
    assert removals.settle(removal(9))
    assert (removals.waiting, removals.off_at_start["acme"]) == ([], 1)
    assert removals.settle(removal(9))
    assert removals.off_at_start["acme"] == 0
    assert not removals.settle(removal(9))
    assert not removals.settle(removal(9, B))
    assert removals.off_at_start == {"acme": 0, "default": 0}


def test_a_right_counter_accounts_for_all_of_its_tenant():
    """W5: and for nothing of another."""
    removals = Removals([removal(3), removal(4), removal(6, B)], Counter({"acme": 2, "default": -1}))
    assert [removals.off_by(tenant) for tenant in ("acme", "default", "other")] == [4, 0, 0]
    removals.recounted("acme")
    assert [one.revision for one in removals.waiting] == [6]
    assert [removals.off_by(tenant) for tenant in ("acme", "default")] == [0, 0]
    assert list(removals.findings(2)) == [
        Violation("W7", 6, "/t/adapters/p/b", "deleted past the admin service, and not repaired since"),
        Violation("W5", 6, "tenant default", "its counter still has what was deleted"),
        Violation("W5", 2, "tenant default", "its counter is off by -1"),
    ]
    removals.recounted("default")
    assert list(removals.findings(2)) == []


def told(**fields: object) -> dict[str, Any]:
    return {"kind": "adapter", "before": {"pool": "p", "name": "acme/A", "generation": 2}, "after": None} | fields


CLAIMED = [LoggedRemoval(9, A, "/t/adapters/p/acme%2Fa", {"pool": "p", "name": "acme/A", "generation": 2})]


@pytest.mark.parametrize(
    ("changes", "claimed"),
    [
        ([told()], CLAIMED),
        ([told(kind="pool")], []),
        ([told(kind="history")], []),
        ([told(after={})], []),
        ([told(after={"name": "acme/a"})], []),
        ([told(before=None)], []),
        ([told(before={"pool": "p"})], []),
        ([told(before={"pool": "p", "name": 7})], []),
        ([7, told(kind="pool"), told(after={}), told(before=None), told()], CLAIMED),
        ([told(), told()], CLAIMED * 2),
        ("all", []),
    ],
)
def test_an_audit_record_claims_the_deletions_that_it_tells_of(changes, claimed):
    """W7: of adapters, by their name and their record."""
    assert list(claims_of({"changes": changes}, {b"/t/audit/p/q": None}, "/t/adapters/", 9)) == claimed


def test_a_deletion_of_its_own_revision_is_no_claim():
    """W7: that one was seen."""
    audit = {"changes": [told(), told(before={"pool": "p", "name": "b"})]}
    (claim,) = claims_of(audit, {b"/t/adapters/p/acme%2Fa": None}, "/t/adapters/", 9)
    assert (claim.name, claim.tenant) == (B, "default")
