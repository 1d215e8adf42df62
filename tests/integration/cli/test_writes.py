"""The command line changes what should be served and what replicas do, through a real admin service on a real etcd."""

from __future__ import annotations

import asyncio

import pytest

from registry.model.status import Failed
from tests.integration.cli.conftest import MAX_TXN_OPS
from tests.integration.cli.test_doctor import WELL, write
from tests.support.waiting import eventually


def outcomes(value):
    return {one["adapter"]["name"]: (one["outcome"], one["adapter"]["generation"]) for one in value["results"]}


def test_a_file_is_one_revision(cli):
    """W2 atomic-set: the records of one file share the revision that the command tells."""
    value = cli.json("apply", "-f", cli.manifest("a", "b", "team/c"))
    assert outcomes(value) == {"a": ("created", 1), "b": ("created", 1), "team/c": ("created", 1)}
    listed = cli.json("get", "adapters")["items"]
    assert {one["etag"] for one in listed} == {str(value["revision"])}
    assert {one["request_id"] for one in listed} == {value["request_id"]}


def test_one_wrong_document_changes_nothing(cli, revision):
    """W2 atomic-set: all of it or nothing; the complaint names the document."""
    before = revision()
    path = cli.manifest("a", "tiny", "c")
    ran = cli("-o", "json", "apply", "-f", path)
    assert (ran.code, ran.error["reason"]) == (4, "NAME_IS_BASE_MODEL")
    assert (ran.error["field"], revision()) == (f"{path}: document 2 (line 6): metadata.name", before)


def test_a_dry_run_gives_the_same_errors_and_no_revision(cli, revision):
    """W9 dry-run."""
    before = revision()
    good = cli.json("apply", "-f", cli.manifest("a"), "--dry-run")
    assert (outcomes(good), good["dry_run"]) == ({"a": ("created", 1)}, True)
    wrong = [cli("-o", "json", "apply", "-f", cli.manifest("tiny"), *flag).error for flag in ([], ["--dry-run"])]
    assert (wrong[0], revision()) == (wrong[1], before)


def test_diff_tells_what_apply_would_do_and_does_nothing(cli, revision):
    """W6 one-digest: +1 if and only if the spec changed, and rollback makes a new generation."""
    cli.json("apply", "-f", cli.manifest("a", "b", description="of March"))
    before = revision()
    path = cli.manifest("a", "b", "c", priority=7, description="of April")
    changes = cli.json("diff", "-f", path)["changes"]
    found = [(one["outcome"], one["after"]["spec"]["priority"]) for one in changes]
    assert (found, changes[0]["before"]["spec"]["priority"]) == ([("updated", 7), ("updated", 7), ("created", 7)], 0)
    told = cli("diff", "-f", path).out
    assert ("-priority: 0\n+priority: 7" in told, "-description: of March\n+description: of April" in told) == (
        True,
        True,
    )
    assert revision() == before
    for _ in range(2):
        cli.json("apply", "-f", path)
    assert outcomes(cli.json("rollback", "a")) == {"a": ("updated", 3)}
    history = [(one["generation"], one["spec"]["description"]) for one in cli.json("history", "a")["items"]]
    assert history == [(3, "of March"), (2, "of April"), (1, "of March")]


def test_what_does_not_fit_one_transaction_needs_no_atomic(cli, revision):
    """W3 idempotent: the same command with the same request id changes nothing more. What is said to fit fits."""
    names = [f"a{number}" for number in range(MAX_TXN_OPS)]
    path, before = cli.manifest(*names), revision()
    ran = cli("-o", "json", "apply", "-f", path)
    assert (ran.code, ran.error["reason"], "--no-atomic" in ran.error["message"]) == (4, "TOO_MANY_CHANGES", True)
    fits = int(ran.error["metadata"]["max_changes"])
    assert revision() == before
    value = cli.json("apply", "-f", path, "--no-atomic", "--request-id", "q1")
    assert value["transactions"][0]["changes"] == fits
    assert len({one["revision"] for one in value["transactions"]}) == len(value["transactions"]) > 1
    assert len(cli.json("get", "adapters")["items"]) == MAX_TXN_OPS
    after = revision()
    assert cli.json("apply", "-f", path, "--no-atomic", "--request-id", "q1")["transactions"] == value["transactions"]
    assert revision() == after


