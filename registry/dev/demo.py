"""The main job, played on real parts: ``python -m registry.dev.demo``. Exits 0 only if every step held."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from registry.dev.demo_answers import indistinct
from registry.dev.demo_reference import find_reference
from registry.dev.demo_steps import STEPS
from registry.dev.demo_world import StepFailed, World, require
from registry.dev.ports import free_ports
from registry.dev.stack import Stack, StackError
from registry.dev.stack_file import EngineKind
from registry.dev.stack_verbs import ADAPTERS, DEFAULT_REPLICAS, down, set_up, start


def demo(
    *,
    engine: Annotated[EngineKind, typer.Option("--engine", help="sim: without vLLM.")] = EngineKind.VLLM,
    replicas: Annotated[int, typer.Option("--replicas", min=2, max=8, help="How many.")] = DEFAULT_REPLICAS,
) -> None:
    """Play the main job on a local stack, check every step, and clean up."""
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
    """Entry point of ``python -m registry.dev.demo``."""
    typer.run(demo)


if __name__ == "__main__":
    main()
