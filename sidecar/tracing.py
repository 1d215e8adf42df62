"""Which request a change came from, so that it can be followed from the registry to the engine's calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from registry.errors import RegistryError
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Event, KeyValue, Range, SortTarget, prefix_end
from registry.keys import Keys
from registry.model.records import AdapterRecord, RetiredRecord
from sidecar.allowance import Allowance
from sidecar.inputs import Inputs

# Looking up who deleted an adapter serves tracing only, so it must not hold up the deletion, nor what comes after many:
# an etcd that is slow just after a fault, when there is most to catch up with, is soon asked no more.
TRACE_TIMEOUT_SECONDS = 0.25
TRACE_MOST_SECONDS = 0.5
TRACE_SHARE = 0.1


class Tracer:
    """Notes in `Inputs` whose request each revision was."""

    def __init__(
        self, client: Client, keys: Keys, pool: str, inputs: Inputs, *, monotonic: Callable[[], float]
    ) -> None:
        self._client = client
        self._keys = keys
        self._pool = pool
        self._inputs = inputs
        self._monotonic = monotonic
        self._allowance = Allowance(TRACE_MOST_SECONDS, TRACE_SHARE)

    async def note(self, revision: int, events: Iterable[Event], deleted: Sequence[str]) -> None:
        """Every change of one revision is of one request, so one record, or else one of the keys deleted, tells it.

        Whose a deletion was stays unknown where finding out would hold up what is followed.
        """
        written = next((event.kv for event in events if event.kv is not None), None)
        if written is not None:
            request_id = _request_of(written)
        elif deleted:
            request_id = await self._in_time(deleted[0], revision)
        else:
            return
        self._inputs.last_request_id = request_id
        for key in deleted:
            self._inputs.note_deletion(key, request_id)

    async def _in_time(self, key: str, revision: int) -> str:
        began = self._monotonic()
        if not self._allowance.is_left(began):
            return ""
        request_id = await self._deletion_request(key, revision)
        self._allowance.spend(self._monotonic() - began)
        return request_id

    async def _deletion_request(self, key: str, revision: int) -> str:
        prefix = self._keys.history_of(self._pool, key.replace("%2F", "/"))
        newest = Range(prefix, prefix_end(prefix), limit=1, descending_by=SortTarget.MOD)
        try:
            found = (await self._client.range(newest, timeout_seconds=TRACE_TIMEOUT_SECONDS)).kvs
            return next(
                (RetiredRecord.parse(kv.value).retired_by_request for kv in found if kv.mod_revision == revision), ""
            )
        except (EtcdError, RegistryError):
            return ""


def _request_of(kv: KeyValue) -> str:
    try:
        return AdapterRecord.parse(kv.value).request_id
    except RegistryError:
        return ""
