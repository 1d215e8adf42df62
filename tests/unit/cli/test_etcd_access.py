"""Users of etcd: how they are made, renewed, removed and checked, and their passwords in files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock
from urllib.parse import quote

import pytest

from registry.access.etcd_users import ADMIN, AUDITOR, replica_user, wanted
from registry.cli.commands import etcd_access
from registry.cli.commands.etcd_access import _Passwords
from registry.cli.failure import CliError
from registry.etcd3.errors import EtcdPermissionDenied, EtcdUnavailable
from registry.etcd3.ops import EtcdAccess, KeyPermission, Permission
from registry.model.keys import Keys
from registry.model.status import RememberedReplica, RememberedReplicas

R1 = replica_user("p", "r1")


def test_a_password_is_kept_once_etcd_has_it(tmp_path):
    """X1 secret-free: it is new for each user, and its owner's alone."""
    folder = _Passwords(tmp_path / "new")
    want = wanted(Keys(), [("p", "r1")])
    assert folder.missing(want) == {ADMIN, AUDITOR, R1}
    with pytest.raises(KeyError), folder.password(R1):
        raise KeyError("etcd did not take it")
    assert folder.missing(want) == {ADMIN, AUDITOR, R1}
    with folder.password(R1) as password:
        assert password is not None
        assert len(password) >= 32
    with folder.password(R1) as again:
        assert again == password
    file = tmp_path / "new" / "loraplane-replica:p%2Fr1"
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"{password}\n", 0o600)
    assert folder.missing(want) == {ADMIN, AUDITOR}
    with folder.password(ADMIN) as other:
        assert other != password


def test_without_a_folder_there_is_no_password():
    folder = _Passwords(None)
    assert folder.missing(wanted(Keys(), [("p", "r1")])) == frozenset()
    with folder.password(R1) as password:
        assert password is None


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match="--password-dir"), _Passwords(tmp_path / "file").password(R1):
        pass


class UsersInMemory:
    """Users and roles of an etcd, and what lives there; of one that was added without a password none is taken."""

    def __init__(self) -> None:
        self.users: dict[str, set[str]] = {}
        self.roles: dict[str, set[KeyPermission]] = {}
        self.passwords: dict[str, str | None] = {}
        self.is_on = False
        self.stands: dict[bytes, bytes] = {}

    async def read(self) -> EtcdAccess:
        users, roles = ({one: frozenset(has) for one, has in all_.items()} for all_ in (self.users, self.roles))
        return EtcdAccess(users, roles)

    async def is_enabled(self) -> bool:
        return self.is_on

    async def enable(self) -> None:
        assert "root" in self.users["root"]
        self.is_on = True

    async def add_user(self, name: str, password: str | None) -> None:
        self.users[name], self.passwords[name] = set(), password

    async def remove_user(self, name: str) -> None:
        del self.users[name], self.passwords[name]

    async def set_password(self, name: str, password: str) -> None:
        self.passwords[name] = password if self.passwords[name] is not None else None

    async def takes(self, name: str, password: str) -> bool:
        return self.passwords[name] == password

    async def give(self, user: str, role: str) -> None:
        self.users[user].add(role)

    async def add_role(self, name: str) -> None:
        assert self.roles.setdefault(name, set()) == set()

    async def remove_role(self, name: str) -> None:
        del self.roles[name]

    async def grant(self, role: str, one: KeyPermission) -> None:
        self.roles[role].add(one)

    async def revoke(self, role: str, one: KeyPermission) -> None:
        self.roles[role].remove(one)

    async def list_prefix(self, prefix: bytes) -> SimpleNamespace:
        found = [SimpleNamespace(key=key, value=value) for key, value in self.stands.items()]
        return SimpleNamespace(kvs=[one for one in found if one.key.startswith(prefix)])

    async def aclose(self) -> None:
        """Has no connection."""


@pytest.fixture
def etcd(monkeypatch) -> UsersInMemory:
    """An etcd in which p/r1 lives, and pool p remembers r2."""
    made, keys = UsersInMemory(), Keys()
    made.stands = {
        keys.replica("p", "r1"): b"",
        keys.replica("other", "r1"): b"",
        keys.members("p"): RememberedReplicas(members={"r2": RememberedReplica()}).to_bytes(),
    }
    monkeypatch.setattr(etcd_access, "EtcdUsers", lambda _: made)
    monkeypatch.setattr(etcd_access, "Client", lambda _: made)
    return made


AT = ("--etcd", "127.0.0.1:2379")
RIGHT = "users and roles are as they should be\n"


