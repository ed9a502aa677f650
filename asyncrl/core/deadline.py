"""Bounds a wait and, when it takes too long, says who waited for whom and what to do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncrl.core.errors import DeadlineExceeded


@asynccontextmanager
async def deadline(seconds: float, *, waiter: str, owner: str, remedy: str) -> AsyncIterator[None]:
    """Give what runs in this context ``seconds`` in all.

    Raises:
        DeadlineExceeded: after ``seconds``, naming ``waiter``, ``owner`` and ``remedy``. A ``TimeoutError`` raised by the body
            itself is passed on unchanged.
    """
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if scope.expired():
            raise DeadlineExceeded(waiter, owner, seconds, remedy) from error
        raise
