"""What is remembered of a stack."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from registry.tools.devstack.processes import Process, remember
from registry.tools.devstack.stack_file import (
    FILE,
    EngineKind,
    FolderNotTrusted,
    StackAdmin,
    StackError,
    admin_of_stack,
    check_own,
    load,
    make_layout,
    pid_file,
    port_names,
    save,
)
from registry.tools.devstack.stack_verbs import down, opened, up


def test_nobody_else_may_write_what_says_where_the_stack_is(tmp_path, monkeypatch):
    """X2: whatever the umask, and at no moment. A link of another user to what is ours is not obeyed."""
    modes, replace = list[int](), Path.replace

    def seen(self: Path, target: Path) -> Path:
        modes.append(self.stat().st_mode & 0o777)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", seen)
    before = os.umask(0)
    try:
        save(tmp_path / "stack", make_layout(EngineKind.SIM, 1, {}))
    finally:
        os.umask(before)
    check_own(tmp_path / "stack")
    assert ((tmp_path / "stack").stat().st_mode & 0o777, modes) == (0o700, [0o600])
    save(tmp_path / "deep" / "stack", make_layout(EngineKind.SIM, 1, {}))
    assert load(tmp_path / "deep" / "stack") is not None
    save(tmp_path / "stack", make_layout(EngineKind.SIM, 2, {}))
    assert [path.name for path in (tmp_path / "stack").iterdir()] == [FILE]
    save(tmp_path / "ours", make_layout(EngineKind.SIM, 1, {}))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "ours")
    check_own(link)
    seen = Path.lstat
    theirs = os.stat_result((0o120777, *[0] * 3, os.geteuid() + 1, *[0] * 5))
    monkeypatch.setattr(Path, "lstat", lambda path: theirs if path == link else seen(path))
    with pytest.raises(FolderNotTrusted, match="another user's"):
        check_own(link)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", "[" * 30_000, '{"engine": "x", "replicas": [], "ports": {}}'),
        '{"engine": "sim", "replicas": ["r1"], "ports": {}}',
        '{"engine": "sim", "replicas": [], "ports": []}',
        '{"engine": "sim", "replicas": [], "ports": {"etcd": Infinity}}',
        '{"engine": "sim", "replicas": 3, "ports": {}}',
    ],
)
def test_a_layout_is_read_as_it_was_written_and_what_cannot_be_read_is_no_stack(tmp_path, text):
    assert load(tmp_path) is None
    layout = make_layout(EngineKind.SIM, 3, {})
    save(tmp_path, layout)
    assert ({*layout.ports}, len({*layout.ports.values()})) == ({*port_names(("r1", "r2", "r3"))}, len(layout.ports))
    assert (load(tmp_path), layout.ports.items() <= make_layout(EngineKind.SIM, 4, layout.ports).ports.items()) == (
        layout,
        True,
    )
    (tmp_path / FILE).write_text(text)
    assert load(tmp_path) is None


def test_the_admin_service_of_a_stack_that_is_down_is_an_error(tmp_path):
    assert admin_of_stack(tmp_path) is None
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    layout = make_layout(EngineKind.SIM, 1, {})
    for is_whole, process in (
        (True, None),
        (True, Process(os.getpid(), started=1)),
        (False, Process(os.getpid(), started)),
    ):
        save(tmp_path, layout)
        if not is_whole:
            (tmp_path / FILE).write_text("{")
        if process:
            remember(pid_file(tmp_path, "admin"), process)
        with pytest.raises(StackError, match="loraplane dev up"):
            admin_of_stack(tmp_path)
    save(tmp_path, layout)
    assert admin_of_stack(tmp_path) == StackAdmin(layout.address("admin"), None)
    secure = make_layout(EngineKind.SIM, 1, layout.ports, secure=True)
    save(tmp_path, secure)
    assert load(tmp_path) == secure
    assert admin_of_stack(tmp_path) == StackAdmin(layout.address("admin"), tmp_path / "secrets")
    earlier = json.loads((tmp_path / FILE).read_text())
    del earlier["secure"]
    (tmp_path / FILE).write_text(json.dumps(earlier))
    assert load(tmp_path) == replace(secure, secure=False), "of an earlier release"


@pytest.mark.parametrize("name", ["", FILE])
@pytest.mark.parametrize("mode", [0o770, 0o702, None])
def test_what_others_may_write_or_own_is_not_obeyed(tmp_path, monkeypatch, name, mode):
    """X2: a file in a folder of others says which of our processes to end, and who is told our changes."""
    save(tmp_path, make_layout(EngineKind.SIM, 1, {}))
    if mode:
        (tmp_path / name).chmod(mode)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    told = "chmod go-w" if mode else "another user's"
    with pytest.raises(FolderNotTrusted, match=told):
        check_own(tmp_path)
    for verb in (opened, lambda root: up(root, 1, EngineKind.SIM, print), lambda root: down(root, print)):
        with pytest.raises(FolderNotTrusted, match=told):
            verb(tmp_path)


def test_a_stack_is_laid_down_in_a_folder_that_is_not_there_yet_and_ours_alone(tmp_path, monkeypatch):

    def seen(folder: Path, *_: object, secure: object) -> None:
        assert folder.stat().st_mode & 0o777 == 0o700
        raise StackError("no further")

    monkeypatch.setattr("registry.tools.devstack.stack_verbs.set_up", seen)
    with pytest.raises(StackError, match="no further"):
        up(tmp_path / "new" / "stack", 1, EngineKind.SIM, print)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FolderNotTrusted, match="remove it"):
        check_own(tmp_path / "link")
