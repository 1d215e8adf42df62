"""Drivers of engines over HTTP, call by call: what is sent, in which order, and what is made of each answer."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sidecar.engines import listeners
from sidecar.engines.driver import Deadlines, EngineAbsent, EngineOptions, EngineUnreachable, EngineUnusable, check_name
from sidecar.engines.load_ledger import write_synced
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    EngineActivity,
    EngineFacts,
    EngineGone,
    EngineLimits,
    NotThere,
    PathMissing,
    Refused,
    Transient,
    Unknown,
)
from sidecar.engines.others import pegainfer as of_pegainfer
from sidecar.engines.others import sglang as of_sglang
from sidecar.engines.others.axolotl import CLEAR, HEALTH, MODELS, AxolotlEngine
from sidecar.engines.others.http_engine import HttpEngine
from sidecar.engines.transport import GetRequest, Lost, NotSent, PostRequest, Reply, Request
from sidecar.engines.vllm.http import VllmHttp
from sidecar.vllm_plugin.guard import CONTROL_HEADER
from tests.support.waiting import eventually

URL = "http://127.0.0.1:8000"
Answer = Reply | Lost
BUSY = "sglang:num_running_reqs{} %d\nsglang:num_queue_reqs{} %d\n"
LOST = Lost("it broke")


def page(**fields: object) -> Reply:
    return Reply(200, json.dumps(fields).encode())


class Server:
    """Stands for the way to a server: answers each request as it was told, and keeps what it was sent."""

    def __init__(self) -> None:
        self.pages: dict[str, Answer] = {}
        self.calls: list[Answer] = []
        self.sent: list[tuple[Request, ...]] = []
        self.headers: Mapping[str, str] = {}
        self.seconds = 0.0
        self.is_there = True
        self.on_call: Callable[[], None] = lambda: None

    async def send(
        self,
        requests: Sequence[Request],
        headers: Mapping[str, str],
        *,
        timeout_seconds: float,
        max_reply_bytes: int = 0,
        on_sent: Callable[[], None] = lambda: None,
    ) -> list[Answer] | NotSent:
        self.headers, self.seconds = headers, timeout_seconds
        if not self.is_there:
            return NotSent("nobody is there")
        self.sent.append(tuple(requests))
        on_sent()
        answers = [self.pages[one.path] if one.path in self.pages else self.calls.pop(0) for one in requests]
        self.on_call()
        return answers

    @property
    def changes(self) -> list[tuple[str, str]]:
        """What it was told to load or unload, without the looks at it."""
        told = [one for requests in self.sent for one in requests if isinstance(one, PostRequest)]
        return [(one.path, str(one.body["lora_name"])) for one in told if "lora_name" in one.body]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def process(monkeypatch) -> list[str]:
    """Which process listens: the last."""
    identities = ["p1"]
    monkeypatch.setattr(listeners, "listener_identity", lambda _url: identities[-1])
    return identities


def http(server: Server, **files: Path) -> VllmHttp:
    made = VllmHttp(f"{URL}/", files.get("key"), control_token_file=files.get("token"))
    made._exchange = server  # type: ignore[assignment]
    return made


async def test_pages_are_asked_for_at_once_and_answered_in_order(server):
    server.pages = {"/a": Reply(200, b"A"), "/b": Reply(200, b"B"), "/c": Reply(404, b"")}
    engine = http(server)
    assert await engine.get(["/b", "/a"], 7.0) == [b"B", b"A"]
    assert await engine.get(["/a", "/c"], 7.0, optional="/c") == [b"A", b""]
    assert server.sent[0] == (GetRequest("/b"), GetRequest("/a"))
    assert (server.seconds, engine.url) == (7.0, URL)
    assert (await engine.find("/a", 1.0), await engine.find("/c", 1.0)) == (b"A", None)


@pytest.mark.parametrize("request_id", ["é", "\ud800", "a\nb", " a", "req-1"])
async def test_a_request_id_that_no_header_takes_is_left_out(request_id):
    """R14, X2: whatever stands in a record, the call is made, and the part that makes all calls goes on."""
    seen = list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        way = VllmHttp(f"http://127.0.0.1:{port}", None)
        assert await way.post([PostRequest("/a", {})], request_id, 5.0) == [Reply(200, b"")]
    assert (b"X-Request-Id: req-1" in seen[0]) == (request_id == "req-1")
    assert seen[0].count(b"X-Request-Id") == (request_id == "req-1")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Reply(404, b""), EngineUnusable),
        (Reply(405, b""), EngineUnusable),
        (Reply(401, b""), EngineUnusable),
        (Reply(403, b""), EngineUnusable),
        (Reply(503, b""), EngineUnreachable),
        (Reply(301, b""), EngineUnreachable),
        (LOST, EngineUnreachable),
    ],
    ids=str,
)
async def test_a_page_that_does_not_come_whole_is_told_as_what_it_means(server, answer, error):
    """R9: unknown is not empty. What stands before an engine may keep one page for itself."""
    server.pages = {"/a": answer, "/b": Reply(200, b"B")}
    for path in ("/a", "/b"):
        with pytest.raises(error):
            await http(server).get(["/a", "/b"], 1.0, optional="/b" if path == "/a" else "")
    if isinstance(answer, Reply):
        assert await http(server).get(["/a", "/b"], 1.0, optional="/a") == [b"", b"B"]
    server.is_there = False
    with pytest.raises(EngineAbsent, match="nobody is there"):
        await http(server).get(["/b"], 1.0)


async def test_files_of_keys_are_read_at_each_use_and_never_told(server, tmp_path):
    """X1: what is wrong with one is said without its content, and nothing is sent then."""
    key, token = tmp_path / "key", tmp_path / "token"
    key.write_text(" first\n")
    token.write_text("token-1\n")
    engine, heard = http(server, key=key, token=token), list[None]()
    server.pages = {"/a": Reply(200, b""), "/x": Reply(200, b"")}
    call = PostRequest("/x", {})
    await engine.post([call, call], "r1", 1.0, on_sent=lambda: heard.append(None))
    assert server.headers == {"Authorization": "Bearer first", CONTROL_HEADER: "token-1", "X-Request-Id": "r1"}
    assert (server.sent, heard) == ([(call, call)], [None])
    key.write_text("second")
    await engine.get(["/a"], 1.0)
    assert (server.headers["Authorization"], "X-Request-Id" in server.headers) == ("Bearer second", False)
    server.sent.clear()
    for content in (b"", b" \n", b"two\nlines", "schlüssel".encode(), b"\xff"):
        key.write_bytes(content)
        answers = await engine.post([call, call], "r", 1.0)
        assert [type(one) for one in answers] == [NotSent, NotSent]
        assert "--engine-api-key-file" in str(answers[0])
        with pytest.raises(EngineUnusable, match="--engine-api-key-file") as refused:
            await engine.get(["/a"], 1.0)
        assert refused.value.reason == "engine_unauthorized"
    key.unlink()
    with pytest.raises(EngineUnusable, match="No such file"):
        await engine.get(["/a"], 1.0)
    key.touch()
    os.truncate(key, 8 << 30)  # X3 given-back: no more of it is read than a key may have
    with pytest.raises(EngineUnusable, match="more than 65536 bytes"):
        await engine.get(["/a"], 1.0)
    key.write_text("third")
    token.unlink()
    with pytest.raises(EngineUnusable, match="--control-token-file"):
        await engine.get(["/a"], 1.0)
    assert server.sent == []
    server.is_there = False
    token.write_text("t")
    assert await engine.post([call, call], "r", 1.0) == [NotSent("nobody is there")] * 2


def said(status: int, **loaded: str) -> Reply:
    fields = {"success": status == 200, "error_message": "it says this", "loaded_adapters": loaded}
    return Reply(status, json.dumps(fields).encode())


YES, NO = said(200), said(400)
LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"


def cards(**adapters: str) -> Reply:
    listed = [{"id": "base", "root": "base", "parent": None}]
    listed += [{"id": name, "root": path, "parent": "base"} for name, path in adapters.items()]
    return page(object="list", data=listed)


def sglang(server: Server, **options: object) -> HttpEngine:
    engine = of_sglang.make_engine(EngineOptions(URL, **options))  # type: ignore[arg-type]
    server.pages |= {
        "/get_server_info": page(version="0.5", enable_lora=True, max_loaded_loras=None, max_lora_rank=64),
        "/v1/models": cards(),
        "/v1/completions": Reply(200, b""),
        "/metrics": Reply(200, (BUSY % (0, 0)).encode()),
    }
    engine._http._exchange = server  # type: ignore[assignment]
    return engine


async def test_a_look_tells_the_process_the_adapters_and_what_it_was_started_with(server, process):
    """What an engine says of its limits goes before what it was said to have."""
    engine = sglang(server, limits=EngineLimits(max_cpu_loras=3, max_lora_rank=8, target_modules=("q_proj",)))
    server.pages["/v1/models"] = cards(x="/a")
    found = await engine.observe()
    facts, limits = found.facts, EngineLimits(None, 3, 64, ("q_proj",))
    unread = facts.unread_scales
    assert facts == EngineFacts("sglang", "0.5", URL, "p1", limits, "pipelined", unread_scales=unread)
    assert [one.source for one in unread] == ["patterns", "rslora"]
    assert (found.base_models, dict(found.adapters), dict(found.past)) == (("base",), {"x": "/a"}, {})
    server.pages["/get_server_info"] = page(version="0.5", enable_lora=True, max_loaded_loras=5, max_lora_rank=None)
    limits = (await engine.observe()).facts.limits
    assert (limits.max_cpu_loras, limits.max_lora_rank) == (5, 8)
    assert await engine.incarnation() == "p1"
    assert server.sent[-1] == (GetRequest("/v1/models"),), "one page is enough to tell that it is there"
    server.on_call = lambda: process.append("p2")
    for look in (engine.observe, engine.incarnation):
        process[:] = ["p1"]
        with pytest.raises(EngineUnreachable, match="restarted"):
            await look()


CHECK = check_name("/new")
PROOF, AWAY, NEW, OLD, CLEANED = (LOAD, CHECK), (UNLOAD, "x"), (LOAD, "x"), (LOAD, "x"), (UNLOAD, CHECK)


@pytest.mark.parametrize(
    ("answers", "outcome", "told"),
    [
        ([YES, YES, YES, YES], Done, [PROOF, AWAY, NEW, CLEANED]),
        ([said(400, **{CHECK: "/new"}), YES, YES, YES], Done, [PROOF, AWAY, NEW, CLEANED]),
        ([NO], Refused, [PROOF]),
        ([LOST], Unknown, [PROOF]),
        ([YES, NO, YES], Refused, [PROOF, AWAY, CLEANED]),
        ([YES, LOST], Unknown, [PROOF, AWAY]),
        ([YES, YES, LOST], Unknown, [PROOF, AWAY, NEW]),
        ([YES, YES, said(400, x="/new"), YES], AlreadyThere, [PROOF, AWAY, NEW, CLEANED]),
        ([YES, YES, NO, YES, YES], Refused, [PROOF, AWAY, NEW, OLD, CLEANED]),
        ([YES, YES, NO, said(400, x="/old"), YES], Refused, [PROOF, AWAY, NEW, OLD, CLEANED]),
        ([YES, YES, NO, NO], Unknown, [PROOF, AWAY, NEW, OLD]),
        ([YES, YES, NO, LOST], Unknown, [PROOF, AWAY, NEW, OLD]),
    ],
)
async def test_a_swap_proves_the_new_weights_first_and_puts_the_old_ones_back(server, process, answers, outcome, told):
    """R4, R6: a name is away for no longer than it takes, and what came of it is never guessed."""
    engine = sglang(server)
    server.calls = list(answers)
    found = await engine.swap("x", "/old", "/new", request_id="r")
    assert isinstance(found, outcome), found
    assert (server.changes, server.calls) == (told, [])
    loads = [one for requests in server.sent for one in requests if isinstance(one, PostRequest) and one.path == LOAD]
    assert [one.body["lora_path"] for one in loads] == ["/new", "/new", "/old"][: len(loads)]
    if answers[-1] in (NO, LOST) and len(answers) == 4:
        assert "putting back" in str(found)


async def test_a_swap_puts_back_nothing_that_may_not_be_given_now(server, process):
    """R21 proven-here."""
    engine = sglang(server, is_intact={"/new"}.__contains__)
    server.calls = [YES, YES, NO]
    assert isinstance(await engine.swap("x", "/old", "/new", request_id="r"), Unknown)
    assert server.changes == [PROOF, AWAY, NEW]


async def test_what_is_asked_of_an_engine_tells_nothing_where_no_answer_comes(server, process):
    """R7: nothing is let go of by the silence of an engine."""
    engine = sglang(server)
    for counts, is_busy in (((0, 0), False), ((1, 0), True), ((0, 1), True)):
        server.pages["/metrics"] = Reply(200, (BUSY % counts).encode())
        assert await engine.is_busy() is is_busy
        evidence = await engine.drain_evidence()
        told = [one.path for requests in server.sent[-2:] for one in requests]
        assert told == ["/v1/completions", "/metrics"], "it is of after a step"
        assert (evidence.running, evidence.waiting, evidence.adapters) == (*counts, None)
        assert evidence.incarnation == "p1"
    server.pages["/metrics"] = Reply(500, b"")
    assert await engine.is_busy() is False
    with pytest.raises(EngineUnreachable):
        await engine.drain_evidence()
    server.pages |= {"/metrics": Reply(200, (BUSY % (0, 0)).encode()), "/v1/completions": LOST}
    assert await engine.turns() is False
    with pytest.raises(EngineUnreachable, match="does not complete"):
        await engine.drain_evidence()
    server.pages["/v1/completions"] = Reply(200, b"")
    assert await engine.turns() is True
    server.on_call = lambda: process.append("p2")
    with pytest.raises(EngineUnreachable, match="restarted"):
        await engine.drain_evidence()
    server.is_there = False
    assert await engine.turns() is False
    assert await sglang(server).turns() is False, "one that nobody has looked at yet"


def pegainfer(server: Server, folder: Path | None = None) -> HttpEngine:
    engine = of_pegainfer.make_engine(EngineOptions(URL, state=folder))
    engine._http._exchange = server  # type: ignore[assignment]
    server.pages["/v1/models"] = names("base", "x")
    return engine


def names(*ids: str) -> Reply:
    return page(object="list", data=[{"id": one} for one in ids])


async def test_what_an_engine_does_not_list_is_known_by_what_it_was_told(server, process, tmp_path):
    """R12, R4: after a restart of the sidecar too, until the engine restarts; no name gets other weights."""
    engine = pegainfer(server, tmp_path)
    server.calls = [Reply(200, b"")]
    assert await engine.load("x", "/a", request_id="r") == Done()
    for one in (engine, pegainfer(server, tmp_path)):
        found = await one.observe()
        assert (found.base_models, dict(found.adapters), dict(found.past)) == (("base",), {"x": "/a"}, {"x": "/a"})
        assert found.facts.swap == "refused"
    assert isinstance(await engine.swap("x", "/a", "/b", request_id="r"), Refused)
    process.append("p2")
    again = await pegainfer(server, tmp_path).observe()
    assert (again.base_models, dict(again.adapters)) == (("base", "x"), {})


@pytest.mark.parametrize(
    ("answer", "outcome", "is_kept"),
    [(Reply(200, b""), Done, False), (LOST, Unknown, True), (Reply(404, b'{"error": "no"}'), Refused, True)],
)
async def test_only_what_was_unloaded_is_forgotten(server, process, tmp_path, answer, outcome, is_kept):
    """R5, R11: what may still be there counts as there; what was unloaded and came back is somebody else's."""
    engine = pegainfer(server, tmp_path)
    server.calls = [Reply(200, b""), answer]
    await engine.load("x", "/a", request_id="r")
    assert isinstance(await engine.unload("x", request_id="r"), outcome)
    for one in (engine, pegainfer(server, tmp_path)):
        found = await one.observe()
        assert dict(found.adapters) == ({"x": "/a"} if is_kept else {})


