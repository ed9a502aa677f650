"""Runs a coroutine to its end where an event loop may already be running: in a thread with a loop of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from asyncrl.envs.hosting.guarded_calls import Raised

T = TypeVar("T")


def run_in_own_loop(work: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
    """Do ``work``, which must end by deadlines of its own, and return its result or raise what it raises."""
    outcome: list[T | Raised] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            outcome.append(Raised(error))

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join()
    (result,) = outcome
    if isinstance(result, Raised):
        raise result.error
    return result
