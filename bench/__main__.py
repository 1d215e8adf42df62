"""`python -m bench [--only NAME]`: prints a line for each figure as it comes, and all of them in the last line."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.admin_rate import admin_16
from bench.boot import boot_20000
from bench.check import check_200mb, check_in_child
from bench.cli_scale import apply_1000, get_adapters_5000
from bench.cli_start import cli_start
from bench.decision import decision, token_es256
from bench.fetch import fetch_200mb
from bench.figures import Figure, NotMeasured
from bench.fill import fill_200
from bench.herd import herd
from bench.hostile import hostile_50
from bench.idle import idle_20000
from bench.lazy import lazy
from bench.listing import listing_2000
from bench.one_change import one_change_20000_vs_100
from bench.picker import picker
from bench.propagation import propagation_fresh_2, propagation_staged_2, propagation_staged_50
from bench.publish import publish
from bench.residency import residency_100000
from bench.secured import secured_propagation, secured_writes
from bench.small import small_1000, small_1000_10ms
from bench.store import store_1000, store_first_sight, store_present
from bench.swap import swap
from registry.tools.devstack.engine_environment import EngineNotFound

Measurement = Callable[[Path], Awaitable[list[Figure]]]
MEASUREMENTS: tuple[Measurement, ...] = (
    propagation_staged_2,
    propagation_fresh_2,
    propagation_staged_50,
    boot_20000,
    one_change_20000_vs_100,
    idle_20000,
    admin_16,
    residency_100000,
    hostile_50,
    fill_200,
    fetch_200mb,
    check_200mb,
    check_in_child,
    store_present,
    store_1000,
    store_first_sight,
    small_1000,
    small_1000_10ms,
    herd,
    swap,
    publish,
    lazy,
    listing_2000,
    cli_start,
    get_adapters_5000,
    apply_1000,
    picker,
    decision,
    token_es256,
    secured_writes,
    secured_propagation,
)
MAX_SECONDS = 600.0


async def _measure(measurement: Measurement) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with asyncio.timeout(MAX_SECONDS):
            return await measurement(Path(folder))


def _run(names: list[str], runner: asyncio.Runner) -> int:
    """In one event loop: what gRPC has yet to say to the loop of an earlier measurement, it says as an error."""
    figures, missing, left_out = list[Figure](), list[str](), list[str]()
    for measurement in MEASUREMENTS:
        name = measurement.__name__
        if name not in names:
            continue
        try:
            new = runner.run(_measure(measurement))
        except EngineNotFound as lacking:
            print(f"{name}: left out: {lacking}", file=sys.stderr, flush=True)
            left_out.append(name)
        except (NotMeasured, AssertionError, TimeoutError) as error:
            print(f"{name}: not measured: {str(error) or type(error).__name__}", file=sys.stderr, flush=True)
            missing.append(name)
        else:
            figures += new
            print(*(figure.line() for figure in new), sep="\n", flush=True)
    told = [f"{figure.name} {figure.ratio:.2f}" for figure in figures] + [f"{name} not measured" for name in missing]
    print("bench: " + ", ".join([*told, *(f"{name} left out" for name in left_out)]))
    return 1 if missing else 0


def main() -> int:
    """Returns 0 if all was measured that was asked for and can be here, whatever came out."""
    known = [measurement.__name__ for measurement in MEASUREMENTS]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", help=f"measure just this; repeatable; one of {', '.join(known)}")
    asked = [_name(one, known, parser) for one in parser.parse_args().only or known]
    with asyncio.Runner() as runner:
        return _run(asked, runner)


def _name(asked: str, known: list[str], parser: argparse.ArgumentParser) -> str:
    """A measurement by its name, or by the beginning of it that no other has: check for check_200mb."""
    found = [asked] if asked in known else [one for one in known if one.startswith(f"{asked}_")]
    if len(found) != 1:
        parser.error(f"--only {asked}: name one of {', '.join(known)}")
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
