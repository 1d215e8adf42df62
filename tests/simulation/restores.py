"""Backups and restorations by the command line: what they make of the store, and what becomes of them amid all else."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from google.protobuf.message import Message

from registry.cli.backup import backup_text, records_of
from registry.cli.commands.backup import backup, restore
from registry.cli.failure import CliError, CommandFailure
from registry.client.address import Tls
from registry.client.asynchronous import AsyncRegistry
from registry.etcd3.ops import Event
from registry.model.errors import Reason, RegistryError, Unavailable
from registry.model.keys import last_part
from registry.model.names import name_of_key
from tests.simulation.clients import Answer, answer_of
from tests.simulation.command_line import Sent, context_of, on_thread, session_to
from tests.simulation.history import POOL
from tests.simulation.operator import ODD_NAME, Operator
from tests.simulation.world import KEYS, World

# So many are interrupted, and so many name their request id, which a repetition then has too.
INTERRUPTED, NAMED = 0.3, 0.4
# Amid so many somebody else changes an adapter, between the plan and the change.
MEDDLED = 0.5
# In so many tries at once, before somebody looks at it again.
TRIES = 3
# Once all has healed, so many more.
CALM_TRIES = 8
_KINDS = ("pools", "tenants", "adapters", "history")
_BELOW = tuple(f"{KEYS.prefix}/{kind}/".encode() for kind in _KINDS)
_REQUESTS = f"{KEYS.prefix}/requests/".encode()
# What a plan holds for, as it found it. Of tenants the counter changes with each adapter.
_PLANNED = (KEYS.adapters(POOL), KEYS.pool(POOL))
# What a generation is made of; all else is of the adapter.
_OF_FILES = ("source", "base_model", "prepare", "credentials", "expect")
ODD = (f"adapters/{POOL}/{ODD_NAME}", f"history/{POOL}/{ODD_NAME}/")
_State = Mapping[str, bytes]


@dataclass(eq=False)
class Command:
    """One run of a restoration: what it sent, and the backup that it is of."""

    sent: Sent
    saved: _State
    restores: int
    revisions: list[int] = field(default_factory=list)


class Restores:
    """The operator at a terminal. In every other world; in some of these nobody writes past the service, and then
    adapters are deleted that the backup does not have."""

    def __init__(self, world: World, operator: Operator) -> None:
        self._world = world
        self._operator = operator
        self._file = world.folder / "backup.json"
        self._saved: _State | None = None
        self._running: list[Command] = []
        self._restored = 0
        self._named = count(1)
        self._is_calm = False
        self._vouched: set[str] = set()
        self._done: set[tuple[int, str]] = set()
        world.store.on_commit.append(self.on_commit)

    @property
    def is_played(self) -> bool:
        """Whether anything is backed up at all."""
        return self._world.seed % 2 == 0

    async def work(self, seconds: float) -> None:
        """Begins commands for so long, and waits for all of them."""
        if not self.is_played:
            return
        world, rng = self._world, random.Random(f"commands {self._world.seed}")
        end = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as tasks:
            for number in count():
                await asyncio.sleep(rng.uniform(0.0, 6.0))
                if asyncio.get_running_loop().time() >= end:
                    return
                dice = random.Random(f"command {number} {world.seed}")
                if world.plays(f"k{number}", "a command"):
                    tasks.create_task(self._command(dice))

    async def finish(self) -> None:
        """W3: once all has healed a restoration comes to its end, whatever broke off before; and then it stays."""
        if self._saved is None or not self._world.plays("k1000", "a last command"):
            return
        dice = random.Random(f"the last command {self._world.seed}")
        if dice.random() < 0.5:
            return
        self._is_calm = True
        reason = await self._restore(dice, CALM_TRIES)
        is_full = {Reason.QUOTA_EXCEEDED} if self._world.prunes else {Reason.QUOTA_EXCEEDED, Reason.QUOTA_BELOW_USE}
        is_small = {Reason.CANARY_TOO_LARGE} if _canaries(self._saved) > len(self._world.replicas) else set()
        if reason not in {"", *is_full, *is_small}:
            self._world.checks.violated(f"W3 a restoration never comes to its end: {reason}")
        elif not reason and not any(b'"rollout":{' in value for value in self._saved.values()):
            await self._again(dice)

    async def _again(self, dice: random.Random) -> None:
        """W3: what is restored already is restored once more, and no adapter is changed by that."""
        command = self._begin()
        await self._run(dice, command, None, None)
        for revision in command.revisions:
            events = next(events for number, events in self._world.store.history if number == revision)
            if any(event.key.startswith(KEYS.adapters(POOL)) for event in events):
                self._world.checks.violated(f"W3 what was restored already is changed at {revision}")

    async def _command(self, dice: random.Random) -> None:
        """A restoration where the store was replaced since the last one; else one thing or another."""
        world = self._world
        what = dice.choices(("back up", "restore", "roll back", "lose"), (3, 4, 4, 2))[0]
        if what == "lose" and self._saved is not None and not world.restores:
            world.replace_store(0, bump=0)
        if self._saved is None or (what == "back up" and self._restored == world.restores):
            await self._backup(dice)
        elif what == "restore" or self._restored != world.restores:
            self._restored = world.restores
            await self._restore(dice, TRIES)
        if what == "roll back" or world.restores:
            await self._roll_back(dice)

    async def _roll_back(self, dice: random.Random) -> None:
        """By the SDK, to any generation that history has; now and then to whatever was restored, too."""
        world, request_id, restores = self._world, f"back-{next(self._named)}", self._world.restores
        name, is_vouched = dice.choice(self._world.size.names), dice.random() < 0.5
        if is_vouched:
            self._vouched.add(request_id)
        address = f"terminal.{dice.choice(world.admins).address}"
        leaves = _leaves(dice)
        try:
            tls = world.tls_of_callers
            async with AsyncRegistry(address, tls=tls, timeout_seconds=5.0) as registry, asyncio.timeout(leaves):
                known = [one.generation for one in (await registry.history(name, POOL)).generations]
                to = dice.choice([0, 0, *known])
                made = await registry.rollback(
                    name, POOL, to_generation=to, restored=is_vouched, wait=False, request_id=request_id
                )
        except TimeoutError:
            world.log(f"{request_id}: interrupted")
        except RegistryError as error:
            world.log(f"{request_id}: {error.reason}")
            if restores == world.restores and not isinstance(error, Unavailable):
                world.answers.append(Answer(request_id, 0, error.reason))
        else:
            world.log(f"{request_id}: {made}")
            if restores == world.restores:
                kv = world.store.at(made.revision).get(KEYS.adapter(made.pool, made.name))
                world.answers += filter(None, [answer_of(made, kv)])

    async def _backup(self, dice: random.Random) -> None:
        """W2: a backup is what etcd had at its revision, however many pages it has and whatever happens meanwhile."""
        world, restores = self._world, self._world.restores
        made = self._file.with_suffix(f".{next(self._named)}")
        work = partial(
            backup, context_of(self._session(dice, Sent())), made, force=True, timeout=dice.choice((None, 5.0))
        )
        if (reason := await self._ended(work, dice)) is not None:
            world.log(f"backup: {reason or 'interrupted'}")
            return
        revision, records = records_of(made.read_bytes(), str(made))
        world.log(f"backup of revision {revision}")
        if restores != world.restores:
            return
        wanted = {key: kv.value for key, kv in world.store.at(revision).items() if key.startswith(_BELOW)}
        saved = {f"{KEYS.prefix}/{one.key}".encode(): one.value for one in records}
        world.told["backups"] += 1
        if wanted != saved:
            odd = sorted(key.decode() for key in wanted.keys() | saved if wanted.get(key) != saved.get(key))
            world.checks.violated(f"W2 a backup of {revision} differs from etcd in {odd}")
        kept = [one for one in records if not one.key.startswith(ODD)]
        made.write_bytes(backup_text(kept, revision, "2026-01-01T00:00:00+00:00"))
        made.replace(self._file)
        self._saved = {one.key: one.value for one in kept}

    async def _restore(self, dice: random.Random, tries: int) -> str:
        """Restores until it is done, at most so often; the reason of the last failure, empty: none."""
        is_named, named, reason = dice.random() < NAMED, None, ""
        for number in range(tries):
            if is_named and (named is None or reason == Reason.REQUEST_ID_REUSED):
                named = f"named-{next(self._named)}"
            command = self._begin()
            leaves = None if self._is_calm else _leaves(dice)
            failed = await self._run(dice, command, named, leaves)
            self._world.log(f"restoration {number}: {'done' if failed is None else failed or 'interrupted'}")
            if failed is None:
                self._check_restored(command)
                return ""
            reason = failed
            await asyncio.sleep(dice.uniform(0.1, 3.0))
        return reason

    def _begin(self) -> Command:
        assert self._saved is not None
        command = Command(Sent(), self._saved, self._world.restores)
        self._running.append(command)
        return command

    async def _run(self, dice: random.Random, command: Command, named: str | None, leaves: float | None) -> str | None:
        """One restoration; why it failed, empty: it was interrupted, None: it is done."""
        timeout = dice.choice((None, None, 3.0, 20.0))
        if not self._is_calm and dice.random() < MEDDLED:
            command.sent.before_adapters = partial(self._operator.change_one, dice.choice(self._world.size.names))
        context = context_of(self._session(dice, command.sent), timeout=timeout, request_id=named)
        asked: dict[str, Any] = {
            "delete_others": self._world.prunes,
            "yes": True,
            "timeout": timeout,
            "request_id": named,
        }
        work = partial(restore, context, self._file, **asked)
        try:
            return await self._ended(work, dice, leaves)
        finally:
            self._running.remove(command)
            self._check_told(command)

    async def _ended(self, work: Any, dice: random.Random, leaves: float | None = None) -> str | None:
        try:
            async with asyncio.timeout(leaves):
                await on_thread(work)
        except TimeoutError:
            return ""
        except CliError as error:
            return error.failure.reason
        return None

    def _session(self, dice: random.Random, sent: Sent) -> Any:
        tls = self._world.tls_of_callers or Tls()
        return session_to(f"terminal.{dice.choice(self._world.admins).address}", tls, sent)

    def _check_told(self, command: Command) -> None:
        """W1, W3, W8: answers are looked up in the end; what is not known says how to ask; and none is late."""
        sent = command.sent
        self._world.answers = [
            one for one in self._world.answers if one.revision or one.request_id not in sent.requests
        ]
        for late in sent.slow:
            self._world.checks.violated(f"W8 {late}")
        for silent in sent.silent:
            self._world.checks.violated(f"W8 it does not say how to ask what came of it: {silent}")
        for request_id, told in sent.settled.items():
            if self._is_taken(command, request_id, told):
                self._world.checks.violated(f"W3 a restoration cannot be repeated: {request_id}: {told}")
            elif command.restores == self._world.restores:
                self._world.answers += _answers(self._world, request_id, told)

    def _is_taken(self, command: Command, request_id: str, told: Message | CommandFailure) -> bool:
        """Whether a step has the id of another; that of one which was refused is used up, and says so."""
        if not isinstance(told, CommandFailure):
            self._done.add((command.restores, request_id))
        elif told.reason == Reason.REQUEST_ID_REUSED:
            return (command.restores, request_id) in self._done or "was refused before" not in told.message
        return False

    def _check_restored(self, command: Command) -> None:
        """W6: what nobody else has changed since the plan is what the backup says; of canaries, what others had."""
        world = self._world
        if command.restores != world.restores:
            return
        for key, saved in command.saved.items():
            stored = f"{KEYS.prefix}/{key}".encode()
            kv = world.store.kvs.get(stored)
            if not key.startswith("adapters/") or self._by_others(stored, command):
                continue
            world.told["adapters restored"] += 1
            if kv is None or not _is_as_saved(json.loads(saved), json.loads(kv.value)):
                world.checks.violated(f"W6 {key} is not what the backup says: {kv}")

    def on_commit(self, revision: int, events: tuple[Event, ...]) -> None:
        """Each revision of etcd."""
        ids = {event.key.removeprefix(_REQUESTS).decode() for event in events if event.key.startswith(_REQUESTS)}
        for event in events:
            if event.kv is not None and event.key.startswith(KEYS.audits()):
                self._check_rollback(revision, events, json.loads(event.kv.value))
        command = next((one for one in self._running if not ids.isdisjoint(one.sent.requests)), None)
        if command is None or command.restores != self._world.restores:
            return
        command.revisions.append(revision)
        self._check_planned(command, revision, events)

    def _check_rollback(self, revision: int, events: Iterable[Event], audit: dict[str, Any]) -> None:
        """W7: what somebody restored, who alone knows that it was so, is gone back to by nobody who does not say so."""
        if audit["method"] != "RollbackAdapter" or audit["request_id"] in self._vouched:
            return
        before = self._world.store.at(revision - 1)
        for event in events:
            if event.kv is None or not event.key.startswith(KEYS.adapters(POOL)):
                continue
            name, source = last_part(event.key), _source(json.loads(event.kv.value)["spec"])
            known = [kv.value for key, kv in before.items() if key.startswith(KEYS.history_of(POOL, name_of_key(name)))]
            known += [before[event.key].value] if event.key in before else []
            self._world.told["rollbacks"] += 1
            if source not in {source for value in known for source in _own_sources(json.loads(value))}:
                self._world.checks.violated(f"W7 {name} goes back to {source}, which others restored, at {revision}")

    def _check_planned(self, command: Command, revision: int, events: Iterable[Event]) -> None:
        """W4: nothing is changed that somebody else has changed since the plan was made.

        What others made and deleted again meanwhile is as absent as it was then.
        """
        for event in events:
            if event.key.startswith(_PLANNED) and (other := self._by_others(event.key, command)):
                if not any(event.key in self._world.store.at(at) for at in (command.sent.revision, revision - 1)):
                    continue
                what = f"{event.key.decode()}, planned at {command.sent.revision} and changed by others at {other}"
                self._world.checks.violated(f"W4 a restoration changes {what}")

    def _by_others(self, key: bytes, command: Command) -> int:
        """The revision at which somebody else has changed what was planned; 0: nobody has."""
        for number, events in reversed(self._world.store.history):
            if number <= command.sent.revision:
                break
            if number not in command.revisions and any(event.key == key for event in events):
                return number
        return 0


def _canaries(saved: _State) -> int:
    """How many canaries a backup asks for at most, by their number: of more than there are replicas none is made."""
    specs = [json.loads(value)["spec"] for key, value in saved.items() if key.startswith("adapters/")]
    asked = [one["strategy"]["canary"]["replicas"] for one in specs if one.get("strategy")]
    return max((count for count in asked if isinstance(count, int)), default=0)


def _leaves(dice: random.Random) -> float | None:
    """After how many seconds somebody interrupts a command; None: nobody does."""
    return dice.uniform(0.0, dice.choice((0.02, 0.2, 2.0, 10.0))) if dice.random() < INTERRUPTED else None


def _own_sources(record: dict[str, Any]) -> list[str]:
    """What a generation was made of in this store; nothing if it was restored."""
    stable = [record["rollout"]["stable_spec"]] if record.get("rollout") else []
    return [] if record.get("restored_by") else [_source(spec) for spec in (record["spec"], *stable)]


def _source(spec: dict[str, Any]) -> str:
    return str(spec["source"]["uri"])


def _is_as_saved(saved: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether an adapter is what a backup says; of one on trial, what all but canaries had."""
    if (saved["spec"], saved.get("rollout")) == (now["spec"], now.get("rollout")):
        return True
    others = saved["rollout"]["stable_spec"] if saved.get("rollout") else saved["spec"]
    wanted = {name: (others if name in _OF_FILES else saved["spec"]).get(name) for name in saved["spec"]}
    return wanted == {name: now["spec"].get(name) for name in wanted}


def _answers(world: World, request_id: str, told: Message | CommandFailure) -> list[Answer]:
    """What was answered; nothing where nobody can tell at which revision it was."""
    if isinstance(told, CommandFailure):
        return [Answer(request_id, 0, told.reason)]
    kv = world.store.kvs.get(KEYS.request(request_id))
    revision: int = getattr(told, "revision", 0) or (0 if kv is None else kv.mod_revision)
    return [Answer(request_id, revision)] if revision else []
