"""Which registry a store holds."""

from __future__ import annotations

from registry.errors import RegistryError
from registry.etcd3.client import Client
from registry.etcd3.errors import PermissionDenied
from registry.etcd3.ops import Range
from registry.keys import Keys
from registry.model.records import Meta


async def epoch_of(client: Client, keys: Keys, *, known: str) -> str:
    """The registry's epoch; empty: the store has none; `known`, which it had before: it cannot be read.

    Raises:
        EtcdError: etcd does not answer.
    """
    try:
        found = (await client.range(Range(keys.meta()))).kvs
    except PermissionDenied:
        return known
    try:
        return Meta.parse(found[0].value).epoch if found else ""
    except RegistryError:
        return known
