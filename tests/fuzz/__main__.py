"""Command line of the fuzzer: ``make fuzz SECONDS=n [TARGET=name,name]``.

Each target is played in a process of its own, so that one which ends is a finding and not the end of the search. What
it played last stands in a file.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.fuzzer import Bounds, Finding, Guide, Search, as_line, case_of, keep, kept, name_of, search
from tests.fuzz.mutation import Case
from tests.fuzz.targets import TARGETS

# For the start of what is played on, and for the last case.
SLACK_SECONDS = 180
MAX_MEMORY_BYTES = 8 << 30
MAX_CASE_CHARACTERS = 1500
MOST_KEPT = 25


def main() -> int:
    """Plays the targets one after another; 1: there are findings."""
    arguments = _parser().parse_args()
    names = arguments.target.split(",") if arguments.target else list(TARGETS)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        sys.stderr.write(f"no target {unknown[0]}; there are {', '.join(TARGETS)}\n")
        return 2
    if arguments.child:
        return _play(names[0], arguments)
    if arguments.replay:
        return _again(names, arguments.replay)
    share = max(1.0, arguments.seconds / len(names))
    found = [_played(name, share, arguments.seed, keeps=arguments.keep) for name in names]
    print(f"{sum(found)} findings by seed {arguments.seed}; they are kept in tests/fuzz/corpus", flush=True)
    return 1 if any(found) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="for all targets together")
    parser.add_argument("--target", default="", help="names, divided by commas")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--keep", action="store_true", help="also keep short cases that brought new code to run")
    parser.add_argument("--replay", default="", metavar="CASE", help="plays kept cases whose names begin so")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    return parser


def _again(names: Sequence[str], prefix: str) -> int:
    """Plays kept cases again, with nothing else."""
    code = 0
    for name in names:
        cases = [case for case in kept(name) if name_of(case).startswith(prefix)]
        if cases:
            found = asyncio.run(_search(name, Bounds(runs=0), random.Random(0), cases=cases))
            print(f"{name}: {len(cases)} cases, {len(found.findings)} findings")
            _tell(found)
            code = max(code, bool(found.findings))
    return code


async def _search(
    name: str, bounds: Bounds, rng: random.Random, *, cases: Sequence[Case] | None = None, last: Path | None = None
) -> Search:
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as folder:
        tell = (lambda _: None) if last is None else lambda case: last.write_text(as_line(case))
        if cases is not None:
            return await search(TARGETS[name], Path(folder), rng, bounds, cases=cases, on_case=tell)
        with Guide() as guide:
            return await search(TARGETS[name], Path(folder), rng, bounds, guide=guide, on_case=tell)


def _played(name: str, seconds: float, seed: int, *, keeps: bool) -> int:
    """Plays a target in a child; how many findings there are."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        last = Path(folder) / "last"
        options = ["--seconds", f"{seconds}", "--seed", f"{seed}", *(["--keep"] if keeps else [])]
        command = [sys.executable, "-m", "tests.fuzz", "--target", name, "--child", str(last), *options]
        with subprocess.Popen(command) as child:
            try:
                code = child.wait(seconds + SLACK_SECONDS)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGABRT)  # shows where it stands
                code = child.wait()
        if code >= 0 and code != _ENDED:
            return code
        text = f"the process ended with {code}; its output above says more\n"
        if last.exists():
            case = case_of(last.read_text())
            keep(name, case)
            print(Finding(name, case, "the process ended", text), flush=True)
        else:
            print(f"{name}: {text}", flush=True)
        return 1


# What is left when the interpreter itself fails; findings are counted below it.
_ENDED = 120
_MOST_FINDINGS = 100


def _play(name: str, arguments: argparse.Namespace) -> int:
    """The child's part."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    try:
        bounds = Bounds(seconds=arguments.seconds)
        found = asyncio.run(_search(name, bounds, random.Random(arguments.seed), last=Path(arguments.child)))
    except BaseException as error:  # noqa: BLE001 - tells the parent, whose case it was
        sys.excepthook(type(error), error, error.__traceback__)
        return _ENDED
    _tell(found)
    for finding in found.findings.values():
        keep(name, finding.case)
    if arguments.keep:
        short = [case for case in found.grown if len(as_line(case)) <= MAX_CASE_CHARACTERS]
        for case in short[: MOST_KEPT - len(kept(name))]:
            keep(name, case)
    figures = {
        "target": name,
        "executions": found.executions,
        "seconds": round(found.seconds, 1),
        "new": len(found.grown),
        "findings": len(found.findings),
    }
    print(json.dumps(figures), flush=True)
    return min(len(found.findings), _MOST_FINDINGS)


def _tell(found: Search) -> None:
    for finding in found.findings.values():
        print(f"FINDING {finding}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
