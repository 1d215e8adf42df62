"""``make mutate``: draws changes of the code, tries each, keeps what came of it, and writes the page."""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from py_compile import PycInvalidationMode
from threading import Event
from time import monotonic
from typing import NoReturn

from tests.support.mutants.copies import ROOT, copy_of_checkout, copy_of_tree
from tests.support.mutation.executed import Executed, NotMeasured, executed, product_files, state_of, state_with
from tests.support.mutation.kinds import Mutation, compiles, mutations
from tests.support.mutation.page import PAGE, kept_reasons, page, room_of, score
from tests.support.mutation.trial import SEEDS, Copy, Trial, end_all, from_json, try_out

CACHE = ROOT / ".mutation"
TESTS = ("tests/unit", "tests/properties", "tests/simulation", SEEDS, "tests/contract", "tests/integration")
_ended = Event()  # somebody wants no more of it


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutate")
    parser.add_argument(
        "--room", default="", help="folders or files, with commas between them, such as sidecar/plan,sidecar/app.py"
    )
    parser.add_argument("--since", default="", help="a commit: only lines that were changed since")
    parser.add_argument("--kind", default="", help="kinds of changes, with commas between them; else all")
    parser.add_argument("--only", default="", help="ids, with commas between them: these instead of a drawing")
    parser.add_argument("--count", type=int, default=3000, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1, help="of the drawing")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="none is begun later than this after the start"
    )
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="how many at once")
    parser.add_argument(
        "--tests", default="", help="what is measured, and asked; with --since, the unit tests of its rooms"
    )
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)} at the end")
    return parser.parse_args()


def changed_lines(root: Path, since: str) -> dict[str, set[int]]:
    """The lines of each file that were changed or added since a commit."""
    command = ["git", "diff", "--unified=0", "--no-color", since, "--", "*.py"]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    found: dict[str, set[int]] = {}
    path = ""
    for line in told.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            begin, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(path, set()).update(range(begin, begin + count))
    return found


def all_of(root: Path, rooms: Sequence[str] = ()) -> list[Mutation]:
    """Every change of these rooms; none: of all."""
    files = [
        path
        for path in product_files(root)
        if not rooms or path.startswith(tuple(one if one.endswith(".py") else f"{one}/" for one in rooms))
    ]
    return [one for path in files for one in mutations(path, (root / path).read_bytes())]


def drawn(
    root: Path, rooms: Sequence[str], since: str, count: int, seed: int, kinds: Sequence[str] = ()
) -> list[Mutation]:
    """So many changes of these rooms and kinds (none: of all), the same at each run."""
    found = [one for one in all_of(root, rooms) if not kinds or one.kind in kinds]
    if since:
        lines = changed_lines(root, since)
        found = [one for one in found if one.line in lines.get(one.path, ())]
    chosen = random.Random(seed).sample(found, min(count, len(found)))
    return [one for one in chosen if compiles(one.apply((root / one.path).read_bytes()))]


class Results:
    """What was tried, one line each; a run that was ended goes on where it was. Of one state of code and tests."""

    def __init__(self, file: Path) -> None:
        """Reads what is there."""
        self._file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self.trials = {trial.mutation.id: trial for trial in map(from_json, lines)}

    def add(self, trial: Trial) -> None:
        """Keeps one more."""
        self.trials[trial.mutation.id] = trial
        with self._file.open("a") as file:
            file.write(f"{trial.to_json()}\n")


def kept(cache: Path, state: str) -> list[Trial]:
    """What came of all runs over a state of the code, whatever tests they asked. Noticed once is noticed."""
    found: dict[str, Trial] = {}
    for file in sorted(cache.glob(f"results-{state}-*.jsonl")):
        for trial in Results(file).trials.values():
            before = found.get(trial.mutation.id)
            if before is None or trial.outcome == "killed" or before.outcome == "not run":
                found[trial.mutation.id] = trial
    return list(found.values())


