"""The command line against the real admin service on a real etcd."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from registry.etcd3.ops import Range, prefix_end
from registry.model.keys import Keys
from tests.conftest import EtcdForTest
from tests.support.admin import AdminProgram, admin_program
from tests.support.etcd import one_member
from tests.support.processes import child
from tests.support.ran import Ran, ran
from tests.support.waiting import eventually

MAX_TXN_OPS = 64


class Admin(AdminProgram):
    """An admin service as a process."""

    def start(self) -> None:
        self.program.start()
        asyncio.run(eventually(self.is_ready))


def make_admin(folder: Path, etcd: EtcdForTest) -> Admin:
    made = admin_program(folder, etcd.endpoints, etcd.prefix, "--max-txn-ops", str(MAX_TXN_OPS))
    return Admin(made.program, made.address, made.http)


@dataclass
class Cli:
    """Runs `loraplane` in a folder of the test's own.

    `waits`: as who gives a time. Else an etcd that stands still for a few seconds ends a command that is not about it.
    """

    admin: Admin
    folder: Path
    waits: bool = True

    def __call__(self, *arguments: str) -> Ran:
        with mock.patch.dict(os.environ, {"LORAPLANE_TIMEOUT": "300"} if self.waits else {}):
            return ran("--admin", self.admin.address, *arguments)

    def json(self, *arguments: str) -> Any:
        """The result of a command that must succeed."""
        ran = self("-o", "json", *arguments)
        assert ran.code == 0, ran.err
        return ran.json

    def start(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """It as a process beside the test, which ends with the context."""
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "registry.cli.main", "--admin", self.admin.address, *arguments]
        return child(command, stdout=pipe, stderr=pipe, text=True)

    def manifest(self, *names: str, **spec: object) -> str:
        """Writes a manifest with a document for each name; gives its path."""
        path = self.folder / "adapters.yaml"
        path.write_text("---\n".join(_document(name, spec) for name in names))
        return str(path)


def _document(name: str, spec: dict[str, object]) -> str:
    whole = {"source": {"uri": f"file:///adapters/{name}"}, **spec}
    return (
        f"apiVersion: loraplane/v1\nkind: Adapter\nmetadata: {{name: {name}, pool: dev}}\nspec: {json.dumps(whole)}\n"
    )


@pytest.fixture
def admin(etcd, tmp_path) -> Iterator[Admin]:
    """An admin service of this test's own."""
    admin = make_admin(tmp_path, etcd)
    admin.start()
    yield admin
    admin.program.kill()


@pytest.fixture
def cli(admin, tmp_path) -> Cli:
    """The command line, with a pool `dev` of base model `tiny`."""
    return with_pool(Cli(admin, tmp_path))


@pytest.fixture(scope="module")
def shared_cli(etcd_member, tmp_path_factory) -> Iterator[Cli]:
    """The same for tests that change nothing."""
    folder = tmp_path_factory.mktemp("shared")
    admin = make_admin(folder, EtcdForTest(etcd_member, f"/test/{uuid.uuid4().hex}"))
    admin.start()
    yield with_pool(Cli(admin, folder))
    admin.program.kill()


def with_pool(cli: Cli) -> Cli:
    assert cli("pool", "create", "dev", "--base-model", "tiny").code == 0
    return cli


@pytest.fixture
def revision(etcd) -> Callable[[], int]:
    """The newest revision at which anything of this test's own changed, but for whom the admin service remembers."""
    return lambda: asyncio.run(_newest(etcd))


async def _newest(etcd: EtcdForTest) -> int:
    client = etcd.patient()
    try:
        start = etcd.key("")
        found = await client.range(Range(start, prefix_end(start)))
        remembered = Keys(etcd.prefix).all_members()
        return max(kv.mod_revision for kv in found.kvs if not kv.key.startswith(remembered))
    finally:
        await client.aclose()


@pytest.fixture
def own_etcd(tmp_path) -> Iterator[EtcdForTest]:
    """A member that the test may stop."""
    with one_member(tmp_path / "etcd") as cluster:
        yield EtcdForTest(cluster, "/test/own")
