"""The one table of what is tried again and when: whole, and of nothing that no replica says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from registry.lora.coverage.table import UnappliedReason
from registry.lora.findings import FindingReason
from registry.lora.signatures import SignatureReason
from registry.model.errors import Reason
from registry.model.replica_reasons import RETRY_RULES, RetryClass, is_nowhere, retry_rule, told_commands
from registry.sources.base import ArtifactError, SourceReason

ROOT = Path(__file__).parents[3]
ROOMS = ("sidecar/plan", "sidecar/loop", "sidecar/resolver")
# What makes a condition of an adapter, and takes its reason.
SAYING = {"Failure", "FailedAdapter", "PendingAdapter", "_hopeless", "pending"}
# Of records that cannot be read: see `Informer`.
OF_RECORDS = {Reason.FUTURE_SCHEMA, Reason.UNREADABLE_RECORD, Reason.INVALID_NAME, Reason.RESERVED_NAME}
OF_RECORDS |= {Reason.INVALID_FIELD}


def told_in(tree: ast.AST, names: dict[str, str]) -> Iterator[str]:
    """The reasons that a module gives for adapters, as words or as these constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SAYING:
            yield from words([*node.args, *(one.value for one in node.keywords if one.arg == "reason")], names)
        elif isinstance(node, ast.Assign) and any(mentions(one, "reason") for one in node.targets):
            yield from words([node.value], names)


def constants(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from ((one.id, node.value.value) for one in targets if isinstance(one, ast.Name))


def mentions(target: ast.AST, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(target))


def words(nodes: list[ast.expr], names: dict[str, str]) -> Iterator[str]:
    parts = [part for one in nodes for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
    for node in parts:
        text = names.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        if isinstance(text, str) and re.fullmatch(r"[a-z]+(_[a-z]+)*", text):
            yield text


def all_reasons() -> set[str]:
    """Every reason that a status can carry for an adapter."""
    closed = (SourceReason, FindingReason, SignatureReason, UnappliedReason)
    found = {reason for one in closed for reason in get_args(one)}
    found |= {one.lower() for one in OF_RECORDS} | {"key_mismatch"}
    trees = [ast.parse(path.read_text()) for room in ROOMS for path in (ROOT / room).glob("*.py")]
    names = {name: value for tree in trees for name, value in constants(tree)}
    return found | {reason for tree in trees for reason in told_in(tree, names)}


def test_every_reason_of_a_replica_has_one_rule_and_every_rule_a_reason():
    """R8 isolation."""
    assert set(RETRY_RULES) == all_reasons()


@pytest.mark.parametrize("reason", sorted(RETRY_RULES))
def test_a_rule_says_what_it_waits_for_and_what_helps(reason):
    """R8: and an error says by its reason whether repeating it can help."""
    rule = RETRY_RULES[reason]
    assert rule.waits_for
    assert rule.command
    assert rule.is_answer or rule.retry is not RetryClass.CHANGE
    error = ArtifactError(reason, "m")  # type: ignore[arg-type]
    assert error.permanent == (rule.retry is RetryClass.CHANGE)


def test_the_reason_of_a_later_release_is_tried_again():
    assert retry_rule("of_tomorrow").retry is RetryClass.LATER


def test_only_what_may_be_whole_later_is_found_for_the_time_being():
    """R8: `Finding.permanent` says no other than the table."""
    passing = []
    for path in (ROOT / "registry/lora").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and any(one.arg == "permanent" for one in node.keywords):
                passing += list(words(node.args[:1], {}))
    assert set(passing) == {
        reason for reason in get_args(FindingReason) if retry_rule(reason).retry is RetryClass.LATER
    }


AGAIN = "loraplane retry adapter a --pool p"


@pytest.mark.parametrize(
    ("replicas", "told"),
    [
        ({}, ""),
        ({"rate_limited": "r1"}, ""),
        (
            {"not_finite": "r1", "other_base": "r2"},
            f"not_finite, other_base: loraplane check URI --pool p; once it is mended: {AGAIN}",
        ),
        ({"source_missing": "r1"}, f"source_missing: {AGAIN}, once it is mended"),
        (
            {"store_full": "r2", "source_denied": "r1"},
            f"source_denied: {AGAIN}, once it is mended; store_full: loraplane describe replica r2 --pool p",
        ),
    ],
)
def test_who_waits_is_told_the_commands_of_the_table(replicas, told):
    """R8: the same words as in the table, with the names in their places."""
    assert told_commands(replicas, "a", "p") == told


def test_files_are_nowhere_if_every_replica_says_so():
    """A source that is away, or a replica that does not live, may have them."""
    assert is_nowhere(["source_missing", "source_missing"])
    others: list[list[str]] = [[], ["source_missing", ""], ["source_missing", "not_alive"], ["source_io"]]
    assert not any(map(is_nowhere, others))
