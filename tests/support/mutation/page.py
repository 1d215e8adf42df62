"""docs/mutation.md from what was tried: the score of each room and kind, and each survivor with its reason."""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.support.mutants.copies import ROOT
from tests.support.mutation.kinds import Mutation
from tests.support.mutation.trial import Trial

PAGE = ROOT / "docs" / "mutation.md"
# By the id of a survivor: "equivalent: …" if nobody can tell it from the code, else "no promise: …".
REASONS = Path(__file__).with_name("reasons.toml")
EQUIVALENT = "equivalent"
_SHOWN = 90


def room_of(path: str) -> str:
    """The folder of a file; a file beside the rooms is one by itself."""
    parts = path.split("/")
    return "/".join(parts[:2])


def kept_reasons() -> dict[str, str]:
    """The reasons, by id."""
    return tomllib.loads(REASONS.read_text())


def score(trials: Iterable[Trial], reasons: dict[str, str]) -> tuple[int, int]:
    """How many were noticed, and of how many that anybody could notice; what no test executes was not noticed."""
    counted = [one for one in trials if not reasons.get(one.mutation.id, "").startswith(EQUIVALENT)]
    return sum(one.outcome == "killed" for one in counted), len(counted)


def page(trials: Sequence[Trial], reasons: dict[str, str], drawn: str) -> str:
    """The whole page; `drawn` says how what was tried was drawn."""
    tried = sorted(trials, key=lambda one: (one.mutation.path, one.mutation.line))
    rooms = _rows(tried, lambda one: f"`{room_of(one.path)}`", reasons)
    kinds = _rows(sorted(tried, key=lambda one: one.mutation.kind), lambda one: one.kind, reasons)
    left = [one for one in tried if one.outcome != "killed"]
    survivors = "\n".join(_survivor(one, reasons) for one in left)
    noticed, of = score(trials, reasons)
    return f"""# Mutation: which changes of the code no test notices

Made by `make mutate`, which puts small changes into copies of the code, one at a time, and runs the tests that execute
the changed lines. [Decision 33](decisions/0033-mutation.md) says why by a program of our own, and
[decision 44](decisions/0044-mutation-forks.md) how a change is tried. It is a measure of the tests, not of
the code: a survivor is a line that may be broken without anybody noticing.

{drawn}. {noticed} of {of} were noticed ({_percent(noticed, of)}); what nobody can tell from the code does not count.

| room | tried | noticed | survived | executed by no test | not finished | equivalent | score |
|---|---|---|---|---|---|---|---|
{rooms}

| kind of change | tried | noticed | survived | executed by no test | not finished | equivalent | score |
|---|---|---|---|---|---|---|---|
{kinds}

## Survivors
A reason is written into `tests/support/mutation/reasons.toml`: `equivalent` if no test can tell the change from the
code, `no promise` if nobody relies on it. One without a reason is a test to be written. Lines are those of the day.

| where | change | reason |
|---|---|---|
{survivors}
"""


def _rows(trials: Iterable[Trial], of: Callable[[Mutation], str], reasons: dict[str, str]) -> str:
    found: defaultdict[str, list[Trial]] = defaultdict(list)
    for one in trials:
        found[of(one.mutation)].append(one)
    return "\n".join(_row(name, tried, reasons) for name, tried in found.items())


def _row(name: str, trials: Sequence[Trial], reasons: dict[str, str]) -> str:
    found = Counter(one.outcome for one in trials)
    noticed, of = score(trials, reasons)
    counts = (len(trials), found["killed"], found["survived"], found["not run"], found["too long"], len(trials) - of)
    return f"| {name} | {' | '.join(map(str, counts))} | {_percent(noticed, of)} |"


def _percent(part: int, of: int) -> str:
    return f"{100 * part / of:.0f} %" if of else "-"


def _survivor(one: Trial, reasons: dict[str, str]) -> str:
    found = one.mutation
    change = f"{found.kind}: `{_short(found.was)}` → `{_short(found.becomes)}`"
    reason = reasons.get(found.id, "" if one.outcome == "survived" else one.outcome)
    return f"| {found.path}:{found.line} {found.id} | {change} | {reason} |"


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|").replace("`", "'")
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
