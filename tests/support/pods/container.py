"""One container: a process in the pod's network, with a root of its own that is read-only but for volumes."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.pods.images import Image, on_this_machine

ROOT = Path(__file__).parents[3]
# What of this machine every image has, as far as it is there, beside this checkout with its interpreter.
_SYSTEM = ("/bin", "/sbin", "/usr", "/lib", "/lib32", "/lib64", "/etc")
_VARIABLE = re.compile(r"\$\((\w+)\)")
_KNOWN = {
    "name", "image", "imagePullPolicy", "command", "args", "env", "envFrom", "ports", "resources", "volumeMounts",
    "securityContext",
    "startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "restartPolicy",
}  # fmt: skip


class NotPlayed(Exception):
    """A manifest asks for what is not played here; a test that passed all the same would say nothing."""


@dataclass(frozen=True)
class Mount:
    """A folder of this machine at a path of the container."""

    source: Path
    target: str
    read_only: bool


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` as the kubelet reads it: unknown names stay."""
    return _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), text)


def check_known(spec: Mapping[str, Any]) -> None:
    """Refuses a container with fields that nothing here reads.

    Raises:
        NotPlayed: it has one.
    """
    probes = [spec.get(kind, {}) for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
    timing = {"httpGet", "periodSeconds", "failureThreshold", "timeoutSeconds", "initialDelaySeconds"}
    more = (
        {*spec} - _KNOWN
        | {one for probe in probes for one in probe if one not in timing}
        | {*spec.get("lifecycle", {})} - {"preStop"}
    )
    if more:
        raise NotPlayed(f"container {spec['name']}: {', '.join(sorted(more))}")


@dataclass
class Container:
    """One container of a pod; it may run several times.

    Attributes:
        spec: of the manifest.
        user: user and groups that it runs as.
        restarts: how often it was started again.
        ready: as its readiness probe says; of one without, that it has started.
        started: its startup probe has succeeded in this run.
    """

    spec: Mapping[str, Any]
    image: Image
    folder: Path
    namespace: str
    mounts: Sequence[Mount]
    environment: Mapping[str, str]
    user: tuple[int, int, Sequence[int]]
    restarts: int = 0
    ready: bool = False
    started: bool = False
    process: asyncio.subprocess.Process | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    codes: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    async def start(self) -> None:
        """Starts its process; `ended` is set when it has ended."""
        arguments = [expanded(str(one), self.environment) for one in self.spec.get("args", ())]
        command = self.image.run([str(one) for one in self.spec.get("command", ())], arguments)
        self.folder.mkdir(parents=True, exist_ok=True)
        script = self.folder / f"{self.name}.sh"
        script.write_text(self._script())
        begin = [
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            str(script),
        ]
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *begin,
                *command,
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # Together: whoever is cancelled before has an old process that ended, and no new one to wait for.
        self.process, self.ended = process, asyncio.Event()
        self._watch = asyncio.create_task(self._wait(process, self.ended))

    async def _wait(self, process: asyncio.subprocess.Process, ended: asyncio.Event) -> None:
        code = await process.wait()
        with suppress(ProcessLookupError):  # what it left behind ends with it, as with a container
            os.killpg(process.pid, signal.SIGKILL)
        self.codes.append(code)
        self.ready = self.started = False
        ended.set()

    @property
    def is_running(self) -> bool:
        return self.process is not None and not self.ended.is_set()

    def signal(self, number: signal.Signals) -> None:
        """To its first process."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """All of its processes, at once."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def execute(self, command: Sequence[str], seconds: float) -> int:
        """Runs a command in it, as an exec hook is run; ends it after the time. Gives its code, or -1."""
        assert self.process is not None
        target = str(self.process.pid)
        begin = ["nsenter", "--target", target, "--net", "--mount", "--root", *self._as_user()]
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *begin,
                *on_this_machine(command),
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        try:
            return await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            process.kill()
            await process.wait()
            return -1

    def _variables(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONUNBUFFERED": "1",
            **self.image.environment,
            **self.environment,
        }

    def _as_user(self) -> list[str]:
        user, group, groups = self.user
        return [
            "setpriv", f"--reuid={user}", f"--regid={group}", f"--groups={','.join(map(str, [group, *groups]))}",
            "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all",
        ]  # fmt: skip

    def _script(self) -> str:
        """Makes the root, and becomes the program. Folders of this machine are not changed by it."""
        root = self.folder / f"{self.name}.root"
        root.mkdir(exist_ok=True)
        lines = ["set -e", f"mount -t tmpfs -o mode=755,size=4m root {root}"]
        for path in (Path(one) for one in _SYSTEM):
            if path.is_symlink():
                lines.append(f"ln -s {path.readlink()} {root}{path}")
            elif path.exists():
                lines += _bind(root, Mount(path, str(path), read_only=True))
        lines += [
            f"mkdir -p {root}/proc {root}/dev {root}/sys",
            f"mount --rbind /sys {root}/sys",
            f"mount -o remount,ro,bind {root}/sys",
            f"mount --rbind /proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
        ]
        own = {str(ROOT), sys.base_prefix, str(Path(sys.prefix).resolve())}
        shipped = dict(self.image.folders)
        shipped |= {folder: Path(folder) for folder in own if not folder.startswith(_SYSTEM)}
        beside = [Mount(folder, path, read_only=True) for path, folder in shipped.items()]
        # The outer before what is in them, as container runtimes do.
        for mount in sorted([*beside, *self.mounts], key=lambda one: one.target.count("/")):
            lines += _bind(root, mount)
        lines += [f"mount -o remount,ro,bind {root}", f'exec chroot {root} {shlex.join(self._as_user())} "$@"']
        return "\n".join(lines) + "\n"


def _bind(root: Path, mount: Mount) -> list[str]:
    target = shlex.quote(f"{root}{mount.target}")
    make = f"mkdir -p {target}" if mount.source.is_dir() else f"test -e {target} || touch {target}"
    lines = [make, f"mount --rbind {shlex.quote(str(mount.source))} {target}"]
    return [*lines, f"mount -o remount,ro,bind {target}"] if mount.read_only else lines
