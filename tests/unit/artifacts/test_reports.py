"""Reports beside artifacts, and what is told of an artifact by its report or by its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from registry.lora.base import BaseModules
from registry.sources.base import ArtifactError
from sidecar.artifacts.layout import StoreLayout
from sidecar.artifacts.reports import Reports, look, make_report, parse_report, staged_by
from sidecar.artifacts.requests import StageRequest, stage_request_of
from sidecar.artifacts.types import ArtifactRef
from tests.support.adapters import adapter_config, write_adapter, write_files
from tests.unit.artifacts.conftest import DROPPED, EXAMINATION

BASE = BaseModules({f"model.layers.0.self_attn.{name}_proj": (16, 16) for name in "qv"})
SOURCE, PREPARED = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def order_of(base: BaseModules | None = BASE, *, calls_base: str | None = "acme/base") -> StageRequest:
    return stage_request_of(ArtifactRef("file:///a", SOURCE, base_model=calls_base), base)


def stage(layout: StoreLayout, order: StageRequest, **config: object) -> Path:
    """Writes the configuration of what is prepared for an order, and gives the folder."""
    content = json.dumps(json.loads(adapter_config(8, "acme/base")) | config).encode()
    return write_files(layout.adapter(order.artifact(SOURCE)), content, b"").directory


def test_a_report_says_what_was_asked_for_what_was_found_and_what_came_of_it(layout):
    """For people, and for a restarted sidecar, which tells the planner the same as the one that staged it."""
    order = order_of()
    report = make_report(order, SOURCE, EXAMINATION, PREPARED)
    told = json.loads(report.to_bytes())
    assert told == {
        "schema": 1,
        "id": order.artifact(SOURCE),
        "source": SOURCE,
        "prepared": PREPARED,
        "base": BASE.fingerprint,
        "base_model": "acme/base",
        "registry_base_model": "acme/base",
        "policy": order.policy.as_dict(),
        "renamed": {"a": "x", "b": "y"},
        "dropped": ["c"],
        "config": {"use_dora": False},
        "warnings": [{"reason": "modules_dropped", "message": "one was left out"}],
        "rank": 8,
        "modules": dict(EXAMINATION.modules),
        "mac": "",
    }
    assert make_report(order_of(None), SOURCE, EXAMINATION, PREPARED).base is None
    stage(layout, order_of(None), rank_pattern={"down_proj": 16})
    staged = staged_by(layout, order_of(None), report)
    assert (staged.path, staged.digest, staged.rank) == (str(layout.adapter(staged.id)), SOURCE, 16)
    assert staged.scales == {"patterns"}
    assert staged.modules == tuple(EXAMINATION.modules)
    assert staged.warnings == (DROPPED,)


def test_who_calls_the_base_by_another_name_is_told_so_and_nobody_else(layout):
    """The warning depends on who asks; that of whoever had it staged is not handed on."""
    report = make_report(order_of(calls_base="acme/other"), SOURCE, EXAMINATION, PREPARED)
    assert [one.reason for one in report.warnings] == ["modules_dropped", "base_name_differs"]
    directory = stage(layout, order_of(None))
    assert staged_by(layout, order_of(None), report).warnings == (DROPPED,)
    (_, told) = staged_by(layout, order_of(None, calls_base="acme/third"), report).warnings
    assert told.reason == "base_name_differs"
    assert "acme/third" in told.message
    assert "acme/base" in told.message
    assert staged_by(layout, order_of(None, calls_base=None), report).warnings == (DROPPED,)
    (directory / "adapter_config.json").write_bytes(b"{")
    with pytest.raises(ArtifactError) as refused:
        staged_by(layout, order_of(None), report)
    assert (refused.value.reason, refused.value.permanent) == ("artifact_damaged", False)


def test_a_report_of_another_form_is_none():
    """R13: what an earlier release wrote is understood; what a later one may mean by another form is not guessed."""
    report = {"schema": 1, "id": "i", "source": SOURCE, "prepared": PREPARED, "base": None, "base_model": None}
    report |= {"registry_base_model": None, "policy": {}}
    found = parse_report(json.dumps(report).encode())
    assert found is not None
    assert (found.id, found.rank, found.modules) == ("i", 0, {})
    for other in (report | {"schema": 2}, report | {"schema": 0}, {**report, "id": 3}, {"schema": 1}, []):
        assert parse_report(json.dumps(other).encode()) is None
    assert parse_report(b"{") is None


def test_only_what_this_store_wrote_of_an_artifact_is_believed(layout, tmp_path):
    """R21: not a report of another artifact, nor one that was changed or cut off, nor one of another store."""
    order, reports = order_of(), Reports(layout)
    report = make_report(order, SOURCE, EXAMINATION, PREPARED)
    assert reports.read(report.id) is None
    reports.write(report)
    file = layout.report(report.id)
    assert not list((layout.root / "tmp").iterdir())
    read = Reports(layout).read(report.id)
    assert read is not None
    assert read.model_copy(update={"mac": ""}) == report
    whole = file.read_bytes()
    for content in (whole.replace(PREPARED.encode(), SOURCE.encode()), report.to_bytes(), whole[:40]):
        file.write_bytes(content)
        assert reports.read(report.id) is None
    shutil.copy(file, layout.report("0" * 64))
    layout.report("0" * 64).write_bytes(whole)
    assert reports.read("0" * 64) is None
    file.write_bytes(whole)
    assert reports.read(report.id) is not None
    (layout.root / "key").unlink()
    assert Reports(layout).read(report.id) is None


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_artifact_without_a_report_is_told_by_its_files(layout, name):
    """R21, R8: of what is missing nothing is concluded; of what is damaged neither, for good."""
    order = order_of(None)
    directory = layout.adapter(order.artifact(SOURCE))
    write_adapter(directory, rank=4, base="acme/base")
    staged = look(layout, order, SOURCE)
    assert (staged.path, staged.digest, staged.rank, staged.warnings) == (str(directory), SOURCE, 4, ())
    assert {name.rpartition(".")[2] for name in staged.modules} == {"q_proj", "v_proj"}
    assert staged.scales == frozenset()
    assert look(layout, order_of(None, calls_base="/hub/models--acme--base/snapshots/abc"), SOURCE).warnings == ()
    (told,) = look(layout, order_of(None, calls_base="acme/other"), SOURCE).warnings
    assert told.reason == "base_name_differs"
    config = json.loads((directory / "adapter_config.json").read_bytes())
    (directory / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    (told,) = look(layout, order_of(None, calls_base="acme/other"), SOURCE).warnings
    assert "configuration None" in told.message
    (directory / name).write_bytes(b"x" * 99)
    with pytest.raises(ArtifactError) as refused:
        look(layout, order, SOURCE)
    assert (refused.value.reason, refused.value.permanent) == ("artifact_damaged", False)
    assert str(directory) in refused.value.message
    (directory / name).unlink()
    with pytest.raises(FileNotFoundError):
        look(layout, order, SOURCE)
