"""Admin services with an access file, on virtual time with an etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from registry.access.control import AccessControl
from registry.access.roles import OF_TENANTS, AccessRole
from tests.support.admin import change_set, put
from tests.support.played_admin import Context, Served
from tests.support.played_etcd import PlayedEtcd, as_test, play

HEAD = "apiVersion: loraplane/v1\nkind: Access\nauthentication: {certificateNames: [commonName]}\nbindings:\n"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def binding(role: AccessRole | str, name: str, more: str = "") -> str:
    tenants = ', tenants: ["*"]' if role in OF_TENANTS and "tenants" not in more else ""
    return f"  - {{role: {role}, users: [{name}]{tenants}{more}}}\n"


ROOT = "".join(
    binding(role, "root", ', credentials: ["*"]' if role is AccessRole.PUBLISHER else "") for role in AccessRole
)


def who(name: str) -> Context:
    return Context(names={"x509_pem_cert": [b"PEM"], "x509_common_name": [name.encode()]})


ANN = who("ann")


class Guarded(Served):
    """A service with an access file, in which root may do everything."""

    def __init__(self, etcd: PlayedEtcd, file: Path) -> None:
        super().__init__(etcd, AccessControl(file, lambda: NOW))
        self.file = file


@asynccontextmanager
async def two_pools(served: Guarded) -> AsyncIterator[None]:
    """In each of them two tenants have an adapter."""
    for pool in ("p", "q"):
        await served.make_pool(pool, who("root"))
        await served.call("ApplyAdapters", change_set(put("acme/a"), put("other/b"), pool=pool), who("root"))
    yield


Begin = Callable[[Guarded], AbstractAsyncContextManager[None]]


def play_guarded(bindings: str, scene: Callable[[Guarded], Awaitable[None]], begin: Begin = two_pools) -> None:
    """Plays a scene with a service whose access file has these bindings, too."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "access.yaml"
        file.write_text(HEAD + ROOT + bindings)

        async def work(etcd: PlayedEtcd) -> None:
            served = Guarded(etcd, file)
            async with begin(served):
                await scene(served)

        play(work)


def guarded(bindings: str, begin: Begin = two_pools) -> Callable[[Any], Callable[..., None]]:
    """Makes a test of such a scene."""
    return lambda scene: as_test(partial(play_guarded, bindings, begin=begin), scene, 1)
