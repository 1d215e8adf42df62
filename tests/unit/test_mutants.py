"""The deliberate bugs in ``tests/mutants`` fit the code as it is, and what hunts them tells what it found."""

from __future__ import annotations

import pytest

from tests.support.guarantees import promised
from tests.support.mutants.copies import ROOT, copy_of_checkout, copy_of_tree, tracked_files
from tests.support.mutants.layers import (
    CHEAP,
    UNIT_OF_SIDECAR,
    Layer,
    Verdict,
    cheap_layers,
    named_layers,
    run_layer,
    run_twice,
)
from tests.support.mutants.patches import FOLDER, PatchMalformed, read_mutant

HEADER = "Name: bad\nBreaks: something.\nGuarantee: R1\nDrawn-From: nothing\n"
DIFF = "\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"


@pytest.mark.parametrize("patch", sorted(FOLDER.glob("*.patch")), ids=lambda patch: patch.stem)
def test_a_patch_is_well_formed_and_still_applies(patch):
    """One that does not any more was overtaken by a change of the code: make it anew, as small as it was."""
    mutant = read_mutant(patch)
    mutant.check(ROOT)
    assert set(mutant.guarantees) <= promised().keys()
    assert [test for test in mutant.tests if not (ROOT / test).is_file()] == []
    assert mutant.breaks.endswith(".")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADER, "unified diff"),
        (HEADER.replace("Breaks: something.\n", "") + DIFF, "lacks Breaks"),
        (HEADER + "Name: bad\n" + DIFF, "stands twice"),
        (HEADER + "Color: red\n" + DIFF, "no field"),
        (HEADER.replace("Name: bad", "Name: good") + DIFF, "that of the file"),
    ],
)
def test_a_patch_says_what_is_wrong_with_it_and_changes_only_the_copy(tmp_path, text, words):
    (patch := tmp_path / "bad.patch").write_text(text)
    with pytest.raises(PatchMalformed, match=words):
        read_mutant(patch)
    patch.write_text(HEADER + DIFF)
    mutant = read_mutant(patch)
    assert mutant.touches == ("a.py",)
    (tmp_path / "a.py").write_text("x = 1\n")
    mutant.check(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 1\n"
    mutant.apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 2\n"
    with pytest.raises(PatchMalformed, match="does not apply any more"):
        mutant.apply(tmp_path)


def test_a_copy_has_the_files_of_the_checkout_and_is_gone_at_the_end():
    with copy_of_checkout() as tree, copy_of_tree(tree) as second:
        for copy in (tree, second):
            assert copy != ROOT
            assert (copy / "Makefile").read_bytes() == (ROOT / "Makefile").read_bytes()
            assert not (copy / ".venv").exists()
    assert not tree.exists()
    assert not second.exists()
    assert "sidecar/plan/types.py" in tracked_files()


UNIT = Layer("unit", ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_it.py"))
BAD = "def test_good():\n    pass\ndef test_bad():\n    assert False\n"


@pytest.mark.parametrize(
    ("test", "verdict"), [("def test_good():\n    pass\n", Verdict()), (BAD, Verdict("test_it::test_bad"))]
)
def test_a_run_names_the_first_test_that_fails(tmp_path, test, verdict):
    (tmp_path / "test_it.py").write_text(test)
    assert run_layer(UNIT, tmp_path) == verdict


@pytest.mark.parametrize(("still", "is_caught"), [("True", True), ("not Path('seen').exists()", False)])
def test_what_fails_only_now_and_then_has_caught_nothing(tmp_path, still, is_caught):
    (tmp_path / "tests").mkdir()
    lines = ["from pathlib import Path", "def test_bad():", f"    fails = {still}", "    Path('seen').touch()"]
    (tmp_path / "tests" / "test_it.py").write_text("\n".join([*lines, "    assert not fails"]))
    verdict = run_twice(named_layers(["tests/test_it.py"])[0], tmp_path)
    assert (verdict.failed is not None) == is_caught


@pytest.mark.parametrize("test", ["syntax error", "", "import os\nos._exit(3)\n"])
def test_a_run_that_tells_nothing_of_the_bug_is_broken_and_catches_nothing(tmp_path, test):
    (tmp_path / "test_it.py").write_text(test)
    found = run_layer(UNIT, tmp_path)
    assert (bool(found.broken), found.failed) == (True, None)


def test_tests_near_what_a_patch_touches_come_first_and_a_seed_that_fails_is_named(tmp_path):
    (tmp_path / "seeds.py").write_text("import sys\nsys.exit('seed 3: R1 went back')\n")
    assert run_layer(Layer("simulation", ("seeds.py",), is_pytest=False), tmp_path).failed == "seed 3: R1 went back"
    near, *others = cheap_layers(ROOT, ["sidecar/engines/vllm/driver.py", "registry/model/keys.py"])
    assert near.arguments[-3:] == ("tests/unit/sidecar", "tests/unit/engines", "tests/unit/model")
    assert others == cheap_layers(ROOT, ["registry/model/keys.py"])[1:] == list(CHEAP)
    assert cheap_layers(ROOT, ["sidecar/engines/vllm/driver.py"])[1] == UNIT_OF_SIDECAR
    layers = named_layers(["tests/contract/b.py", "tests/integration/a.py"])
    named = [("contract", "tests/contract/b.py"), ("integration", "tests/integration/a.py")]
    assert [(layer.name, layer.arguments[-1]) for layer in layers] == named