OK = page(status="ok")


def axolotl(server: Server, folder: Path | None) -> AxolotlEngine:
    engine = AxolotlEngine(EngineOptions(URL, state=folder), wall=lambda: 1_800_000_000.0)
    engine._http._exchange = server  # type: ignore[assignment]
    server.pages |= {
        MODELS: page(object="list", data=[{"id": "base", "owned_by": "axolotl"}]),
        HEALTH: Reply(200, b"ok"),
        CLEAR.path: OK,
        "/set_lora_adapter/": OK,
    }
    return engine


async def test_what_one_slot_has_is_told_again_at_each_look_also_after_a_restart(server, process, tmp_path):
    """R9, R12: its answer to that is all the evidence there is."""
    folder = tmp_path / "a"
    engine, path = axolotl(server, tmp_path / "state"), str(folder)
    (tmp_path / "state").mkdir()
    assert isinstance(await engine.load("x", path, request_id="r"), PathMissing)
    folder.mkdir()
    assert await engine.load("x", path, request_id="r") == Done()
    server.sent.clear()
    for one in (engine, axolotl(server, tmp_path / "state")):
        found = await one.observe()
        assert (found.base_models, dict(found.adapters)) == (("base",), {"x": path})
        assert (found.facts.incarnation, found.facts.swap, found.facts.limits.max_cpu_loras) == ("p1", "unproven", 1)
    assert [name.partition("#")[0] for _, name in server.changes] == ["x", "x"]
    assert await engine.load("x", path, request_id="r") == AlreadyThere()
    assert isinstance(await engine.load("y", path, request_id="r"), Refused)
    assert await engine.unload("y", request_id="r") == NotThere()
    assert await engine.unload("x", request_id="r") == Done()
    assert await engine.unload("x", request_id="r") == NotThere()
    server.sent.clear()
    assert dict((await axolotl(server, tmp_path / "state").observe()).adapters) == {}
    assert len(server.sent) == 1, "it was told that it has nothing, and said so"
    assert await engine.load("y", path, request_id="r") == Done()
    process.append("p2")
    assert dict((await axolotl(server, None).observe()).adapters) == {}


