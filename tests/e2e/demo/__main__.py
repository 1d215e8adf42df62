"""The main job on real parts: ``python -m tests.e2e.demo``.

Each step does something, waits for what must follow, and checks it. It exits 0 only if every step held.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from registry.tools.devstack.processes import free_ports
from registry.tools.devstack.stack import Stack
from registry.tools.devstack.stack_file import EngineKind, StackError
from registry.tools.devstack.stack_parts import BASE_MODEL
from registry.tools.devstack.stack_verbs import ADAPTERS, DEFAULT_REPLICAS, down, set_up, start
from tests.e2e.demo.answers import BASE, PROMPTS, AnswerRefused, Stream, Version, ask, indistinct, traffic
from tests.e2e.demo.world import StepFailed, World, await_, find_reference, manifests, require, text_of

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
        world.run("set", "sql", "--source", world.adapter("sql-v2"), "--wait")
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
    return isinstance(answer, AnswerRefused) and answer.status == 404


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


def play(engine: EngineKind, replicas: int) -> None:
    """Plays the main job on a local stack, checks every step, and cleans up."""
    signal.signal(signal.SIGTERM, _interrupt)
    root = Path(tempfile.mkdtemp(prefix="loraplane-demo-"))
    began = time.monotonic()
    failed = False
    try:
        _play(root, engine, replicas)
    except (StepFailed, StackError) as error:
        failed = True
        _say(f"FAILED: {error}")
    finally:
        _clean_up(root, keep_logs=failed)
    if failed:
        sys.exit(1)
    _say(f"All {len(STEPS)} steps held, in {time.monotonic() - began:.0f} s.")


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _clean_up(root: Path, *, keep_logs: bool) -> None:
    down(root, _say)
    if keep_logs:
        _say(f"the logs are in {root / 'logs'}")
    else:
        shutil.rmtree(root)


def _play(root: Path, engine: EngineKind, replicas: int) -> None:
    world = _prepare(set_up(root, replicas, engine))
    for number, (title, step) in enumerate(STEPS, start=1):
        _say(f"\n{number}. {title}")
        step(world)
    _say("")


def _prepare(stack: Stack) -> World:
    """Starts the stack, and finds out beside it what the right answers are."""
    _say(f"0. A real etcd, the admin service, {len(stack.layout.replicas)} {stack.layout.engine} engines with sidecars")
    adapters = {name: stack.folder.adapters / name for name in ADAPTERS}
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=1) as beside:
        finding = beside.submit(find_reference, stack, adapters, free_ports(1)[0])
        start(stack, _indented)
        reference = finding.result()
    alike = indistinct(reference)
    require(not alike, f"these answer alike, so nothing could be told apart: {alike}")
    _indented(
        f"ready after {time.monotonic() - began:.0f} s; right answers are known of the base, {', '.join(adapters)}"
    )
    return World(stack, reference, _say)


def _indented(line: str) -> None:
    _say(f"   {line}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Entry point of ``python -m tests.e2e.demo``."""
    parser = argparse.ArgumentParser(prog="make demo", description="Play the main job, check every step, clean up.")
    parser.add_argument("--engine", choices=[*EngineKind], default=EngineKind.VLLM, help="sim: without vLLM")
    parser.add_argument("--replicas", type=int, choices=range(2, 9), default=DEFAULT_REPLICAS, help="how many")
    asked = parser.parse_args()
    play(EngineKind(asked.engine), asked.replicas)


if __name__ == "__main__":
    main()
