"""The command line changes what should be served, through the real admin service on a real etcd."""

from __future__ import annotations

import asyncio

import pytest

from registry.model.errors import Reason
from tests.integration.cli.conftest import MAX_TXN_OPS
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
    assert ran.error["field"] == f"{path}: document 2 (line 6): metadata.name"
    assert revision() == before


def test_the_same_request_id_changes_once(cli, revision):
    """W3 idempotent: the same reply, no second revision; other content under the same id is refused."""
    path = cli.manifest("a")
    first = cli.json("apply", "-f", path, "--request-id", "q1")
    after = revision()
    assert cli.json("apply", "-f", path, "--request-id", "q1") == first
    ran = cli("-o", "json", "apply", "-f", cli.manifest("b"), "--request-id", "q1")
    assert (ran.code, ran.error["reason"]) == (4, "REQUEST_ID_REUSED")
    assert revision() == after


def test_a_stale_etag_is_a_conflict(cli, revision):
    """W4 etag: exit 5, and nothing changed."""
    etag = str(cli.json("apply", "-f", cli.manifest("a"))["revision"])
    cli.json("apply", "-f", cli.manifest("a", load="lazy"))
    before = revision()
    ran = cli("-o", "json", "delete", "adapter", "a", "--etag", etag)
    assert (ran.code, ran.error["reason"]) == (5, "ETAG_MISMATCH")
    assert revision() == before
    newest = cli.json("get", "adapter", "a")["etag"]
    assert outcomes(cli.json("delete", "adapter", "a", "--etag", newest)) == {"a": ("deleted", 2)}


def test_a_full_quota_is_refused(cli, revision):
    """W5 quota-never: exit 4, and nothing changed."""
    assert cli("tenant", "set", "acme", "--max-adapters", "2").code == 0
    assert cli("apply", "-f", cli.manifest("acme/a", "acme/b")).code == 0
    before = revision()
    ran = cli("-o", "json", "apply", "-f", cli.manifest("acme/c"))
    assert (ran.code, ran.error["reason"]) == (4, "QUOTA_EXCEEDED")
    assert revision() == before
    assert cli.json("get", "tenants", "acme")["adapters"] == 2


def test_a_description_is_shown_wherever_the_spec_is(cli):
    """W6 one-digest: another description is another generation."""
    cli.json("apply", "-f", cli.manifest("a", description="of March"))
    path = cli.manifest("a", description="of April")
    assert "-description: of March\n+description: of April" in cli("diff", "-f", path).out
    assert outcomes(cli.json("apply", "-f", path)) == {"a": ("updated", 2)}
    assert "\n    description: of April\n" in cli("-o", "yaml", "get", "adapters").out
    assert "Spec description:" in (shown := cli("describe", "adapter", "a").out)
    assert " of April\n" in shown


def test_generations_rise_only_with_the_spec(cli):
    """W6 one-digest: +1 if and only if the spec changed; rollback makes a new generation."""
    path = cli.manifest("a", "b")
    cli.json("apply", "-f", path)
    assert outcomes(cli.json("apply", "-f", path)) == {"a": ("unchanged", 1), "b": ("unchanged", 1)}
    assert outcomes(cli.json("apply", "-f", cli.manifest("a", priority=3))) == {"a": ("updated", 2)}
    assert outcomes(cli.json("rollback", "a")) == {"a": ("updated", 3)}
    generations = cli.json("history", "a")["items"]
    assert [(one["generation"], one["spec"]["priority"]) for one in generations] == [(3, 0), (2, 3), (1, 0)]
    assert outcomes(cli.json("rollback", "a", "--to", "2")) == {"a": ("updated", 4)}
    assert cli("rollback", "a", "--to", "99").code == 3


def test_a_dry_run_gives_the_same_errors_and_no_revision(cli, revision):
    """W9 dry-run."""
    before = revision()
    good = cli.json("apply", "-f", cli.manifest("a"), "--dry-run")
    assert (outcomes(good), good["dry_run"]) == ({"a": ("created", 1)}, True)
    wrong = [cli("-o", "json", "apply", "-f", cli.manifest("tiny"), *flag).error for flag in ([], ["--dry-run"])]
    assert wrong[0] == wrong[1]
    assert revision() == before


def test_diff_tells_what_apply_would_do_and_does_nothing(cli, revision):
    cli.json("apply", "-f", cli.manifest("a", "b"))
    before = revision()
    path = cli.manifest("a", "b", "c", priority=7)
    changes = cli.json("diff", "-f", path)["changes"]
    assert [(one["outcome"], one["after"]["spec"]["priority"]) for one in changes] == [
        ("updated", 7),
        ("updated", 7),
        ("created", 7),
    ]
    assert changes[0]["before"]["spec"]["priority"] == 0
    assert "-priority: 0\n+priority: 7" in cli("diff", "-f", path).out
    assert revision() == before


def test_what_does_not_fit_one_transaction_needs_no_atomic(cli, revision):
    names = [f"a{number}" for number in range(MAX_TXN_OPS)]
    path = cli.manifest(*names)
    before = revision()
    ran = cli("-o", "json", "apply", "-f", path)
    assert (ran.code, ran.error["reason"]) == (4, "TOO_MANY_CHANGES")
    assert "--no-atomic" in ran.error["message"]
    fits = int(ran.error["metadata"]["max_changes"])
    assert revision() == before
    value = cli.json("apply", "-f", path, "--no-atomic", "--request-id", "q1")
    assert value["transactions"][0]["changes"] == fits
    assert len({one["revision"] for one in value["transactions"]}) == len(value["transactions"]) > 1
    assert len(cli.json("get", "adapters")["items"]) == MAX_TXN_OPS
    after = revision()
    assert cli.json("apply", "-f", path, "--no-atomic", "--request-id", "q1")["transactions"] == value["transactions"]
    assert revision() == after


