"""A local stack as a whole: up, status, down. Every verb is safe to run twice."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from registry.etcd3.client import SAFE_RELEASES, UNSAFE_RELEASES
from registry.tools.devstack.certificates import make_secrets
from registry.tools.devstack.engine_environment import MAX_LORA_RANK
from registry.tools.devstack.processes import find_etcd
from registry.tools.devstack.secure import operator_flags, root_flags, wanted_certificates
from registry.tools.devstack.stack import Stack
from registry.tools.devstack.stack_file import EngineKind, StackError, StackLayout, check_own, load, make_layout, save
from registry.tools.devstack.stack_parts import BASE_MODEL, POOL, Folder, Role, our_environment
from registry.tools.devstack.tiny_adapters import write_adapter
from registry.tools.devstack.tiny_model import write_model

ADAPTERS = ("sql", "sql-v2", "legal", "support")
DEFAULT_REPLICAS = 2
# A vLLM of the tiny model, or a simulated engine, with its sidecar.
_REPLICA_GIB = {EngineKind.VLLM: 1.1, EngineKind.SIM: 0.15}
_POOL_SECONDS = 60
_COMMAND_SECONDS = 120

Tell = Callable[[str], None]


def up(root: Path, replicas: int | None, engine: EngineKind | None, tell: Tell, *, secure: bool | None = None) -> Stack:
    """Starts what is missing of the stack in `root`, and waits until all of it is ready.

    Args:
        root: folder of the stack; made if it is missing.
        replicas: how many; None: as many as it had, or 2.
        engine: which; None: what it had, or vLLM.
        secure: with TLS, users and roles; None: as it was, or without.
        tell: is told each step in one line.

    Raises:
        StackError: it runs in another form, a part cannot be started, or the folder is not ours.
    """
    check_own(root)
    with _locked(root):
        stack = set_up(root, replicas, engine, secure=secure)
        tell(f"stack in {stack.folder.root}: {stack.layout.engine} engines {', '.join(stack.layout.replicas)}")
        tell(memory_line(stack.layout.engine, len(stack.layout.replicas)))
        if said := etcd_line():
            tell(said)
        start(stack, tell)
    return stack


def etcd_line() -> str:
    """Warning about the etcd that is to run; empty: none, or its release is unknown."""
    program = str(find_etcd().resolve())
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout  # noqa: S603 - see find_etcd
    except OSError:
        return ""
    version = told.partition("etcd Version: ")[2].partition("\n")[0].strip()
    if version not in UNSAFE_RELEASES:
        return ""
    return (
        f"etcd {version} may lose data when it is killed under load: for trying things out, not for what must stay; "
        f"ETCD_BIN=/path/to/etcd runs another, {SAFE_RELEASES} or later"
    )


def memory_line(engine: EngineKind, replicas: int, meminfo: Path = Path("/proc/meminfo")) -> str:
    """Memory for that many replicas beside the present amount; told before any starts."""
    wanted = replicas * _REPLICA_GIB[engine]
    try:
        (kib,) = (int(line.split()[1]) for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return f"memory: about {wanted:.1f} GiB for {replicas} replicas"
    free = kib / (1 << 20)
    told = f"memory: about {wanted:.1f} GiB for {replicas} replicas, {free:.1f} GiB are free"
    return told if wanted < free else f"{told}; some will not start, choose fewer with --replicas"


def opened(root: Path) -> Stack | None:
    """The stack that was set up in `root`; None: there is none.

    Raises:
        FolderNotTrusted: see `check_own`.
    """
    check_own(root)
    layout = load(root)
    return Stack(Folder(root.absolute()), layout) if layout else None


def down(root: Path, tell: Tell, *, purge: bool = False) -> None:
    """Ends every process of the stack in `root`; `purge` removes all its files too.

    Raises:
        FolderNotTrusted: see `check_own`.
    """
    with _locked(root) if opened(root) else nullcontext():
        stack = opened(root)  # as whoever had the lock left it
        if stack is None:
            tell(f"no stack in {root}")
            return
        for role in (Role.SIDECAR, Role.ADMIN, Role.ENGINE, Role.ETCD):
            stack.stop(stack.names(role))
        tell(f"ended all processes of the stack in {stack.folder.root}")
        if purge:
            shutil.rmtree(stack.folder.root)
            tell(f"removed {stack.folder.root}")


def set_up(root: Path, replicas: int | None, engine: EngineKind | None, *, secure: bool | None = None) -> Stack:
    """Lays down the form of the stack in `root`, its model and its adapters; starts nothing.

    Raises:
        StackError: it runs in another form, or a program that it needs is not on this machine.
    """
    known = load(root)
    wanted = make_layout(
        engine or (known.engine if known else EngineKind.VLLM),
        replicas or (len(known.replicas) if known else DEFAULT_REPLICAS),
        known.ports if known else {},
        secure=(known.secure if known else False) if secure is None else secure,
    )
    if known is not None and known.secure != wanted.secure:
        form = "with" if known.secure else "without"
        raise StackError(f"the stack in {root} was made {form} --secure; remove it with: loraplane dev down --purge")
    if known is not None and not _grows(known, wanted):
        _check_stopped(Stack(Folder(root.absolute()), known))
    stack = Stack(Folder(root.absolute()), wanted)
    if wanted.secure:
        _make_secrets(stack)
    for part in stack.parts:
        stack.command(part.name)
    save(root, wanted)
    _make_files(stack.folder)
    return stack


def _grows(known: StackLayout, wanted: StackLayout) -> bool:
    """True if a stack that runs stays what it is, but for replicas that come to it."""
    return known.engine == wanted.engine and known.replicas == wanted.replicas[: len(known.replicas)]


def _check_stopped(stack: Stack) -> None:
    if any(stack.process(part.name) for part in stack.parts):
        raise StackError(
            f"the stack in {stack.folder.root} runs with {len(stack.layout.replicas)} {stack.layout.engine} engines; "
            "end it first with: loraplane dev down"
        )


def _make_secrets(stack: Stack) -> None:
    """Certificates and the access file, where they are not there yet. Raises StackError: they cannot be made."""
    replicas, folder = stack.layout.replicas, stack.folder.secrets
    certificates = wanted_certificates(POOL, replicas, ("dev",), ("admin", *replicas))
    try:
        make_secrets(folder, certificates)
    except ValueError as error:
        raise StackError(f"{folder.root} holds what is no certificate; remove it, and begin anew: {error}") from error


def _make_files(folder: Folder) -> None:
    """The base model and adapters, where they are not there yet."""
    if not (folder.model / "model.safetensors").exists():
        write_model(folder.model)
    for name in ADAPTERS:
        if not (folder.adapters / name / "adapter_model.safetensors").exists():
            write_adapter(folder.adapters / name, seed=name, model=folder.model)


def start(stack: Stack, tell: Tell) -> None:
    """Starts what is missing, engines beside all else since they take longest, and waits until all is ready.

    Raises:
        StackError: a part cannot be started.
    """
    early = stack.names(Role.ETCD, Role.ENGINE)
    for name in early:
        stack.start(name)
    stack.wait_ready(["etcd"])
    if stack.layout.secure:
        _make_users(stack)
    stack.start("admin")
    stack.wait_ready(["admin"])
    tell(f"etcd and the admin service are ready at {stack.layout.address('admin')}")
    make_pool(stack)
    for name in stack.names(Role.SIDECAR):
        stack.start(name)
    stack.wait_ready(stack.names(Role.ENGINE))
    stack.wait_ready(stack.names(Role.SIDECAR))
    tell("engines and sidecars are ready")


def _make_users(stack: Stack) -> None:
    """Users of etcd for all processes, which asks for them from then on. Raises StackError."""
    target = ["--etcd", stack.layout.address("etcd"), *root_flags(stack.folder.secrets)]
    named = [word for replica in stack.layout.replicas for word in ("--replica", f"{POOL}/{replica}")]
    for verb, more in (("apply", named), ("enable", [])):
        done = cli(stack, "-o", "json", "etcd-access", verb, *target, *more)
        if done.returncode != 0:
            raise StackError(f"etcd's users could not be made: {done.stderr.strip()}")


def make_pool(stack: Stack) -> None:
    """Makes the pool, unless there is one.

    Raises:
        StackError: the admin service refused it.
    """
    base = ["--base-model", BASE_MODEL, "--from", str(stack.folder.model), "--max-rank", str(MAX_LORA_RANK)]
    pool = ["pool", "create", POOL, *base]
    done = cli(stack, "-o", "json", *pool, "--timeout", str(_POOL_SECONDS))
    if done.returncode != 0 and _reason(done.stderr) != "POOL_EXISTS":
        raise StackError(f"the pool {POOL} could not be made: {done.stderr.strip()}")


def _reason(stderr: str) -> str | None:
    try:
        return str(json.loads(stderr)["error"]["reason"])
    except (ValueError, KeyError, TypeError):
        return None


def cli(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line against the stack, as a user would."""
    who = operator_flags(stack.folder.secrets) if stack.layout.secure else []
    command = [sys.executable, "-m", "registry.cli.main", "--admin", stack.layout.address("admin"), *who, *arguments]
    return subprocess.run(  # noqa: S603 - our own program
        command, capture_output=True, text=True, check=False, env=our_environment(), timeout=_COMMAND_SECONDS
    )


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Two verbs at once on one stack run one after the other."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (root / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
