"""Room on the run folder's disk: a full disk pauses a run, it does not end it."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from asyncrl.core.measures.units import memory

ROOM_BYTES = 64 << 20
"""Bytes that should always be free: MLflow, the logs and the journal all write to the run folder."""
POLL_S = 2.0
"""Seconds between two looks at a full disk: no event tells that it has room."""


def free_bytes(folder: Path) -> int:
    """Bytes that an ordinary user may still write to the disk of ``folder``."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


async def wait_for_room(folder: Path, wanted: int, note: Callable[[str], None]) -> None:
    """Return when ``wanted`` bytes are free on the disk of ``folder``; ``note`` tells the user of a wait."""
    free = free_bytes(folder)
    if free >= wanted:
        return
    note(
        f"Paused: {memory(free)} are free on the disk of {folder}, and {memory(wanted)} are needed; "
        "the run goes on when there is room"
    )
    while free_bytes(folder) < wanted:  # noqa: ASYNC110 - nothing tells that a disk has room again
        await asyncio.sleep(POLL_S)
    note("The disk has room again")
