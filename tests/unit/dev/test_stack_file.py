"""What is remembered of a stack."""

from __future__ import annotations

import os

import pytest

from registry.dev.processes import Process, remember
from registry.dev.stack_file import (
    FILE,
    EngineKind,
    admin_of_running_stack,
    load,
    make_layout,
    pid_file,
    port_names,
    save,
)


def test_a_layout_is_read_as_it_was_written(tmp_path):
    layout = make_layout(EngineKind.SIM, 3, {})
    save(tmp_path, layout)
    assert load(tmp_path) == layout
    assert set(layout.ports) == set(port_names(("r1", "r2", "r3")))
    assert len(set(layout.ports.values())) == len(layout.ports)


def test_ports_are_kept_when_the_stack_grows():
    two = make_layout(EngineKind.SIM, 2, {})
    three = make_layout(EngineKind.SIM, 3, two.ports)
    assert two.ports.items() <= three.ports.items()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"engine": "x", "replicas": [], "ports": {}}',
        '{"engine": "sim", "replicas": ["r1"], "ports": {}}',
        '{"engine": "sim", "replicas": [], "ports": []}',
    ],
)
def test_a_file_that_cannot_be_read_is_no_stack(tmp_path, text):
    assert load(tmp_path) is None
    (tmp_path / FILE).write_text(text)
    assert load(tmp_path) is None


def test_the_admin_service_of_a_stack_is_found_only_while_it_runs(tmp_path):
    layout = make_layout(EngineKind.SIM, 1, {})
    save(tmp_path, layout)
    assert admin_of_running_stack(tmp_path) is None
    remember(pid_file(tmp_path, "admin"), Process(os.getpid(), started=1))
    assert admin_of_running_stack(tmp_path) is None
