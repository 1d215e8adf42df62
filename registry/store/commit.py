"""Sends one transaction until its outcome is known, or the time is up."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from registry.etcd3.backoff import Backoff
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Txn, TxnResult
from registry.store.budget import Budget
from registry.store.failures import outcome_unknown

_RESEND = Backoff(base_seconds=0.05, cap_seconds=1.0)


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a transaction. `copies`: it was sent more than once, so a copy may yet arrive."""

    result: TxnResult
    copies: bool


async def commit(client: Client, txn: Txn, request_id: str, budget: Budget, rng: random.Random) -> Sent:
    """Sends `txn`; after a failure that may have applied it, the same again.

    That does no harm, since it compares that its own request record is absent. If its compares fail, its else-branch
    shows whether it was applied.

    Raises:
        EtcdError: it was certainly not applied.
        Unavailable: the time is up and nobody knows.
    """
    try:
        return Sent(await client.txn(txn, timeout_seconds=budget.share()), copies=False)
    except EtcdError as error:
        if error.certainly_not_applied:
            raise
        return await _send_again(client, txn, request_id, budget, rng, error)


async def _send_again(
    client: Client, txn: Txn, request_id: str, budget: Budget, rng: random.Random, last: EtcdError
) -> Sent:
    failures = 1
    while True:
        delay = _RESEND.delay(failures, rng)
        if delay >= budget.left():
            raise outcome_unknown(last, request_id) from last
        await asyncio.sleep(delay)
        try:
            return Sent(await client.txn(txn, timeout_seconds=budget.share()), copies=True)
        except EtcdError as error:
            last = error
            failures += 1
