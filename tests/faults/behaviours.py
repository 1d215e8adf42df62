"""Table of what the strange engine does, and of the bounds that a replica beside it keeps.

As a program: ``python -m tests.faults.behaviours PORT`` is that engine.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from registry.model.names import PROOF_PREFIX
from tests.faults.strange_engine import (
    COMPLETIONS,
    HEALTH,
    JSON,
    LOAD,
    METRICS,
    MODELS,
    UNLOAD,
    VERSION,
    Answer,
    Cut,
    Hung,
    Request,
    Rule,
    StrangeEngine,
    cards,
    error,
    listen,
    missing_route,
)

CALLS = (LOAD, UNLOAD)
HTML = Answer(200, b"<html><body>It works!</body></html>", "text/html")
# Within so long a replica says that its engine is out of reach, refuses everything, or generates nothing (R18).
AWAY, STALLED = 10.0, 30.0
ALWAYS, NEVER = math.inf, 0.0
# Of five adapters, within a minute: each is tried again ever later (R8).
MOST_CALLS = 120


def _nothing(_: StrangeEngine) -> None:
    return


def _sets(**fields: object) -> Callable[[StrangeEngine], None]:
    """Gives attributes of an engine these values."""
    return lambda engine: vars(engine).update(fields)


@dataclass(frozen=True)
class Behaviour:
    """One way to misbehave.

    Attributes:
        name: what stands in the table.
        rule: what it does to requests.
        begin: what it does once, at its beginning; each `every` seconds while it lasts, if that is not 0.
        end: what ends it beside the rule.
        stays: if it lasts no longer than this, a replica that was ready goes on being so.
        told: the replica is not ready from so long after its beginning until its end; None: it may be.
        heals: so long after its end everything is served as it should be, and the replica says so.
        is_ours: a replica may begin to be ready without what fails by it, which is as if it were the adapters' fault.
        serves: so long after its beginning everything is served as it should be although it lasts; None: it need not.
        calls: no more loads and unloads than these are made from its beginning until all is well again.
    """

    name: str
    rule: Rule | None = None
    begin: Callable[[StrangeEngine], None] = _nothing
    end: Callable[[StrangeEngine], None] = _nothing
    every: float = 0.0
    stays: float = ALWAYS
    told: float | None = None
    heals: float = 20.0
    is_ours: bool = False
    serves: float | None = None
    calls: int = MOST_CALLS

    def start(self, engine: StrangeEngine) -> None:
        """From now on the engine misbehaves so."""
        engine.rule = self.rule
        self.begin(engine)

    def finish(self, engine: StrangeEngine) -> None:
        """From now on it behaves."""
        engine.rule = None
        self.end(engine)


def on(
    *paths: str, answer: Answer | None = None, after: float = 0.0, done: bool = False, lie: _Lie | None = None
) -> Rule:
    """A rule for requests to these paths, all if none are given.

    Args:
        paths: of the requests.
        answer: that is given; None: the right one, or what `lie` makes of it.
        after: seconds that it takes.
        done: what is asked is done before.
        lie: makes another answer of the right one.
    """

    async def rule(engine: StrangeEngine, request: Request) -> Answer | None:
        if paths and request.path not in paths:
            return None
        right = await engine.right(request) if done or answer is None else None
        if after:
            await asyncio.sleep(after)
        if answer is not None:
            return answer
        assert right is not None
        return right if lie is None else lie(engine, right)

    return rule


_Lie = Callable[[StrangeEngine, Answer], Answer]
HANGS = Answer(raw=b"", end=Hung())
CLOSES = Answer(raw=b"", end=Cut())
RESETS = Answer(raw=b"", end=Cut(reset=True))
GARBAGE = Answer(raw=b"\x00\x16\x03\x01 nothing of HTTP\r\n\r\n", end=Cut())
CUT_SHORT = Answer(raw=b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"half":', end=Cut())
STOPS_AMID = replace(CUT_SHORT, end=Hung())
ENDLESS = Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 300_000, end=Hung())
OOPS = Answer(500, b"oops", "text/plain")
OUT_OF_MEMORY = error(500, "InternalServerError", "Call to add_lora method failed: out of memory")


def listed(change: Callable[[list[dict[str, object]]], object]) -> Rule:
    """A listing whose cards are changed; what `change` gives stands for `data`."""

    async def rule(engine: StrangeEngine, request: Request) -> Answer | None:
        if request.path != MODELS:
            return None
        told = change(cards(engine.adapters))
        seen = told if isinstance(told, list) else []
        named = {str(one["id"]): str(one["root"]) for one in seen if isinstance(one, dict) and one.get("parent")}
        engine.on_listed(engine.incarnation, named)
        return Answer(200, json.dumps({"object": "list", "data": told}).encode())

    return rule


def metered(change: Callable[[str], str]) -> Rule:
    """Metrics whose text is changed."""
    return on(METRICS, lie=lambda _, right: replace(right, body=change(right.body.decode()).encode()))


def _with(told: list[dict[str, object]], **fields: object) -> list[dict[str, object]]:
    return [one | fields for one in told]


def _without(text: str, word: str) -> str:
    return "\n".join(line for line in text.splitlines() if word not in line) + "\n"


def _renamed(told: list[dict[str, object]], change: Callable[[str], str]) -> object:
    return [*told[:1], *(one | {"id": change(str(one["id"]))} for one in told[1:])]


def _rooted(change: Callable[[str], str]) -> Rule:
    """A listing whose paths are spelled otherwise, and mean the same directories."""

    def lie(engine: StrangeEngine, _: Answer) -> Answer:
        told = cards({name: change(path) for name, path in engine.adapters.items()})
        return Answer(200, json.dumps({"object": "list", "data": told}).encode())

    return on(MODELS, lie=lie)


async def _loads_as_capitals(engine: StrangeEngine, request: Request) -> Answer | None:
    if request.path != LOAD or not request.field("lora_name"):
        return None
    engine.calls.append(("load", request.field("lora_name")))
    engine.adapters[request.field("lora_name").upper()] = request.field("lora_path")
    return Answer(200, b"Success")


def _give_names_back(engine: StrangeEngine) -> None:
    engine.adapters = {name.lower(): path for name, path in engine.adapters.items()}


def _leave_proofs(engine: StrangeEngine) -> None:
    """Forgets the names, and has what is left of proofs of the same files."""
    engine.adapters = {f"{PROOF_PREFIX}{place:012x}": path for place, path in enumerate(engine.adapters.values())}


def _double(engine: StrangeEngine) -> None:
    """Another engine at the same address."""
    twin = StrangeEngine()
    twin.process, twin.calls, twin.on_listed = engine.process + 50, engine.calls, engine.on_listed
    engine.twin = twin


def _encoded(name: str, encode: Callable[[bytes], bytes]) -> Rule:
    """Bodies as nobody asked for them."""

    def lie(_: StrangeEngine, right: Answer) -> Answer:
        return replace(right, body=encode(right.body), headers={"Content-Encoding": name})

    return on(lie=lie)


def _closing(**fields: Any) -> Rule:
    """One answer on each connection, whatever else was asked on it."""
    return on(lie=lambda _, right: replace(right, end=Cut(), **fields))


def _other_base(told: list[dict[str, object]]) -> object:
    return [*_with(told[:1], id="other"), *told[1:]]


def _without_start(text: str) -> str:
    return _without(text, "process_start")


def _each_second(rule: Rule) -> Rule:
    """Every second request."""

    async def half(engine: StrangeEngine, request: Request) -> Answer | None:
        return await rule(engine, request) if engine.asked % 2 else None

    return half


async def _loads_elsewhere(engine: StrangeEngine, request: Request) -> Answer | None:
    if request.path != LOAD:
        return None
    engine.adapters[request.field("lora_name")] = "/elsewhere/files"
    return Answer(200, b"Success")


def _unload_one(engine: StrangeEngine) -> None:
    engine.adapters.pop(min(engine.adapters, default=""), None)


def _give_back(engine: StrangeEngine) -> None:
    engine.adapters = {name: path for name, path in engine.adapters.items() if not path.startswith("/elsewhere/")}


def _replace_files(engine: StrangeEngine) -> None:
    engine.adapters.update(dict.fromkeys(engine.adapters, "/elsewhere/files"))


def _load_theirs(engine: StrangeEngine) -> None:
    engine.adapters["theirs"] = "/elsewhere/theirs"


def _die(engine: StrangeEngine) -> None:
    engine.restart()
    engine.gone = True


def _freeze(engine: StrangeEngine) -> None:
    engine.stands.clear()


def _thaw(engine: StrangeEngine) -> None:
    engine.stands.set()


def _hold_core(engine: StrangeEngine) -> None:
    engine.core.clear()


def _release_core(engine: StrangeEngine) -> None:
    engine.core.set()


async def _stale(engine: StrangeEngine, request: Request) -> Answer | None:
    """The listing of when it was asked first."""
    if request.path != MODELS:
        return None
    engine.remembered = engine.remembered or await engine.right(request)
    return engine.remembered


def _another_start(engine: StrangeEngine, right: Answer) -> Answer:
    """Another start of its process each time."""
    other = f"start_time_seconds {2000 + engine.struck}".encode()
    return replace(right, body=right.body.replace(b"start_time_seconds 1", other))


def _refuse_first(name: str) -> Rule:
    """Loads of one name alone."""

    async def rule(_: StrangeEngine, request: Request) -> Answer | None:
        return OUT_OF_MEMORY if request.path == LOAD and request.field("lora_name") == name else None

    return rule


# Nothing takes longer to heal than a refusal's longest pause, or a call without an answer takes to be given up.
PAUSE, DEADLINE, LOOK, QUICK = 35.0, 65.0, 20.0, 5.0
# Until it is believed that one engine alone answers where several did.
ALONE = 15.0
# How a page that cannot be read looks from outside: a look is at most 15 s old, and is borne with for 3 s.
UNREAD: dict[str, Any] = {"stays": 0.1, "told": LOOK, "heals": LOOK}
# What the engine's process is known by is asked for each second.
UNKNOWN: dict[str, Any] = {"stays": 0.1, "told": AWAY, "heals": QUICK}
SILENT: dict[str, Any] = {"stays": 0.1, "told": AWAY, "heals": LOOK}


# So many loads and unloads are a few for each of the adapters.
FEW = 40
MISSPELT: dict[str, Any] = {"stays": 0.1, "told": LOOK, "heals": LOOK, "calls": FEW}
# It is no matter at all.
AS_EVER: dict[str, Any] = {"serves": QUICK, "heals": QUICK, "calls": 12}


def _calls(*statuses: int, heals: float) -> tuple[Behaviour, ...]:
    """Each of these instead of what calls are answered."""
    return tuple(
        Behaviour(f"loads and unloads: HTTP {status}", on(*CALLS, answer=error(status, "OddError", "no")), heals=heals)
        for status in statuses
    )


_NO_LISTINGS = {
    "HTTP 404": Answer(404, b"", JSON),
    "HTTP 500": OOPS,
    "HTTP 503": Answer(503, b"", "text/plain"),
    "no JSON": Answer(200, b"{[}"),
    "nothing": Answer(200),
    "another server's page": HTML,
    "null": Answer(200, b'{"object":"list","data":null}'),
    "no model at all": Answer(200, b'{"object":"list","data":[]}'),
    "cut short": CUT_SHORT,
}
_NO_METRICS = {
    "HTTP 404": missing_route(),
    "HTTP 500": OOPS,
    "nothing": Answer(200),
    "another server's page": HTML,
}
_NO_ANSWERS = {
    "closed without an answer": CLOSES,
    "reset": RESETS,
    "HTTP 401": error(401, "Unauthorized", "no"),
    "HTTP 502": Answer(502, b"bad gateway", "text/plain"),
    "another server's page": HTML,
    "bytes that are no HTTP": GARBAGE,
}


def _capitals(told: list[dict[str, object]]) -> object:
    return _renamed(told, str.upper)


def _prefixed(told: list[dict[str, object]]) -> object:
    return _renamed(told, lambda name: f"lora/{name}")


BEHAVIOURS: tuple[Behaviour, ...] = (
    *_calls(400, 401, 403, 404, 408, 425, 429, 501, 502, 503, 504, heals=LOOK),
    *_calls(409, 413, 422, 500, heals=PAUSE),
    Behaviour("loads and unloads: no such route", on(*CALLS, answer=missing_route())),
    Behaviour("loads and unloads: HTTP 405", on(*CALLS, answer=missing_route(405))),
    Behaviour(
        "loads and unloads: a redirect", on(*CALLS, answer=Answer(302, headers={"Location": "http://elsewhere/"}))
    ),
    Behaviour("loads and unloads: another server's page", on(*CALLS, answer=HTML)),
    Behaviour("loads: out of memory", on(LOAD, answer=OUT_OF_MEMORY), heals=PAUSE),
    Behaviour("loads: out of memory for one name", _refuse_first("a0"), is_ours=True, heals=PAUSE),
    Behaviour("loads: said to be done, and not done", on(LOAD, answer=Answer(200, b"Success"))),
    Behaviour("loads: done, and said to be refused", on(LOAD, answer=OUT_OF_MEMORY, done=True)),
    Behaviour("loads: from other files", _loads_elsewhere, end=_give_back, is_ours=True),
    Behaviour("unloads: said to be done, and not done", on(UNLOAD, answer=Answer(200, b"Success"))),
    Behaviour("unloads: done, and said to be refused", on(UNLOAD, answer=OUT_OF_MEMORY, done=True)),
    Behaviour("loads and unloads: closed without an answer", on(*CALLS, answer=CLOSES)),
    Behaviour("loads and unloads: done, then reset", on(*CALLS, answer=RESETS, done=True)),
    Behaviour("loads and unloads: cut amid the answer", on(*CALLS, answer=CUT_SHORT, done=True)),
    Behaviour("loads and unloads: silent amid the answer", on(*CALLS, answer=STOPS_AMID, done=True), heals=DEADLINE),
    Behaviour("loads and unloads: never answered", on(*CALLS, answer=HANGS), heals=DEADLINE),
    Behaviour("loads and unloads: answered after 4 s", on(*CALLS, after=4.0)),
    Behaviour("loads and unloads: bytes that are no HTTP", on(*CALLS, answer=GARBAGE)),
    Behaviour("loads and unloads: an answer without end", on(*CALLS, answer=ENDLESS)),
    *(Behaviour(f"listing: {name}", on(MODELS, answer=answer), **UNREAD) for name, answer in _NO_LISTINGS.items()),
    Behaviour("listing: a card twice", listed(lambda told: [*told, *told[1:], *told[1:]]), **UNREAD),
    Behaviour("listing: a card without a name", listed(lambda told: [*told, {"object": "model"}]), **UNREAD),
    Behaviour("listing: cards without files", listed(lambda told: [*told[:1], *_with(told[1:], root=None)]), **UNREAD),
    Behaviour("listing: lacks all adapters", listed(lambda told: told[:1]), stays=0.1),
    Behaviour("listing: lacks one adapter", listed(lambda told: [*told[:1], *told[2:]])),
    Behaviour(
        "listing: other files under our names", listed(lambda told: [*told[:1], *_with(told[1:], root="/x")]), stays=0.1
    ),
    Behaviour("listing: our names in capitals", listed(_capitals), **MISSPELT),
    Behaviour("listing: our names behind a prefix", listed(_prefixed), **MISSPELT),
    Behaviour("loads: under our names in capitals", _loads_as_capitals, end=_give_names_back, told=None, calls=FEW),
    Behaviour("listing: our paths with a slash behind", _rooted(lambda path: f"{path}/"), **AS_EVER),
    Behaviour("listing: our paths with two slashes", _rooted(lambda path: path.replace("/", "//")), **AS_EVER),
    Behaviour("listing: our paths with dots", _rooted(lambda path: path.replace("/", "/./")), **AS_EVER),
    Behaviour("listing: another base model", listed(_other_base), stays=NEVER, told=LOOK, heals=QUICK),
    Behaviour("listing: of a while ago", _stale, end=_sets(remembered=None)),
    Behaviour("listing: never answered", on(MODELS, answer=HANGS), stays=0.1, told=STALLED, heals=PAUSE),
    Behaviour("listing: answered after 4 s", on(MODELS, after=4.0)),
    *(Behaviour(f"metrics: {name}", on(METRICS, answer=answer), **UNKNOWN) for name, answer in _NO_METRICS.items()),
    Behaviour("metrics: without the start of the process", metered(_without_start), **UNKNOWN),
    Behaviour("metrics: another start each time", on(METRICS, lie=_another_start), stays=NEVER, told=AWAY, heals=QUICK),
    Behaviour("metrics: counts that are no numbers", metered(lambda text: text.replace(" 0.0", " NaN"))),
    Behaviour("metrics: without tokens", metered(lambda text: _without(text, "tokens_total"))),
    Behaviour("metrics: without adapters", metered(lambda text: _without(text, "lora_requests"))),
    Behaviour("metrics: never answered", on(METRICS, answer=HANGS), **SILENT),
    Behaviour("version: HTTP 500", on(VERSION, answer=OOPS)),
    Behaviour("health: HTTP 503", on(HEALTH, answer=Answer(503))),
    Behaviour("completions: HTTP 404", on(COMPLETIONS, answer=missing_route())),
    Behaviour("completions: HTTP 500", on(COMPLETIONS, answer=OOPS), stays=5.0, told=STALLED),
    Behaviour("completions: never answered", on(COMPLETIONS, answer=HANGS), stays=5.0, told=STALLED),
    Behaviour("its core stands still", begin=_hold_core, end=_release_core, stays=5.0, told=STALLED),
    Behaviour("all of it stands still", begin=_freeze, end=_thaw, stays=0.1, told=AWAY),
    Behaviour(
        "is gone, and another process comes", begin=_die, end=_sets(gone=False), stays=NEVER, told=QUICK, heals=QUICK
    ),
    Behaviour(
        "refuses connections", begin=_sets(gone=True), end=_sets(gone=False), stays=NEVER, told=QUICK, heals=QUICK
    ),
    Behaviour("restarts once", begin=StrangeEngine.restart, stays=NEVER, heals=QUICK),
    Behaviour("restarts every 3 s", begin=StrangeEngine.restart, every=3.0, stays=NEVER, heals=QUICK),
    Behaviour("loses all adapters, and is still the same", begin=lambda engine: engine.adapters.clear()),
    Behaviour("loses all adapters but for proofs of them", begin=_leave_proofs),
    # Which of them has what is not known before one has come back twice.
    Behaviour(
        "is two engines in turn",
        begin=_double,
        end=_sets(twin=None),
        is_ours=True,
        stays=NEVER,
        told=AWAY,
        heals=ALONE,
        calls=FEW,
    ),
    Behaviour("somebody unloads one every second", begin=_unload_one, every=1.0),
    Behaviour("somebody puts other files behind our names", begin=_replace_files, end=_give_back, every=5.0),
    Behaviour("somebody loads another adapter", begin=_load_theirs, heals=QUICK),
    Behaviour("sleeps", begin=_sets(asleep=True), end=_sets(asleep=False), stays=NEVER, told=AWAY, heals=QUICK),
    Behaviour("is full of requests", begin=_sets(busy=5), end=_sets(busy=0)),
    *(Behaviour(f"everything: {name}", on(answer=answer), **UNKNOWN) for name, answer in _NO_ANSWERS.items()),
    Behaviour("everything: HTTP/1.0", _closing(version="1.0"), **AS_EVER),
    Behaviour("everything: Connection: close", _closing(headers={"Connection": "close"}), **AS_EVER),
    Behaviour("everything: gzip that nobody asked for", _encoded("gzip", gzip.compress), **AS_EVER),
    Behaviour("everything: deflate that nobody asked for", _encoded("deflate", zlib.compress), **AS_EVER),
    Behaviour("everything: an encoding that nobody knows", _encoded("br", bytes), **UNKNOWN),
    Behaviour("everything: never answered", on(answer=HANGS), **SILENT),
    Behaviour("everything: answered after 1 s", on(after=1.0)),
    Behaviour(
        "everything: every second request HTTP 500",
        _each_second(on(answer=OOPS)),
        stays=0.1,
    ),
    Behaviour("everything: every second request closed", _each_second(on(answer=CLOSES)), stays=0.1),
)
BY_NAME = {one.name: one for one in BEHAVIOURS}


def obey(engine: StrangeEngine, name: str) -> None:
    """Ends what the engine does, and has it behave as that is called; empty: as it should."""
    for one in BEHAVIOURS:
        if one.rule is not None and one.rule is engine.rule:
            one.finish(engine)
    if name:
        BY_NAME[name].start(engine)


if __name__ == "__main__":
    asyncio.run(listen(int(sys.argv[1]), obey))