def test_users_are_made_once_and_those_of_replicas_that_are_gone_go_where_that_is_asked_for(cli, etcd):
    """X1 secret-free, and each has its own role alone. Passwords over the network are encrypted, or not sent."""
    away = ("--etcd", "etcd.example:2379", "--pool", "p")
    assert cli("etcd-access", "plan", *away).code == 0, "it sends none"
    ran = cli("etcd-access", "apply", *away, "--password-dir", "d")
    assert (ran.code, "unencrypted" in ran.err, etcd.users) == (2, True, {})
    apply = ("etcd-access", "apply", *AT, "--password-dir", "d")
    ran = cli("-o", "json", *apply, "--replica", "p/r9", "--pool", "p")
    everybody = {ADMIN, AUDITOR, R1, replica_user("p", "r9")}
    assert (ran.code, ran.json["enabled"], "asks for no user yet" in ran.err) == (0, False, True)
    assert etcd.users == {one: {one} for one in everybody}
    assert etcd.roles == wanted(Keys(), [("p", "r1"), ("p", "r9")]).roles
    told = {one: (Path("d") / quote(one, safe=":")).read_text().strip() for one in everybody}
    assert (etcd.passwords, len({*told.values()})) == (told, 4)
    ran = cli(*apply, "--replica", "p/r9", "--pool", "p")
    assert (ran.out, etcd.passwords) == (RIGHT, told)
    ran = cli(*apply, "--pool", "p")
    assert (ran.out, "of replicas that are gone there is still: " in ran.err, len(etcd.users)) == (RIGHT, True, 4)
    assert "there is still" not in cli(*apply, "--pool", "p", "--prune").err
    assert ({*etcd.users}, {*etcd.roles}) == (everybody - {replica_user("p", "r9")},) * 2
    for word in ("p", "p/", "/r1", "p/r1/x"):
        ran = cli(*apply, "--replica", word)
        assert (ran.code, f"--replica {word}: write POOL/NAME" in ran.err) == (2, True)


def test_a_password_that_is_lost_is_renewed_where_the_user_has_one(cli, etcd):
    apply = ("etcd-access", "apply", *AT, "--password-dir", "d")
    assert cli(*apply).code == 0
    (Path("d") / ADMIN).unlink()
    assert cli(*apply).code == 0
    assert etcd.passwords[ADMIN] == (Path("d") / ADMIN).read_text().strip()
    etcd.passwords[ADMIN] = None
    (Path("d") / ADMIN).unlink()
    ran = cli(*apply)
    assert (ran.code, f"etcdctl user delete {ADMIN}, and apply again" in ran.err) == (2, True)
    assert not (Path("d") / ADMIN).exists()


def test_etcd_asks_for_users_once_there_are_some_and_then_nobody_may_do_too_much(cli, etcd):
    """X2: nobody is shut out."""
    ran = cli("etcd-access", "enable", *AT)
    assert (ran.code, "run loraplane etcd-access apply first" in ran.err, etcd.is_on) == (2, True, False)
    assert (cli("etcd-access", "apply", *AT).code, etcd.passwords) == (0, dict.fromkeys((ADMIN, AUDITOR)))
    ran = cli("etcd-access", "check", *AT)
    assert (ran.code, ran.out, "asks for no user yet" in ran.err) == (7, "everybody may do everything\n", True)
    assert cli("etcd-access", "enable", *AT, "--password-dir", "d").out == "etcd asks for users now\n"
    assert (etcd.is_on, etcd.users["root"]) == (True, {"root"})
    assert etcd.passwords["root"] == (Path("d") / "root").read_text().strip()
    assert cli("etcd-access", "enable", *AT).out == "etcd asks for users already\n"
    assert cli("-o", "json", "etcd-access", "enable", *AT).json == {"enabled": True, "changed": False}
    ran = cli("etcd-access", "check", *AT)
    assert (ran.code, ran.out, ran.err) == (0, "no user may do more than it needs\n", "")
    etcd.roles[AUDITOR].add(KeyPermission(Keys().meta(), b"", Permission.WRITE))
    ran = cli("-o", "json", "etcd-access", "check", *AT)
    assert (ran.code, len(ran.json["excess"]), AUDITOR in ran.json["excess"][0]) == (7, 1, True)
    assert cli("etcd-access", "apply", *AT).code == 0
    assert cli("etcd-access", "check", *AT).code == 0, "what is too much was taken away"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (EtcdPermissionDenied("no"), 4, "give --etcd-user and --etcd-password-file of a user with the role root"),
        (EtcdUnavailable("away", maybe_applied=False), 6, "the same command goes on from where it ended"),
    ],
)
def test_an_etcd_that_refuses_or_is_away_is_told(cli, etcd, monkeypatch, error, code, told):
    monkeypatch.setattr(etcd, "is_enabled", AsyncMock(side_effect=error))
    for verb in ("plan", "apply", "enable", "check"):
        ran = cli("etcd-access", verb, *AT)
        assert (ran.code, told in ran.err) == (code, True), verb
