"""The registry for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from registry.client.calls import Calls, open_channel
from registry.client.connection import Tls
from registry.client.published import Canaries, Published, not_served, published_of, strategy_of
from registry.client.residency import Follower, PoolResidency
from registry.errors import InvalidArgument, Reason
from registry.lora.directory import check_files, digest_of
from registry.lora.findings import UnfitAdapter, summary
from registry.v1 import registry_pb2 as pb

CALL_SECONDS = 30.0
WAIT_SECONDS = 300.0


class AsyncRegistry:
    """A connection to the admin service, for use in ``async with``.

    Args:
        address: HOST:PORT of the admin service.
        tls: for a service with certificates.
        timeout_seconds: how long one call may take, repetitions included; waiting for replicas has its own.

    Raises:
        InvalidArgument: `address` is none, or a file of `tls` cannot be used.
    """

    def __init__(self, address: str, *, tls: Tls | None = None, timeout_seconds: float = CALL_SECONDS) -> None:
        self._calls = Calls(open_channel(address, tls), timeout_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._calls.aclose()

    async def publish(
        self,
        source: str | os.PathLike[str],
        name: str,
        pool: str,
        *,
        digest: str = "",
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
        canaries: Canaries | None = None,
        wait: float | bool = True,
        request_id: str = "",
    ) -> Published:
        """Makes an adapter what `source` holds; returns once every replica that should serve it does.

        With `canaries` that are promoted by hand, it returns once they serve it. What cannot be given here has its
        default afterwards: an adapter that was placed by number or is lazy comes to all replicas, as by a manifest
        that does not say so.

        Args:
            source: a directory that the replicas see at the same path, whose digest is computed and pinned here; or a
                URI (``s3://…``), pinned by `digest`. Files of a generation must not change: write each to a place of
                its own.
            name: of the adapter; the part before a slash is the tenant.
            pool: which replicas.
            digest: manifest digest of a URI; empty: not pinned.
            labels: for people and filters.
            priority: higher is loaded first.
            canaries: who takes it first; None: all at once.
            wait: seconds for the replicas; True: `WAIT_SECONDS`; False: do not wait.
            request_id: to repeat a call whose outcome is not known; empty: a new one.

        Raises:
            InvalidArgument: the directory holds no adapter, or the registry refuses a field.
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse it, or its rollout was halted; `metadata`
                says which and why.
            Unavailable: no answer, or not served in time: the message says who is missing and why. The change may have
                been made; repeat with the ``request_id`` in `metadata`, which goes on waiting.
            RegistryError: as the registry refused it otherwise.
        """
        uri, pinned = await asyncio.to_thread(_located, source, digest)
        with _fitting("priority, labels or canaries"):
            spec = pb.AdapterSpec(
                source=pb.Source(uri=uri, digest=pinned),
                labels=labels,
                priority=priority,
                strategy=strategy_of(canaries) if canaries else None,
            )
        with _fitting("name"):
            change = pb.AdapterChange(upsert=pb.Adapter(name=name, spec=spec))
        published = published_of(await self._apply(pool, change, request_id))
        if wait is not False:
            await self.wait_served(published, WAIT_SECONDS if wait is True else wait)
        return published

    async def wait_served(self, published: Published, wait_seconds: float = WAIT_SECONDS) -> None:
        """Returns once every replica that should serve this generation does.

        Raises:
            FailedPrecondition: with reason ROLLOUT_FAILED, replicas refuse it, or it was superseded or deleted.
            Unavailable: it is not served in time.
        """
        request = pb.WatchRolloutRequest(pool=published.pool, name=published.name, generation=published.generation)
        last: pb.Rollout | None = None
        try:
            async with (
                asyncio.timeout(wait_seconds),
                aclosing(self._calls.stream("WatchRollout", request, pb.Rollout)) as rollouts,
            ):
                async for last in rollouts:
                    if last.done:
                        break
        except TimeoutError:
            pass  # what is said below is what was heard last
        if (error := not_served(published, last)) is not None:
            raise error

    async def withdraw(self, name: str, pool: str, *, request_id: str = "") -> None:
        """Deletes an adapter.

        Raises:
            NotFound: there is none.
            RegistryError: as the registry refused it otherwise.
        """
        await self._apply(pool, pb.AdapterChange(delete=name), request_id)

    async def residency(self, pool: str) -> AsyncGenerator[PoolResidency, None]:
        """Where a pool's adapters are, whole, at once and after every change; for routers. To be closed (`aclosing`).

        When the connection breaks it is made again, and what was told last holds until then.

        Raises:
            NotFound: there is no such pool.
            RegistryError: as the admin service refused it otherwise.
        """
        request = pb.WatchResidencyRequest(pool=pool)
        follower = Follower()
        async with aclosing(self._calls.stream("WatchResidency", request, pb.WatchResidencyResponse)) as responses:
            async for response in responses:
                if (state := follower.take(response)) is not None:
                    yield state

    async def _apply(self, pool: str, change: pb.AdapterChange, request_id: str) -> pb.ApplyAdaptersResponse:
        request_id = request_id or str(uuid.uuid4())
        request = pb.ApplyAdaptersRequest(pool=pool, changes=[change], request_id=request_id)
        return await self._calls.unary("ApplyAdapters", request, pb.ApplyAdaptersResponse, request_id)


@contextmanager
def _fitting(field: str) -> Iterator[None]:
    """Raises InvalidArgument where a message does not take a value: a number too large, or text with half a letter."""
    try:
        yield
    except ValueError as error:
        raise InvalidArgument(Reason.INVALID_FIELD, str(error), field=field) from error


def _located(source: str | os.PathLike[str], digest: str) -> tuple[str, str]:
    """The URI and the digest to write down."""
    if isinstance(source, str) and "://" in source:
        return source, digest
    folder = Path(source).absolute()  # a replica knows no working directory of ours
    found = _digest(folder)
    if digest and digest != found:
        raise InvalidArgument(Reason.INVALID_FIELD, f"{folder} has the digest {found}, not {digest}", field="digest")
    return folder.as_uri(), found


def _digest(folder: Path) -> str:
    try:
        check_files(folder)
        return digest_of(folder)
    except UnfitAdapter as error:
        raise InvalidArgument(Reason.ADAPTER_UNFIT, summary(error.findings), field="source") from error
    except OSError as error:
        raise InvalidArgument(
            Reason.INVALID_FIELD, f"cannot read {folder}: {error.strerror}", field="source"
        ) from error
