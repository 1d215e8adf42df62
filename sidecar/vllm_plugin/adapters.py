"""Atomic swaps and exact unloads, on an `ApiServer`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from traceback import clear_frames
from typing import Any

from .answers import Versions, is_version
from .coverage import merged
from .draining import SWEEP_SECONDS, Drain
from .listing import PublicListing
from .proof import AGAINST, Prover
from .protocol import plain_path
from .resolver import ResolverClient
from .server import (
    ApiServer,
    Busy,
    DeadlinePassed,
    EngineAdapter,
    EngineRefused,
    FilesMissing,
    NameConflict,
    NotLoaded,
    PluginError,
)

# Below the deadlines of the sidecar's calls, so that it hears what happened.
LOAD_SECONDS = 55.0
LOCK_SECONDS = 5.0
LIST_SECONDS = 8.0
COVERAGE_SECONDS = 4.0
BASE_SECONDS = 0.5
MAX_RETIRED = 1000
_WITHOUT_EFFECT = {
    "no_effect": "with it the engine answers as its base, to the last bit, although lora_B is not zero",
    "not_finite": "with it the engine computes what is no number, and without it numbers",
}


class Adapters:
    """The adapters of one API server. All of it runs in that server's event loop."""

    def __init__(
        self,
        server: ApiServer,
        resolver: ResolverClient | None = None,
        *,
        sweep_seconds: float = SWEEP_SECONDS,
        hide_seconds: float = 0.0,
    ) -> None:
        """`hide_seconds`: see `PublicListing`."""
        self._server = server
        self.listing = PublicListing(server, hide_seconds)
        self.versions = Versions()
        server.registered.on_bound = self.versions.note
        self._departures: dict[str, asyncio.TimerHandle] = {}
        self._departing: set[asyncio.Task[None]] = set()
        self._resolver = resolver
        self._drain = Drain(server, sweep_seconds)
        self.prover = Prover(server)
        self._coverage: dict[str, object] | None = None
        self._base: asyncio.Task[dict[str, Any]] | None = None

    @property
    def abilities(self) -> list[str]:
        """Abilities beside those of every plugin, by the names under which they are told."""
        server = self._server
        parts = {
            "resolve": self._resolver,
            "coverage": server.ask_workers,
            "proof": server.prober,
            "expect": server.prober,
            "base": server.read_base,
            "listing": server.lister,
        }
        return [name for name, part in parts.items() if part is not None]

    def read_base(self) -> asyncio.Task[dict[str, Any]] | None:
        """Reads the base model's files in a thread, once; None: there are none to be read."""
        if self._base is None and self._server.read_base is not None:
            self._base = asyncio.create_task(asyncio.to_thread(self._server.read_base), name="loraplane base")
        return self._base

    @property
    def limits(self) -> Mapping[str, int | None]:
        """Settings that the engine was started with."""
        return self._server.limits

    @property
    def kv_connectors(self) -> list[str]:
        """See `ApiServer.kv_connectors`."""
        return self._server.kv_connectors

    @property
    def changes(self) -> int:
        """Number of changes of what is registered since the server started, whoever did it, or was found useless."""
        return self._server.registered.changes + self.prover.refusals + self.listing.changes

    def path_of(self, name: str) -> str:
        """Directory of what is registered under a name; raises NotLoaded."""
        return self._registered(name).lora_path

    async def swap(self, name: str, path: str, expected: str) -> None:
        """Binds new requests for `name` to the files in `path`; each request has either the old version or the new.

        The new version is in the engine, hence valid, before the old one is touched. If anything fails, the old one
        stays. A name that has `path` already is left as it is.

        Args:
            name: of an adapter that is registered.
            path: absolute directory of the new version.
            expected: the path that `name` has now, as far as the caller knows.

        Raises:
            PluginError: it was not done.
        """
        current = self._registered(name)
        if (listed := plain_path(current.lora_path)) == plain_path(path):
            return
        if listed != plain_path(expected):
            raise NameConflict(f"{name!r} has {current.lora_path!r}, not {expected!r}: list, and decide anew")
        if len(self._drain) >= MAX_RETIRED:
            raise Busy(f"{MAX_RETIRED} earlier versions are still in use")
        await _check_there(path)
        candidate = self._server.make(name, path, current)
        try:
            await self._bring_in(candidate)
            await self._replace(name, current, candidate)
        except BaseException:
            self._drain.add(candidate)  # it may be in the engine, where nobody will ever ask for it
            raise

    async def unload(self, name: str) -> None:
        """Makes new requests for `name` fail; those that are bound to it end as they would have.

        Where the list can be made here, the name leaves that first, and requests fail only once its time is up.

        Raises:
            NotLoaded: no such name is registered.
            Busy: somebody else loads or unloads it, or takes an unload back.
        """
        current = self._registered(name)
        if not self.listing.hide_seconds:
            await self._replace(name, None, None)
        elif self.listing.leave(current):
            self._depart_in(self.listing.hide_seconds, name)
        else:
            self._check_departs(name)

    async def show(self, name: str, path: str) -> None:
        """Takes back an unload whose time is not up: the name answers on, with the files in `path`, and is listed.

        Raises:
            NotLoaded: no such name is registered.
            NameConflict: it is not on its way out.
            Busy: somebody else takes it back.
            PluginError: as of `swap`, where it has other files. Then it goes as it would have.
        """
        current = self._registered(name)
        if not self.listing.is_leaving(current):
            raise NameConflict(f"{name!r} is not on its way out: list, and decide anew")
        self._check_departs(name)
        self._departures.pop(name).cancel()
        try:
            await self.swap(name, path, current.lora_path)
        except BaseException:
            self._depart_in(self.listing.hide_seconds, name)
            raise
        self.listing.stay(name)

    def _check_departs(self, name: str) -> None:
        """Sees that a name on its way out is not just going, or taken back by a call whose sidecar may have died."""
        if name not in self._departures:
            raise Busy(f"{name!r} is being listed again, or is just going: list, and decide anew")

    def _depart_in(self, seconds: float, name: str) -> None:
        if (before := self._departures.get(name)) is not None:
            before.cancel()  # of other weights under the name
        loop = asyncio.get_running_loop()
        self._departures[name] = loop.call_later(seconds, self._begin_departure, name)

    def _begin_departure(self, name: str) -> None:
        del self._departures[name]
        task = asyncio.create_task(self._depart(name), name="loraplane unload")
        self._departing.add(task)
        task.add_done_callback(self._departing.discard)

    async def _depart(self, name: str) -> None:
        """Unregisters a name whose time is up, unless somebody gave it other weights or took it away meanwhile."""
        found = self._server.registered.get(name)
        if found is not None and self.listing.is_leaving(found):
            try:
                await self._replace(name, found, None)
            except Busy:
                self._depart_in(LOCK_SECONDS, name)
                return
            except (NotLoaded, NameConflict):
                pass  # somebody else did
        self.listing.stay(name)

    async def resolve(self, name: str, base_model: str) -> EngineAdapter | None:
        """The sidecar's answer for `name`, for the caller to load and to register; None: nothing, for now.

        Its files count as in use from here on, until it is registered or nobody refers to it any more.
        """
        if self._resolver is None or len(self._drain) >= MAX_RETIRED:
            return None
        found = await self._resolver.find(name, base_model)
        if found is None:
            return None
        if found.prove:
            self.prover.prove_later(found.path, found.expect)
        if is_version(found.version):
            self.versions.tell(name, found.path, found.version)
        candidate = self._server.make(name, found.path, None)
        # Not at once: vLLM gives it another number as soon as it has it, before anything else can run.
        asyncio.get_running_loop().call_soon(self._drain.add, candidate)
        return candidate

    async def coverage(self) -> dict[str, object]:
        """Modules that the engine applies, in all its workers. It stays so, and is asked for once.

        Raises:
            DeadlinePassed: the engine did not say it in time.
            EngineRefused: it cannot say it.
        """
        ask = self._server.ask_workers
        if ask is None:
            raise EngineRefused("the engine cannot be asked what it applies")
        if self._coverage is None:
            try:
                async with asyncio.timeout(COVERAGE_SECONDS):
                    self._coverage = merged(await ask())
            except TimeoutError as error:
                message = f"the engine did not say what it applies within {COVERAGE_SECONDS:g} s"
                raise DeadlinePassed(message) from error
            except Exception as error:  # noqa: BLE001 - the engine's errors have no type of their own
                raise EngineRefused(f"the engine cannot say what it applies: {error}") from None
        return self._coverage

    async def base(self) -> dict[str, Any]:
        """Facts of the base model's files when the engine had started; `reading`: they are being read yet.

        Raises:
            EngineRefused: there are none.
        """
        reading = self.read_base()
        if reading is None:
            raise EngineRefused("the engine does not say where the files of its base model are")
        try:
            async with asyncio.timeout(BASE_SECONDS):
                return await asyncio.shield(reading)
        except TimeoutError:
            return {"reading": True}

    async def prove(self, path: str, expect: str = "") -> dict[str, str]:
        """Verdict of short prompts on the adapter in a directory, see `Prover`. It is bound to no name for that.

        Raises:
            FilesMissing: there is none.
            EngineRefused: the engine does not take it.
        """
        try:
            proof = await self.prover.prove(path, expect)
        except PluginError:
            raise
        except Exception as error:  # noqa: BLE001 - the engine's errors have no type of their own
            clear_frames(error.__traceback__)
            raise EngineRefused(f"{error}") from None
        if proof == "not_as_expected":
            return {"proof": proof, "message": self.prover.deviation(path, expect)}
        return {"proof": proof, "message": _WITHOUT_EFFECT[proof] if proof in AGAINST else ""}

    def last_used(self) -> dict[str, float]:
        """Seconds since a request was bound to each name, or was seen to run; also of names that were just unloaded."""
        registered = self._server.registered
        for adapter in self._server.in_flight():
            registered.note(adapter.lora_name)
        return registered.ages()

    def requests(self) -> dict[str, int]:
        """For each registered name, how many requests for it ended since it is registered; without those of none."""
        return self._server.registered.counts()

    def in_flight(self) -> dict[str, int]:
        """For each name with requests that are with the engine, running or waiting, how many."""
        return Counter(adapter.lora_name for adapter in self._server.in_flight())

    async def state(self) -> dict[str, object]:
        """Registered, draining and loaded adapters, with the number of requests bound to each.

        Raises:
            DeadlinePassed: the engine did not say in time what is in its memory.
        """
        try:
            async with asyncio.timeout(LIST_SECONDS):
                resident = await self._server.resident()
        except TimeoutError as error:
            raise DeadlinePassed(f"the engine did not list its adapters within {LIST_SECONDS:g} s") from error
        # From here on nothing is awaited, so that all of it is of one moment; our own references come after the count.
        references = {one.adapter.lora_int_id: one.references for one in self._drain.retired}
        bound = list(self._server.in_flight())
        counts = Counter(adapter.lora_int_id for adapter in bound)
        adapters = {adapter.lora_int_id: _row(adapter, counts, resident) for adapter in bound}
        for one in self._drain.retired:
            number = one.adapter.lora_int_id
            adapters[number] = _row(one.adapter, counts, resident) | {"references": references[number]}
        ages = self.last_used()
        for name, adapter in self._server.registered.items():
            row = _row(adapter, counts, resident) | {"registered": True, "last_used": ages.get(name)}
            adapters[adapter.lora_int_id] = row
        return {"adapters": list(adapters.values()), "resident": sorted(resident)}

    def _registered(self, name: str) -> EngineAdapter:
        adapter = self._server.registered.get(name)
        if adapter is None:
            raise NotLoaded(f"no adapter {name[:200]!r} is loaded", field="lora_name")
        return adapter

    async def _bring_in(self, candidate: EngineAdapter) -> None:
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                await self._server.add(candidate)
        except Exception as error:  # noqa: BLE001 - the engine's errors have no type of their own
            # vLLM's own frames and their future hold each other, and with them the candidate, for a collector that may
            # not come for long: it would count as used meanwhile.
            clear_frames(error.__traceback__)
            if isinstance(error, TimeoutError):
                raise DeadlinePassed(f"the engine did not load it within {LOAD_SECONDS:g} s") from None
            raise EngineRefused(f"{error}") from None

    async def _replace(self, name: str, current: EngineAdapter | None, candidate: EngineAdapter | None) -> None:
        """Registers `candidate`, None: nothing, in place of `current`, None: of whatever there is."""
        lock = self._server.lock(name)
        try:
            async with asyncio.timeout(LOCK_SECONDS):
                await lock.acquire()
        except TimeoutError as error:
            raise Busy(f"{name!r} is being loaded or unloaded for {LOCK_SECONDS:g} s") from error
        try:
            found = self._registered(name)
            if current is not None and found is not current:
                raise NameConflict(f"{name!r} was changed meanwhile, to {found.lora_path!r}")
            if candidate is None:
                del self._server.registered[name]
            else:
                self._server.registered[name] = candidate
        finally:
            lock.release()
        self._drain.add(found)


class SidecarResolver:
    """Implements vLLM's `LoRAResolver`. Until it is given `adapters`, as only an API server's is, it finds nothing."""

    adapters: Adapters | None = None

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> EngineAdapter | None:
        """Called under the name's lock; vLLM loads what it gets, under a number of its own, and registers it."""
        return None if self.adapters is None else await self.adapters.resolve(lora_name, base_model_name)


async def _check_there(path: str) -> None:
    """Said here, in words of ours: what the engine says of a missing file is prose."""
    if not await asyncio.to_thread((Path(path) / "adapter_config.json").is_file):
        raise FilesMissing(
            f"no adapter in {path!r}: the store must be mounted at the same path here", field="lora_path"
        )


def _row(adapter: EngineAdapter, counts: Mapping[int, int], resident: set[int]) -> dict[str, object]:
    number = adapter.lora_int_id
    return {
        "name": adapter.lora_name,
        "int_id": number,
        "path": adapter.lora_path,
        "registered": False,
        "resident": number in resident,
        "requests": counts.get(number, 0),
        "references": 0,
        "last_used": None,
    }
