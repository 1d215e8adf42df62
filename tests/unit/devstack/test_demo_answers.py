"""The demonstration's own judgement: what it takes for right must not be wider than what it claims."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from registry.tools.devstack.demo_answers import (
    PROMPTS,
    TOLERANCE,
    AnswerRefused,
    EngineAnswer,
    Stream,
    Version,
    ask,
    indistinct,
    reference_of,
    traffic,
)
from registry.tools.devstack.demo_world import text_of
from registry.tools.devstack.processes import wait_until
from tests.support.unanswered import nobody_listens

ONE = EngineAnswer((1, 2), (-0.5, -1.0))


def test_adapters_that_answer_alike_are_found():
    other = EngineAnswer((3, 4), (-0.1, -0.2))
    apart = {"": dict.fromkeys(PROMPTS, ONE), "a": dict.fromkeys(PROMPTS, other)}
    assert indistinct(apart) == []
    assert indistinct({**apart, "b": {PROMPTS[0]: ONE, PROMPTS[1]: EngineAnswer((9,), (-1.0,))}}) == [("", "b")]


def test_the_references_form():
    printed = {"a": {"Hello": [{"token": 72, "logprob": -0.5}, {"token": 7, "logprob": -1.0}]}}
    answer = reference_of(printed)["a"]["Hello"]
    assert answer == EngineAnswer((72, 7), (-0.5, -1.0))
    assert text_of(answer) == "H·"
    edges = EngineAnswer((31, 32, 126, 127), (0.0,) * 4)
    assert text_of(edges) == "· ~·", "what cannot be printed is a dot"


class _Engine(BaseHTTPRequestHandler):
    """Answers each completion with the next of a list, then with the last one."""

    answers: list[EngineAnswer | int]
    asked: list[dict[str, object]]

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            self._reply(answer, {"error": "no"})
        else:
            tokens = [f"token_id:{token}" for token in answer.tokens]
            logprobs = {"tokens": tokens, "token_logprobs": answer.logprobs}
            self._reply(200, {"choices": [{"logprobs": logprobs}]})

    def _reply(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""


@contextmanager
def engine(*answers: EngineAnswer | int, asked: list[dict[str, object]] | None = None) -> Iterator[str]:
    kind = type("Engine", (_Engine,), {"answers": list(answers), "asked": [] if asked is None else asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_likeliest_tokens_are_asked_for():
    """Those of chance would be compared with the reference in vain."""
    asked: list[dict[str, object]] = []
    with engine(ONE, 500, asked=asked) as url, httpx.Client(trust_env=False) as client:
        assert ask(client, url, "a", "Hello") == ONE
        refused = ask(client, url, "b", "Hello")
    assert refused == AnswerRefused(500, '{"error": "no"}')
    expected = {"prompt": "Hello", "temperature": 0, "logprobs": 1, "return_tokens_as_token_ids": True}
    assert asked == [{"model": name, "max_tokens": 8, **expected} for name in ("a", "b")]


def test_traffic_tells_old_new_neither_and_failed_apart(monkeypatch):
    """Whatever proxy is set around it."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    old, new, other = ONE, EngineAnswer((5, 6), (-0.1, -0.1)), EngineAnswer((1, 2), (-0.7, -1.0))
    with engine(old, other, 404, new) as url, traffic([url], "a", "Hello", old, new) as [stream]:
        assert wait_until(lambda: stream.count(Version.NEW) > 1, 60)
    assert stream.seen[:4] == [Version.OLD, Version.NEITHER, Version.FAILED, Version.NEW]
    assert "status=404" in stream.strange[1]


ZERO = EngineAnswer((1,), (0.0,))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (ONE, ONE, True),
        (ONE, EngineAnswer((1, 2), (-0.5, -1.0 - TOLERANCE / 2)), True),
        (ONE, EngineAnswer((1, 2), (-0.5, -1.0 - TOLERANCE * 2)), False),
        (ONE, EngineAnswer((1, 3), (-0.5, -1.0)), False),
        (ONE, EngineAnswer((1,), (-0.5,)), False),
        (ZERO, EngineAnswer((1,), (0.001,)), True),
        (ZERO, EngineAnswer((1,), (0.0011,)), False),
        (EngineAnswer((), ()), EngineAnswer((), ()), False),
    ],
)
def test_answers_are_alike_only_in_tokens_and_logprobs(one, other, alike):
    assert (one.is_like(other), other.is_like(one)) == (alike, alike)
    with pytest.raises(ValueError, match="shorter"):
        ONE.is_like(EngineAnswer((1, 2), (-0.5,)))


def test_an_old_answer_after_a_new_one_is_noticed():
    of = {"o": Version.OLD, "n": Version.NEW, "f": Version.FAILED}
    went_back = [Stream("url", [of[one] for one in seen]).went_back() for seen in ("on", "ono", "ofnf", "")]
    assert went_back == [False, True, False, False]


def test_a_refusal_is_told_by_its_beginning_and_no_engine_by_status_0():
    transport = httpx.MockTransport(lambda _: httpx.Response(400, text="x" * 999))
    with httpx.Client(transport=transport) as client:
        assert ask(client, "http://e", "a", "Hello") == AnswerRefused(400, "x" * 200)
    with httpx.Client() as client, nobody_listens() as address:
        answer = ask(client, f"http://{address}", "a", "Hello")
    assert (isinstance(answer, AnswerRefused), answer.status) == (True, 0)
