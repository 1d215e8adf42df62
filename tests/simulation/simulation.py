"""One whole simulation: a seed in, a trace out, and an error that says how to replay it if anything is wrong."""

from __future__ import annotations

import asyncio
import gc
import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import structlog

from registry.client.channel import open_channel
from registry.etcd3.tls import Pem
from sidecar.desired.mailbox import Mailbox, Snapshot
from tests.simulation.answers import Answers, are_proven
from tests.simulation.checks import OVERSIGHT_SECONDS
from tests.simulation.command_line import at_the_terminal
from tests.simulation.cut import ALL, ORDER, Cut
from tests.simulation.disk import plugged_in
from tests.simulation.engine_http import http_for
from tests.simulation.evidence import Evidence
from tests.simulation.faults import (
    FAULTS,
    OWN_FAULTS,
    Fault,
    break_watches,
    exchange_base,
    exchanges_base,
    rage,
    renew_admins,
    trouble_callers,
)
from tests.simulation.goal import check_listed, come_back, converge, let_go, stay, warm_up
from tests.simulation.lazy import ask_for_lazy
from tests.simulation.loop import Deadlock, Livelock, State, VirtualLoop, current_process_name, process_of
from tests.simulation.news import News
from tests.simulation.operator import Operator
from tests.simulation.places import Places
from tests.simulation.plugin import playing
from tests.simulation.power import cut_power
from tests.simulation.programs import Programs
from tests.simulation.readers import Readers
from tests.simulation.replay import Logs
from tests.simulation.restores import Restores
from tests.simulation.rounds import Rounds
from tests.simulation.size import WHOLE, Size, size_of
from tests.simulation.statuses import Statuses
from tests.simulation.tables import Tables
from tests.simulation.traffic import send
from tests.simulation.world import World
from tests.simulation.writes import Denials, check_writes
from tests.support.memory_folder import memory_folder

# So short that what an engine was told of is let go of soon; the engine's own word keeps it for longer.
HOLD_SECONDS = 15.0


class SimulationFailed(AssertionError):
    """A guarantee did not hold; `parts`: the events that were played."""

    def __init__(self, seed: int, cut: Cut, world: World, *, has_nets: bool) -> None:
        self.seed, self.cut, self.has_nets = seed, cut, has_nets
        self.violations, self.trace, self.parts = world.checks.violations, world.trace, world.parts.played
        self.seconds = world.seconds
        tail, found = "\n".join(self.trace[-60:]), "\n".join(self.violations[:10])
        super().__init__(f"seed {seed}; replay with: {self.command}\n{tail}\n\n{found}")

    @property
    def command(self) -> str:
        """What plays it again."""
        return f"make sim SEED={self.seed}{'' if self.has_nets else ' NETS=no'}{self.cut.arguments()}"


@dataclass(frozen=True)
class Outcome:
    """What a simulation that went well leaves; `compared`: how much was held against something, by what."""

    trace: list[str]
    digest: str
    converged_after_seconds: float
    compared: Counter[str]


def simulate(seed: int, *, has_nets: bool = True, cut: Cut = ALL, until: str = "") -> Outcome:
    """Plays one seed, or what a cut leaves of it; `until`: no further than a violation of that guarantee.

    Without `has_nets` nothing is looked at merely because time has passed, and nobody else drives the engines, which
    only such a look would find: what is then repaired was noticed by itself.

    Raises:
        SimulationFailed: with what was violated, the end of the trace, and the command that replays it.
    """
    order = random.Random(f"order {seed}") if cut.has(ORDER) else None
    with memory_folder() as root, _loop(order) as loop:
        world = loop.run_until_complete(_made(seed, Path(root), cut, size_of(seed)))
        loop.thread_seconds = world.thread_seconds
        loop.set_exception_handler(partial(_let_out, world))
        logs = Logs()
        with (
            _patched(world, logs),
            at_the_terminal(world.log, world.new_id),
            nullcontext() if has_nets else _without_nets(),
        ):
            converged = _played(loop, world, _play(world, logs, FAULTS if has_nets else OWN_FAULTS), until)
    if world.checks.violations:
        raise SimulationFailed(seed, cut, world, has_nets=has_nets)
    return Outcome(world.trace, world.digest, converged, logs.compared + world.told)


