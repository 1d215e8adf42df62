"""The local stack, as its commands tell it: where there is none, and where nothing is started for a test."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from registry.cli.commands import dev
from registry.tools.devstack.stack import PartStatus, Stack
from registry.tools.devstack.stack_file import EngineKind, StackLayout, port_names
from registry.tools.devstack.stack_parts import Folder


def test_a_stack_that_is_not_there_is_named_with_the_remedy(cli, tmp_path):
    ran = cli("-o", "json", "dev", "status", "--dir", str(tmp_path))
    assert (ran.code, ran.error["reason"], "loraplane dev up" in ran.error["message"]) == (3, "STACK_NOT_FOUND", True)
    (tmp_path / "file").write_text("x")
    for folder in ("file", "file/below"):
        ran = cli("dev", "up", "--engine", "sim", "--dir", folder)
        assert (ran.code, ran.err.count("\n"), f"cannot use {folder}" in ran.err, "--dir" in ran.err) == (
            2,
            1,
            True,
            True,
        )


LAYOUT = StackLayout(EngineKind.SIM, ("r1",), {name: 7000 + at for at, name in enumerate(port_names(["r1"]))})


LAYOUT_SECURE = replace(LAYOUT, ports={**LAYOUT.ports, "etcd-health": 7100}, secure=True)


class StandIn(Stack):
    """A stack of which nothing runs but what is said."""

    def __init__(self, folder: Folder, layout: StackLayout = LAYOUT, /, **pids: tuple[int, bool]) -> None:
        super().__init__(folder, layout)
        self._pids = pids

    def status(self) -> list[PartStatus]:
        found = [(part, self._pids.get(part.role, (None, False))) for part in self.parts]
        return [PartStatus(part, pid, ready, self.folder.log(part.name)) for part, (pid, ready) in found]


@pytest.mark.parametrize(
    ("runs", "code", "states"),
    [
        ({"etcd": (41, True), "admin": (42, False)}, 6, ["ready 41", "not ready 42", "not running -", "not running -"]),
        (
            {role: (number, True) for number, role in enumerate(("etcd", "admin", "engine", "sidecar"), 41)},
            *(0, ["ready 41", "ready 42", "ready 43", "ready 44"]),
        ),
    ],
)
def test_how_each_part_is(cli, tmp_path, monkeypatch, runs, code, states):
    """Exit 6 unless all are ready; where each listens and writes is told too."""
    stack = StandIn(Folder(tmp_path), **runs)
    monkeypatch.setattr(dev, "opened", lambda _folder: stack)
    ran = cli("dev", "status")
    header, *rows = [re.split(" {2,}", line) for line in ran.out.splitlines()]
    assert (ran.code, header) == (code, ["PART", "STATE", "PID", "ADDRESS", "LOG"])
    assert [" ".join(row[1:3]) for row in rows] == states
    assert rows[0][0::3] == ["etcd", LAYOUT.address("etcd")]
    assert rows[0][4] == str(stack.folder.log("etcd"))
    assert "STACK_NOT_READY" in ran.err if code else ran.err == ""
    told = cli("-o", "json", "dev", "status").json
    assert (told["engine"], told["folder"], told["pool"]) == ("sim", str(tmp_path), "dev")
    assert [(one["name"], one["running"], one["ready"], one["pid"]) for one in told["parts"]] == [
        (part.name, part.role in runs, *reversed(runs.get(part.role, (None, False)))) for part in stack.parts
    ]
    assert told["parts"][0]["address"] == LAYOUT.address("etcd")
    assert told["parts"][0]["log"] == str(stack.folder.log("etcd"))


@pytest.mark.parametrize(("flags", "names_admin"), [([], False), (["--dir", "elsewhere"], True)])
def test_what_to_do_next_works_as_it_stands(cli, tmp_path, monkeypatch, flags, names_admin):
    """A stack in the folder where commands look for one needs no --admin; any other is named."""
    stack = StandIn(Folder(tmp_path / ".loraplane"))

    def bring_up(folder, replicas, engine, tell, *, secure):
        assert (str(folder), replicas, engine) == (flags[1] if flags else ".loraplane", 2, EngineKind.SIM)
        tell("it starts")
        return stack

    monkeypatch.setattr(dev, "bring_up", bring_up)
    command = ["dev", "up", "--engine", "sim", "--replicas", "2", *flags]
    out = cli(*command).out
    assert out.startswith("it starts\n")
    assert (f"loraplane --admin {LAYOUT.address('admin')} add sql" in out) is names_admin
    assert f" add sql --source {stack.folder.adapters / 'sql'} --wait" in out
    assert f"curl -s {LAYOUT.url('engine-r1')}/v1/completions" in out
    assert f"loraplane dev down --dir {flags[1] if flags else '.loraplane'}" in out
    assert "it starts" not in cli("-o", "json", *command).out, "for programs there is the end alone"
    assert cli("-o", "name", *command).out == "etcd\nadmin\nengine-r1\nsidecar-r1\n"


def test_a_context_goes_with_the_files_of_its_stack_and_that_of_another_stays(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "etc"))
    monkeypatch.setattr(dev, "take_down", lambda *_, **__: None)
    monkeypatch.setattr(dev, "bring_up", lambda folder, *_, **__: StandIn(Folder(folder.absolute()), LAYOUT_SECURE))
    named = ["config", "get-contexts", "-o", "name"]
    assert cli("dev", "down", "--purge", "--dir", "d").code == 0, "there is none yet"
    for folder in ("d", "e"):
        assert cli("dev", "up", "--dir", folder).code == 0
        (context,) = cli("config", "get-contexts", "-o", "json").json["items"]
        assert context["tls_ca"].startswith(f"{tmp_path / 'd'}/"), "the first stays"
        assert (context["name"], context["pool"], context["admin"]) == ("dev", "dev", LAYOUT.address("admin"))
    for flags, left in (
        (["--dir", "d"], "dev\n"),
        (["--purge", "--dir", "e"], "dev\n"),
        (["--purge", "--dir", "d"], ""),
    ):
        assert (cli("dev", "down", *flags).code, cli(*named).out) == (0, left), flags


@pytest.mark.parametrize("purge", [False, True])
def test_an_end_is_told_and_files_go_only_where_that_is_asked_for(cli, monkeypatch, purge):
    ended: list[tuple[str, bool]] = []

    def take_down(folder, tell, *, purge):
        tell("etcd ended")
        ended.append((str(folder), purge))

    monkeypatch.setattr(dev, "take_down", take_down)
    flags = ["--purge"] if purge else []
    assert cli("dev", "down", "--dir", "d", *flags).out == "etcd ended\n"
    assert (cli("-o", "json", "dev", "down", "--dir", "d", *flags).out, ended) == ("", [("d", purge)] * 2)
