"""Commands etcd-access plan, apply, enable and check: users of etcd."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, assert_never
from urllib.parse import quote

import click
from pydantic import ValidationError

from registry.access.etcd_users import (
    ADMIN,
    AccessStep,
    AddRole,
    AddUser,
    Excess,
    GiveRole,
    GrantKeys,
    RemoveRole,
    RemoveUser,
    RevokeKeys,
    SetPassword,
    access_steps,
    enabling_steps,
    excess,
    removing_steps,
    replicas_in,
    wanted,
)
from registry.cli import options
from registry.cli.failure import CliError, Exit, failure_of, refused, unavailable, usage
from registry.cli.session import session_of
from registry.cli.views.get import note
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, EtcdPermissionDenied, EtcdUnauthenticated
from registry.etcd3.ops import EtcdAccess
from registry.etcd3.users import EtcdUsers
from registry.model.errors import Reason, RegistryError
from registry.model.keys import DEFAULT_PREFIX, Keys, last_part
from registry.model.status import RememberedReplicas
from registry.runtime.flags import complaint_of
from registry.runtime.local_files import MAX_SECRET_BYTES, read_followed
from registry.runtime.settings import DaemonSettings

_OFF = (
    "etcd asks for no user yet: anybody who reaches it may write everything. Give each process its user, then "
    "loraplane etcd-access enable (or etcdctl user add root; etcdctl user grant-role root root; etcdctl auth enable)"
)
_PASSWORD_BYTES = 32
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdLogin:
    """Options by which etcd knows us, and we it."""

    etcd_tls_ca: Annotated[Path | None, options.flag("--etcd-tls-ca", metavar="FILE", help="CA of etcd.")] = None
    etcd_tls_cert: Annotated[Path | None, options.flag("--etcd-tls-cert", metavar="FILE", help="Our certificate.")] = (
        None
    )
    etcd_tls_key: Annotated[Path | None, options.flag("--etcd-tls-key", metavar="FILE", help="Its key.")] = None
    etcd_user: Annotated[
        str | None,
        options.flag(
            "--etcd-user", metavar="NAME", help="User of etcd; to see or change users it needs the role root."
        ),
    ] = None
    etcd_password_file: Annotated[
        Path | None, options.flag("--etcd-password-file", metavar="FILE", help="Its password.")
    ] = None
    insecure: Annotated[bool, options.flag("--insecure", help="Send passwords unencrypted over the network.")] = False


def etcd_settings(given: Mapping[str, object]) -> DaemonSettings:
    """Settings of these names, checked; those that are None are not given.

    Raises:
        CliError: they do not fit together.
    """
    try:
        return DaemonSettings.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as problem:
        raise usage(complaint_of(problem)) from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdTarget(EtcdLogin):
    """Options for reaching etcd as somebody who may change its users."""

    etcd: Annotated[str, options.flag("--etcd", metavar="HOST:PORT[,…]", help="Members of etcd.")]
    prefix: Annotated[str, options.flag("--prefix", metavar="PATH", help="Prefix of all keys in etcd.")] = (
        DEFAULT_PREFIX
    )

    def settings(self, *, sends_passwords: bool = False) -> DaemonSettings:
        """The same, checked.

        Raises:
            CliError: the options do not fit together, or passwords would go unencrypted over the network.
        """
        found = etcd_settings(asdict(self))
        if sends_passwords:  # a user stands for those whose passwords are sent
            given = {name: value for name, value in asdict(self).items() if value is not None}
            etcd_settings({"etcd_user": "root", "etcd_password_file": Path(), **given})
        return found


PasswordDir = Annotated[
    Path | None,
    options.flag(
        "--password-dir",
        metavar="DIR",
        help="Folder with a file for each user's password, made where it is missing. Without it users have none, "
        "and are known by the common name of their certificate.",
    ),
]


@dataclass(frozen=True, slots=True)
class UserOptions:
    """Replicas that get users, and what becomes of users whose replicas are gone."""

    replica: Annotated[
        list[str] | None,
        options.flag("--replica", metavar="POOL/NAME", help="A replica that gets a user (repeatable)."),
    ] = None
    pool: Annotated[
        str | None, options.flag("--pool", metavar="POOL", help="The replicas that live in this pool get users.")
    ] = None
    password_dir: PasswordDir = None
    prune: Annotated[
        bool,
        options.flag(
            "--prune",
            help="Remove users and roles of replicas that are gone: that neither live, nor are expected, nor are named "
            "by --replica.",
        ),
    ] = False


def plan(context: click.Context, *, target: EtcdTarget, given: UserOptions) -> None:
    """Print the changes of etcd's users and roles that apply would make."""
    settings = target.settings()
    found, is_on = _run(lambda: _planned(settings, given))
    _tell(context, "steps", found, none="users and roles are as they should be", is_on=is_on)


