"""Errors of the etcd client, as types.

    EtcdError
    ├── Unavailable(maybe_applied)   no connection, or it broke
    │   └── TlsFailed                the certificates do not fit; repeating does not help
    ├── Timeout(maybe_applied)       our own deadline ran out
    ├── NoLeader                     the member is isolated or an election runs; certainly not applied
    ├── Compacted(compact_revision)  that revision is no longer kept
    ├── FutureRevision               that revision does not exist yet: the store went backwards
    ├── LeaseExpired
    ├── Unauthenticated / PermissionDenied
    ├── RequestTooLarge / TooManyRequests / NoSpace
    ├── ResponseTooLarge(maybe_applied)
    ├── InvalidArgument
    ├── OtherCluster                 the member belongs to another cluster than the one known
    └── WatchCanceled                the server ended a watch for a reason of its own

A write may be repeated blindly only where `certainly_not_applied` is true (facts of etcd: a broken
connection says nothing about the fate of a proposal).
"""

from __future__ import annotations


class EtcdError(Exception):
    """Base of all errors of this package. The message never holds a secret."""

    @property
    def certainly_not_applied(self) -> bool:
        """True if no write of the failed call can have taken effect, now or later."""
        return True


class _Ambiguous(EtcdError):
    def __init__(self, message: str, *, maybe_applied: bool) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied

    @property
    def certainly_not_applied(self) -> bool:
        return not self.maybe_applied


class EtcdUnavailable(_Ambiguous):
    """No connection could be made, or it broke in mid-flight (then `maybe_applied`)."""


class TlsFailed(EtcdUnavailable):
    """The TLS handshake failed, or a certificate or key could not be read. Certainly not applied, unless the server
    refused our certificate after the handshake, as it does with TLS 1.3.
    """


class Timeout(_Ambiguous):
    """The call's own deadline ran out.

    `refuses_progress`: requests for progress on a watch, whereas the same connection answers other calls.
    """

    def __init__(self, message: str, *, maybe_applied: bool, refuses_progress: bool = False) -> None:
        super().__init__(message, maybe_applied=maybe_applied)
        self.refuses_progress = refuses_progress


class NoLeader(EtcdError):
    """The member has no leader."""


class Compacted(EtcdError):
    """A revision below `compact_revision` was asked for; 0 if the server did not say which."""

    def __init__(self, message: str, *, compact_revision: int) -> None:
        super().__init__(message)
        self.compact_revision = compact_revision


class FutureRevision(EtcdError):
    """A revision was asked for that the store has not reached."""


class LeaseExpired(EtcdError):
    """The lease is not known to the server (any more)."""


class EtcdUnauthenticated(EtcdError):
    """User or password are wrong, or the token is not valid even after a fresh login."""


class EtcdPermissionDenied(EtcdError):
    """The user's role does not allow it."""


class RequestTooLarge(EtcdError):
    """The request exceeds the server's --max-request-bytes or --max-txn-ops."""


class ResponseTooLarge(_Ambiguous):
    """The reply exceeds our receive limit; what a write did, it did."""


class TooManyRequests(EtcdError):
    """The server sheds load; certainly not applied."""


class NoSpace(EtcdError):
    """The server's database quota is used up; only deletes are taken."""


class EtcdInvalidArgument(EtcdError):
    """The server refused the request's form."""


class OtherCluster(EtcdError):
    """The member belongs to another cluster than the one that is known."""


class WatchCanceled(EtcdError):
    """The server cancelled a watch."""