def test_delete_by_file_is_one_revision(cli):
    """W2 atomic-set."""
    path = cli.manifest("a", "b")
    cli.json("apply", "-f", path)
    assert outcomes(cli.json("delete", "-f", path)) == {"a": ("deleted", 1), "b": ("deleted", 1)}
    assert cli.json("get", "adapters")["items"] == []
    ran = cli("delete", "-f", path)
    assert ran.code == 3
    assert ran.err.startswith("error: ADAPTER_NOT_FOUND: ")


def test_waiting_where_no_replica_lives(cli):
    """The time is that of the change too, which may take all of it: then it is the same change that is waited for."""

    def is_told() -> bool:
        ran = cli("add", "a", "--source", "file:///adapters/a", "--wait", "--timeout", "2")
        assert ran.code == 6
        return ran.err.startswith("error: DEADLINE_EXCEEDED: not served in time: a generation 1: no replica")

    asyncio.run(eventually(is_told))


def test_a_pool_is_changed_field_by_field(cli):
    for flags, limits in (
        (["--engine-host=10.0.0.0/8", "--engine-host=*.svc:8000"], {"engine_hosts": ["10.0.0.0/8", "*.svc:8000"]}),
        (["--require-signature", "--max-rank=4"], {"require_signature": True, "max_rank": 4}),
        (["--no-require-signature", "--require-digest"], {"require_signature": False, "require_digest": True}),
    ):
        cli.json("pool", "update", "dev", *flags)
        shown = cli.json("get", "pool", "dev")["limits"]
        assert {name: shown[name] for name in limits} == limits
    refused = cli("-o", "json", "pool", "update", "dev", "--engine-host", "*.svc", "--engine-host", "http://vllm")
    assert (refused.code, refused.error["field"], "10.0.0.0/8" in refused.error["message"]) == (
        *(4, "pool.limits.engine_hosts", True),
    )
    refused = cli("-o", "json", "apply", "-f", cli.manifest("a"))
    assert (refused.code, refused.error["reason"]) == (4, "DIGEST_REQUIRED")
    assert (cli("pool", "delete", "dev").code, cli("get", "pool", "dev").code) == (0, 3)


FAILED = Failed(name="a", generation=1, reason="engine_refused", message="no", attempts=9, retry_at="soon")


@pytest.fixture
def applied(cli) -> str:
    """The manifest of one adapter, which is applied."""
    path = cli.manifest("a")
    cli.json("apply", "-f", path)
    return path


def test_what_failed_is_asked_for_again_as_the_same_generation(cli, etcd, applied, revision):
    """R17, W6: by a record that says who asked, and of which replica."""
    write(etcd, ("r1", {**WELL, "failed": [FAILED]}), ("r2", WELL))
    before = revision()
    told = cli.json("retry", "adapter", "a", "--replica", "r1", "--request-id", "again")
    (result,) = told["results"]
    assert (result["outcome"], result["adapter"]["generation"]) == ("updated", 1)
    assert told["revision"] > before
    assert cli.json("retry", "adapter", "A")["revision"] > told["revision"]


def test_an_unchanged_manifest_is_applied_again_only_if_it_is_asked_for(cli, applied):
    """R17: with --retry."""
    (result,) = cli.json("apply", "-f", applied)["results"]
    assert result["outcome"] == "unchanged"
    (result,) = cli.json("apply", "-f", applied, "--retry")["results"]
    assert (result["outcome"], result["adapter"]["generation"]) == ("updated", 1)


def test_what_is_so_already_is_said(cli, etcd, revision):
    """R20 drain: exit 0; W9 dry-run."""
    write(etcd, ("r1", WELL))
    ran = cli("undrain", "r1")
    assert (ran.code, "replica r1 does not drain" in ran.out) == (0, True)
    before = revision()
    assert cli.json("drain", "r1", "--dry-run")["changed"]
    assert revision() == before
    assert cli.json("drain", "r1")["changed"]
    assert "replica r1 drains already" in cli("drain", "r1").out
    assert cli.json("undrain", "r1")["changed"]
    told = cli.json("events", "--replica", "r1", "--since", "1d")["items"]
    assert [one["event"] for one in told if one["by"]] == ["drain", "undrain"]
