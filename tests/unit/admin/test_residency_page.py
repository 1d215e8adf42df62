"""``GET /v1/residency``: what a refusal is told with."""

from __future__ import annotations

import json

import pytest
from starlette.requests import Request

from registry.admin.rpc.streams import Residency
from registry.model.errors import Internal, NotFound, Reason, Unavailable


class Reader:
    """Finds no pool, for a reason of its own."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def pool(self, *_: object) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("query", "error", "status"),
    [
        (b"", None, 400),
        (b"pool=a/b", None, 400),
        (b"pool=p", NotFound(Reason.POOL_NOT_FOUND, "no such pool", field="pool"), 404),
        (b"pool=p", Unavailable(Reason.ETCD_UNAVAILABLE, "it is away"), 503),
        (b"pool=p", Internal(Reason.INTERNAL, "a fault of ours"), 500),
    ],
)
async def test_a_refusal_has_the_status_of_its_kind_and_says_why(query, error, status):
    """Routers poll it: what they do next depends on whether it is their request, or the service, that is wrong."""
    page = Residency(None, Reader(error))  # type: ignore[arg-type]
    reply = await page.page(Request({"type": "http", "query_string": query, "headers": []}))
    told = json.loads(bytes(reply.body))["error"]
    assert reply.status_code == status
    assert told["message"]
    if error is not None:
        assert told == {"reason": error.reason.value, "message": error.message, "field": error.field}


async def test_a_fault_of_ours_is_no_refusal():
    """R12: it is told as it is, to whoever serves the page."""
    page = Residency(None, Reader(KeyError("of ours")))  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        await page.page(Request({"type": "http", "query_string": b"pool=p", "headers": []}))