def apply(context: click.Context, *, target: EtcdTarget, given: UserOptions) -> None:
    """Give etcd a user and a role for each replica, for admin services and for readers of the audit.

    A repetition changes nothing more. It never makes etcd ask for users: it says how to, once all have one.
    """
    settings = target.settings(sends_passwords=given.password_dir is not None)
    found, is_on = _run(lambda: _applied(settings, given))
    _tell(context, "steps", found, none="users and roles are as they should be", is_on=is_on)


def enable(context: click.Context, *, target: EtcdTarget, password_dir: PasswordDir = None) -> None:
    """Make etcd ask for users, once apply has made them; adds the user root, who may do everything.

    From then on nobody does anything without a user. With --password-dir root's password is in the folder as well;
    without it root is known by a certificate with the common name root.
    """
    settings = target.settings(sends_passwords=password_dir is not None)
    changed = _run(lambda: _enabled(settings, _Passwords(password_dir)))
    printer = session_of(context).printer()
    if printer.is_plain:
        printer.plain({"enabled": True, "changed": changed})
    else:
        printer.lines(["etcd asks for users now" if changed else "etcd asks for users already"])


def check(context: click.Context, *, target: EtcdTarget) -> None:
    """List what users of etcd may do with LoraPlane's keys and do not need (exit 7 if there is anything)."""
    settings = target.settings()
    found, is_on = _run(lambda: excess_found(settings))
    none = "no user may do more than it needs" if is_on else "everybody may do everything"
    _tell(context, "excess", found, none=none, is_on=is_on)
    if found or not is_on:
        raise click.exceptions.Exit(Exit.ROLLOUT_FAILED)


def _tell(context: click.Context, name: str, found: Sequence[AccessStep | Excess], *, none: str, is_on: bool) -> None:
    if not is_on:
        note(_OFF)
    printer, lines = session_of(context).printer(), [str(one) for one in found]
    if printer.is_plain:
        printer.plain({name: lines, "enabled": is_on})
    else:
        printer.lines(lines or [none])


