"""Limits how long a wait may take. If it takes longer, the error says who waited for whom and what to do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncrl.core.errors import DeadlineExceeded


@asynccontextmanager
async def deadline(seconds: float, *, waiter: str, owner: str, remedy: str) -> AsyncIterator[None]:
    """Limit the code in this context to ``seconds`` in total.

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
