"""Changes a buffer, one command after the other: writes it to the journal, then applies it, then answers the caller.

What always holds: replaying the journal rebuilds the buffer; a change that has begun is completed even if its caller
has gone; a full disk makes changes wait and loses none; after a failure, nothing changes any more.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from asyncrl.buffers import commands
from asyncrl.buffers.commands import Command
from asyncrl.buffers.journal.disk import DiskFull
from asyncrl.buffers.journal.journal import Journal
from asyncrl.buffers.pauses import Pauses
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.errors import AsyncRLError

logger = logging.getLogger(__name__)

SNAPSHOT_BYTES = 8 << 20
"""A snapshot is taken when the journal has grown by this much, or by the last snapshot's size if that is more."""
DISK_RETRY_S = 1.0
"""Seconds between attempts to write to a full disk: a file system does not tell when it has room again."""


class WriteAhead:
    """The only way to change a buffer that is served. Use it in one event loop only.

    Args:
        buffer: a new or recovered buffer.
        journal: the journal for the commands; None to write none.
        pauses: holds a message while the disk is full.
        applied: called after each change.
        failed: called with the error after which no more changes are possible.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        journal: Journal | None,
        *,
        pauses: Pauses,
        applied: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._buffer, self._journal, self._pauses = buffer, journal, pauses
        self._applied, self._failed = applied, failed
        self._next_snapshot = SNAPSHOT_BYTES
        self._turn = asyncio.Lock()
        self._failure: BaseException | None = None

    async def change(self, make: Callable[[], Command | None], *, shared: bool = False) -> Any:
        """Apply the command that ``make`` returns, and return its answer; None if ``make`` returns no command.

        Args:
            make: called when all changes before this one are applied.
            shared: the command serves several callers; its error makes all later changes fail, so that each of them
                sees it.
        """
        return await asyncio.shield(asyncio.ensure_future(self._change(make, shared)))

    async def _change(self, make: Callable[[], Command | None], shared: bool) -> Any:
        async with self._turn:
            self.check()
            command = make()
            if command is None:
                return None
            try:
                return await self._write_and_apply(command)
            except (AsyncRLError, OSError) as error:
                if shared:
                    self.fail(error)
                raise

    async def _write_and_apply(self, command: Command) -> Any:
        if self._journal is not None:
            await self._write(self._journal, command)
        answer = command.apply(self._buffer)
        for level, remark in self._buffer.remarks:
            logger.log(level, remark)
        self._buffer.remarks.clear()
        self._applied()
        if self._journal is not None and self._journal.bytes_since_snapshot >= self._next_snapshot:
            await self._snapshot(self._journal)
        return answer

    async def _write(self, journal: Journal, command: Command) -> None:
        record = commands.encode(command)
        paused = False
        while True:
            try:
                if journal.fsync:
                    await asyncio.to_thread(journal.append, record)
                else:
                    journal.append(record)
                break
            except DiskFull as error:
                if not paused:
                    logger.warning("paused: %s", error)
                paused = True
                self._pauses.set("the buffer", str(error))
                await asyncio.sleep(DISK_RETRY_S)
                self.check()  # a run that ends must not wait for room
        if paused:
            logger.warning("there is room again: the run goes on")
            self._pauses.set("the buffer", "")

    async def _snapshot(self, journal: Journal) -> None:
        state = self._buffer.snapshot()
        try:
            await asyncio.to_thread(journal.snapshot, state)
        except DiskFull as error:
            # The journal is complete without it; a recovery only replays more.
            logger.warning("no snapshot was written: %s", error)
        # A large state is written less often, so that snapshots never write more than the journal itself.
        self._next_snapshot = journal.bytes_since_snapshot + max(SNAPSHOT_BYTES, len(state))

    def fail(self, error: BaseException) -> None:
        """Refuse every change from now on with this error, or with the first one if there are several."""
        self._failure = self._failure or error
        self._failed(self._failure)

    def check(self) -> None:
        """Raise the error after which no changes are possible, if there is one."""
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Close the journal after the current change. A second call does nothing."""
        async with self._turn:
            journal, self._journal = self._journal, None
            if journal is not None:
                journal.close()
