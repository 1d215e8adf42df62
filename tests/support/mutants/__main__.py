"""``make mutants``: shows for each deliberate bug which layer of the tests and which test catches it."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import NoReturn

from tests.support.mutants.copies import copy_of_checkout, copy_of_tree
from tests.support.mutants.layers import CHEAP, Verdict, cheap_layers, end_all, named_layers, run_layer, run_twice
from tests.support.mutants.patches import Mutant, PatchMalformed, read_mutants

# One each per core of a small machine.
AT_ONCE = 2


def hunt(mutant: Mutant, original: Path) -> tuple[str, Verdict]:
    """Runs layer after layer with a bug in a copy of `original`, until one fails. Returns it and its verdict.

    Raises:
        PatchMalformed: the bug does not fit the code any more.
    """
    name, verdict = "", Verdict()
    with copy_of_tree(original) as tree:
        mutant.apply(tree)
        for layer in [*cheap_layers(tree, mutant.touches), *named_layers(mutant.tests)]:
            name, verdict = layer.name, run_twice(layer, tree)
            if verdict != Verdict():
                break
    return name, verdict


def is_sound(mutants: Sequence[Mutant], original: Path) -> bool:
    """Whether all that will be run passes without a bug: otherwise nothing could be said of the bugs."""
    named = named_layers(dict.fromkeys(chain.from_iterable(mutant.tests for mutant in mutants)))
    layers = [*CHEAP, *sorted(named, key=lambda layer: layer.arguments)]
    started = perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as workers:
        verdicts = list(workers.map(lambda layer: run_layer(layer, original), layers))
    for layer, verdict in zip(layers, verdicts, strict=True):
        if verdict != Verdict():
            _say(f"baseline: {layer.name} fails without any bug, mend that first: {verdict.failed or verdict.broken}")
    _say(f"baseline: {verdicts.count(Verdict())} of {len(layers)} runs pass ({perf_counter() - started:.0f} s)")
    return verdicts.count(Verdict()) == len(layers)


def is_caught(mutant: Mutant, original: Path) -> bool:
    """Whether a test fails with the bug; prints which."""
    started = perf_counter()
    try:
        layer, verdict = hunt(mutant, original)
    except PatchMalformed as error:
        _say(f"BROKEN    {error}")
        return False
    seconds = f"({perf_counter() - started:.0f} s)"
    if verdict.broken:
        _say(f"BROKEN    {mutant.name}: {verdict.broken}")
    elif verdict.failed:
        _say(f"caught    {mutant.name} by {layer}: {verdict.failed} {seconds}")
    else:
        _say(f"SURVIVED  {mutant.name}: {mutant.breaks} {seconds}")
    return verdict.failed is not None


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--only", help="names of mutants, with commas between them")
    parser.add_argument("--no-baseline", action="store_true", help="trust the tests to pass as they are")
    asked = parser.parse_args()
    # Also because a shell starts what runs in its background deaf to interrupts, which tests send to their children.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    try:
        mutants = read_mutants()
    except PatchMalformed as error:
        sys.exit(f"{error}")
    names = asked.only.split(",") if asked.only else [mutant.name for mutant in mutants]
    chosen = [mutant for mutant in mutants if mutant.name in names]
    if unknown := set(names) - {mutant.name for mutant in chosen}:
        sys.exit(f"there is no mutant {', '.join(sorted(unknown))}")
    with copy_of_checkout() as original, ThreadPoolExecutor(AT_ONCE) as workers:
        if not asked.no_baseline and not is_sound(chosen, original):
            sys.exit(1)
        caught = sum(workers.map(lambda mutant: is_caught(mutant, original), chosen))
    _say(f"caught {caught} of {len(chosen)}")
    sys.exit(0 if caught == len(chosen) else 1)


def _interrupted(_number: int, _frame: object) -> NoReturn:
    end_all()
    raise KeyboardInterrupt


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
