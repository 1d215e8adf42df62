"""The registry for programs without an event loop."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, Self

from registry.client.adapters import AdapterHistory, AdapterListing, Canaries, Published, RegisteredAdapter
from registry.client.address import Tls
from registry.client.asynchronous import CALL_SECONDS, WAIT_SECONDS, AsyncRegistry, waiting_of
from registry.client.background import BackgroundLoop
from registry.client.residency import PoolResidency


class Registry:
    """A connection to the admin service, for use in ``with``; `AsyncRegistry` on an event loop of its own.

    May be used by several threads.

    Args:
        address: HOST:PORT of the admin service.
        tls: for a service with certificates; None: without TLS.
        timeout_seconds: how long one call may take, repetitions included, unless it says otherwise; waiting for
            replicas has a time of its own.

    Raises:
        InvalidArgument: `address` is none, or a file of `tls` cannot be used.
    """

    def __init__(self, address: str, *, tls: Tls | None = None, timeout_seconds: float = CALL_SECONDS) -> None:
        self._loop = BackgroundLoop()
        try:
            self._registry = self._loop.run(_opened, address, tls, timeout_seconds)
        except BaseException:  # an interrupt too: nobody else could end what it began
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection. Safe to call twice."""
        self._loop.close(self._registry.aclose)

    def publish(
        self,
        source: str | os.PathLike[str],
        name: str,
        pool: str,
        *,
        digest: str = "",
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
        canaries: Canaries | None = None,
        expect: Mapping[str, Any] | None = None,
        wait: float | bool = True,
        timeout_seconds: float = WAIT_SECONDS,
        request_id: str = "",
    ) -> Published:
        """Makes an adapter what `source` holds; returns once every replica that should serve it does.

        Where all is as it was and replicas refuse it, they try it anew, and what comes of that is waited for.

        With `canaries` that are promoted by hand, it returns once they serve it. What cannot be given here has its
        default afterwards: an adapter that was placed by number or is lazy comes to all replicas, as by a manifest
        that does not say so.

        Args:
            source: a directory that the replicas see at the same path, whose digest is computed and pinned here; or a
                URI (``s3://…``), pinned by `digest`. Files of a generation must not change: write each to a place of
                its own.
            name: of the adapter; the part before a slash is the tenant.
            pool: its replicas serve it.
            digest: manifest digest, ``sha256:`` and 64 hex digits; empty: not pinned where `source` is a URI.
            labels: for people and filters.
            priority: higher is loaded first; -1000 to 1000.
            canaries: replicas that take it first; None: all take it at once.
            expect: what it has to answer, as ``loraplane expect -o json`` prints it; None: anything.
            wait: False: return once it is registered. Seconds in place of True are deprecated: use `timeout_seconds`.
            timeout_seconds: for the change and for the replicas together, from when the files are digested; the change
                itself has at most the time of a call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            InvalidArgument: the directory holds no adapter, or the registry refuses a field.
            NotFound: there is no such pool.
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse it, or its rollout was halted; `metadata`
                names the replicas and their reasons.
            ResourceExhausted: a quota of the tenant, or the space of the store.
            Unavailable: no answer, or not served in time: the message names the replicas that are missing. The change
                may have been made; repeat with the ``request_id`` in `metadata`, which goes on waiting.
            RegistryError: as the registry refused it otherwise.
        """
        is_waiting, timeout_seconds = waiting_of(wait, timeout_seconds)
        return self._loop.run(
            self._registry.publish,
            source,
            name,
            pool,
            digest=digest,
            labels=labels,
            priority=priority,
            canaries=canaries,
            expect=expect,
            wait=is_waiting,
            timeout_seconds=timeout_seconds,
            request_id=request_id,
        )

    def retry(
        self,
        name: str,
        pool: str,
        *,
        replica: str = "",
        wait: bool = True,
        timeout_seconds: float = WAIT_SECONDS,
        request_id: str = "",
    ) -> Published:
        """Has replicas try at once what failed there; returns once every replica that should serve it does.

        The adapter stays what it is, in the same generation.

        Args:
            name: of the adapter; case does not count.
            pool: its pool.
            replica: the only one that is to try; empty: all.
            wait: False: return once they are asked.
            timeout_seconds: for the change and for the replicas together; the change itself has at most the time of a
                call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            Conflict: the adapter was changed meanwhile.
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse it; `metadata` names them and their reasons.
            Unavailable: no answer, or not served in time; see `publish`.
            RegistryError: as the registry refused it otherwise.
        """
        return self._loop.run(
            self._registry.retry,
            name,
            pool,
            replica=replica,
            wait=wait,
            timeout_seconds=timeout_seconds,
            request_id=request_id,
        )

    def wait(self, adapter: Published | RegisteredAdapter, *, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Returns once every replica that should serve this generation does.

        Args:
            adapter: what `publish`, `rollback`, `get` or `history` returned.
            timeout_seconds: for the replicas.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse it, or it was superseded, deleted or halted.
            Unavailable: it is not served in time, or the admin service was not reached.
            RegistryError: as the admin service refused it otherwise.
        """
        self._loop.run(self._registry.wait, adapter, timeout_seconds=timeout_seconds)

    def rollback(
        self,
        name: str,
        pool: str,
        *,
        to_generation: int = 0,
        restored: bool = False,
        etag: str = "",
        wait: bool = True,
        timeout_seconds: float = WAIT_SECONDS,
        request_id: str = "",
    ) -> Published:
        """Makes a new generation with the spec of an earlier one; returns once every replica that should serve it does.

        Args:
            name: of the adapter, which may have been deleted; case does not count.
            pool: its pool.
            to_generation: the earlier generation; 0: the one before the present one.
            restored: go back also to a generation that somebody restored from a backup, see `history`.
            etag: refuse unless the adapter has it; empty: no condition.
            wait: False: return once it is registered.
            timeout_seconds: for the change and for the replicas together; the change itself has at most the time of a
                call of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such adapter, or the generation is not kept.
            Conflict: `etag` is stale.
            FailedPrecondition: with reason GENERATION_RESTORED, the generation was restored; see `restored`. With
                reason ROLLOUT_FAILED, replicas refuse it; `metadata` names them and their reasons.
            Unavailable: no answer, or not served in time; see `publish`.
            RegistryError: as the registry refused it otherwise.
        """
        return self._loop.run(
            self._registry.rollback,
            name,
            pool,
            to_generation=to_generation,
            restored=restored,
            etag=etag,
            wait=wait,
            timeout_seconds=timeout_seconds,
            request_id=request_id,
        )

    def withdraw(
        self,
        name: str,
        pool: str,
        *,
        etag: str = "",
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> None:
        """Deletes an adapter. Replicas unload it afterwards; this does not wait for them.

        Args:
            name: of the adapter; case does not count.
            pool: its pool.
            etag: refuse unless the adapter has it; empty: no condition.
            timeout_seconds: repetitions included; None: that of the connection.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            Conflict: `etag` is stale.
            Unavailable: no answer in time. It may have been deleted; repeat with the ``request_id`` in `metadata`.
            RegistryError: as the admin service refused it otherwise.
        """
        self._loop.run(
            self._registry.withdraw, name, pool, etag=etag, timeout_seconds=timeout_seconds, request_id=request_id
        )

    def get(self, name: str, pool: str, *, timeout_seconds: float | None = None) -> RegisteredAdapter:
        """The adapter as it is now.

        Args:
            name: of the adapter; case does not count.
            pool: its pool.
            timeout_seconds: repetitions included; None: that of the connection.

        Raises:
            NotFound: there is no such adapter, or no such pool.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        return self._loop.run(self._registry.get, name, pool, timeout_seconds=timeout_seconds)

    def list(self, pool: str, *, matching: str = "", timeout_seconds: float | None = None) -> AdapterListing:
        """All adapters of a pool, at one revision.

        Args:
            pool: whose adapters.
            matching: terms ``field=value`` joined by `` AND ``; fields: name (a prefix with a trailing ``*``), tenant,
                load, label.KEY. Empty: all.
            timeout_seconds: of each page of 1000, repetitions included; None: that of the connection.

        Raises:
            InvalidArgument: `matching` cannot be read.
            NotFound: there is no such pool.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        return self._loop.run(self._registry.list, pool, matching=matching, timeout_seconds=timeout_seconds)

    def history(self, name: str, pool: str, *, timeout_seconds: float | None = None) -> AdapterHistory:
        """The generations of an adapter that are kept, also of one that was deleted.

        Args:
            name: of the adapter; case does not count.
            pool: its pool.
            timeout_seconds: repetitions included; None: that of the connection.

        Raises:
            NotFound: there never was such an adapter, or there is no such pool.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        return self._loop.run(self._registry.history, name, pool, timeout_seconds=timeout_seconds)

    def residency(self, pool: str, *, timeout_seconds: float | None = None) -> Generator[PoolResidency, None, None]:
        """The replicas that serve each adapter of a pool, whole, at once and after every change; for routers.

        When the connection breaks it is made again, and the last state holds until then. Close the generator at the end
        (`contextlib.closing`, `contextlib.aclosing`).

        Args:
            pool: whose adapters.
            timeout_seconds: how long the admin service may be out of reach; None: for ever.

        Raises:
            NotFound: there is no such pool.
            Unavailable: the admin service was out of reach for longer than `timeout_seconds`.
            RegistryError: as the admin service refused it otherwise.
        """
        return self._loop.each(self._registry.residency(pool, timeout_seconds=timeout_seconds))

    def wait_served(self, published: Published, wait_seconds: float = WAIT_SECONDS) -> None:
        """Deprecated: use `wait`."""
        warnings.warn("wait_served is deprecated; use wait", DeprecationWarning, stacklevel=2)
        self.wait(published, timeout_seconds=wait_seconds)


async def _opened(address: str, tls: Tls | None, timeout_seconds: float) -> AsyncRegistry:
    return AsyncRegistry(address, tls=tls, timeout_seconds=timeout_seconds)
