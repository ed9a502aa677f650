"""Calls of the user's code, contained: whatever it raises becomes a value, and what ignores its cancellation is left behind.

Some exceptions must not travel through an event loop: ``SystemExit`` and ``KeyboardInterrupt`` end it, and a ``CancelledError``
makes believe that somebody cancelled the caller. What always holds: none of these gets out of a contained call, so a caller that
sees a ``CancelledError`` was cancelled itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

logger = logging.getLogger(__name__)

T = TypeVar("T")

CANCELLED_TOOL_S = 1.0
"""Seconds that a cancelled tool may take to end. What takes longer to clean up belongs in ``close``."""


class Raised(msgspec.Struct, frozen=True):
    """The outcome of a call that raised instead of returning."""

    error: BaseException


class Overdue(Exception):
    """A contained call took longer than it may."""


async def contained(call: Callable[[], Awaitable[T]]) -> T | Raised:
    """What ``call`` returns, or what it raises, whatever that is; also a ``CancelledError``, whoever cancelled."""
    try:
        return await call()
    except BaseException as error:  # noqa: BLE001 - handed to the one who waits, as a value
        return Raised(error)


async def contained_within(seconds: float, call: Callable[[], Awaitable[T]], name: str) -> T | Raised:
    """What ``call`` returns or raises within ``seconds``, and ``Raised(Overdue)`` after that.

    It runs in a task of its own, which is cancelled when the time is over or when the caller is cancelled, and left behind if it
    goes on nevertheless; ``name`` tells whose it is.
    """
    task = asyncio.create_task(contained(call), name=name)
    in_time = False
    try:
        await asyncio.wait({task}, timeout=seconds)
        in_time = task.done()
    finally:
        if not in_time:
            task.cancel()
            await ended({task}, CANCELLED_TOOL_S, name)
    if not in_time:
        return Raised(Overdue(seconds))
    # A task is cancelled, and not its call, if that happened before its first step.
    return Raised(asyncio.CancelledError()) if task.cancelled() else task.result()


async def ended(cancelled: "set[asyncio.Task[T]] | set[asyncio.Future[T]]", seconds: float, name: str) -> bool:
    """Whether one of the tasks of a ``cancelled`` call is done within ``seconds``; if not, the call is logged by its ``name``."""
    try:
        done, _ = await asyncio.wait(cancelled, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not any(each.done() for each in cancelled):
            logger.warning("%s was cancelled, and goes on: it is left behind; let asyncio.CancelledError out of it", name)
    return bool(done)
