"""Systematic mutation: which changes are made, which tests are asked, and what is told of those that survive."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest

from tests.support.mutants.copies import ROOT
from tests.support.mutation import executed as measuring
from tests.support.mutation import trial
from tests.support.mutation.__main__ import Results, drawn, kept, unit_tests
from tests.support.mutation.executed import Executed, NotMeasured, importers, product_files
from tests.support.mutation.kinds import Mutation, mutations
from tests.support.mutation.page import REASONS, kept_reasons, page, score
from tests.support.mutation.trial import Copy, Trial, chosen_tests, try_out

SOURCE = '''"""Text."""
WAIT_SECONDS = 20


async def work(self, one: int = 3, *, is_it: bool = False) -> None:
    if one < WAIT_SECONDS and not is_it:
        self.wake()
        await self.sleep(f"{one + 1}")
        _log.info("done", count=one + 1)
    try:
        self.left = min(one, 2) * 2
    except (OSError, ValueError):
        raise KeyError("no" + "thing")
    with suppress(OSError):
        self.send(Txn((absent(b"k"), mod_is(b"k", 1)), (put,)))
'''


def made(source: str) -> set[tuple[str, str, str]]:
    return {(one.kind, one.was, one.becomes) for one in mutations("a.py", source.encode())}


def test_what_is_changed():
    assert made(SOURCE) >= {
        ("constant", "20", "200"),
        ("constant", "20", "2"),
        ("constant", "3", "4"),
        ("constant", "False", "True"),
        ("dropped condition", "one < WAIT_SECONDS and not is_it", "True"),
        ("dropped condition", "one < WAIT_SECONDS and not is_it", "((one < WAIT_SECONDS))"),
        ("dropped condition", "not is_it", "bool(is_it)"),
        ("comparison", "one < WAIT_SECONDS", "(one <= WAIT_SECONDS)"),
        ("comparison", "one < WAIT_SECONDS", "(WAIT_SECONDS < one)"),
        ("dropped call", "self.wake()", "pass"),
        ("dropped await", 'await self.sleep(f"{one + 1}")', "pass"),
        ("dropped change", "self.left = min(one, 2) * 2", "pass"),
        ("boundary", "min", "max"),
        ("arithmetic", "min(one, 2) * 2", "(min(one, 2) // 2)"),
        ("narrowed except", "(OSError, ValueError)", "(ValueError,)"),
        ("widened except", "(OSError, ValueError)", "Exception"),
        ("narrowed except", "suppress(OSError)", "suppress()"),
        ("dropped part of a transaction", "(absent(b'k'), mod_is(b'k', 1))".replace("'", '"'), "(absent(b'k'),)"),
        ("dropped part of a transaction", "(put,)", "()"),
    }
    swapped = [becomes for kind, _, becomes in made(SOURCE) if kind == "swapped effects"]
    assert swapped == ["await self.sleep(f'{one + 1}')\n        self.wake()"]
    # Of log lines, what an error says, text, and what is only for types nobody promises anything.
    changed = [was for kind, was, _ in made(SOURCE) if kind != "swapped effects"]
    assert not [was for was in changed if any(one in was for one in ("_log", "thing", "Text", "one: int"))]
    assert "one + 1" not in changed


WAITS = """
async def work(self):
    async with self._lock, self._turns.held(1), asyncio.timeout(3), self._other as other:
        if self.closed:
            return
        one = await self.first()
        await self.second(one)
        two = await self.third()
    self.news.clear()
    count(self)
    async for step in self.steps(two):
        step()
    try:
        await self.end()
    finally:
        self.free()
    self.news.clear()
    if two is None:
        raise KeyError
    count(two)
    try:
        if self.closed:
            return
        await self.end()
        self.news.clear()
    except OSError:
        self.hurt()
    finally:
        self.free()
