"""Several engines play the same steps, and whatever one of them says otherwise than the first fails."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sidecar.engines.simulated import pages
from sidecar.engines.simulated.engine import Rejection
from sidecar.engines.transport import Lost, NotSent, PostRequest, Reply, json_of, unheard
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.engines.vllm.http import VllmHttp
from sidecar.engines.vllm.process import UNLOAD_PATH
from tests.simulation.engines import EngineHost
from tests.support.engine_steps import (
    ADAPTERS,
    NOT_ABSOLUTE,
    NOTHING,
    USABLE,
    Ask,
    Drain,
    Load,
    Observe,
    Step,
    Swap,
    Unload,
    UnloadedByOthers,
)
from tests.support.engines import BASE_MODEL

# Longer than a block of the prefix cache, so that stale entries of it would show.
PROMPT = "The quick brown fox jumps over the lazy dog. " * 6
TOKENS = 8
CALL_SECONDS = 120.0
# At the end of each sequence all is looked at.
LAST: tuple[Step, ...] = (Observe(), Drain(), *map(Ask, ADAPTERS))
Heard = Reply | Lost | NotSent
AskModel = Callable[[str], Awaitable[Heard]]


@dataclass(frozen=True)
class Said:
    """What one engine, and its driver, said of a step.

    Attributes:
        meant: what the driver made of it, or whose weights answered.
        answers: to each call that the driver made of it, in order: status, and an error's type and field.
        cards: name, source and parent of each of /v1/models after it, in order.
    """

    meant: object
    answers: tuple[object, ...]
    cards: tuple[object, ...]


class _Hearing:
    """A driver's HTTP that keeps the answers to its calls."""

    def __init__(self, http: VllmHttp) -> None:
        self.answers: list[Heard] = []
        self._http = http

    def __getattr__(self, name: str) -> Any:
        return getattr(self._http, name)

    async def post(
        self, requests: Sequence[PostRequest], request_id: str, seconds: float, on_sent: Callable[[], None] = unheard
    ) -> Sequence[Heard]:
        """See `VllmHttp.post`."""
        answers = await self._http.post(requests, request_id, seconds, on_sent)
        self.answers += answers
        return answers


