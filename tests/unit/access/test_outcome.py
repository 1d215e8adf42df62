"""Questions that the outcome of a change puts."""

from __future__ import annotations

import pytest

from registry.access.outcome import outcome_questions
from registry.access.questions import AccessQuestion, Resource, Verb
from registry.model.audit import AuditChange

ADAPTERS, POOLS = Resource.ADAPTERS, Resource.POOLS
PLAIN = AccessQuestion(Verb.APPLY, ADAPTERS, "p", "acme")


def spec(uri: str = "s3://b/1", credentials: str | None = None, **more: object) -> dict[str, object]:
    return {"spec": {"source": {"uri": uri}, "credentials": credentials, **more}}


def asked(method: str, before, after, kind: str = "adapter", name: str = "acme/a", pool: str | None = "p"):
    return list(outcome_questions(method, pool, [AuditChange(kind=kind, name=name, before=before, after=after)]))


@pytest.mark.parametrize(
    ("before", "after", "questions"),
    [
        (None, spec(), (AccessQuestion(Verb.APPLY, ADAPTERS, "p", "acme", "s3://b/1"),)),
        (spec(), spec("s3://b/2", "c"), (AccessQuestion(Verb.APPLY, ADAPTERS, "p", "acme", "s3://b/2", "c"),)),
        (
            spec("s3://b/1", "c"),
            spec("s3://b/2", "c"),
            (AccessQuestion(Verb.APPLY, ADAPTERS, "p", "acme", "s3://b/2", "c"),),
        ),
        (spec(), spec(credentials="c"), (AccessQuestion(Verb.APPLY, ADAPTERS, "p", "acme", "s3://b/1", "c"),)),
        (spec("s3://b/1", "c"), spec("s3://b/1", "c", priority=3), (PLAIN,)),
        (spec(), None, (PLAIN,)),
        ({"unreadable": "{}"}, None, (PLAIN,)),
        (spec(), spec(), (PLAIN, AccessQuestion(Verb.RETRY, ADAPTERS, "p", "acme"))),
        ({"spec": 3}, {"spec": {"source": {"uri": 3}, "credentials": 4}}, (PLAIN,)),
    ],
)
def test_a_change_of_an_adapter_asks_for_its_source_and_credential_where_it_gets_others(before, after, questions):
    assert asked("ApplyAdapters", before, after) == [questions]


def test_a_roll_back_asks_the_same_and_what_a_rollout_does_nothing_of_it():
    [[rolled]] = asked("RollbackAdapter", spec(), spec("s3://b/0"))
    assert rolled == AccessQuestion(Verb.ROLLBACK, ADAPTERS, "p", "acme", "s3://b/0")
    assert asked("RollbackAdapter", spec(), spec()) == [(AccessQuestion(Verb.ROLLBACK, ADAPTERS, "p", "acme"),)]
    assert asked("AbortRollout", spec(), spec("s3://b/0")) == [
        (AccessQuestion(Verb.ABORT, Resource.ROLLOUTS, "p", "acme"),)
    ]
    restored = asked("RestoreHistory", None, spec(), kind="history")
    assert restored == [(AccessQuestion(Verb.RESTORE, Resource.HISTORY, "p", "acme"),)]


CREATION, UPDATE, DELETION = "CreatePool", "UpdatePool", "DeletePool"


@pytest.mark.parametrize(
    ("method", "before", "after", "verbs"),
    [
        (UPDATE, {"limits": {"require_digest": True}}, {"limits": {"require_digest": False}}, [Verb.REQUIRE]),
        (UPDATE, {"limits": {"max_rank": 8}}, {"limits": {"max_rank": 16}}, [Verb.UPDATE]),
        (
            *(UPDATE, {"limits": {"prove": "effect"}}, {"limits": {"prove": "off", "max_rank": 8}}),
            [Verb.REQUIRE, Verb.UPDATE],
        ),
        (UPDATE, {"limits": {}, "engine": "a"}, {"limits": {}, "engine": "b"}, [Verb.UPDATE]),
        (UPDATE, None, {"limits": {}}, [Verb.UPDATE]),
        (UPDATE, {"limits": 3}, {"limits": {}}, [Verb.UPDATE]),
        (CREATION, None, {}, [Verb.CREATE]),
        (CREATION, None, {"limits": {"prove": "effect", "require_digest": False}}, [Verb.CREATE]),
        (CREATION, None, {"limits": {"prove": "off", "require_digest": False}}, [Verb.CREATE, Verb.REQUIRE]),
        (DELETION, {"limits": {"require_signature": True}}, None, [Verb.DELETE, Verb.REQUIRE]),
        (DELETION, {"limits": {"require_digest": True, "max_rank": 8}}, None, [Verb.DELETE, Verb.REQUIRE]),
        (DELETION, {"limits": {"require_digest": False, "prove": "effect"}}, None, [Verb.DELETE]),
        (DELETION, {"unreadable": "{}"}, None, [Verb.DELETE, Verb.REQUIRE]),
    ],
)
def test_a_change_of_a_pool_asks_for_what_holds_others_back_by_itself(method, before, after, verbs):
    """A3 no-self-loosening: a pool that is deleted, or made anew, may be without it too."""
    told = asked(method, before, after, kind="pool", name="p")
    assert told == [(AccessQuestion(verb, POOLS, "p"),) for verb in verbs]


def test_what_is_about_nothing_else_asks_what_the_call_did():
    assert asked("DrainReplica", None, {}, kind="replica", name="r") == [
        (AccessQuestion(Verb.DRAIN, Resource.REPLICAS, "p"),)
    ]
    tenant = AccessQuestion(Verb.UPDATE, Resource.TENANTS, tenant="acme")
    assert asked("SetTenant", None, {}, kind="tenant", name="acme", pool=None) == [(tenant,)]
    lost = AccessQuestion(Verb.REPAIR, Resource.TENANTS, None, "acme")
    assert asked("RepairTenant", spec(), None, pool=None) == [(lost,)]