def test_exactly_what_the_refusal_says_fits(cli):
    names = [f"a{number}" for number in range(MAX_TXN_OPS)]
    fits = int(cli("-o", "json", "apply", "-f", cli.manifest(*names)).error["metadata"]["max_changes"])
    assert cli("apply", "-f", cli.manifest(*names[:fits])).code == 0


def test_delete_by_file_is_one_revision(cli):
    """W2 atomic-set."""
    path = cli.manifest("a", "b")
    cli.json("apply", "-f", path)
    assert outcomes(cli.json("delete", "-f", path)) == {"a": ("deleted", 1), "b": ("deleted", 1)}
    assert cli.json("get", "adapters")["items"] == []
    ran = cli("delete", "-f", path)
    assert ran.code == 3
    assert ran.err.startswith("error: ADAPTER_NOT_FOUND: ")


def test_pools(cli):
    assert cli("pool", "create", "dev", "--base-model", "tiny").code == 5
    cli.json("pool", "update", "dev", "--max-rank", "8")
    assert cli.json("get", "pool", "dev")["limits"] == {
        "max_rank": 8,
        "max_adapters": None,
        "target_modules": None,
        "require_signature": False,
        "require_digest": False,
        "engine_hosts": [],
        "expected_replicas": None,
        "expected_groups": [],
        "prove": "effect",
    }
    refused = cli("-o", "json", "pool", "update", "dev", "--engine-host", "*.svc", "--engine-host", "http://vllm")
    assert (refused.code, refused.error["field"]) == (4, "pool.limits.engine_hosts")
    assert "10.0.0.0/8" in refused.error["message"]
    for hosts in (["10.0.0.0/8", "*.svc:8000"], ["*"]):
        cli.json("pool", "update", "dev", *(f"--engine-host={one}" for one in hosts))
        assert cli.json("get", "pool", "dev")["limits"]["engine_hosts"] == hosts
    for flag, is_required in (("--require-signature", True), ("--max-rank=4", True), ("--no-require-signature", False)):
        cli.json("pool", "update", "dev", flag)
        assert cli.json("get", "pool", "dev")["limits"]["require_signature"] is is_required
    cli.json("pool", "update", "dev", "--engine-names", "versioned")
    assert cli.json("get", "pool", "dev")["engine_names"] == "versioned"
    assert cli.json("pool", "update", "dev", "--engine-kind=sglang", "--engine-names=plain")["engine"] == "sglang"
    cli.json("pool", "update", "dev", "--engine-kind", "vllm")
    cli.json("pool", "update", "dev", "--require-digest")
    refused = cli("-o", "json", "apply", "-f", cli.manifest("a"))
    assert (refused.code, refused.error["reason"]) == (4, "DIGEST_REQUIRED")
    cli.json("pool", "update", "dev", "--no-require-digest")
    cli.json("apply", "-f", cli.manifest("a"))
    assert cli("-o", "json", "pool", "delete", "dev").error["reason"] == "POOL_NOT_EMPTY"
    cli.json("delete", "adapter", "a")
    assert cli("pool", "delete", "dev").code == 0
    assert cli("get", "pool", "dev").code == 3


def test_waiting_where_no_replica_lives(cli):
    """The time is that of the change too, which may take all of it: then it is the same change that is waited for."""

    def is_told() -> bool:
        ran = cli("add", "a", "--source", "file:///adapters/a", "--wait", "--timeout", "2")
        assert ran.code == 6
        return ran.err.startswith("error: DEADLINE_EXCEEDED: not served in time: a generation 1: no replica")

    asyncio.run(eventually(is_told))


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ("get adapter nothing", 3, "ADAPTER_NOT_FOUND"),
        ("get adapters --pool nothing", 3, "POOL_NOT_FOUND"),
        ("describe adapter nothing", 3, "ADAPTER_NOT_FOUND"),
        ("describe replica nothing", 3, "REPLICA_NOT_FOUND"),
        ("describe pool nothing", 3, "POOL_NOT_FOUND"),
        ("history nothing", 3, "ADAPTER_NOT_FOUND"),
        ("rollback nothing", 3, "GENERATION_NOT_FOUND"),
        ("rollout nothing", 3, "ADAPTER_NOT_FOUND"),
        ("delete adapter nothing", 3, "ADAPTER_NOT_FOUND"),
        ("pool delete nothing", 3, "POOL_NOT_FOUND"),
        ("get tenants nothing", 3, "TENANT_NOT_FOUND"),
        ("add text --source file:///a", 4, "RESERVED_NAME"),
        ("add a..b --source file:///a", 4, "INVALID_NAME"),
        ("add a --source file:///a --pool nothing", 3, "POOL_NOT_FOUND"),
        ("add a --source file:///a --priority 5000", 4, "INVALID_MANIFEST"),
        ("pool create a/b --base-model x", 4, "INVALID_NAME"),
        ("pool create a --base-model x --engine-kind ollama", 4, "INVALID_FIELD"),
        ("pool create a --base-model x --engine-names any", 4, "INVALID_FIELD"),
        ("tenant set a/b --max-adapters 1", 4, "INVALID_NAME"),
    ],
)
def test_refusals_have_a_stable_reason_and_one_line(shared_cli, arguments, code, reason):
    as_json, as_text = shared_cli("-o", "json", *arguments.split()), shared_cli(*arguments.split())
    assert (as_json.code, as_json.error["reason"], as_json.error["exit_code"]) == (code, reason, code)
    assert reason in set(Reason)
    assert (as_text.code, as_text.out, as_text.err.count("\n")) == (code, "", 1)
    assert as_text.err.startswith(f"error: {reason}: ")
