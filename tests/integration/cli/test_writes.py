"""The command line changes what should be served and what replicas do, through a real admin service on a real etcd."""

from __future__ import annotations

import asyncio

from registry.model.status import Failed
from tests.integration.cli.conftest import MAX_TXN_OPS
from tests.integration.cli.test_doctor import WELL, write
from tests.support.waiting import eventually

FAILED = Failed(name="a", generation=1, reason="engine_refused", message="no", attempts=9, retry_at="soon")


def outcomes(value):
    return {one["adapter"]["name"]: (one["outcome"], one["adapter"]["generation"]) for one in value["results"]}


def test_a_file_is_one_revision_or_nothing(cli, revision):
    """W2 atomic-set, W6 one-digest, W9 dry-run: applied, compared, taken back and deleted."""
    before, wrong = revision(), cli.manifest("a", "tiny", "c")
    ran = cli("-o", "json", "apply", "-f", wrong)
    assert (ran.code, ran.error["reason"]) == (4, "NAME_IS_BASE_MODEL")
    assert ran.error["field"] == f"{wrong}: document 2 (line 6): metadata.name"
    assert cli("-o", "json", "apply", "-f", wrong, "--dry-run").error == ran.error
    path = cli.manifest("a", "b", description="of March")
    made = {"a": ("created", 1), "b": ("created", 1)}
    dry = cli.json("apply", "-f", path, "--dry-run")
    assert (outcomes(dry), dry["dry_run"], revision()) == (made, True, before)
    value = cli.json("apply", "-f", path)
    listed = cli.json("get", "adapters")["items"]
    assert (outcomes(value), {one["etag"] for one in listed}) == (made, {str(value["revision"])})
    assert {one["request_id"] for one in listed} == {value["request_id"]}
    before, path = revision(), cli.manifest("a", "b", "c", priority=7, description="of April")
    found = [(one["outcome"], one["after"]["spec"]["priority"]) for one in cli.json("diff", "-f", path)["changes"]]
    assert found == [("updated", 7), ("updated", 7), ("created", 7)]
    assert "-description: of March\n+description: of April" in cli("diff", "-f", path).out
    assert revision() == before
    for _ in range(2):
        cli.json("apply", "-f", path)
    assert outcomes(cli.json("rollback", "a")) == {"a": ("updated", 3)}
    history = [(one["generation"], one["spec"]["description"]) for one in cli.json("history", "a")["items"]]
    assert history == [(3, "of March"), (2, "of April"), (1, "of March")]
    deleted = cli.json("delete", "-f", path)
    assert outcomes(deleted) == {"a": ("deleted", 3), "b": ("deleted", 2), "c": ("deleted", 1)}
    ran = cli("delete", "-f", path)
    assert (ran.code, ran.err.startswith("error: ADAPTER_NOT_FOUND: ")) == (3, True)


def test_what_does_not_fit_one_transaction_needs_no_atomic(cli, revision):
    """W3 idempotent: the same command with the same request id changes nothing more. What is said to fit fits."""
    path, before = cli.manifest(*(f"a{number}" for number in range(MAX_TXN_OPS))), revision()
    ran = cli("-o", "json", "apply", "-f", path)
    assert (ran.code, ran.error["reason"], "--no-atomic" in ran.error["message"]) == (4, "TOO_MANY_CHANGES", True)
    assert revision() == before
    value = cli.json("apply", "-f", path, "--no-atomic", "--request-id", "q1")
    assert value["transactions"][0]["changes"] == int(ran.error["metadata"]["max_changes"])
    assert len({one["revision"] for one in value["transactions"]}) == len(value["transactions"]) > 1
    assert len(cli.json("get", "adapters")["items"]) == MAX_TXN_OPS
    after = revision()
    assert cli.json("apply", "-f", path, "--no-atomic", "--request-id", "q1")["transactions"] == value["transactions"]
    assert revision() == after


def test_what_replicas_and_pools_are_told(cli, etcd, revision):
    """R17, R20 drain, W6, W9: tried again, drained and taken back; what is so already is said, with exit 0."""
    write(etcd, ("r1", {**WELL, "failed": [FAILED]}), ("r2", WELL))
    path = cli.manifest("a")
    before = cli.json("apply", "-f", path)["revision"]
    told = cli.json("retry", "adapter", "a", "--replica", "r1", "--request-id", "again")
    assert (outcomes(told), told["revision"] > before) == ({"a": ("updated", 1)}, True)
    assert outcomes(cli.json("apply", "-f", path)) == {"a": ("unchanged", 1)}
    assert outcomes(cli.json("apply", "-f", path, "--retry")) == {"a": ("updated", 1)}
    ran = cli("undrain", "r1")
    assert (ran.code, "replica r1 does not drain" in ran.out) == (0, True)
    before = revision()
    assert (cli.json("drain", "r1", "--dry-run")["changed"], revision()) == (True, before)
    assert cli.json("drain", "r1")["changed"]
    assert "replica r1 drains already" in cli("drain", "r1").out
    assert cli.json("undrain", "r1")["changed"]
    events = cli.json("events", "--replica", "r1", "--since", "1d")["items"]
    assert [one["event"] for one in events if one["by"]] == ["drain", "undrain"]
    cli.json("pool", "update", "dev", "--engine-host=10.0.0.0/8", "--max-rank=4", "--require-digest")
    limits = cli.json("get", "pool", "dev")["limits"]
    assert (limits["engine_hosts"], limits["max_rank"], limits["require_digest"]) == (["10.0.0.0/8"], 4, True)
    refused = cli("-o", "json", "apply", "-f", cli.manifest("b"))
    assert (refused.code, refused.error["reason"]) == (4, "DIGEST_REQUIRED")
    cli.json("delete", "a")
    assert (cli("pool", "delete", "dev").code, cli("get", "pool", "dev").code) == (0, 3)


def test_waiting_where_no_replica_lives(cli):
    """The time is that of the change too, which may take all of it: then it is the same change that is waited for."""

    def is_told() -> bool:
        ran = cli("add", "a", "--source", "file:///adapters/a", "--wait", "--timeout", "2")
        assert ran.code == 6
        return ran.err.startswith("error: DEADLINE_EXCEEDED: not served in time: a generation 1: no replica")

    asyncio.run(eventually(is_told))