@pytest.mark.parametrize("make", [pegainfer, axolotl])
async def test_for_want_of_descriptors_what_an_engine_was_told_is_not_forgotten(
    server, process, tmp_path, monkeypatch, make
):
    """R4, R12: a sidecar that restarts goes on to know it; else the name could get other weights."""
    path, number = str(tmp_path), errno.EMFILE
    server.calls = [Reply(200, b"")]
    assert await make(server, tmp_path).load("x", path, request_id="r") == Done()
    engine = make(server, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", Mock(side_effect=OSError(number, os.strerror(number))))
        with pytest.raises(EngineUnreachable, match=os.strerror(number)):
            await engine.observe()
    assert dict((await engine.observe()).adapters) == {"x": path}


async def test_nothing_is_told_to_a_process_that_is_not_seen(server, process, tmp_path):
    """R4, R12: what it would be recorded under is no process, and what is recorded of the one that is there stays."""
    engine = pegainfer(server, tmp_path)
    server.calls = [Reply(200, b"")]
    assert await engine.load("x", "/a", request_id="r") == Done()
    process.append("")
    for call in (engine.load("y", "/b", request_id="r"), engine.unload("x", request_id="r")):
        assert isinstance(await call, EngineGone)
    process.append("p1")
    for one in (engine, pegainfer(server, tmp_path)):
        assert dict((await one.observe()).adapters) == {"x": "/a"}


async def test_what_one_slot_may_have_heard_counts_until_it_answers(server, process, tmp_path):
    """R6: it is told again what it was told last, and nothing else is told meanwhile."""
    engine, path = axolotl(server, None), str(tmp_path)
    await engine.load("x", path, request_id="r")
    server.pages[CLEAR.path] = LOST
    assert isinstance(await engine.unload("x", request_id="r"), Unknown)
    assert isinstance(await engine.load("y", path, request_id="r"), Transient)
    with pytest.raises(EngineUnreachable, match="told before"):
        await engine.observe()
    server.pages[CLEAR.path] = OK
    assert dict((await engine.observe()).adapters) == {}
    assert await engine.load("y", path, request_id="r") == Done()
    assert isinstance(await engine.swap("x", path, path, request_id="r"), Transient)
    server.pages["/set_lora_adapter/"] = Reply(404, b"")
    assert isinstance(await engine.swap("y", path, str(tmp_path / "."), request_id="r"), Transient)
    server.pages["/set_lora_adapter/"] = OK
    assert dict((await engine.observe()).adapters) == {"y": path}

    def restart() -> None:
        if isinstance(server.sent[-1][0], PostRequest):
            process.append("p2")

    server.on_call = restart
    with pytest.raises(EngineUnreachable, match="restarted"):
        await engine.observe()
    process[:] = ["p1"]
    assert isinstance(await engine.swap("y", path, path, request_id="r"), Unknown), "it restarted meanwhile"


async def test_what_one_slot_is_told_again_comes_before_what_is_newer(server, process, tmp_path):
    """R4: else the engine would have the old weights, and its sidecar know of the new ones."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir(), new.mkdir()
    engine, send, going = axolotl(server, None), server.send, asyncio.Event()
    await engine.load("x", str(old), request_id="r")

    async def late(requests: Sequence[Request], *args: Any, **more: Any) -> Any:
        if isinstance(requests[0], PostRequest):
            server.send = send  # type: ignore[method-assign]
            await going.wait()
        return await send(requests, *args, **more)

    server.send = late  # type: ignore[method-assign]
    looking = asyncio.create_task(engine.observe())
    await eventually(lambda: server.send == send)
    swapping = asyncio.create_task(engine.swap("x", str(old), str(new), request_id="r"))
    await asyncio.wait([swapping], timeout=0.1)
    going.set()
    assert (dict((await looking).adapters), await swapping) == ({"x": str(old)}, Done())
    assert isinstance(last := server.sent[-1][0], PostRequest)
    assert str(new) in last.body.values()


async def test_what_one_slot_was_not_told_is_not_recorded(server, process, tmp_path, monkeypatch):
    """R12: what certainly was not heard is taken back; what cannot be recorded is not told."""
    engine, path = axolotl(server, tmp_path), str(tmp_path)
    server.pages["/set_lora_adapter/"] = Reply(404, b"")
    assert isinstance(await engine.load("x", path, request_id="r"), Transient)
    for one in (engine, axolotl(server, tmp_path)):
        server.pages["/set_lora_adapter/"] = OK
        assert dict((await one.observe()).adapters) == {}
    server.sent.clear()

    full = Mock(side_effect=OSError(errno.ENOSPC, "no space left"))
    monkeypatch.setattr("sidecar.engines.others.axolotl.write_synced", full)
    assert isinstance(await engine.load("x", path, request_id="r"), Transient)
    assert server.sent == []


async def test_what_one_slot_cannot_say_is_not_said(server, process, tmp_path):
    """R7: which requests it has, nobody knows; that its workers live is all."""
    engine = axolotl(server, None)
    assert (await engine.is_busy(), await engine.turns(), await engine.incarnation()) == (False, True, "p1")
    assert server.sent == [(GetRequest(HEALTH),)] * 2
    with pytest.raises(EngineUnreachable, match="files stay"):
        await engine.drain_evidence()
    server.pages[HEALTH] = Reply(503, b"")
    assert await engine.turns() is False
    with pytest.raises(EngineUnreachable, match="a worker has ended"):
        await engine.observe()
    server.pages[HEALTH] = LOST
    assert await engine.turns() is False
    process.append("")
    assert isinstance(await engine.load("x", str(tmp_path), request_id="r"), EngineGone)


@pytest.mark.parametrize("make", [sglang, axolotl])
async def test_each_kind_of_call_has_a_deadline_of_its_own(server, process, tmp_path, make):
    """R16: a look is over sooner than a load."""
    engine = make(server, None) if make is axolotl else make(server)
    engine._deadlines = Deadlines(probe_seconds=1, list_seconds=2, load_seconds=4, unload_seconds=8)
    server.calls, path = [YES] * 2, str(tmp_path)
    seconds: list[float] = []
    looks = engine.observe(), engine.incarnation()
    for call in (*looks, engine.load("x", path, request_id="r"), engine.unload("x", request_id="r")):
        await call
        seconds.append(server.seconds)
    assert seconds == [3, 1, 4, 8]


@pytest.mark.parametrize("make", [sglang, axolotl, pegainfer])
async def test_a_fault_of_our_own_is_never_taken_for_a_state_of_the_engine(server, process, tmp_path, make):
    """R12: it ends the part in which it happens, and is told; nothing is concluded from it."""
    engine = make(server, None) if make is axolotl else make(server)
    server.on_call = Mock(side_effect=ZeroDivisionError)
    calls = [engine.observe, engine.incarnation, engine.turns]
    calls += [engine.is_busy, engine.drain_evidence] if make is sglang else []
    for call in calls:
        with pytest.raises(ZeroDivisionError):
            await call()


async def test_an_engine_that_does_not_complete_in_time_does_not_turn(process):
    """R18 readiness-follows."""

    class Silent(Server):
        async def send(self, *args: object, **more: object) -> NotSent:  # type: ignore[override]
            await asyncio.Event().wait()
            return NotSent("never")

    engine = sglang(Silent(), deadlines=Deadlines(turn_seconds=0.0))
    assert await engine.turns() is False


async def test_a_kind_that_is_called_one_call_at_a_time_says_so(server, process):
    """R7: and tells nothing between two looks, so that it is looked at again and again."""
    engine = sglang(server)
    assert (engine.is_concurrent, engine.paused, engine.is_deciding, engine.swaps_alone) == (False, "", False, True)
    assert (await engine.has_changed(), await engine.pulse()) == (False, None)
    assert await engine.activity() == EngineActivity()
    dumb = pegainfer(server)
    assert await dumb.is_busy() is False
    with pytest.raises(EngineUnreachable, match="does not say which requests"):
        await dumb.drain_evidence()


async def test_what_one_slot_has_is_written_when_it_changes_and_counts_where_it_cannot_be(
    server, process, tmp_path, monkeypatch
):
    """R12: a look writes nothing; what the engine has let go of is free, whatever the disk says."""
    engine, path = axolotl(server, tmp_path), str(tmp_path)
    written = list[int]()

    def write(file: Path, content: bytes) -> None:
        written.append(len(content))
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "no space left")
        write_synced(file, content)

    monkeypatch.setattr("sidecar.engines.others.axolotl.write_synced", write)
    assert await engine.load("x", path, request_id="r") == Done()
    for _ in range(2):
        assert dict((await engine.observe()).adapters) == {"x": path}
    assert len(written) == 1
    assert await engine.unload("x", request_id="r") == Done()
    assert len(written) == 3
    assert await engine.load("y", path, request_id="r") == Done()
    for one in (engine, axolotl(server, tmp_path)):
        assert dict((await one.observe()).adapters) == {"y": path}
    gone = tmp_path / "gone"
    gone.mkdir()
    assert await engine.swap("y", path, str(gone), request_id="r") == Done()
    gone.rmdir()
    assert dict((await engine.observe()).adapters) == {}, "its files are gone, so that it is told that it has nothing"
    assert server.changes[-1][0] == "/set_lora_adapter/"
    assert server.sent[-1] == (CLEAR,)