def play_by_hand(seed: int, work: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Does something in the world of a seed, in which nothing is started yet, and all that is ready runs in order."""
    with memory_folder() as root, _loop() as loop:
        world = loop.run_until_complete(_made(seed, Path(root), replace(ALL, only=frozenset()), WHOLE))
        with _patched(world, Logs()):
            loop.run_until_complete(_ended(world, work))


async def _ended(world: World, work: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    try:
        await work(world)
    finally:
        await world.bury()


def _let_out(world: World, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """X2: nothing that a loop calls may raise; what tasks were ended by nobody wanted to know."""
    if "handle" in context:
        process = process_of(context["handle"])
        world.checks.violated(f"X2 a callback of {process.name} let {context.get('exception')!r} out")


def _played(loop: VirtualLoop, world: World, work: Coroutine[Any, Any, float], until: str) -> float:
    task = loop.create_task(work)
    if until:
        world.checks.on_violation = lambda text: None if not text.startswith(f"{until} ") else _end(task)
    converged = 0.0
    try:
        converged = loop.run_until_complete(task)
    except asyncio.CancelledError:
        loop.run_until_complete(world.bury())
    except (Deadlock, Livelock) as error:
        world.checks.violations.append(f"R3 {type(error).__name__}: {error}")
    return converged


def _end(task: asyncio.Task[float]) -> None:
    task.cancel()


async def _made(seed: int, folder: Path, cut: Cut, size: Size) -> World:
    return World(seed, folder, cut, size)


@contextmanager
def _loop(rng: random.Random | None = None) -> Iterator[VirtualLoop]:
    """A loop in which no garbage is collected: that would close generators of dead processes at a chance moment.

    Nor is any of a world before: what that still has to say would stand in this one's trace.
    """
    gc.collect()
    loop = VirtualLoop(rng)
    gc.disable()
    try:
        yield loop
    finally:
        loop.close()
        gc.enable()


@contextmanager
def _patched(world: World, logs: Logs) -> Iterator[None]:
    """Puts the world in place of sockets, and its trace in place of the log."""

    def note(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        name = event.pop("event")
        world.log(f"{name} {event}")
        logs.note(name, event)
        world.checks.on_log(current_process_name(), name)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    try:
        with (
            mock.patch("grpc.aio.insecure_channel", world.open_plain),
            mock.patch("grpc.aio.secure_channel", world.open_secure),
            mock.patch("grpc.ssl_channel_credentials", Pem),
            mock.patch("registry.client.transport._open", open_channel),  # on the world's own loop
            mock.patch("registry.client.transport.found_trouble", _no_trouble),  # of TCP, which the world does not play
            world.rotation.played(),
            mock.patch("registry.client.transport.random", random.Random(f"sdk {world.seed}")),
            mock.patch("registry.client.transport.time", SimpleNamespace(monotonic=world.monotonic)),
            world.services.noted(),
            mock.patch(
                "sidecar.engines.vllm.driver.VllmHttp",
                http_for(world.engines, world.checks.on_call, world.checks.on_twice),
            ),
            mock.patch.object(Mailbox, "post", _told(Mailbox.post, world)),
            mock.patch("sidecar.resolver.demand.HOLD_SECONDS", HOLD_SECONDS),
            playing(world.engines.values),
            plugged_in(world.disks),
        ):
            yield
    finally:
        structlog.configure(**before)


def _told(post: Callable[[Mailbox, Snapshot], None], world: World) -> Callable[[Mailbox, Snapshot], None]:
    """Has each piece of news told of that a sidecar's watchers post."""

    def posted(mailbox: Mailbox, snapshot: Snapshot) -> None:
        world.on_news(snapshot)
        post(mailbox, snapshot)

    return posted


@contextmanager
def _without_nets() -> Iterator[None]:
    with (
        mock.patch("sidecar.loop.reconciler.RESYNC_SECONDS", math.inf),
        mock.patch("sidecar.loop.observer.RESYNC_SECONDS", math.inf),
        mock.patch("sidecar.desired.watcher.COMPARE_SECONDS", math.inf),
        mock.patch("sidecar.app.watch_changes", _watch_nothing),
    ):
        yield


async def _no_trouble(*_: object) -> None:
    """Nothing is wrong with TLS."""


async def _watch_nothing(*_: object) -> None:
    await asyncio.get_running_loop().create_future()


async def _play(world: World, logs: Logs, faults: Sequence[Fault]) -> float:
    loop = asyncio.get_running_loop()
    places, evidence = Places(world), Evidence(world)
    readers, rounds, tables = Readers(world, places), Rounds(world), Tables(world)
    world.on_news, world.checks.on_round = rounds.on_news, rounds.on_round
    denials = Denials(world)
    world.store.on_commit += [places.on_commit, readers.on_commit, Statuses(world, rounds).on_commit, denials.on_commit]
    world.noted_call = denials.noted
    world.checks.on_sent, world.checks.on_removed = evidence.on_call, evidence.r7_asked_after
    world.checks.on_given, world.checks.on_wrong = evidence.r21_proven_here, evidence.r8_read_anew
    world.services.on_post, world.on_power_cut = places.on_post, logs.forget
    around = [loop.create_task(work) for work in (_oversee(world, readers, rounds), tables.oversee())]
    for admin in world.admins:
        admin.start()
    operator = Operator(world)
    await operator.prepare()
    restores = Restores(world, operator)
    remade: set[asyncio.Task[None]] = set()

    def make_anew() -> None:
        operator.dry_runs.on_restore()
        remade.add(loop.create_task(operator.prepare()))

    world.on_restore = make_anew
    readers.start()
    _start_replicas(world, tables)
    seconds = world.seconds
    news = News(world, operator, faults, seconds)
    world.checks.on_work = news.on_work
    works = (
        operator.work(seconds),
        rage(world, faults, seconds),
        break_watches(world, seconds),
        cut_power(world, seconds),
        send(world, seconds),
        Programs(world).work(seconds),
        restores.work(seconds),
        renew_admins(world, seconds),
        trouble_callers(world, seconds),
        # In few worlds; a task more would be another order of all others.
        *([operator.name_as_base(seconds)] if operator.names_as_base else []),
        *([exchange_base(world, seconds)] if exchanges_base(world) else []),
        world.rotation.work(seconds if world.has_tls else 0.0, world.plays),
    )
    async with asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(work)
    await news.settled()
    _heal(world)
    readers.calm()
    world.log("healed everything")
    healed_at = loop.time()
    await asyncio.gather(*remade)
    await _made_good(operator, restores)
    await converge(world, operator.confirm)
    converged = loop.time() - healed_at
    await stay(world, readers.need(world.size.stay_seconds))
    await _calm(world, operator)
    check_writes(world)
    logs.check(world)
    for one in around:
        one.cancel()
    await come_back(world)
    logs.compared.update(
        {
            "places of readers": places.told,
            "readers": readers.compared,
            "calls": world.services.calls,
            **{f"dry runs {how}": count for how, count in operator.dry_runs.compared.items()},
        }
    )
    await world.bury()
    return converged


async def _calm(world: World, operator: Operator) -> None:
    """What is asked of a world that has converged, and stayed so."""
    check_listed(world)
    await are_proven(world)
    await let_go(world)
    await ask_for_lazy(world, operator)
    await warm_up(world)


def _start_replicas(world: World, tables: Tables) -> None:
    answers = Answers(world)
    for replica in world.replicas:
        replica.engine.on_reply = tables.r13_takes_nothing
        replica.engine.on_answer = answers.r26_answered_by
        replica.engine.start()
        world.start(replica)


async def _made_good(operator: Operator, restores: Restores) -> None:
    """What people do once all has healed."""
    await operator.undrain()
    await operator.repair()
    await restores.finish()


async def _oversee(world: World, readers: Readers, rounds: Rounds) -> None:
    """R18, R23: what a sidecar says of an engine that does not run, or is of no use; and all else that is looked at."""
    while True:
        await asyncio.sleep(OVERSIGHT_SECONDS)
        _expire(world)
        readers.check_equal()
        rounds.look()
        for replica in world.replicas:
            engine, sidecar = replica.engine, replica.process
            world.told["R23"] += engine.has_other_base
            runs = sidecar.state is State.RUNS and sidecar
            world.checks.on_engine_state(
                replica.name,
                runs or None,
                (engine.process.name, engine.process.resumed),
                is_away=engine.process.state is not State.RUNS,
                is_stalled=engine.is_stalled,
                is_other=engine.has_other_base,
            )


async def expire_leases(world: World) -> None:
    """Has leases end that nobody keeps alive."""
    while True:
        await asyncio.sleep(OVERSIGHT_SECONDS)
        _expire(world)


def _expire(world: World) -> None:
    if world.cluster.has_quorum():
        world.store.expire(world.monotonic())


def _heal(world: World) -> None:
    for pace in world.paces:
        pace.heal()
    for rival in world.rivals:
        world.kill(rival)
        rival.engine.kill()
    for replica in world.replicas:
        replica.process.resume()
        replica.engine.release()
        replica.engine.start()
        world.start(replica)
