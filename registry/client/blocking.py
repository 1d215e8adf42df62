"""Clients for programs without an event loop, made from the asynchronous ones.

A class names the methods that it takes over, and its callers keep their parameters, types and documentation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from registry.client.background import BackgroundLoop


class _Closable(Protocol):
    async def aclose(self) -> None: ...


P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=_Closable)


class BlockingClient(Generic[C]):
    """A client on an event loop of its own, for use in ``with``. May be used by several threads.

    Args:
        make: makes the client, in the loop.
        loop: the loop.
    """

    def __init__(self, make: Callable[[], C], loop: BackgroundLoop) -> None:
        self._loop = loop
        try:
            self._client = loop.run(_made, make)
        except BaseException:  # an interrupt too: nobody else could end what it began
            loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and every stream on it. Safe to call twice."""
        self._loop.close(self._client.aclose)

    def _call(
        self, method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._loop.run(method, self._client, *args, **kwargs)

    def _each(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        return self._loop.each(items)


async def _made(make: Callable[[], C]) -> C:
    return make()


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient[C], P], T]:
    """The method that returns once this one of the asynchronous client has its result."""

    @wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(method, *args, **kwargs)

    return call


def iterating(
    method: Callable[Concatenate[C, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[BlockingClient[C], P], Generator[T, None, None]]:
    """The method whose items are those of this one of the asynchronous client, each once it is there."""

    @wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self._each(method(self._client, *args, **kwargs))

    return call
