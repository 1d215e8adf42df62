"""Who calls the admin services, by the SDK: they repeat what is not settled, and some leave before the answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import Message

from registry.client.adapters import Published
from registry.client.admin_api import AdminMethod
from registry.client.transport import AdminCalls
from registry.etcd3.ops import KeyValue
from registry.model.errors import RegistryError, Unavailable
from registry.model.records import AdapterRecord
from registry.transactions.changes import Change
from tests.simulation.admins import Admin
from tests.simulation.calls import CallerLeft
from tests.simulation.requests import Request, request_of

CALL_SECONDS = 5.0
# The share of calls whose caller leaves, and how soon.
LEAVES = 0.1
LEAVES_WITHIN_SECONDS = (0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Answer:
    """How a request ended for its caller; `revision` 0: it was refused. `etags`: by key, as they were given."""

    request_id: str
    revision: int
    reason: str = ""
    etags: Mapping[str, int] = field(default_factory=dict)


def answer_of(made: Published, kv: KeyValue | None) -> Answer | None:
    """How a program's change ended; None: nothing was changed, and its revision is that of the change before.

    `kv`: the adapter's record as it was at that revision.
    """
    if kv is not None and kv.mod_revision == made.revision:
        record = AdapterRecord.parse(kv.value)
        if record.request_id != made.request_id and record.generation == made.generation:
            return None
    return Answer(made.request_id, made.revision)


@dataclass(frozen=True)
class Impatience:
    """Callers that leave amid a call, now and then; `left` is told of each."""

    rng: random.Random
    left: Callable[[], None]

    def seconds(self) -> float | None:
        """When the next caller leaves; None: it stays."""
        if self.rng.random() >= LEAVES:
            return None
        return self.rng.uniform(0.0, self.rng.choice(LEAVES_WITHIN_SECONDS))


@dataclass
class Clients:
    """One caller's connections, one to each admin service. Made within the loop."""

    caller: str
    _calls: dict[str, AdminCalls] = field(default_factory=dict)

    def of(self, admin: Admin) -> AdminCalls:
        """The connection to an admin service."""
        if admin.name not in self._calls:
            self._calls[admin.name] = AdminCalls(f"{self.caller}.{admin.address}", None, CALL_SECONDS)
        return self._calls[admin.name]

    async def ask(
        self, admin: Admin, asked: Request, *, leaves_after: float | None = None, repeats: bool = False
    ) -> Message:
        """One call, which the SDK repeats while it is Unavailable; `repeats`: it says that it may be a repetition.

        Raises:
            CallerLeft: the caller hung up.
            RegistryError: as the SDK raises it.
        """
        try:
            async with asyncio.timeout(leaves_after):
                method = AdminMethod(type(asked.message), asked.reply)
                return await self.of(admin).unary(method, asked.message, repeats=repeats)
        except TimeoutError as error:
            raise CallerLeft("nobody waits for it any more") from error

    async def change(self, admin: Admin, change: Change, request_id: str) -> Message:
        """Makes a change. Raises RegistryError."""
        return await self.ask(admin, request_of(change, request_id))


async def settle(
    clients: Clients,
    admins: list[Admin],
    asked: Request,
    rng: random.Random,
    impatience: Impatience,
    *,
    repeats: bool = False,
) -> tuple[Message | RegistryError, bool]:
    """Asks one admin after another, always the same, until the outcome is known.

    It comes with whether of an earlier call nobody knew the outcome. `repeats`: there was one before these.
    """
    was_unsettled = False
    while True:
        admin, leaves_after, is_repeated = rng.choice(admins), impatience.seconds(), repeats or was_unsettled
        try:
            told = await clients.ask(admin, asked, leaves_after=leaves_after, repeats=is_repeated)
        except CallerLeft:
            impatience.left()
        except Unavailable:
            await asyncio.sleep(rng.uniform(0.05, 1.0))
        except RegistryError as error:
            return error, was_unsettled
        else:
            return told, was_unsettled
        was_unsettled = True
