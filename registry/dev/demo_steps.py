"""The steps of the demonstration. Each does something, waits for what must follow, and checks it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from registry.dev.demo_answers import BASE, PROMPTS, Refused, ask
from registry.dev.demo_traffic import Stream, Version, traffic
from registry.dev.demo_world import World, await_, manifests, require, text_of
from registry.dev.stack_parts import BASE_MODEL

Step = tuple[str, Callable[[World], None]]
_FIRST = ("sql", "legal", "support")
_ANSWERS_OF_EACH = 5


def apply_three(world: World) -> None:
    file = world.stack.folder.root / "adapters.yaml"
    file.write_text(manifests(world, {name: name for name in _FIRST}))
    world.run("apply", "-f", str(file), "--wait")
    world.served = {name: name for name in _FIRST}
    world.check_answers()
    for name, like in {BASE_MODEL: BASE, **world.served}.items():
        world.say(f'   {name} continues "{PROMPTS[0]}" with "{text_of(world.reference[like][PROMPTS[0]])}"')
    world.run("get", "replicas")


def swap(world: World) -> None:
    old, new = (world.reference[like][PROMPTS[0]] for like in ("sql", "sql-v2"))
    urls = [world.engine(replica) for replica in world.replicas]
    with traffic(urls, "sql", PROMPTS[0], old, new) as streams:
        await_(lambda: _each(streams, Version.OLD), "answers of the old generation")
        world.run("add", "sql", "--source", world.adapter("sql-v2"), "--wait")
        await_(lambda: _each(streams, Version.NEW), "answers of the new generation")
    world.served["sql"] = "sql-v2"
    for replica, stream in zip(world.replicas, streams, strict=True):
        _check_stream(world, replica, stream)
    world.check_answers()


def _each(streams: Sequence[Stream], version: Version) -> bool:
    return all(stream.count(version) >= _ANSWERS_OF_EACH for stream in streams)


def _check_stream(world: World, replica: str, stream: Stream) -> None:
    counts = ", ".join(f"{stream.count(version)} {version}" for version in Version)
    world.say(f"   {replica} during the swap: {counts}" + (f" ({stream.strange[0]})" if stream.strange else ""))
    require(stream.count(Version.NEITHER) == 0, f"{replica} gave an answer of neither generation: {stream.strange}")
    require(not stream.went_back(), f"{replica} gave an old answer after a new one: {stream.seen}")
    missing = all("status=404" in one for one in stream.strange)
    require(missing, f"{replica} failed otherwise than by not knowing the name for a moment: {stream.strange}")


def delete_one(world: World) -> None:
    world.run("delete", "adapter", "legal")
    del world.served["legal"]
    for replica in world.replicas:
        await_(lambda replica=replica: _is_missing(world, replica, "legal"), f"{replica} answers 404 for legal")  # type: ignore[misc]
    world.say(f"   {', '.join(world.replicas)} answer 404 for legal")
    world.check_answers()


def _is_missing(world: World, replica: str, name: str) -> bool:
    answer = ask(world.http, world.engine(replica), name, PROMPTS[0])
    return isinstance(answer, Refused) and answer.status == 404


def kill_engine(world: World) -> None:
    replica, *others = world.replicas
    world.stack.kill(f"engine-{replica}")
    world.say(f"   kill -9 to the engine of {replica}")
    await_(lambda: world.readiness(replica) == 503, f"the sidecar of {replica} says that it is not ready")
    world.say(f"   its sidecar answers /readyz with 503: {world.status(replica)['note'] or 'no note'}")
    if others:
        world.check_answers(others)
    _restart_engine(world, replica)
    world.check_answers([replica])


def _restart_engine(world: World, replica: str) -> None:
    """Starts an engine, and waits until its sidecar has loaded everything again."""
    name = f"engine-{replica}"
    started = time.monotonic()
    world.stack.start(name)
    world.stack.wait_ready([name])
    healthy = time.monotonic()
    await_(lambda: world.lists_all(replica), f"{replica} lists {sorted(world.served)}")
    world.say(
        f"   engine of {replica} started, healthy after {healthy - started:.1f} s; "
        f"all {len(world.served)} adapters were back {time.monotonic() - healthy:.1f} s later"
    )
    await_(lambda: world.readiness(replica) == 200, f"the sidecar of {replica} says that it is ready")


def kill_sidecar(world: World) -> None:
    replica = world.replicas[-1]
    world.stack.kill(f"sidecar-{replica}")
    world.say(f"   kill -9 to the sidecar of {replica}; its engine goes on:")
    world.check_answers([replica])
    world.run("add", "legal-2", "--source", world.adapter("legal"))
    world.stack.start(f"sidecar-{replica}")
    world.stack.wait_ready([f"sidecar-{replica}"])
    world.served["legal-2"] = "legal"
    _await_all(world)
    world.say("   sidecar started again; what was added meanwhile is served everywhere")
    world.check_answers()


def _await_all(world: World) -> None:
    for replica in world.replicas:
        await_(lambda replica=replica: world.lists_all(replica), f"{replica} lists {sorted(world.served)}")  # type: ignore[misc]


def outage(world: World) -> None:
    replica = world.replicas[0]
    # What an engine lists, its sidecar may be about to say.
    await_(lambda: world.status(replica)["served"]["count"] == len(world.served), f"{replica} says what it serves")
    before = world.status(replica)["observed_revision"]
    world.stack.stop(["etcd"])
    world.say("   etcd stopped")
    for part in (f"engine-{replica}", f"sidecar-{replica}"):
        world.stack.kill(part)
    world.say(f"   kill -9 to the engine and the sidecar of {replica}")
    world.stack.start(f"sidecar-{replica}")
    _restart_engine(world, replica)
    status = world.status(replica)
    require(status["stale"] is True, f"{replica} does not say that it cannot see etcd: {status}")
    require(status["observed_revision"] == before, f"{replica} is at {status['observed_revision']}, was at {before}")
    world.say(f"   {replica} came back from its snapshot at revision {before}, and says that it is stale")
    world.check_answers()


def etcd_back(world: World) -> None:
    arguments = ("add", "sql-old", "--source", world.adapter("sql"), "--wait", "--timeout", "120")
    with world.running(*arguments) as waiting:
        await_(lambda: world.run_fails("get", "pools", "--timeout", "1"), "the admin service says that etcd is away")
        require(waiting.poll() is None, "the change did not wait for etcd")
        world.stack.start("etcd")
        world.say("   etcd started again")
        told, complaint = waiting.communicate(timeout=150)
    require(waiting.returncode == 0, f"the change ended with {waiting.returncode}: {complaint}")
    for line in told.splitlines():
        world.say(f"     {line}")
    world.served["sql-old"] = "sql"
    _await_all(world)
    world.check_answers()
    for replica in world.replicas:
        await_(lambda replica=replica: world.status(replica)["stale"] is False, f"{replica} is not stale any more")  # type: ignore[misc]
    world.run("get", "replicas")


STEPS: Sequence[Step] = (
    ("Three adapters in one transaction: every replica answers each as the reference does", apply_three),
    ("A new generation is swapped in under traffic: every answer is the old or the new one, never mixed", swap),
    ("One adapter is deleted: 404 for it, never the base's answer; the others stay", delete_one),
    ("An engine is killed and started again: its adapters come back", kill_engine),
    ("A sidecar is killed and started again: nothing stops meanwhile, nothing is missed", kill_sidecar),
    ("etcd is stopped, an engine and its sidecar restart: adapters come back from the snapshot", outage),
    ("etcd is back: a change that was made meanwhile arrives", etcd_back),
)
