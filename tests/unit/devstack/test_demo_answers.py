"""The demonstration's own judgement: what it takes for right must not be wider than what it claims."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import chain, repeat

import httpx
import pytest

from registry.tools.devstack.processes import wait_until
from tests.e2e.demo.answers import (
    PROMPTS,
    TOLERANCE,
    EngineAnswer,
    Stream,
    Version,
    indistinct,
    reference_of,
    traffic,
)
from tests.e2e.demo.world import text_of

ONE, ZERO = EngineAnswer((1, 2), (-0.5, -1.0)), EngineAnswer((1,), (0.0,))


def answering(answers: Iterator[EngineAnswer | int], asked: list[dict[str, object]]) -> httpx.MockTransport:
    """An engine that gives these answers, one after the other."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        one = next(answers)
        if isinstance(one, int):
            return httpx.Response(one, text="no" * 999)
        logprobs = {"tokens": [f"token_id:{token}" for token in one.tokens], "token_logprobs": one.logprobs}
        return httpx.Response(200, json={"choices": [{"logprobs": logprobs}]})

    return httpx.MockTransport(answer)


def test_traffic_tells_old_new_neither_and_failed_apart(monkeypatch):
    old, new, other = ONE, EngineAnswer((5, 6), (-0.1, -0.1)), EngineAnswer((1, 2), (-0.7, -1.0))
    client, transport = httpx.Client, answering(chain([old, other, 404], repeat(new)), [])

    def direct(*, trust_env: bool, **_: object) -> httpx.Client:
        assert not trust_env
        return client(transport=transport)

    monkeypatch.setattr(httpx, "Client", direct)
    with traffic(["http://e"], "a", "Hello", old, new) as [stream]:
        assert wait_until(lambda: stream.count(Version.NEW) > 1, 60)
    assert stream.seen[:4] == [Version.OLD, Version.NEITHER, Version.FAILED, Version.NEW]
    assert (len(stream.strange), "status=404" in stream.strange[1]) == (2, True)
    before = {*threading.enumerate()}
    with pytest.raises(ZeroDivisionError), traffic(["http://e"], "a", "Hello", old, new):
        raise ZeroDivisionError
    assert {*threading.enumerate()} <= before, "X3 given-back: nobody is asked any more once the body has failed"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        *(
            (ONE, ONE, True),
            (ONE, EngineAnswer((1, 3), (-0.5, -1.0)), False),
            (ONE, EngineAnswer((1,), (-0.5,)), False),
        ),
        (ONE, EngineAnswer((1, 2), (-0.5, -1.0 - TOLERANCE / 2)), True),
        (ONE, EngineAnswer((1, 2), (-0.5, -1.0 - TOLERANCE * 2)), False),
        *((ZERO, EngineAnswer((1,), (0.001,)), True), (ZERO, EngineAnswer((1,), (0.0011,)), False)),
        (EngineAnswer((), ()), EngineAnswer((), ()), False),
    ],
)
def test_answers_are_alike_only_in_tokens_and_logprobs(one, other, alike):
    assert (one.is_like(other), other.is_like(one)) == (alike, alike)
    with pytest.raises(ValueError, match="shorter"):
        ONE.is_like(EngineAnswer((1, 2), (-0.5,)))


def test_adapters_that_answer_alike_and_an_old_answer_after_a_new_one_are_noticed():
    """In the form of the reference, what cannot be printed is a dot."""
    apart = {"": dict.fromkeys(PROMPTS, ONE), "a": dict.fromkeys(PROMPTS, EngineAnswer((3, 4), (-0.1, -0.2)))}
    assert indistinct(apart) == []
    assert indistinct({**apart, "b": {PROMPTS[0]: ONE, PROMPTS[1]: EngineAnswer((9,), (-1.0,))}}) == [("", "b")]
    of = {"o": Version.OLD, "n": Version.NEW, "f": Version.FAILED}
    went_back = [Stream("url", [of[one] for one in seen]).went_back() for seen in ("on", "ono", "ofnf", "")]
    assert went_back == [False, True, False, False]
    printed = {"a": {"Hello": [{"token": 72, "logprob": -0.5}, {"token": 7, "logprob": -1.0}]}}
    answer = reference_of(printed)["a"]["Hello"]
    assert (answer, text_of(answer)) == (EngineAnswer((72, 7), (-0.5, -1.0)), "H·")
    assert text_of(EngineAnswer((31, 32, 126, 127), (0.0,) * 4)) == "· ~·"
