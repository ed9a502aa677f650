"""Contained calls of the user's code: what a call raises becomes a value, and a call that ignores cancellation is abandoned.

Some exceptions must not travel through an event loop: ``SystemExit`` and ``KeyboardInterrupt`` end the loop, and a
``CancelledError`` looks as if somebody had cancelled the caller. What always holds: none of these gets out of a contained call,
so a caller that sees a ``CancelledError`` was cancelled itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

logger = logging.getLogger(__name__)

T = TypeVar("T")

CANCELLED_TOOL_S = 1.0
"""Seconds that a cancelled tool has to end. Clean-up that takes longer belongs in ``close``."""


class Raised(msgspec.Struct, frozen=True):
    """The outcome of a call that raised instead of returning."""

    error: BaseException


class Overdue(Exception):
    """A contained call missed its deadline."""


async def contained(call: Callable[[], Awaitable[T]]) -> T | Raised:
    """Await ``call``, and return its result, or what it raised as :class:`Raised`: any exception, even a ``CancelledError``."""
    try:
        return await call()
    except BaseException as error:  # noqa: BLE001 - returned to the caller as a value
        return Raised(error)


async def contained_within(seconds: float, call: Callable[[], Awaitable[T]], name: str) -> T | Raised:
    """Like :func:`contained`, with a time limit: after ``seconds`` the result is ``Raised(Overdue)``.

    The call runs in an asyncio task of its own, called ``name``. The task is cancelled when the time is over or when the caller
    is cancelled, and abandoned if it goes on nevertheless.
    """
    task = asyncio.create_task(contained(call), name=name)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:  # and not ``finally``: a coroutine whose event loop is gone is closed, and may not await
        await _give_up(task, name)
        raise
    if not task.done():
        await _give_up(task, name)
        return Raised(Overdue(seconds))
    # A task that was cancelled before its first step ends as cancelled, without having called anything.
    return Raised(asyncio.CancelledError()) if task.cancelled() else task.result()


async def _give_up(task: "asyncio.Task[T]", name: str) -> None:
    task.cancel()
    await ended({task}, CANCELLED_TOOL_S, name)


async def ended(cancelled: "set[asyncio.Task[T]] | set[asyncio.Future[T]]", seconds: float, name: str) -> bool:
    """Whether one of the tasks of a ``cancelled`` call ends within ``seconds``; if none does, log a warning with its ``name``."""
    try:
        done, _ = await asyncio.wait(cancelled, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not any(each.done() for each in cancelled):
            logger.warning("%s was cancelled but goes on, so it is abandoned; let asyncio.CancelledError out of it", name)
    return bool(done)
