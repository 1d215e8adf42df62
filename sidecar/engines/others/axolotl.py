"""Driver of axolotl's server, which holds one adapter at a time.

Read in axolotl-ai-cloud/axolotl, ``src/axolotl/scripts/vllm_serve_lora.py`` at 02063210 and ``process_cleanup.py``:

- POST /set_lora_adapter/ keeps name, number and path in one variable and answers 200 ``{"status": "ok"}``, whatever
they are. POST /clear_lora_adapter/ empties it. Nothing reads it back.
- /generate/, /chat/ and /v1/chat/completions hand each request to a worker with what the variable holds then, whichever
model the request names. The worker reads the files then, and ends with its engine if it cannot; so does the server.
- /v1/models names the base model alone, ``owned_by`` axolotl; releases without that page are refused. /health/ is 503
once a worker has ended.
- Answers are taken out of a worker's pipe by whichever request waits first, so a request of ours could take another's.

What it was told is recorded before it is told, and each look tells it again: that it says ``ok`` to that is all the
evidence there is, and better than none, since nobody else can have the last word for long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from registry.runtime.local_files import is_shortage, read_file
from sidecar.engines.driver import EngineError, EngineOptions, EngineUnreachable
from sidecar.engines.load_ledger import write_synced
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    EngineLimits,
    NotThere,
    Observed,
    Outcome,
    PathMissing,
    Refused,
    Transient,
    Unknown,
)
from sidecar.engines.others.http_engine import EnginePages, HttpContract, HttpEngine, listed_names
from sidecar.engines.others.single_slot import UNTOUCHED, Active, Clearing, Nothing, SingleSlot, read_slot
from sidecar.engines.transport import PostRequest, Reply, json_of
from sidecar.engines.vllm.responses import MAX_MESSAGE_LENGTH, not_an_engine

KIND = "axolotl"
HEALTH = "/health/"
MODELS = "/v1/models"
SET = "/set_lora_adapter/"
CLEAR = PostRequest("/clear_lora_adapter/", {})
ONE = EngineLimits(max_cpu_loras=1)
FILE = "slot.json"


def set_adapter(active: Active) -> PostRequest:
    """The request that makes it answer everything with an adapter."""
    fields = {"lora_name": active.label, "lora_int_id": active.number, "lora_path": active.path}
    return PostRequest(SET, {**fields, "load_inplace": False})


def outcome(reply: Reply) -> Outcome:
    """Outcome of either request."""
    match reply:
        case Reply(200, body) if json_of(body) == {"status": "ok"}:
            return Done()
        case Reply(404 | 405, _):
            return Transient("the engine has no such route: serve with axolotl.scripts.vllm_serve_lora")
        case Reply(status, body):
            text = " ".join(body.decode(errors="replace").split())[:MAX_MESSAGE_LENGTH]
            return Unknown(f"HTTP {status}: {text or 'no text'}")


def read(bodies: Sequence[bytes], _ours: Mapping[str, str], url: str) -> EnginePages:
    """Reads its pages; see `HttpContract`. What it has they do not say."""
    models, health = bodies
    base_models = listed_names(models, _name)
    if not base_models:
        raise not_an_engine(url, f"its {MODELS} does not name a base model as axolotl does", KIND)
    if not health:
        raise EngineUnreachable(f"{url}{HEALTH} says that a worker has ended: restart the engine")
    return EnginePages("", tuple(base_models), {}, ONE)


def _name(card: object) -> str | None:
    match card:
        case {"id": str(name), "owned_by": "axolotl"}:
            return name
        case _:
            return None


CONTRACT = HttpContract(KIND, (MODELS, HEALTH), SET, CLEAR.path, read, outcome, swap="unproven", optional_page=HEALTH)


class AxolotlEngine(HttpEngine):
    """One server on this host. Implements `sidecar.engines.driver.Engine`."""

    def __init__(self, options: EngineOptions, *, wall: Callable[[], float] = time.time) -> None:
        """Connects to nothing and reads nothing yet. `wall`: seconds since 1970."""
        super().__init__(CONTRACT, options)
        self._file = options.state / FILE if options.state is not None else None
        self._wall = wall
        self._kept: SingleSlot | None = None
        # What is told again must not come after something newer.
        self._telling = asyncio.Lock()

    async def observe(self) -> Observed:
        """See `Engine.observe`. What it was told last it is told again."""
        async with self._telling:
            seen = await super().observe()
            incarnation = seen.facts.incarnation
            adapters = await self._tell_again(self._slot().of(incarnation))
            self._process.known(incarnation)
        return replace(seen, adapters=adapters)

    async def _tell_again(self, slot: SingleSlot) -> Mapping[str, str]:
        """What it has, as its answer proves. It is not told again of files that are gone, but that it has nothing.

        Raises:
            EngineUnreachable: it did not answer as it should.
        """
        match slot.content:
            case Nothing():
                return {}
            case Active(name=name, path=path) as active if _is_there(path):
                request, found, after = set_adapter(active), {name: path}, slot
            case Active(name=name) | Clearing(name=name):
                request, found, after = CLEAR, {}, slot.with_content(Nothing())
        outcome = await self._send(request, "", self._deadlines.list_seconds)
        if not isinstance(outcome, Done):
            raise EngineUnreachable(f"{self.url} does not take what it was told before: {outcome}")
        await self._note(after)
        return found

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        """See `Engine.load`. The files are read at the next request, whichever model it names."""
        async with self._telling:
            slot = self._slot().of(self._process.identity())
            match slot.content:
                case Nothing():
                    return await self._set(slot, name, path, request_id)
                case Clearing(name=had):
                    return Transient(f"it is not known yet whether the engine has let go of {had!r}")
                case Active(name=had):
                    return AlreadyThere() if had == name else Refused(f"it has one adapter at a time, and has {had!r}")

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        """See `Engine.unload`. From then on requests are answered from the base model."""
        async with self._telling:
            slot = self._slot().of(self._process.identity())
            if isinstance(slot.content, Nothing) or slot.content.name != name:
                return NotThere()
            clearing = slot.with_content(Clearing(name))
            outcome = await self._tell(slot, clearing, CLEAR, request_id, self._deadlines.unload_seconds)
            if isinstance(outcome, Done):
                await self._note(clearing.with_content(Nothing()))
            return outcome

    async def swap(self, name: str, old: str, new: str, *, request_id: str) -> Outcome:
        """See `Engine.swap`. It is one call: a request has all of the old weights or all of the new.

        Nothing is proven before: this engine loads nothing that does not answer requests.
        """
        async with self._telling:
            slot = self._slot().of(self._process.identity())
            match slot.content:
                case Active(name=had, path=path) if (had, path) == (name, old):
                    return await self._set(slot, name, new, request_id)
                case _:
                    return Transient(f"it was told something else than {name!r} from {old} meanwhile")

    async def _set(self, slot: SingleSlot, name: str, path: str, request_id: str) -> Outcome:
        if not _is_there(path):
            return PathMissing(f"there is no directory {path}")
        active = slot.next_active(name, path, self._wall())
        after = slot.with_content(active)
        return await self._tell(slot, after, set_adapter(active), request_id, self._deadlines.load_seconds)

    async def _tell(
        self, before: SingleSlot, after: SingleSlot, request: PostRequest, request_id: str, seconds: float
    ) -> Outcome:
        """Tells it something, once it is recorded that it may have heard it."""
        if not after.incarnation:
            return self._unseen()
        try:
            await self._keep(after)
        except OSError as error:
            return Transient(f"it cannot be recorded what the engine is told: {error}")
        outcome = await self._send(request, request_id, seconds)
        if isinstance(outcome, Done | Unknown):
            is_same = self._process.identity() == after.incarnation
            return outcome if is_same else Unknown("the engine restarted while it was told")
        await self._note(after.with_content(before.content))
        return outcome

    async def _send(self, request: PostRequest, request_id: str, seconds: float) -> Outcome:
        return self._contract.unload_outcome(await self._post(request, request_id, seconds))

    async def turns(self) -> bool:
        """See `Engine.turns`. All that it says is that its workers live."""
        try:
            await self._http.get([HEALTH], self._deadlines.probe_seconds)
        except EngineError:
            return False
        return True

    def _slot(self) -> SingleSlot:
        """The slot as it was ordered last. Raises EngineUnreachable: that cannot be read now."""
        if self._kept is None:
            self._kept = UNTOUCHED if self._file is None else _read(self._file)
        return self._kept

    async def _keep(self, slot: SingleSlot) -> None:
        """Records what it is told. Raises OSError."""
        if self._file is not None and slot != self._slot():
            await asyncio.to_thread(write_synced, self._file, slot.to_bytes())
        self._kept = slot

    async def _note(self, slot: SingleSlot) -> None:
        """Records what it has. Where that cannot be written, a restarted sidecar tells it again what was written."""
        with suppress(OSError):
            await self._keep(slot)
        self._kept = slot


def _read(file: Path) -> SingleSlot:
    try:
        return read_slot(read_file(file))
    except OSError as error:
        if is_shortage(error):
            raise EngineUnreachable(f"what the engine was told cannot be read: {error}") from error
        return UNTOUCHED


def _is_there(path: str) -> bool:
    return Path(path).is_dir()
