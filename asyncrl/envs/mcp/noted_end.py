"""Tells as soon as the server's side of a connection has ended: the SDK's client would say so to the next who asks."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any


@asynccontextmanager
async def noting_end(transport: AbstractAsyncContextManager[Any], ended: Callable[[], None]) -> AsyncIterator[Any]:
    """Pass ``transport`` on, and call ``ended`` as soon as the server's side of it has ended."""
    async with transport as (reading, writing):
        yield _NotedEnd(reading, ended), writing


class _NotedEnd:
    """A stream of the SDK that tells when it has ended."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream, self._ended = stream, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "_NotedEnd":
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._ended()
            raise

    async def __aenter__(self) -> "_NotedEnd":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._stream.__aexit__(*raised)