class Subject:
    """An engine that plays."""

    def __init__(self, engine: VllmEngine, root: str, ask: AskModel, known: dict[str, dict[str, str]]) -> None:
        """Changes nothing yet.

        Args:
            engine: its driver.
            root: the folder of the sources, as the engine finds them.
            ask: puts a request for a model to it.
            known: sources by what it answers with them, by its incarnation; what is learnt is added.
        """
        self._engine = engine
        self._http = _Hearing(engine._http)
        engine._http = cast("VllmHttp", self._http)
        self._root = root
        self._ask = ask
        self._known = known
        self._incarnation = ""
        self._asked: set[str] = set()

    async def learn(self) -> None:
        """Learns what it answers with each source. From its first request on it tells its limits.

        Raises:
            AssertionError: it answers alike with two of them, or not at all.
        """
        self._incarnation = (await self._engine.observe()).facts.incarnation
        self._asked.clear()
        if self._incarnation in self._known:
            return
        sources = {_text(await self._ask(BASE_MODEL)): BASE_MODEL}
        for source in USABLE:
            await self._engine.load(source, self._path(source), request_id="")
            sources[_text(await self._ask(source))] = source
            await self._engine.unload(source, request_id="")
        assert len(sources) == len(USABLE) + 1, f"sources answer alike: {sources}"
        self._known[self._incarnation] = sources

    async def play(self, step: Step) -> Said:
        """Carries it out, and tells what is said of it."""
        self._http.answers = []
        meant = await self._meant(step)
        return Said(meant, tuple(map(_summary, self._http.answers)), await self._cards())

    async def _meant(self, step: Step) -> object:
        match step:
            case Load(name, source):
                return type(await self._engine.load(name, self._path(source), request_id=""))
            case Unload(name):
                return type(await self._engine.unload(name, request_id=""))
            case Swap(name, old, new):
                return type(await self._engine.swap(name, self._path(old), self._path(new), request_id=""))
            case UnloadedByOthers(name):
                return len(await self._http.post([PostRequest(UNLOAD_PATH, {"lora_name": name})], "", CALL_SECONDS))
            case Ask(name):
                answered = self._answered_by(await self._ask(name))
                self._asked |= {name} & (await self._engine.observe()).adapters.keys()
                return answered
            case Observe():
                return await self._observed()
            case Drain():
                return await self._evidence()

    def _path(self, source: str) -> str:
        return source if source in {NOT_ABSOLUTE, NOTHING} else f"{self._root}/{source}"

    def _source(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    def _answered_by(self, reply: Heard) -> object:
        """The source of an answer, or what else came."""
        text = _text(reply)
        return self._known[self._incarnation].get(text, f"nothing known: {text}") if text else _summary(reply)

    async def _cards(self) -> tuple[object, ...]:
        [body] = await self._http.get(["/v1/models"], CALL_SECONDS)
        return tuple((card["id"], self._source(card["root"]), card["parent"]) for card in json.loads(body)["data"])

    async def _observed(self) -> object:
        """All but what is each process' own, and `resolves`: the simulation's plugin always can."""
        found = await self._engine.observe()
        adapters = {name: self._source(path) for name, path in found.adapters.items()}
        # What left is told of for a while, and an engine may be older than what it is compared with.
        used = sorted(found.last_used.keys() & found.adapters.keys() & self._asked)
        return found.base_models, adapters, found.facts.swap, found.facts.limits, used, found.past

    async def _evidence(self) -> object:
        """Of files those that are listed are surely in use; when others no longer are is a matter of seconds."""
        listed = {*(await self._engine.observe()).adapters.values()}
        found = await self._engine.drain_evidence()
        surely = None if found.paths is None else found.paths >= listed
        return found.waiting, found.running, found.is_clear_of(None), surely


async def play_alike(subjects: Mapping[str, Subject], steps: Sequence[Step]) -> None:
    """Plays the steps on all of them.

    Raises:
        AssertionError: one says otherwise than the first; it names the step and what each says.
    """
    for subject in subjects.values():
        await subject.learn()
    for number, step in enumerate((*steps, *LAST)):
        said = {title: await subject.play(step) for title, subject in subjects.items()}
        first, *others = said.values()
        told = "\n".join(f"  {title}: {one}" for title, one in said.items())
        assert all(one == first for one in others), f"step {number}, {step}:\n{told}"


def over_http(url: str) -> AskModel:
    """Asks an engine that is served."""

    async def ask(model: str) -> Heard:
        body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
        [reply] = await VllmHttp(url, None).post([PostRequest("/v1/completions", body)], "", CALL_SECONDS)
        return reply

    return ask


def inside(host: EngineHost) -> AskModel:
    """Asks an engine of the simulation."""

    async def ask(model: str) -> Heard:
        assert host.engine is not None
        try:
            tokens = await host.engine.generate(await host.engine.card_of(model), PROMPT, TOKENS)
        except Rejection as rejection:
            return Reply(rejection.status, json.dumps(pages.error_body(rejection)).encode())
        return Reply(200, json.dumps(pages.completion(model, tokens, None, as_ids=False)).encode())

    return ask


def _text(reply: Heard) -> str:
    """The text of a completion; empty: it is none."""
    match json_of(reply.body) if isinstance(reply, Reply) else None:
        case {"choices": [{"text": str(text)}]}:
            return text
        case _:
            return ""


def _summary(reply: Heard) -> object:
    """An answer without its sentence."""
    match reply:
        case Reply(status, body):
            error = json_of(body)
            fields = error.get("error") if isinstance(error, dict) else None
            return (status, fields["type"], fields["param"]) if isinstance(fields, dict) else status
        case _:
            return type(reply)
