"""Whether changes may be made at all."""

from __future__ import annotations

from registry.errors import FailedPrecondition, Reason, RegistryError, Unavailable


class Gate:
    """Shut until the store's own record has been read, and for as long as that forbids writing."""

    def __init__(self) -> None:
        self._refusal: RegistryError | None = Unavailable(
            Reason.ETCD_UNAVAILABLE, "etcd has not answered since the admin service started; nothing was changed"
        )

    def open(self) -> None:
        """Lets changes pass from now on."""
        self._refusal = None

    def shut(self, error: FailedPrecondition) -> None:
        """Refuses every change with this error."""
        self._refusal = error

    @property
    def refusal(self) -> RegistryError | None:
        """Why no change may be made; None if it may."""
        return self._refusal

    def check(self) -> None:
        """Raises RegistryError unless changes may be made."""
        if self._refusal is not None:
            raise self._refusal
