"""Proofs by short prompts that an adapter has an effect and answers as expected.

Names and shapes tell that an engine takes an adapter; whether it uses it is seen only in what it answers. Where the
answer is the base's to the last bit, although the adapter's products are not 0, or is no number, the adapter is not for
this engine. Nor is one that answers otherwise than where it was trained.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from .protocol import Step, beyond, deviation, expected_key, read_expected
from .server import ApiServer, EngineAdapter, FilesMissing, Prober

Answer = tuple[float, ...]
Proof = Literal["effect", "no_effect", "not_finite", "not_as_expected", "later", "unknown"]
AGAINST: tuple[Proof, ...] = ("no_effect", "not_finite")
# What the prompt is made of are any numbers that each vocabulary has.
PROBE = tuple(range(3, 35))
# A name that no record can have, so that nothing is found in the prefix cache.
PROOF_NAME = "loraplane proof"
# The load that waits goes on after so long; the proof does too, and its result is told when it is there.
PROOF_SECONDS = 4.0
MAX_REMEMBERED = 4096
# What is not registered so long after its proof was put off is not proven: nobody loaded it, or it is gone again.
COMING_SECONDS = 120.0
# Tokens of the answers. Of one that changes a few experts of the last layer only, a single token may show nothing.
ANSWERS = (1, 32)
_WEIGHTS = "adapter_model.safetensors"
_LENGTH_BYTES, _MAX_HEADER_BYTES, _CHUNK_BYTES = 8, 64 << 20, 1 << 20
_log = logging.getLogger("vllm.loraplane")


def compared(adapted: Sequence[float], base: Sequence[float]) -> Proof:
    """Verdict of two answers to the same prompt; ``no_effect`` where they are the same to the last bit."""
    if not all(map(math.isfinite, adapted)):
        # What the base cannot answer either proves nothing.
        return "not_finite" if all(map(math.isfinite, base)) else "unknown"
    return "no_effect" if list(adapted) == list(base) else "effect"


def has_products(directory: Path) -> bool:
    """True if an adapter's lora_B are not all 0, as they are before it was trained.

    Raises:
        OSError, ValueError: its weights cannot be read.
    """
    with (directory / _WEIGHTS).open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError("the header of the weights is too long")
        header = json.loads(file.read(length))
        spans = [one["data_offsets"] for name, one in header.items() if "lora_B" in name or "lora_embedding_B" in name]
        for start, end in spans:
            file.seek(_LENGTH_BYTES + length + start)
            for size in _chunks(end - start):
                if file.read(size).strip(b"\0"):
                    return True
    return False


def _chunks(count: int) -> list[int]:
    whole, rest = divmod(count, _CHUNK_BYTES)
    return [_CHUNK_BYTES] * whole + [rest]


class Prover:
    """Proves adapters in one API server, one at a time; what it found it remembers by path, whose files never change.

    Where the engine is full or a proof is under way, a proof is put off until `look_later` finds a better moment. What
    an adapter has to answer is a text, as `protocol.write_expected` gives it; empty: anything.

    Attributes:
        refusals: how many adapters were found to be not for this engine.
    """

    def __init__(self, server: ApiServer, seconds: float = PROOF_SECONDS) -> None:
        """`seconds`: for how long a caller waits."""
        self.refusals = 0
        self._server = server
        self._seconds = seconds
        self._found: dict[str, Proof] = {}
        # By `protocol.expected_key`: where the answer deviates; empty: nowhere; None: that could not be told.
        self._deviations: dict[str, str | None] = {}
        # Paths and what is expected of them, each with the time until which it may not be registered yet.
        self._later: dict[tuple[str, str], float] = {}
        self._task: asyncio.Task[Proof] | None = None

    @property
    def without_effect(self) -> list[str]:
        """Paths whose adapters were found to be not for this engine."""
        return [path for path, proof in self._found.items() if proof in AGAINST]

    @property
    def as_expected(self) -> list[str]:
        """Keys of the adapters that answered as expected."""
        return [key for key, found in self._deviations.items() if found == ""]

    @property
    def unexpected(self) -> dict[str, str]:
        """By key, where the answers of the others deviate."""
        return {key: found for key, found in self._deviations.items() if found}

    def deviation(self, path: str, expect: str) -> str:
        """First unexpected answer of the adapter in a directory; empty: none that is known."""
        return self._deviations.get(expected_key(path, expect)) or ""

    async def prove(self, path: str, expect: str = "") -> Proof:
        """Verdict of the engine on the adapter in a directory; ``later``: it is found out when the engine has room.

        Raises:
            FilesMissing: there is no adapter.
            Exception: whatever the engine says against loading it.
        """
        if (found := self._known(path, expect)) is not None:
            return found
        prober = self._server.prober
        if prober is None:
            return "unknown"
        if not await asyncio.to_thread((Path(path) / "adapter_config.json").is_file):
            raise FilesMissing(f"no adapter in {path!r}: the store must be mounted at the same path here")
        if self._is_busy:
            self._put_off(path, expect)
            return "later"
        task = self._task = asyncio.create_task(self._prove(path, expect, prober))
        await asyncio.wait({task}, timeout=self._seconds)
        if task.done():
            return task.result()
        task.add_done_callback(_heard)
        return "later"

    def prove_later(self, path: str, expect: str = "") -> None:
        """Puts the proof of what is about to be registered off, unless it is known already."""
        if self._server.prober is not None and self._known(path, expect) is None:
            self._put_off(path, expect)

    def look_later(self) -> None:
        """Begins a proof that was put off, if the engine has room for it now and its adapter is registered by now."""
        prober = self._server.prober
        registered = {adapter.lora_path for adapter in self._server.registered.values()} if self._later else set()
        now = asyncio.get_running_loop().time()
        for (path, expect), until in list(self._later.items()):
            if prober is None or self._is_busy:
                return
            if path in registered or until <= now:
                del self._later[path, expect]
            if path in registered:
                self._task = asyncio.create_task(self._prove(path, expect, prober))
                self._task.add_done_callback(_heard)

    @property
    def _is_busy(self) -> bool:
        return self._server.is_full or (self._task is not None and not self._task.done())

    def _known(self, path: str, expect: str) -> Proof | None:
        """Verdict that is remembered; None: not all that is asked."""
        found = self._found.get(path)
        if not expect or found is None or found in AGAINST:
            return found
        key = expected_key(path, expect)
        if key not in self._deviations:
            return None
        return "not_as_expected" if self._deviations[key] else found

    def _put_off(self, path: str, expect: str) -> None:
        if len(self._later) < MAX_REMEMBERED:
            self._later[path, expect] = asyncio.get_running_loop().time() + COMING_SECONDS

    async def _prove(self, path: str, expect: str, prober: Prober) -> Proof:
        candidate = self._server.make(PROOF_NAME, path, None)
        proof = self._found.get(path)
        adapted: Answer = ()
        is_known = proof is not None
        try:
            await self._server.add(candidate)
            if proof is None:
                proof, adapted = await self._asked(candidate, prober)
            deviates = await self._deviation(candidate, expect, prober) if expect else ""
        finally:
            await self._server.remove(candidate.lora_int_id)
        if proof == "no_effect" and not is_known:
            proof = await self._confirmed(path, adapted, prober)
        if not is_known:
            _remember(self._found, path, proof)
        if expect:
            _remember(self._deviations, expected_key(path, expect), deviates)
        self.refusals += (proof in AGAINST and not is_known) + bool(deviates)
        return "not_as_expected" if deviates and proof not in AGAINST else proof

    async def _asked(self, candidate: EngineAdapter, prober: Prober) -> tuple[Proof, Answer]:
        """Both at once, so that the engine answers them in one step; longer before it is said to have no effect."""
        proof: Proof = "unknown"
        adapted: Answer = ()
        for tokens in ANSWERS:
            asked = prober(candidate, PROBE, tokens), prober(None, PROBE, tokens)
            answers = await _answers(candidate.lora_path, *asked)
            if answers is None:
                return "unknown", ()
            adapted, base = map(_logprobs, answers)
            proof = compared(adapted, base)
            if proof != "no_effect":
                break
        return proof, adapted

    async def _deviation(self, candidate: EngineAdapter, expect: str, prober: Prober) -> str | None:
        """First unexpected answer; empty: none; None: that cannot be told."""
        expected = read_expected(expect)
        if expected is None:
            return None
        # An engine that checks no prompt would read past the end of its embedding.
        if unknown := beyond(expected, self._server.vocabulary):
            return unknown
        asked = (prober(candidate, one.prompt, len(one.tokens)) for one in expected.answers)
        answers = await _answers(candidate.lora_path, *asked)
        if answers is None:
            return None
        pairs = zip(expected.answers, answers, strict=True)
        found = [deviation(one, steps, expected.tolerance) for one, steps in pairs]
        return next(filter(None, found), None if None in found else "")

    async def _confirmed(self, path: str, adapted: Answer, prober: Prober) -> Proof:
        """Holds an answer against the base alone: beside the adapter, vLLM's CPU build may apply it to the base."""
        answers = await _answers(path, prober(None, PROBE, ANSWERS[-1]))
        if answers is None or compared(adapted, _logprobs(answers[0])) != "no_effect":
            return "unknown"
        return "no_effect" if await asyncio.to_thread(_is_trained, Path(path)) else "effect"


def _logprobs(steps: Iterable[Step]) -> Answer:
    return tuple(likely[token] for _, likely in steps for token in sorted(likely))


Key = TypeVar("Key")
Value = TypeVar("Value")


def _remember(found: dict[Key, Value], key: Key, value: Value) -> None:
    if len(found) >= MAX_REMEMBERED:
        del found[next(iter(found))]
    found[key] = value


async def _answers(path: str, *asked: Awaitable[tuple[Step, ...]]) -> Sequence[tuple[Step, ...]] | None:
    try:
        return await asyncio.gather(*asked)
    except Exception as error:  # noqa: BLE001 - the engine's errors have no type of their own
        _log.warning("loraplane: %r cannot be proven: %s", path, error)
        return None


def _is_trained(directory: Path) -> bool:
    try:
        return has_products(directory)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _heard(task: asyncio.Task[Proof]) -> None:
    """Nobody waits for it: that the engine did not load it is said where it is loaded."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("loraplane: a proof failed: %s", error)
