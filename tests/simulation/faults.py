"""What goes wrong: each fault begins, lasts, and is healed; when and which is drawn from the seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import count

from registry.model.keys import Keys
from tests.simulation.admins import Admin
from tests.simulation.disk import Kept
from tests.simulation.engines import BASE, HALF, EngineHost
from tests.simulation.history import POOL
from tests.simulation.links import Link, Way
from tests.simulation.loop import State
from tests.simulation.members import Member, Watching
from tests.simulation.world import KEYS, STATE, ReplicaHost, World

Heal = Callable[[], None]
Fault = Callable[[World, random.Random], Heal]
# In so many worlds an engine comes up with another base model.
EXCHANGED = 0.1


def _nothing() -> None:
    return


def _pick(world: World, rng: random.Random) -> ReplicaHost:
    host = rng.choice(world.replicas)
    world.log(f"it befalls {host.name}")
    return host


def kill_sidecar(world: World, rng: random.Random) -> Heal:
    host = _pick(world, rng)
    world.kill(host)
    return lambda: world.start(host)


def lose_disk(world: World, rng: random.Random) -> Heal:
    """A pod comes up again on another node, with nothing that it had."""
    host = _pick(world, rng)
    world.kill(host)
    heal_engine = _restarted(host.engine)
    host.place.store.wipe()
    host.disk.cut({STATE: Kept(0o700, None)})
    world.checks.on_lost_disk(host.name, world.store.revision)

    def heal() -> None:
        heal_engine()
        world.start(host)

    return heal


def pause_sidecar(world: World, rng: random.Random) -> Heal:
    host = _pick(world, rng)
    process = host.process
    if process.state is State.RUNS:
        process.pause()
    return process.resume


def kill_admin(world: World, rng: random.Random) -> Heal:
    world.kill_admin(rng.choice(world.admins))
    return _nothing


def restart_engine(world: World, rng: random.Random) -> Heal:
    return _restarted(_pick(world, rng).engine)


def _restarted(engine: EngineHost) -> Heal:
    if engine.engine is None:
        return _nothing
    engine.kill()
    return engine.start


def hang_load(world: World, rng: random.Random) -> Heal:
    engine = _pick(world, rng).engine
    return engine.order_hang(is_outside=rng.random() < 0.5).set


def freeze_engine(world: World, rng: random.Random) -> Heal:
    """All of it stops, as by SIGSTOP."""
    process = _pick(world, rng).engine.process
    if process.state is State.RUNS:
        process.pause()
    return process.resume


def stall_core(world: World, rng: random.Random) -> Heal:
    """It answers as before, and generates nothing."""
    engine = _pick(world, rng).engine
    return _nothing if engine.engine is None else engine.stall().set


def odd_answers(world: World, rng: random.Random) -> Heal:
    engine = _pick(world, rng).engine
    engine.odd.extend(rng.choices(("lost request", "lost reply", "busy"), k=rng.randint(1, 3)))
    return engine.odd.clear


def refuse_loads(world: World, rng: random.Random) -> Heal:
    """Memory is short: all loads are refused, or a share of them, or those of one name."""
    engine, dice = _pick(world, rng).engine, random.Random(rng.random())
    share, names = rng.choice((0.5, 1.0)), rng.choice((None, world.size.names[:1], world.size.names[1:]))
    engine.refuses = lambda name: (names is None or name in names) and dice.random() < share
    return engine.heal


def break_pages(world: World, rng: random.Random) -> Heal:
    """An odd answer instead of a page."""
    engine = _pick(world, rng).engine
    page = rng.choice(("/v1/models", "/metrics"))
    engine.broken[page] = rng.choice((500, HALF)) if page == "/v1/models" else 500
    return engine.heal


def complete_nothing(world: World, rng: random.Random) -> Heal:
    """The route is hidden, and an answer is lost."""
    engine = _pick(world, rng).engine
    engine.broken["/v1/completions"] = rng.choice((404, 405, 501))
    engine.odd.append("lost reply")
    return engine.heal


def foreign_load(world: World, rng: random.Random) -> Heal:
    engine = _pick(world, rng).engine
    name = rng.choice(("theirs", "other"))
    _send(engine, rng, name, "/somewhere/else")
    return _nothing


def foreign_unload(world: World, rng: random.Random) -> Heal:
    engine = _pick(world, rng).engine
    names = sorted(engine.listing)
    if names:
        _send(engine, rng, rng.choice(names), None)
    return _nothing


def _send(engine: EngineHost, rng: random.Random, name: str, path: str | None) -> None:
    """Somebody else's call; what comes of it is theirs."""
    if engine.engine is None or name in engine.busy:
        return
    work = engine.engine.load(name, path) if path else engine.engine.unload(name)
    task = asyncio.get_running_loop().create_task(work, context=engine.process.context())
    task.add_done_callback(lambda done: _told(engine, done))


