"""How often an engine is asked what it applies of adapters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sidecar.engines.observed import EngineLimits
from sidecar.engines.vllm.http import VllmHttp
from sidecar.engines.vllm.plugin_calls import BASE_PATH, COVERAGE_PATH, About
from sidecar.engines.vllm.process import MOST_ASKED, VllmProcess, with_base, with_evidence
from tests.support.other_engines.server import serving

TOLD = {"schema": 1, "architecture": "A", "applied": ["q"], "taken": [], "renames": [{}, {}, {}]}


async def asked(answer: Callable[[int], Response], about: About | None) -> tuple[VllmProcess, int]:
    """The process once it is asked no more, and how often it was."""
    calls = 0

    async def coverage(_: Request) -> Response:
        nonlocal calls
        calls += 1
        return answer(calls)

    async with serving(Starlette(routes=[Route(COVERAGE_PATH, coverage)])) as url:
        process = VllmProcess("e1", "0.32.0", about)
        while process.may_tell_coverage:
            process = await with_evidence(VllmHttp(url, None), process, 30)
    return process, calls


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda _: JSONResponse(TOLD), 1),
        (lambda call: JSONResponse(TOLD) if call > 1 else JSONResponse({}, 504), 2),
        (lambda _: JSONResponse({}, 500), MOST_ASKED),
        (lambda _: JSONResponse({}, 404), MOST_ASKED),
    ],
)
async def test_an_engine_that_says_it_is_asked_no_more_and_one_that_does_not_is_driven_all_the_same(answer, expected):
    """R22 applied-whole, R18: an answer that fails holds nothing up."""
    process, calls = await asked(answer, About(tells_coverage=True))
    assert calls == expected
    facts = process.facts("http://e", EngineLimits(), None)
    assert (facts.evidence is None) is (expected == MOST_ASKED)


async def test_a_plugin_that_cannot_tell_is_not_asked():
    for about in (None, About()):
        assert (await asked(lambda _: JSONResponse(TOLD), about))[1] == 0


async def test_a_fault_of_our_own_is_no_engine_that_cannot_say():
    """R12: it is told."""

    class Http:
        async def find(self, *_: object) -> bytes:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await with_evidence(Http(), VllmProcess("e1", "0.32.0", About()), 30)  # type: ignore[arg-type]


READ = {"schema": 1, "config": {}, "tensors": {"F32 4 2": ["q.weight"]}}
READING = {"schema": 1, "reading": True}


async def asked_of_base(answer: Callable[[int], Response]) -> tuple[VllmProcess, list[bool]]:
    """The process once it is asked no more, and whether it was waited for each time."""
    waited: list[bool] = []

    async def base(_: Request) -> Response:
        return answer(len(waited))

    async with serving(Starlette(routes=[Route(BASE_PATH, base)])) as url:
        process = VllmProcess("e1", "0.32.0", About(tells_base=True))
        while process.may_tell_base:
            process = await with_base(VllmHttp(url, None), process, 30)
            waited.append(bool(process.base.awaited))
    return process, waited


@pytest.mark.parametrize(
    ("answer", "waited", "is_told"),
    [
        (lambda _: JSONResponse(READ), [False], True),
        (lambda count: JSONResponse(READ if count else READING), [True, False], True),
        (lambda count: JSONResponse(READ, 200 if count else 500), [True, False], True),
        (lambda _: JSONResponse({"schema": 1, "path": "/m", "problem": "no such folder"}), [False], False),
        (lambda _: JSONResponse({}, 404), [False], False),
        (lambda _: JSONResponse({}, 500), [True] * 59 + [False], False),
    ],
)
async def test_what_its_base_model_is_is_waited_for_while_it_may_be_told(answer, waited, is_told):
    """R23 same-base: nothing is loaded before that, and an engine that never says it is driven all the same."""
    process, found = await asked_of_base(answer)
    assert (found, process.base.files is not None) == (waited, is_told)
    facts = process.facts("http://e", EngineLimits(), None, "/models/tiny")
    assert (facts.base is process.base, facts.base_path) == (True, "/models/tiny")


async def test_the_shapes_in_its_memory_come_with_what_it_applies():
    process, _ = await asked(lambda _: JSONResponse(TOLD | {"shapes": {"4 2": ["q"]}}), About(tells_coverage=True))
    assert (process.base.shapes, process.base.evidence) == ({"q": (4, 2)}, process.evidence)
    assert process.base.is_known