def unit_tests(root: Path, chosen: Iterable[Mutation]) -> list[str]:
    """The folders of quick tests that mirror the rooms of some changes."""
    rooms = {Path(room_of(one.path)).stem for one in chosen}
    folders = [f"tests/{kind}/{room}" for kind in ("unit", "properties") for room in sorted(rooms)]
    return [folder for folder in folders if (root / folder).is_dir()]


def try_all(
    chosen: Iterable[Mutation],
    original: Path,
    measured: Executed,
    results: Results,
    tests: Sequence[str],
    workers: int,
    until: float,
) -> None:
    """Tries what was not tried yet, each worker in a copy of its own, until the time is up."""
    left = iter([one for one in chosen if one.id not in results.trials])

    def work(copy: Copy) -> None:
        while monotonic() < until and not _ended.is_set() and (mutation := next(left, None)):
            trial = try_out(mutation, copy, measured)
            if _ended.is_set():
                break  # what was ended says nothing
            results.add(trial)
            found = trial.mutation
            what = f"{found.kind}: {found.was!r:.60} -> {found.becomes!r:.60}"
            _say(f"{trial.outcome:9} {found.id} {found.path}:{found.line} {what}")

    with ExitStack() as stack, ThreadPoolExecutor(workers) as threads:
        copies = []
        for _ in range(workers):
            copy = Copy(stack.enter_context(copy_of_tree(original)), tests)
            stack.callback(copy.close)
            copies.append(copy)
        list(threads.map(work, copies))


def _chosen(asked: argparse.Namespace, rooms: Sequence[str], original: Path) -> list[Mutation]:
    if asked.only:
        chosen = [one for one in all_of(original, rooms) if one.id in asked.only.split(",")]
    else:
        # A copy has no history, and is the same.
        root, kinds = ROOT if asked.since else original, [one for one in asked.kind.split(",") if one]
        chosen = drawn(root, rooms, asked.since, asked.count, asked.seed, kinds)
    return chosen or sys.exit("nothing to be changed there")


def _asked_tests(asked: argparse.Namespace, chosen: Iterable[Mutation]) -> list[str]:
    if asked.tests or not asked.since:
        return asked.tests.split() or list(TESTS)
    return unit_tests(ROOT, chosen) or sys.exit("no folder of unit tests has the name of these rooms; name tests")


def main() -> None:
    """The command."""
    asked = _asked()
    until, workers = monotonic() + asked.seconds, max(1, asked.workers)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    rooms = [one for one in asked.room.split(",") if one]
    with copy_of_checkout() as original:
        chosen = _chosen(asked, rooms, original)
        tests = _asked_tests(asked, chosen)
        try:
            measured = executed(original, tests, CACHE, workers)
        except NotMeasured as error:
            sys.exit(str(error))
        # By the content of a file: a change may have its length and come within the same second.
        compile_dir(original, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        results = Results(CACHE / f"results-{state_with(original, tests)}.jsonl")
        try_all(chosen, original, measured, results, tests, workers, until)
        every = kept(CACHE, state_of(original))
    tried = [results.trials[one.id] for one in chosen if one.id in results.trials]
    reasons = kept_reasons()
    for room in sorted({room_of(one.mutation.path) for one in tried}):
        noticed, of = score((one for one in tried if room_of(one.mutation.path) == room), reasons)
        _say(f"{room}: {noticed} of {of}")
    if asked.page:
        where = f"of {', '.join(rooms)}" if rooms else "of all rooms"
        where += f", {', '.join(asked.kind.split(','))}" if asked.kind else ""
        told = f"{len(tried)} changes {where}, drawn with the seed {asked.seed}, were asked of {', '.join(tests)}"
        if more := len(every) - len(tried):
            told += f"; {more} more are those of other runs over the same code, each asked of the tests of its room"
        PAGE.write_text(page(every, reasons, told))


def _interrupted(_number: int, _frame: object) -> NoReturn:
    _ended.set()
    end_all()
    raise KeyboardInterrupt


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
