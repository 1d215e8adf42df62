"""The simulated engine: names, memory, one thing at a time."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Literal

from sidecar.engines.simulated.options import DEFAULTS, Options, manners
from sidecar.engines.simulated.weights import AdapterMissing, AdapterRefused, read_weights
from sidecar.vllm_plugin.usage import NameLocks, Usage


@dataclass(frozen=True, slots=True)
class Card:
    """A loaded adapter. `number` is new with each load. Implements `sidecar.vllm_plugin.server.Adapter`."""

    name: str
    path: str
    number: int

    @property
    def lora_name(self) -> str:
        return self.name

    @property
    def lora_int_id(self) -> int:
        return self.number

    @property
    def lora_path(self) -> str:
        return self.path


CALLS_KEPT = 100_000
_PRINTABLE = range(0x20, 0x7F)


class Rejection(Exception):
    """An error reply in vLLM's form."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.param = status, kind, message, param


class EngineDead(Exception):
    """The engine died; every request fails from now on."""


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """A request that loads or unloads, as it came in; `received_at` is in monotonic seconds of this machine."""

    kind: Literal["load", "unload"]
    name: str
    path: str
    request_id: str
    received_at: float


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token: its number is that of its letter."""

    number: int
    logprob: float


async def _unresolved(_: str) -> Card | None:
    return None


class SimulatedVllm:
    """One engine process. `on_call` hears of each request that loads or unloads, before it is carried out.

    `resolve` is asked, under the name's lock, for a card of a name that is not loaded.
    """

    def __init__(self, options: Options = DEFAULTS, on_call: Callable[[SimulatedCall], None] | None = None) -> None:
        self.options = options
        self.manners = manners(options.version)
        self.started_at = time.time()
        self.cards: Usage[Card] = Usage()
        self.resolve: Callable[[str], Awaitable[Card | None]] = _unresolved
        self.calls: deque[SimulatedCall] = deque(maxlen=CALLS_KEPT)
        self.dead = asyncio.Event()
        self.is_paused = self.sleeps = False
        self.samples: dict[tuple[str, str], float] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.tokens = self.prompt_tokens = self.ended = 0
        self._ended = asyncio.Event()
        self.bound: list[Card] = []
        self._on_call = on_call
        self._numbers = count(1)
        self._remembered: dict[tuple[str, str], str] = {}
        self._resident: OrderedDict[int, str] = OrderedDict()
        self._turn = asyncio.Lock()
        self._name_locks = NameLocks()

    def note(self, call: SimulatedCall) -> None:
        """Remembers a request that loads or unloads."""
        self.calls.append(call)
        if self._on_call is not None:
            self._on_call(call)

    async def load(self, name: str, path: str, hold: asyncio.Event | None = None) -> None:
        """Loads an adapter. With `hold` the engine hangs in it until that is set.

        Raises:
            Rejection: as vLLM rejects it.
        """
        async with self._name_locks[name]:
            self._check_load(name, path)
            card = self.card(name, path)
            await self.add(card, hold)
            self.cards[name] = card

    def card(self, name: str, path: str) -> Card:
        """A card with a number of its own."""
        return Card(name, path, next(self._numbers))

    async def add(self, card: Card, hold: asyncio.Event | None = None) -> None:
        """Brings the weights into memory, between two steps.

        Raises:
            Rejection, EngineDead: they cannot be had.
        """
        async with self._turn:
            if hold is not None:
                await hold.wait()
            await asyncio.sleep(self.options.load_seconds)
            await self._bring_in(card)

    async def remove(self, number: int) -> None:
        """Drops the weights from memory, between two steps."""
        async with self._turn:
            self._resident.pop(number, None)

    async def resident(self) -> set[int]:
        """Numbers of the weights in memory, as of between two steps."""
        async with self._turn:
            return set(self._resident)

    def name_lock(self, name: str) -> asyncio.Lock:
        """Held by whoever loads or unloads `name`."""
        return self._name_locks[name]

    async def unload(self, name: str, hold: asyncio.Event | None = None) -> None:
        """Forgets the name; the weights stay in memory until others need the room.

        Raises:
            Rejection: it is not loaded.
        """
        if hold is not None:
            await hold.wait()
        async with self._name_locks[name]:
            if not name:
                message = "'lora_name' needs to be provided to unload a LoRA adapter."
                raise Rejection(400, "InvalidUserInput", message)
            if name not in self.cards:
                raise Rejection(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
            del self.cards[name]

    async def card_of(self, model: str) -> Card | None:
        """Adapter for a request for `model` from now on; None: the base model.

        Raises:
            Rejection: there is no such model. A name that is being loaded is waited for.
        """
        if model == self.options.served_model_name:
            return None
        if model not in self.cards:
            await self._resolve(model)
        return self.cards[model]

    async def _resolve(self, name: str) -> None:
        async with self._name_locks[name]:
            if name in self.cards:
                return
            card = await self.resolve(name)
            if card is None:
                message = f"The model `{name}` does not exist. Valid aliases: {self.options.served_model_name}."
                raise Rejection(404, "NotFoundError", message, "model")
            try:
                await self.add(card)
            except Rejection as error:
                message = f"LoRA adapter '{name}' was found but could not be loaded."
                raise Rejection(400, "BadRequestError", message) from error
            self.cards[name] = card

    async def generate(self, card: Card | None, prompt: str, tokens: int) -> list[Token]:
        """Greedy tokens, a function of the prompt, the base model and the adapter's files alone.

        Raises:
            EngineDead: the adapter's files were needed again and are gone, or the engine died before.
        """
        name = card.name if card else ""
        with self._bound_to(card):
            with self._among(self.waiting, name):
                async with self._turn:
                    pass
                while self._is_crowded(name):
                    await self._ended.wait()
            with self._among(self.running, name):
                made = await self._steps(card, prompt, tokens)
                self.prompt_tokens += len(prompt)
                self.ended += 1
                return made

    def pause(self, *, is_paused: bool, sleeps: bool | None = None) -> None:
        """Makes no steps any more while it is paused, or goes on; `sleeps` None: that it does or not stays so."""
        self.is_paused, self.sleeps = is_paused, self.sleeps if sleeps is None else sleeps
        self._ended.set()
        self._ended = asyncio.Event()

    def die(self) -> None:
        """Fails all requests; whoever serves this engine ends it."""
        self.dead.set()

    async def _steps(self, card: Card | None, prompt: str, tokens: int) -> list[Token]:
        made: list[Token] = []
        for _ in range(tokens):
            while self.is_paused and not self.dead.is_set():
                await self._ended.wait()
            async with self._turn:
                await asyncio.sleep(self.options.token_seconds)
                weights = self._remember(card, prompt, await self._weights_for(card))
            self.tokens += 1
            letters = "".join(chr(token.number) for token in made)
            made.append(_next_token(f"{self.options.model}\0{weights}\0{prompt}{letters}"))
        return made

    def _remember(self, card: Card | None, prompt: str, weights: str) -> str:
        """The weights that answer: of a release whose prefix cache knows names only, the first that the name had."""
        if card is None or not self.manners.remembers_names:
            return weights
        return self._remembered.setdefault((card.name, prompt), weights)

    def _check_load(self, name: str, path: str) -> None:
        if not name or not path:
            raise Rejection(400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
        if name == self.options.served_model_name:
            message = f"The lora adapter '{name}' conflicts with a served base model."
            raise Rejection(400, "InvalidUserInput", message)
        if name in self.cards:
            raise Rejection(400, "InvalidUserInput", f"The lora adapter '{name}' has already been loaded.")

    async def _bring_in(self, card: Card) -> None:
        if self.dead.is_set():
            raise EngineDead
        try:
            weights = await asyncio.to_thread(read_weights, card.path, self.options.max_lora_rank)
        except AdapterMissing as error:
            message = f"Loading lora {card.name} failed: No adapter found for <path>"
            raise Rejection(404, "NotFoundError", message) from error
        except AdapterRefused as error:
            raise Rejection(*self.manners.failed_load, f"Call to add_lora method failed: {error}") from error
        self._resident[card.number] = weights
        if len(self._resident) > self.options.max_cpu_loras:
            self._resident.popitem(last=False)

    async def _weights_for(self, card: Card | None) -> str:
        if self.dead.is_set():
            raise EngineDead
        if card is None:
            return ""
        if card.number not in self._resident:
            try:
                await self._bring_in(card)
            except Rejection as error:  # inside a step there is nobody to reject: the worker dies of it
                self.die()
                raise EngineDead from error
        self._resident.move_to_end(card.number)
        return self._resident[card.number]

    def _is_crowded(self, name: str) -> bool:
        """True while as many other adapters run as one batch may mix."""
        others = {*self.running} - {"", name}
        return bool(name) and len(others) >= self.options.max_loras and not self.dead.is_set()

    @contextmanager
    def _bound_to(self, card: Card | None) -> Iterator[None]:
        """Counts a request among those that need the card's weights until their end."""
        if card is None:
            yield
            return
        self.bound.append(card)
        try:
            yield
        finally:
            self.bound.remove(card)

    @contextmanager
    def _among(self, names: list[str], name: str) -> Iterator[None]:
        """Counts a request among those that run, or wait."""
        names.append(name)
        self._sample()
        try:
            yield
        finally:
            names.remove(name)
            self._sample()
            self._ended.set()
            self._ended = asyncio.Event()

    def _sample(self) -> None:
        """Notes who runs and waits, as vLLM does for its metric; queued requests of evicted adapters do not show."""
        running, waiting = (",".join(sorted({*names} - {""})) for names in (self.running, self.waiting))
        self.samples[running, waiting] = self._now()

    def _now(self) -> float:
        """Time with which samples are dated."""
        return time.time()


def _next_token(seed: str) -> Token:
    digest = hashlib.sha256(seed.encode(errors="surrogatepass")).digest()
    letter = _PRINTABLE[digest[0] % len(_PRINTABLE)]
    return Token(letter, -3.0 * int.from_bytes(digest[1:5]) / 2**32)
