"""The demonstration's own judgement: what it takes for right must not be wider than what it claims."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from registry.dev.demo_answers import PROMPTS, TOLERANCE, Answer, Refused, ask, indistinct, reference_of
from registry.dev.demo_traffic import Stream, Version, traffic
from registry.dev.demo_world import text_of
from registry.dev.ports import free_ports
from registry.dev.processes import wait_until

ONE = Answer((1, 2), (-0.5, -1.0))


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (ONE, True),
        (Answer((1, 2), (-0.5, -1.0 - TOLERANCE / 2)), True),
        (Answer((1, 2), (-0.5, -1.0 - TOLERANCE * 2)), False),
        (Answer((1, 3), (-0.5, -1.0)), False),
        (Answer((1,), (-0.5,)), False),
    ],
)
def test_answers_are_alike_only_in_tokens_and_logprobs(other, alike):
    assert ONE.is_like(other) == alike
    assert other.is_like(ONE) == alike


def test_an_empty_answer_is_like_nothing():
    assert not Answer((), ()).is_like(Answer((), ()))


def test_adapters_that_answer_alike_are_found():
    other = Answer((3, 4), (-0.1, -0.2))
    apart = {"": dict.fromkeys(PROMPTS, ONE), "a": dict.fromkeys(PROMPTS, other)}
    assert indistinct(apart) == []
    assert indistinct({**apart, "b": {PROMPTS[0]: ONE, PROMPTS[1]: Answer((9,), (-1.0,))}}) == [("", "b")]


def test_the_references_form():
    printed = {"a": {"Hello": [{"token": 72, "logprob": -0.5}, {"token": 7, "logprob": -1.0}]}}
    answer = reference_of(printed)["a"]["Hello"]
    assert answer == Answer((72, 7), (-0.5, -1.0))
    assert text_of(answer) == "H·"


@pytest.mark.parametrize(
    ("seen", "back"),
    [
        ([Version.OLD, Version.NEW], False),
        ([Version.OLD, Version.NEW, Version.OLD], True),
        ([Version.OLD, Version.FAILED, Version.NEW, Version.FAILED], False),
        ([], False),
    ],
)
def test_an_old_answer_after_a_new_one_is_noticed(seen, back):
    assert Stream("url", list(seen)).went_back() == back


def test_no_engine_is_refused_with_status_0():
    with httpx.Client() as client:
        answer = ask(client, f"http://127.0.0.1:{free_ports(1)[0]}", "a", "Hello")
    assert isinstance(answer, Refused)
    assert answer.status == 0


class _Engine(BaseHTTPRequestHandler):
    """Answers each completion with the next of a list, then with the last one."""

    answers: list[Answer | int]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
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
def engine(*answers: Answer | int) -> Iterator[str]:
    kind = type("Engine", (_Engine,), {"answers": list(answers)})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_traffic_tells_old_new_neither_and_failed_apart():
    old, new, other = ONE, Answer((5, 6), (-0.1, -0.1)), Answer((1, 2), (-0.7, -1.0))
    with engine(old, other, 404, new) as url, traffic([url], "a", "Hello", old, new) as [stream]:
        assert wait_until(lambda: stream.count(Version.NEW) > 1, 30)
    assert stream.seen[:4] == [Version.OLD, Version.NEITHER, Version.FAILED, Version.NEW]
    assert "status=404" in stream.strange[1]
