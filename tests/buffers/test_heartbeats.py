import asyncio
import socket

import pytest
import virtual_time

from asyncrl.buffers.heartbeats import Heartbeats
from asyncrl.core.ids import WorkerId

WORKER = WorkerId("generator-0")


async def test_whose_words_lie_unread_while_the_loop_is_held_up_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words reach the service one turn of the loop after their bytes: behind the timers that went off meanwhile."""
    silent: list[WorkerId] = []
    heartbeats = Heartbeats(60.0, silent.append)
    loop, heard = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        loop.remove_reader(inbox)
        loop.call_soon(heartbeats.heard, WORKER)
        loop.call_soon(heard.set)

    def held_up() -> None:
        outbox.send(b"renewed")
        virtual_time.skip(monkeypatch, 120.0)

    inbox, outbox = socket.socketpair()
    with inbox, outbox:
        loop.add_reader(inbox, read)
        heartbeats.heard(WORKER)
        loop.call_soon(held_up)
        async with asyncio.timeout(180):
            await heard.wait()
    assert silent == []
    heartbeats.close()


async def test_one_that_is_silent_is_told_once() -> None:
    told = asyncio.Queue[WorkerId]()
    heartbeats = Heartbeats(0.01, told.put_nowait)
    heartbeats.heard(WORKER)
    async with asyncio.timeout(60):
        assert await told.get() == WORKER
    await asyncio.sleep(0.05)
    assert told.empty()