def _told(engine: EngineHost, task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
    engine.on_change(engine, "foreign", "", "")


def stop_etcd(world: World, rng: random.Random) -> Heal:
    return _with_links(list(world.links.values()), Way.REFUSED)


def hang_etcd(world: World, rng: random.Random) -> Heal:
    return _with_links(list(world.links.values()), Way.HUNG)


def hang_links(world: World, rng: random.Random) -> Heal:
    client = rng.choice([host.name for host in world.replicas] + [admin.name for admin in world.admins])
    links = world.links_of(client)
    return _with_links(rng.sample(links, rng.randint(1, len(links))), rng.choice((Way.HUNG, Way.REFUSED)))


def _with_links(links: list[Link[Member]], way: Way) -> Heal:
    for link in links:
        link.set_way(way)

    def heal() -> None:
        for link in links:
            link.set_way(Way.OPEN)

    return heal


def bad_links(world: World, rng: random.Random) -> Heal:
    links = rng.sample(list(world.links.values()), rng.randint(1, len(world.links)))
    lose, slow = rng.choice(((0.2, 0.0), (0.0, 1.5), (0.1, 0.3)))
    for link in links:
        link.lose, link.slow_seconds = lose, slow

    def heal() -> None:
        for link in links:
            link.lose = link.slow_seconds = 0.0

    return heal


def cut_links(world: World, rng: random.Random) -> Heal:
    for link in rng.sample(list(world.links.values()), rng.randint(1, len(world.links))):
        link.cut()
    return _nothing


def isolate_member(world: World, rng: random.Random) -> Heal:
    member = rng.choice(world.cluster.members)
    if member.is_isolated:
        return _nothing
    member.isolate()
    return member.rejoin


def lag_member(world: World, rng: random.Random) -> Heal:
    member = rng.choice(world.cluster.members)
    member.lag_seconds = rng.uniform(0.1, 5.0)

    def heal() -> None:
        member.lag_seconds = 0.0

    return heal


def compact(world: World, rng: random.Random) -> Heal:
    store = world.store
    if store.compacted < store.revision:
        store.compact(rng.choice((store.revision, rng.randint(store.compacted + 1, store.revision))))
    return _nothing


def expire_lease(world: World, rng: random.Random) -> Heal:
    short = [number for number, lease in world.store.leases.items() if lease.ttl_seconds < 60]
    if short:
        world.store.revoke(rng.choice(short))
    return _nothing


def fill_store(world: World, rng: random.Random) -> Heal:
    world.store.is_full = True

    def heal() -> None:
        world.store.is_full = False

    return heal


def replace_store(world: World, rng: random.Random) -> Heal:
    """Restored with and without what the manual asks for, or emptied. Once is enough for one simulation."""
    if world.restores:
        return _nothing
    first = min(world.hand_written)
    revision = rng.choice((0, rng.randint(first, world.store.revision), world.store.revision))
    world.replace_store(revision, bump=rng.choice((0, 1000)) if revision else 0)
    return _nothing


def wrong_prefix(world: World, rng: random.Random) -> Heal:
    """A sidecar that knows what it served is started with another prefix."""
    host = _pick(world, rng)
    if not host.has_snapshot or not world.checks.followed[host.name]:
        return _nothing
    world.kill(host)
    world.start(host, Keys("/elsewhere"))

    def heal() -> None:
        world.kill(host)
        world.start(host)

    return heal


def delete_presence(world: World, rng: random.Random) -> Heal:
    """Somebody deletes what a replica says of itself, by hand."""
    key = KEYS.replica(POOL, _pick(world, rng).name)
    if key in world.store.kvs:
        world.store.delete(key)
    return _nothing


def clone_replica(world: World, rng: random.Random) -> Heal:
    """A machine with the same replica id starts."""
    twin = world.rival(_pick(world, rng))
    twin.engine.start()
    world.start(twin)
    return lambda: world.kill(twin)


def jump_clock(world: World, rng: random.Random) -> Heal:
    world.skew_seconds = rng.choice((-3600.0, 3600.0, 0.0))
    return _nothing


def lose_sources(world: World, rng: random.Random) -> Heal:
    store = _pick(world, rng).place.store
    store.is_out = True

    def heal() -> None:
        store.is_out = False

    return heal


FAULTS: tuple[Fault, ...] = (
    kill_sidecar,
    kill_sidecar,
    lose_disk,
    pause_sidecar,
    kill_admin,
    restart_engine,
    restart_engine,
    hang_load,
    hang_load,
    freeze_engine,
    stall_core,
    odd_answers,
    odd_answers,
    refuse_loads,
    break_pages,
    complete_nothing,
    foreign_load,
    foreign_unload,
    stop_etcd,
    hang_etcd,
    hang_links,
    hang_links,
    bad_links,
    cut_links,
    isolate_member,
    lag_member,
    compact,
    compact,
    expire_lease,
    jump_clock,
    lose_sources,
    fill_store,
    replace_store,
    wrong_prefix,
    delete_presence,
    clone_replica,
)
# Without what others do to an engine.
OWN_FAULTS = tuple(fault for fault in FAULTS if fault not in {foreign_load, foreign_unload})


async def rage(world: World, faults: Sequence[Fault], seconds: float) -> None:
    """Begins faults for so long; each is healed in its time, and all that are left at the end."""
    rng = random.Random(f"faults {world.seed}")
    kinds = rng.sample(faults, rng.randint(3, len(faults)))
    pause_seconds = rng.choice((0.5, 2.0, 4.0)) * world.size.pause
    async with asyncio.TaskGroup() as tasks:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        for number in count():
            await asyncio.sleep(rng.uniform(0.0, pause_seconds))
            if loop.time() >= end:
                return
            fault, dice = rng.choice(kinds), random.Random(f"fault {number} {world.seed}")
            if world.plays(f"f{number}", f"fault {fault.__name__}"):
                tasks.create_task(befall(world, fault, dice, end))


async def break_watches(world: World, seconds: float) -> None:
    """In half of all worlds: hurts one watch alone, beside others of the same process that go on.

    It breaks once, is down for a while, or says nothing for a while. What is drawn for it shifts no other draw.
    """
    rng = random.Random(f"watches {world.seed}")
    if rng.random() < 0.5:
        return
    async with asyncio.TaskGroup() as tasks:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        for number in count():
            await asyncio.sleep(rng.uniform(0.0, 4.0) * world.size.pause)
            if loop.time() >= end:
                return
            dice = random.Random(f"watch {number} {world.seed}")
            how, until = dice.choice(("break", "down", "mute")), min(end, loop.time() + dice.choice((0.5, 8.0, 20.0)))
            if (watches := _watches(world)) and world.plays(f"w{number}", f"fault {how} a watch"):
                watch = dice.choice(watches)
                world.log(f"it is that of {watch.whose}")
                if how == "mute":
                    loop.call_at(until, watch.mute())
                else:
                    tasks.create_task(_keep_down(world, watch.whose, until if how == "down" else loop.time()))


async def renew_admins(world: World, seconds: float) -> None:
    """In half of all worlds: has one admin service after another end by a signal, as an update does."""
    rng = random.Random(f"updates {world.seed}")
    if rng.random() < 0.5:
        return
    end = asyncio.get_running_loop().time() + seconds
    numbers = count()
    while asyncio.get_running_loop().time() < end:
        for admin in world.admins:
            await asyncio.sleep(rng.uniform(0.0, 12.0) * world.size.pause)
            if world.plays(f"u{next(numbers)}", f"fault update {admin.name}"):
                admin.stop()


async def trouble_callers(world: World, seconds: float) -> None:
    """In half of all worlds: hurts the ways from callers to admin services."""
    rng = random.Random(f"callers {world.seed}")
    if rng.random() < 0.5:
        return
    end = asyncio.get_running_loop().time() + seconds
    for number in count():
        if (left := end - asyncio.get_running_loop().time()) <= 0:
            return
        await asyncio.sleep(rng.uniform(0.0, 4.0) * world.size.pause)
        ways, lasts = [way for _, way in sorted(world.ways.items())], min(left, rng.choice((0.5, 8.0)))
        dice = random.Random(f"caller {number} {world.seed}")
        if not ways:
            continue
        way, how = dice.choice(ways), dice.choice(("cut", "hang", "refuse", "lose"))
        if world.plays(f"c{number}", f"fault {how} the way {way.name}"):
            _hurt(way, how, dice)
        await asyncio.sleep(lasts)
        way.lose = way.slow_seconds = 0.0
        way.set_way(Way.OPEN)


def exchanges_base(world: World) -> bool:
    """Whether that is played in a world."""
    return random.Random(f"other bases of others {world.seed}").random() < EXCHANGED


async def exchange_base(world: World, seconds: float) -> None:
    """An engine comes up with another base model than that of its pool, until somebody mends it."""
    rng = random.Random(f"when other bases of others {world.seed}")
    await asyncio.sleep(rng.uniform(0.0, seconds / 2))
    engine = rng.choice(world.replicas).engine
    if not world.plays("base", f"fault exchange the base model of {engine.replica}"):
        return
    for base, lasts in (("another", rng.uniform(seconds / 4, seconds / 2)), (BASE, 0.0)):
        engine.base = base
        if engine.engine is not None:
            engine.kill()
        engine.start()
        await asyncio.sleep(lasts)


def _hurt(way: Link[Admin], how: str, rng: random.Random) -> None:
    if how == "cut":
        way.cut()
    elif how == "lose":
        way.lose, way.slow_seconds = rng.choice(((0.2, 0.0), (0.0, 1.5)))
    else:
        way.set_way(Way.HUNG if how == "hang" else Way.REFUSED)


def _watches(world: World) -> list[Watching]:
    return [watch for member in world.cluster.members for watch in member.watches]


async def _keep_down(world: World, whose: tuple[str, bytes], until: float) -> None:
    """Breaks the watches of one process on the same keys, each as soon as it stands."""
    while True:
        for watch in _watches(world):
            if watch.whose == whose:
                watch.tear()
        if asyncio.get_running_loop().time() >= until:
            return
        await asyncio.sleep(0.05)


async def befall(world: World, fault: Fault, rng: random.Random, end: float) -> None:
    """Lets a fault happen, last, and be healed, before the end at the latest."""
    heal = fault(world, rng)
    lasts = rng.choice((0.05, 1.0, 5.0, 15.0)) * rng.uniform(0.5, 1.5)
    left = end - asyncio.get_running_loop().time()
    await asyncio.sleep(max(0.0, min(lasts, left)))
    heal()
    world.log(f"healed {fault.__name__}")
