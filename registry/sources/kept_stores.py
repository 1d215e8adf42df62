"""Object stores that one staging leaves to the next. No secret of theirs is ever shown."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from obstore.store import ObjectStore

from registry.model.source_uri import SourceUri
from registry.sources.credentials import Held
from registry.sources.object_stores import open_store
from registry.sources.secrets import Secret

MAX_OPEN = 16
_Key = tuple[str, str, str | None]  # scheme, bucket, name of the credential


class Stores:
    """The stores that stagings used last, for the next one that comes with the same secret.

    Each has connections of its own, and the token that it made with a service account's key.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[_Key, tuple[Secret | None, ObjectStore]] = OrderedDict()
        self._mutex = Lock()

    def store(self, uri: SourceUri, held: Held | None) -> ObjectStore:
        """The store behind a URI, opened with the secret as it is now. Raises as `open_store` does."""
        key, secret = _key(uri, held), held.secret() if held is not None else None
        with self._mutex:
            found = self._open.get(key)
            if found is not None and found[0] == secret:
                self._open.move_to_end(key)
                return found[1]
        return self.reopened(uri, held)

    def reopened(self, uri: SourceUri, held: Held | None) -> ObjectStore:
        """The store behind a URI, instead of the one that was kept. Raises as `open_store` does."""
        key, opened = _key(uri, held), open_store(uri, held)
        with self._mutex:
            self._open[key] = (held.secret() if held is not None else None, opened)
            self._open.move_to_end(key)
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        return opened

    def close(self) -> None:
        """Lets go of all of them; their connections close when the last staging that uses them ends."""
        with self._mutex:
            self._open.clear()


def _key(uri: SourceUri, held: Held | None) -> _Key:
    """One credential has one secret at a time, so that a new one takes the place of the old."""
    return uri.scheme, uri.authority, held.name if held is not None else None
