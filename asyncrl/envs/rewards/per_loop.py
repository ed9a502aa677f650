"""Something that belongs to one event loop, such as a lock, kept by what may be used in several loops one after another."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Makes the thing anew whenever the running event loop is another one than before."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thing: T | None = None

    def get(self) -> T:
        """The thing of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._thing is None or self._loop is not loop:
            self._loop, self._thing = loop, self._make()
        return self._thing
