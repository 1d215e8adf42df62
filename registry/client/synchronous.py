"""The registry for programs without an event loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from registry.client.adapters import Published
from registry.client.address import Tls
from registry.client.asynchronous import AsyncRegistry
from registry.client.background import BackgroundLoop, BlockingClient, blocking, generating
from registry.client.credentials import TokenSource
from registry.client.fleet.rolling import CALL_SECONDS, WAIT_SECONDS, waiting_of

P = ParamSpec("P")
T = TypeVar("T")


def _warned_here(publish: Callable[P, T]) -> Callable[P, T]:
    """The same, which names the line of the caller where `wait` has seconds: the loop does not know it."""

    @wraps(publish)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        given: dict[str, Any] = {"wait": True, "timeout_seconds": None, **kwargs}
        kwargs["wait"], kwargs["timeout_seconds"] = waiting_of(given["wait"], given["timeout_seconds"])
        return publish(*args, **kwargs)

    return call


class Registry(BlockingClient[AsyncRegistry]):
    """A connection to the admin service, for use in ``with``; `AsyncRegistry` on an event loop of its own.

    May be used by several threads.

    Args:
        address: HOST:PORT of the admin service; empty: LORAPLANE_ADMIN, with the variables of TLS and tokens beside it,
            or else the context that `loraplane config` made the current one.
        tls: for a service with certificates; None: without TLS.
        timeout_seconds: how long one call may take, repetitions included, unless it says otherwise; waiting for
            replicas has a time of its own.
        token: where the token comes from that is shown with each call, over TLS or to this host alone; None: none is.

    Raises:
        InvalidArgument: `address` is none, nothing names one, a file of `tls` cannot be used, or others could read the
            token.
        FailedPrecondition: others may write the file of contexts.
    """

    def __init__(
        self,
        address: str = "",
        *,
        tls: Tls | None = None,
        timeout_seconds: float = CALL_SECONDS,
        token: TokenSource | None = None,
    ) -> None:
        make = partial(AsyncRegistry, address, tls=tls, timeout_seconds=timeout_seconds, token=token)
        super().__init__(make, BackgroundLoop())

    publish = _warned_here(blocking(AsyncRegistry.publish))
    retry = blocking(AsyncRegistry.retry)
    wait = blocking(AsyncRegistry.wait)
    rollback = blocking(AsyncRegistry.rollback)
    withdraw = blocking(AsyncRegistry.withdraw)
    get = blocking(AsyncRegistry.get)
    list = blocking(AsyncRegistry.list)
    history = blocking(AsyncRegistry.history)
    apply = blocking(AsyncRegistry.apply)
    disable = blocking(AsyncRegistry.disable)
    enable = blocking(AsyncRegistry.enable)
    promote = blocking(AsyncRegistry.promote)
    abort = blocking(AsyncRegistry.abort)
    pools = blocking(AsyncRegistry.pools)
    get_pool = blocking(AsyncRegistry.get_pool)
    create_pool = blocking(AsyncRegistry.create_pool)
    update_pool = blocking(AsyncRegistry.update_pool)
    delete_pool = blocking(AsyncRegistry.delete_pool)
    replicas = blocking(AsyncRegistry.replicas)
    get_replica = blocking(AsyncRegistry.get_replica)
    drain = blocking(AsyncRegistry.drain)
    undrain = blocking(AsyncRegistry.undrain)
    forget = blocking(AsyncRegistry.forget)
    tenants = blocking(AsyncRegistry.tenants)
    set_quota = blocking(AsyncRegistry.set_quota)
    residency = generating(AsyncRegistry.residency)
    watch = generating(AsyncRegistry.watch)
    events = generating(AsyncRegistry.events)
    audit = generating(AsyncRegistry.audit)
    watch_audit = generating(AsyncRegistry.watch_audit)

    def wait_served(self, published: Published, wait_seconds: float = WAIT_SECONDS) -> None:
        """Deprecated: use `wait`."""
        warnings.warn("wait_served is deprecated; use wait", DeprecationWarning, stacklevel=2)
        self.wait(published, timeout_seconds=wait_seconds)
