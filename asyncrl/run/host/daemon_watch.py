"""Ends a run at once when a process dies that it cannot go on without, and says which.

Ray's daemons are such processes. All actors die with them, and without this module the error would name whichever actor
happens to be missed first.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Collection

import psutil

from asyncrl.core.errors import ComponentFailed
from asyncrl.run.host.full_memory import naming_full_memory

RAY_DAEMONS = ("gcs_server", "raylet")


def own_daemons() -> list[psutil.Process]:
    """Ray's daemons that this process started; none if the cluster was there before."""
    return [process for process in psutil.Process().children() if process.name() in RAY_DAEMONS]


@contextlib.asynccontextmanager
async def ending_with(processes: Collection[psutil.Process]) -> AsyncIterator[None]:
    """End what runs in this context with ``ComponentFailed`` as soon as one of ``processes`` ends. Linux only.

    What fails while this machine's memory file system is full says so.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    gone: list[str] = []

    def ended(name: str, number: int) -> None:
        loop.remove_reader(watched[number])
        if not gone:
            task.cancel()
        gone.append(f"{name} (process {number})")

    watched: dict[int, int] = {}
    try:
        for process in processes if hasattr(os, "pidfd_open") else ():
            watched[process.pid] = os.pidfd_open(process.pid)
            loop.add_reader(watched[process.pid], ended, process.name(), process.pid)
        with naming_full_memory():
            try:
                yield
            except BaseException as error:  # a task group that is cancelled while it fails raises its failures instead
                if not gone:
                    raise
                task.uncancel()
                died = f"Ray's {' and '.join(gone)} died, and the run's processes with it; was it killed, or out of memory?"
                raise ComponentFailed(died) from error
    finally:
        for file in watched.values():
            loop.remove_reader(file)
            os.close(file)
