"""Runs a blocking function in a daemon thread, which neither the event loop nor the end of the process waits for."""

import asyncio
import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from asyncrl.envs.hosting.guarded_calls import Raised

T = TypeVar("T")

INTERRUPTED_AFTER_S = 5.0
"""Seconds that a thread may go on when nobody waits for it any more. Most threads end and clean up in that time."""


class Abandoned(BaseException):
    """Raised in a thread that nobody waits for any more, at its next Python instruction.

    All threads of a process share one interpreter, so code that never ends would slow all others down.
    """


async def run_in_daemon_thread(function: Callable[[], T], name: str) -> T:
    """Run ``function`` in a thread of its own and return its result, or raise what it raises.

    Cancelling ends the wait at once and interrupts the thread ``INTERRUPTED_AFTER_S`` seconds later. A thread that waits for
    something outside Python is interrupted only when that wait ends; until then it costs nothing but its memory.

    A thread pool will not do: functions that never return would fill it, and the interpreter joins a pool's threads at exit.
    Starting a thread takes about 0.1 ms.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T | Raised] = loop.create_future()
    ending, ended = threading.Lock(), False

    def settle(value: T | Raised) -> None:
        if not outcome.done():
            outcome.set_result(value)

    def work() -> None:
        nonlocal ended
        value: T | Raised
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - passed on as a value: a future takes no StopIteration
            value = Raised(error)
        with ending:
            ended = True
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, so nobody waits
            loop.call_soon_threadsafe(settle, value)

    def run() -> None:
        with contextlib.suppress(Abandoned):  # the interrupt came just after the function had returned
            work()

    def interrupt() -> None:
        with ending:
            if not ended:  # so the thread's id has not been given to another thread
                number, error = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Abandoned)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(number, error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=name, daemon=True)
    thread.start()
    try:
        value = await outcome
    except asyncio.CancelledError:
        loop.call_later(INTERRUPTED_AFTER_S, interrupt)
        raise
    if isinstance(value, Raised):
        raise value.error
    return value
