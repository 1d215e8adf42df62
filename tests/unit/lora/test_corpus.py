"""The corpus at the check itself, of one architecture and without a store: what breaks the check is told at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from registry.lora.base import BaseModules
from registry.lora.base_directory import read_base
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE
from registry.lora.directory import check_files, examine_directory
from registry.lora.findings import Finding, UnfitAdapter
from registry.lora.policy import AdapterLimits, Policy, policy_of
from registry.lora.prepare import new_config, new_weights
from tests.corpus.defects import DEFECTS, Defect
from tests.corpus.drafts import LLAMA
from tests.corpus.goods import GOODS, Good

# What a store refuses before anybody looks into it.
OF_THE_STORE = {"config_empty", "config_too_large", "weights_empty"}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return LLAMA.write_base(tmp_path_factory.mktemp("base") / "llama")


@pytest.mark.parametrize(
    "defect", [one for one in DEFECTS if one.name not in OF_THE_STORE], ids=lambda defect: defect.name
)
def test_a_defect_is_found_by_name(tmp_path, base, defect: Defect):
    """R4, R8."""
    draft = LLAMA.draft()
    defect.edit(draft, LLAMA)
    folder = draft.write(tmp_path / "a")
    assert findings_of(folder, read_base(base), policy_of({**defect.prepare}))[0].reason == defect.reason


def findings_of(folder: Path, base: BaseModules, policy: Policy) -> Sequence[Finding]:
    """What is found, however it is told."""
    try:
        check_files(folder)
        return examine_directory(folder, base, AdapterLimits(), policy).verdict.findings
    except UnfitAdapter as refused:
        return refused.findings


@pytest.mark.parametrize("good", GOODS, ids=lambda good: good.name)
def test_what_can_be_made_right_is_right_as_it_then_stands(tmp_path, base, good: Good):
    """R4, R5: the numbers of the source under the base's own names, and nothing more is left to be done."""
    draft = LLAMA.draft()
    good.edit(draft, LLAMA)
    folder, policy = draft.write(tmp_path / "a"), policy_of({**good.prepare})
    found = examine_directory(folder, read_base(base), AdapterLimits(), policy)
    assert found.verdict.findings == ()
    layout = new_weights(found.opened.header, found.verdict.changes)
    old = (folder / WEIGHTS_FILE).read_bytes()[found.opened.start :]
    made = tmp_path / "made"
    made.mkdir()
    (made / WEIGHTS_FILE).write_bytes(layout.start + b"".join(old[one.begin : one.end] for one in layout.ranges))
    (made / CONFIG_FILE).write_bytes(new_config((folder / CONFIG_FILE).read_bytes(), found.verdict.changes))
    again = examine_directory(made, read_base(base), AdapterLimits(), policy_of({}))
    assert (again.verdict.findings, bool(again.verdict.changes)) == ((), False)
    served = {one.name for one in again.opened.header.tensors if "base_layer" not in one.name}
    assert served == set(LLAMA.draft().tensors)