"""


def test_when_something_happens_is_changed():
    """Order, wake-ups, locks, what is given back, and checks that are made a moment too early or late."""
    found = [(one.kind, one.was, " ".join(one.becomes.split())) for one in mutations("a.py", WAITS.encode())]
    new = {"swapped awaits", "late clear", "unwrapped finally", "dropped lock", "moved guard"}
    no_lock = '__import__("contextlib").nullcontext()'
    tried = "try: if self.closed: return await self.end() self.news.clear() except OSError: self.hurt()"
    taken = ["self._lock", "self._turns.held(1)", "asyncio.timeout(3)", "self._other as other"]
    inside = "one = await self.first() await self.second(one) two = await self.third()"
    assert [(kind, text) for kind, _, text in found if kind in new] == [
        ("moved guard", f"if self.closed: return async with {', '.join(taken)}: {inside}"),
        ("dropped lock", no_lock),
        ("dropped lock", no_lock),
        ("moved guard", "one = await self.first() if self.closed: return"),
        ("swapped awaits", "two = await self.third() await self.second(one)"),
        ("late clear", "count(self) async for step in self.steps(two): step() self.news.clear()"),
        ("unwrapped finally", "await self.end() self.free()"),
        ("late clear", f"if two is None: raise KeyError count(two) {tried} finally: self.free() self.news.clear()"),
        ("unwrapped finally", f"{tried} self.free()"),
        ("moved guard", "await self.end() if self.closed: return"),
    ]
    assert [was for kind, was, _ in found if kind == "dropped lock"] == taken[:2]


def test_each_change_compiles_and_has_an_id_of_its_own_which_stays_where_the_code_around_it_moves():
    for path in ("sidecar/plan/planner.py", "registry/store/txn.py"):
        source = (ROOT / path).read_bytes()
        found = mutations(path, source)
        assert len({one.id for one in found}) == len(found) > 50
        for one in found:
            compile(one.apply(source), path, "exec")
    ids = {one.id for one in mutations("a.py", SOURCE.encode())}
    assert {one.id for one in mutations("a.py", SOURCE.replace("\n\n\n", "\n# é\n\n\n\n").encode())} == ids


def test_the_same_are_drawn_again_and_asked_of_the_unit_tests_of_their_rooms():
    first = drawn(ROOT, ["sidecar/plan"], "", 20, 7)
    assert drawn(ROOT, ["sidecar/plan"], "", 20, 7) == first != drawn(ROOT, ["sidecar/plan"], "", 20, 8)
    assert {one.path.rpartition("/")[0] for one in first} == {"sidecar/plan"}
    of_two = {one.kind for one in drawn(ROOT, ["sidecar/desired"], "", 99, 7, ["late clear", "boundary"])}
    assert (of_two, [path for path in product_files(ROOT) if "pb2" in path]) == ({"late clear", "boundary"}, [])
    found = drawn(ROOT, ["sidecar/plan", "registry/store"], "", 50, 1)
    assert unit_tests(ROOT, found) == ["tests/unit/plan", "tests/unit/store", "tests/properties/plan"]


@pytest.fixture
def tree(tmp_path) -> Path:
    """A product of two functions, one of which is tested by halves."""
    (tmp_path / "product.py").write_text(
        "LIMIT = 7\n\n\ndef larger(a, b):\n    return a > b\n\n\ndef other():\n    return 1\n"
    )
    asked = "import product\n\n\ndef test_it():\n    assert product.larger(2, 1)\n"
    (tmp_path / "test_product.py").write_text(asked)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    # As tests/conftest.py does; functions are found all the same.
    (tmp_path / "conftest.py").write_text("import gc\n\n\ndef pytest_collection_finish():\n    gc.freeze()\n")
    return tmp_path


TEST = "test_product.py::test_it"
EXECUTED = Executed({"product.py": {1: frozenset({""}), 5: frozenset({TEST, "slow"})}}, {TEST: 0.01, "slow": 100.0})


def found_in(tree: Path, becomes: str, path: str = "product.py") -> Mutation:
    (one,) = [one for one in mutations(path, (tree / path).read_bytes()) if one.becomes == becomes]
    return one


@pytest.fixture
def collected(tree) -> Iterator[Callable[[], Copy]]:
    """Collects the tests as they are by then."""
    with ExitStack() as stack:

        def collect() -> Copy:
            copy = Copy(tree, ["."])
            stack.callback(copy.close)
            return copy

        yield collect


def test_changes_are_tried_by_the_tests_that_execute_them(tree, collected):
    """One after another in one copy, which is left as it was: of functions in forks, of what runs at import anew."""
    source = (tree / "product.py").read_bytes()
    copy = collected()
    expected = {"(b > a)": "killed", "(a >= b)": "survived", "2": "not run", "70": "survived"}
    assert {becomes: try_out(found_in(tree, becomes), copy, EXECUTED).outcome for becomes in expected} == expected
    assert (tree / "product.py").read_bytes() == source
    (tree / "test_product.py").write_text("import product\n\n\ndef test_it():\n    assert product.LIMIT == 7\n")
    assert try_out(found_in(tree, "70"), collected(), EXECUTED).outcome == "killed"


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("while product.larger(2, 1) is False: pass", "killed"),
        ("os.kill(os.getppid(), 9) if not product.larger(2, 1) else 0", "killed"),
        ("os.kill(os.getpid(), 9) if not product.larger(2, 1) else 0", "killed"),
        ("os._exit(0) if not product.larger(2, 1) else 0", "survived"),
    ],
    ids=["hangs", "ends what asks", "ends itself", "passes"],
)
def test_a_change_may_do_anything(tree, collected, monkeypatch, body, outcome):
    monkeypatch.setattr(trial, "TEST_SECONDS", 0.5)
    (tree / "test_product.py").write_text(f"import os\nimport product\n\n\ndef test_it():\n    {body}\n")
    copy = collected()
    assert try_out(found_in(tree, "(b > a)"), copy, EXECUTED).outcome == outcome
    assert try_out(found_in(tree, "(a >= b)"), copy, EXECUTED).outcome == "survived"


def test_the_quickest_tests_are_asked_as_far_as_the_time_reaches(tree):
    assert chosen_tests(found_in(tree, "(a >= b)"), EXECUTED) == ([TEST], True)
    change, lines = found_in(tree, "70"), {"product.py": {1: frozenset({""})}, "user.py": {3: frozenset({TEST})}}
    assert chosen_tests(change, Executed(lines, {TEST: 0.1}, {"product.py": ["user.py"]})) == ([TEST], True)
    assert chosen_tests(change, Executed(lines, {TEST: 0.1})) == ([], False)
    found = importers(ROOT)["sidecar/plan/backoff.py"]
    assert {"sidecar/loop/retries.py", "sidecar/plan/planner.py"} <= {*found} - {"sidecar/plan/backoff.py"}


@pytest.mark.parametrize("end", ["1 failed, 2 passed", "INTERNALERROR> ZeroDivisionError\n\n3 passed"])
def test_where_not_all_tests_pass_nothing_is_measured(tmp_path, monkeypatch, end):
    """Or what no test is seen to execute would be told as unnoticed."""

    def run(_: object, *, stdout: TextIO, **__: object) -> SimpleNamespace:
        stdout.write(end)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(measuring.subprocess, "run", run)
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(NotMeasured):
        measuring.executed(tmp_path, ["tests"], tmp_path / "kept", 1)


def test_what_only_runs_in_another_process_is_asked_of_the_tests_that_start_it(tree, collected):
    """Noticed is noticed; a line that survives them may not have been run."""
    (tree / "rpc").mkdir()
    (tree / "product.py").rename(tree / "rpc/product.py")
    (tree / "test_product.py").unlink()
    test = tree / "tests/integration/rpc/test_it.py"
    test.parent.mkdir(parents=True)
    child = [sys.executable, "-c", "import product; product.larger(2, 1) or exit(1)"]
    test.write_text(f"import subprocess\n\n\ndef test_it():\n    subprocess.run({child}, cwd='rpc', check=True)\n")
    own, other = "tests/integration/rpc/test_it.py::test_it", "tests/integration/admin/test_it.py::test_it"
    measured = Executed({}, {other: 0.1, own: 0.2, "tests/unit/rpc/test_it.py::test_it": 0.1})
    outcomes, copy = [], collected()
    for becomes in ("(b > a)", "(a >= b)"):
        change = found_in(tree, becomes, "rpc/product.py")
        assert chosen_tests(change, measured) == ([own], False)
        outcomes.append(try_out(change, copy, measured).outcome)
    assert outcomes == ["killed", "not run"]


def test_what_was_tried_is_kept_and_told_also_of_other_runs_over_the_same_code(tree, tmp_path):
    killed, survived, unrun = (found_in(tree, becomes) for becomes in ("(b > a)", "(a >= b)", "2"))
    results = Results(tmp_path / "results")
    results.add(Trial(killed, "killed", 1, 0.1))
    results.add(Trial(survived, "survived", 1, 0.1))
    results.add(Trial(unrun, "not run", 0, 0.0))
    trials = list(Results(tmp_path / "results").trials.values())
    assert trials == list(results.trials.values())
    assert (score(trials, {}), score(trials, {survived.id: "equivalent: it is"})) == ((1, 3), (1, 2))
    told = page(trials, {survived.id: "no promise: of equals"}, "3 changes")
    assert "| `product.py` | 3 | 1 | 1 | 1 | 0 | 0 | 33 % |" in told
    assert f"| product.py:5 {survived.id} | comparison: `a > b` → `(a >= b)` | no promise: of equals |" in told
    assert killed.id not in told
    assert json.loads(results.trials[killed.id].to_json())["mutation"]["place"] == "larger"
    one, other = (Results(tmp_path / f"results-code-{name}.jsonl") for name in "ab")
    one.add(Trial(unrun, "not run", 1, 0.1))
    one.add(Trial(killed, "killed", 1, 0.1))
    other.add(Trial(killed, "survived", 1, 0.1))
    Results(tmp_path / "results-other-a.jsonl").add(Trial(unrun, "killed", 1, 0.1))
    assert {one.mutation.id: one.outcome for one in kept(tmp_path, "code")} == {
        killed.id: "killed",
        unrun.id: "not run",
    }


def test_each_reason_is_of_one_of_two_kinds():
    assert REASONS.is_file()
    assert [one for one in kept_reasons().values() if not one.startswith(("equivalent: ", "no promise: "))] == []