def _run(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Runs what speaks to etcd.

    Raises:
        CliError: etcd does not answer, or refuses.
    """
    try:
        return asyncio.run(work())
    except RegistryError as error:
        raise CliError(failure_of(error)) from error
    except (EtcdPermissionDenied, EtcdUnauthenticated) as error:
        remedy = "give --etcd-user and --etcd-password-file of a user with the role root"
        raise refused(Reason.ETCD_PERMISSION, f"{error}; {remedy}") from error
    except EtcdError as error:
        message = f"etcd: {error}; the same command goes on from where it ended"
        raise unavailable(Reason.ETCD_UNAVAILABLE, message) from error


class _Passwords:
    """Folder of the users' passwords, a file for each; None: users have none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def missing(self, want: EtcdAccess) -> frozenset[str]:
        """Users without a file, who get a new password."""
        if self._folder is None:
            return frozenset()
        return frozenset(one for one in want.users if not _file(self._folder, one).exists())

    @contextmanager
    def password(self, user: str) -> Iterator[str | None]:
        """The password for a user of etcd. A new one is kept once etcd has it, so a crash leaves none that is wrong.

        Raises:
            CliError: the file cannot be read, or not be written.
        """
        if self._folder is None:
            yield None
            return
        file = _file(self._folder, user)
        try:
            if file.exists():
                yield read_followed(file, max_bytes=MAX_SECRET_BYTES).decode().strip()
                return
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            password, written = secrets.token_urlsafe(_PASSWORD_BYTES), file.with_name(f".{file.name}.new")
            written.unlink(missing_ok=True)
            with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
                opened.write(f"{password}\n")
            yield password
            written.replace(file)
        except (OSError, UnicodeDecodeError) as error:
            raise usage(f"cannot read or write {file}: {error}; name a folder of yours by --password-dir") from error


def _file(folder: Path, user: str) -> Path:
    return folder / quote(user, safe=":")


Planned = tuple[tuple[AccessStep, ...], bool]
_PoolsAndNames = list[tuple[str, str]]


async def _planned(settings: DaemonSettings, asked: UserOptions) -> Planned:
    keys = Keys(settings.prefix)
    named = [*map(_pool_and_name, asked.replica or ())]
    living, remembered = await _replicas(settings, keys)
    named += [one for one in living if one[0] == asked.pool]
    want = wanted(keys, dict.fromkeys(named))
    async with aclosing(EtcdUsers(settings.client_options())) as users:
        present, is_on = await users.read(), await users.is_enabled()
    steps = access_steps(present, want, _Passwords(asked.password_dir).missing(want))
    gone = removing_steps(present, keys, {*named, *living, *remembered})
    if gone and not asked.prune:
        note(f"of replicas that are gone there is still: {'; '.join(map(str, gone))} (--prune does it)")
    return (*steps, *(gone if asked.prune else ())), is_on


async def _applied(settings: DaemonSettings, asked: UserOptions) -> Planned:
    steps, is_on = await _planned(settings, asked)
    async with aclosing(EtcdUsers(settings.client_options())) as users:
        for one in steps:
            await _take(users, one, _Passwords(asked.password_dir))
    return steps, is_on


async def _enabled(settings: DaemonSettings, folder: _Passwords) -> bool:
    async with aclosing(EtcdUsers(settings.client_options())) as users:
        if await users.is_enabled():
            return False
        present = await users.read()
        if ADMIN not in present.users:
            raise usage("admin services have no user yet, and would be shut out: run loraplane etcd-access apply first")
        for one in enabling_steps(present):
            await _take(users, one, folder)
        await users.enable()
    return True


async def excess_found(settings: DaemonSettings) -> tuple[tuple[Excess, ...], bool]:
    """Permissions that users have and do not need, and whether etcd asks for users. Raises `EtcdError`."""
    keys = Keys(settings.prefix)
    async with aclosing(EtcdUsers(settings.client_options())) as users:
        present, is_on = await users.read(), await users.is_enabled()
    return excess(present, wanted(keys, replicas_in(present)), f"{keys.prefix}/".encode()), is_on


def _pool_and_name(word: str) -> tuple[str, str]:
    pool, _, name = word.partition("/")
    if not pool or not name or "/" in name:
        raise usage(f"--replica {word}: write POOL/NAME")
    return pool, name


async def _replicas(settings: DaemonSettings, keys: Keys) -> tuple[_PoolsAndNames, _PoolsAndNames]:
    """Replicas that live, and those that pools remember: they may come back.

    Raises:
        FailedPrecondition: what a pool remembers cannot be read.
    """
    async with aclosing(Client(settings.client_options())) as client:
        living = (await client.list_prefix(keys.all_replicas())).kvs
        pools = (await client.list_prefix(keys.all_members())).kvs
    remembered = [(last_part(kv.key), one) for kv in pools for one in RememberedReplicas.parse(kv.value).members]
    return [(last_part(kv.key.rpartition(b"/")[0]), last_part(kv.key)) for kv in living], remembered


async def _take(users: EtcdUsers, step: AccessStep, folder: _Passwords) -> None:
    match step:
        case AddRole(role):
            await users.add_role(role)
        case GrantKeys(role, permission):
            await users.grant(role, permission)
        case RevokeKeys(role, permission):
            await users.revoke(role, permission)
        case AddUser(user):
            with folder.password(user) as password:
                await users.add_user(user, password)
        case SetPassword(user):
            with folder.password(user) as password:
                await _renew(users, user, password or "")
        case GiveRole(user, role):
            await users.give(user, role)
        case RemoveUser(name) | RemoveRole(name):
            await (users.remove_user if isinstance(step, RemoveUser) else users.remove_role)(name)
        case _:
            assert_never(step)


async def _renew(users: EtcdUsers, user: str, password: str) -> None:
    await users.set_password(user, password)
    if not await users.takes(user, password):
        message = f"{user} was added without a password and can get none; etcdctl user delete {user}, and apply again"
        raise usage(message)
