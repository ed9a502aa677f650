"""Run a blocking function beside the event loop, in a thread that nobody ever has to wait for."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any

from asyncrl.envs.contained import Raised


async def run_in_daemon_thread(function: Callable[[], Any], name: str) -> Any:
    """``function()``, computed in a thread of its own; cancelling stops the wait, not the thread.

    Not a thread pool: functions that never return would fill it, and the interpreter joins a pool's threads at exit. A daemon
    thread that is abandoned costs its memory and nothing else. Starting one takes about 0.1 ms.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any) -> None:
        if not outcome.done():
            outcome.set_result(value)

    def work() -> None:
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits, as a value: a future takes no StopIteration
            value = Raised(error)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            loop.call_soon_threadsafe(settle, value)

    threading.Thread(target=contextvars.copy_context().run, args=(work,), name=name, daemon=True).start()
    value = await outcome
    if isinstance(value, Raised):
        raise value.error
    return value
