"""Records of refused calls, written beside the calls, as many as etcd can bear.

A refused call leaves its refusal here and waits for nothing. What `DenialSampler` chooses is put into etcd, one record
after another, each in a transaction of its own under a lease that only such records have.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from registry.access.control import Shown
from registry.access.denials import MOST_PENDING, DenialSampler
from registry.access.principal import CREDENTIAL_KINDS, Principal, address_of, clipped
from registry.admin.rpc.calls import CallContext
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, LeaseExpired
from registry.etcd3.ops import Put, Txn
from registry.model.audit import DenialRecord
from registry.model.errors import PermissionDenied, Reason, RegistryError, Unauthenticated
from registry.model.keys import Keys
from registry.runtime.clock import Clock, rfc3339
from registry.store.txn import SharedLease
from registry.store.writer import WriteGate, audit_id

MAX_PRINCIPAL_CHARACTERS, MAX_MESSAGE_CHARACTERS, MAX_NAME_CHARACTERS = 512, 400, 100
_LOOK_SECONDS = 5.0
_WRITE_SECONDS = 3.0
_log = structlog.get_logger()


@dataclass(slots=True)
class KnownCaller:
    """Caller of a call, once it is known; None: nobody knows yet."""

    principal: Principal | None = None

    def of(self, call: CallContext) -> CallContext:
        """Notes whose call it is."""
        self.principal = call.principal
        return call


class DenialRecorder:
    """Writes records of refusals under a lease of theirs alone; `lost` is called for each that could not be written."""

    def __init__(
        self, client: Client, keys: Keys, gate: WriteGate, lease: SharedLease, clock: Clock, lost: Callable[[], None]
    ) -> None:
        self._client = client
        self._keys = keys
        self._gate = gate
        self._lease = lease
        self._clock = clock
        self._lost = lost
        self._sampler = DenialSampler[DenialRecord](clock.monotonic())
        self._chosen: deque[DenialRecord] = deque(maxlen=MOST_PENDING)
        self._wake = asyncio.Event()

    def note(self, method: str, shown: Shown, principal: Principal | None, error: RegistryError) -> None:
        """Takes a refusal; `principal` None: nobody knew who called."""
        name = principal.name[:MAX_PRINCIPAL_CHARACTERS] if principal else address_of(shown.peer)
        cause = (name, method, error.reason.value)
        record = self._record(method, shown, principal, error) if self._sampler.wants(cause) else None
        if chosen := self._sampler.take(cause, record, self._clock.monotonic()):
            self._choose(*chosen)

    def _choose(self, record: DenialRecord, times: int) -> None:
        self._chosen.append(record.model_copy(update={"times": times}))
        self._wake.set()

    async def run(self) -> None:
        """Writes what is chosen until it is cancelled."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            for chosen in self._sampler.due(self._clock.monotonic()):
                self._choose(*chosen)
            while self._chosen:
                await self._write(self._chosen.popleft())

    async def _write(self, record: DenialRecord) -> None:
        try:
            self._gate.check()
            await self._put(record)
        except (EtcdError, RegistryError) as error:
            self._lost()
            _log.warning("denial_not_recorded", method=record.method, principal=record.principal, error=str(error))

    async def _put(self, record: DenialRecord) -> None:
        key = self._keys.denied(audit_id(self._clock.wall()))
        for is_last in (False, True):
            lease = await self._lease.current(_WRITE_SECONDS)
            try:
                await self._client.txn(Txn((), (Put(key, record.to_bytes(), lease),)), timeout_seconds=_WRITE_SECONDS)
            except LeaseExpired:
                self._lease.forget(lease)
                if is_last:
                    raise
            else:
                return

    def _record(self, method: str, shown: Shown, principal: Principal | None, error: RegistryError) -> DenialRecord:
        trace = shown.trace(principal)
        return DenialRecord(
            at=rfc3339(self._clock.wall()),
            principal=clipped(principal.name, MAX_PRINCIPAL_CHARACTERS) if principal else "",
            credential=CREDENTIAL_KINDS[principal.credential if principal else shown.credential],
            fingerprint=trace.fingerprint,
            peer=trace.peer,
            user_agent=trace.user_agent,
            method=method,
            reason=error.reason,
            message=clipped(error.message, MAX_MESSAGE_CHARACTERS),
            pool=clipped(error.metadata.get("pool", ""), MAX_NAME_CHARACTERS),
            tenant=clipped(error.metadata.get("tenant", ""), MAX_NAME_CHARACTERS),
        )


@contextmanager
def denials_noted(recorder: DenialRecorder | None, method: str, shown: Shown) -> Iterator[KnownCaller]:
    """Around a call: if it is refused for want of a right, or of a credential, that is noted.

    Not so what etcd refuses us, nor that somebody who was known is not any more.
    """
    caller = KnownCaller()
    try:
        yield caller
    except (PermissionDenied, Unauthenticated) as error:
        is_ours = error.reason is Reason.PERMISSION_DENIED or caller.principal is None
        if recorder is not None and is_ours:
            recorder.note(method, shown, caller.principal, error)
        raise
