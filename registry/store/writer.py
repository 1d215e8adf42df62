"""The only writer of desired state: one attempt for each change, those of one tenant after another."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from registry.errors import Reason, Unavailable
from registry.etcd3.client import Client
from registry.keys import Keys
from registry.store.attempt import Attempt, Tools
from registry.store.budget import Budget
from registry.store.gate import Gate
from registry.store.hints import Hints
from registry.store.leases import audit_lease, request_lease
from registry.store.locks import Locks
from registry.transactions.changes import Change, payload_digest, tenants_of
from registry.transactions.context import Caller, Context, Leases, Limits
from registry.transactions.replay import Settled


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


class Writer:
    """The only writer of desired state. Made inside a running event loop."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        limits: Limits,
        gate: Gate,
        *,
        rng: random.Random,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._keys = keys
        self._limits = limits
        self._gate = gate
        self._now = now
        self._locks = Locks()
        self._tools = Tools(client, Hints(keys.records()), request_lease(client), audit_lease(client), rng)

    async def change(self, change: Change, caller: Caller, budget: Budget, *, validate_only: bool) -> Settled:
        """Carries a change out, or only tells what would become of it.

        Raises:
            Unavailable: the outcome is not known, or etcd does not answer; its reason and text tell which.
            RegistryError: it is refused, and nothing was changed.
        """
        self._gate.check()
        attempt = Attempt(change, self._context(change, caller), self._tools, budget)
        if validate_only:
            return await attempt.foretell()
        try:
            async with self._locks.hold(tenants_of(change), timeout_seconds=budget.spend()):
                return await attempt.carry_out()
        except TimeoutError as error:
            message = "other changes of the same tenant took all the time; nothing was changed, repeat it"
            raise Unavailable(Reason.DEADLINE_EXCEEDED, message) from error

    def _context(self, change: Change, caller: Caller) -> Context:
        now = self._now()
        return Context(
            keys=self._keys,
            limits=self._limits,
            caller=caller,
            leases=Leases(),
            at=now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            audit_id=f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}",
            payload_digest=payload_digest(change),
        )
