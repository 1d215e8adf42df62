"""Every error has an exit code, and is told in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pytest

from registry.cli.failure import EXIT_OF, CommandFailure, Exit, failure_of
from registry.client.errors import KIND_OF
from registry.model.errors import NotFound, Reason, RegistryError


def _leaves(kind: type[RegistryError]) -> Iterator[type[RegistryError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _leaves(child)


def test_every_error_of_the_tree_has_an_exit_code():
    assert set(EXIT_OF) == set(_leaves(RegistryError))


def test_every_status_but_ok_is_one_of_our_errors():
    assert set(KIND_OF) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    assert set(KIND_OF.values()) <= set(EXIT_OF)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 4),
        (grpc.StatusCode.NOT_FOUND, 3),
        (grpc.StatusCode.ALREADY_EXISTS, 5),
        (grpc.StatusCode.ABORTED, 5),
        (grpc.StatusCode.FAILED_PRECONDITION, 4),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 4),
        (grpc.StatusCode.PERMISSION_DENIED, 4),
        (grpc.StatusCode.UNAUTHENTICATED, 4),
        (grpc.StatusCode.UNAVAILABLE, 6),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 6),
        (grpc.StatusCode.INTERNAL, 1),
    ],
)
def test_exit_codes_are_those_of_the_interface(code, exit_code):
    assert EXIT_OF[KIND_OF[code]] == exit_code


def test_a_failure_is_one_line_whatever_the_message_holds():
    failure = CommandFailure(Exit.REFUSED, "X", "first\nsecond\r\n third", field="a.yaml:\n1", request_id="r1")
    assert failure.line() == "error: X: a.yaml: 1: first second third (request id r1)"


def test_an_error_of_the_tree_keeps_reason_field_and_facts():
    error = NotFound(Reason.POOL_NOT_FOUND, "no pool", field="pool", metadata={"a": "b"})
    failure = failure_of(error)
    assert json.loads(json.dumps(failure.as_dict())) == {
        "reason": "POOL_NOT_FOUND",
        "message": "no pool",
        "field": "pool",
        "metadata": {"a": "b"},
        "request_id": None,
        "exit_code": 3,
    }
