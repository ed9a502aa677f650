"""Turns in one event loop: in order, few in each pass where they take long, and free where nobody waits."""

import asyncio
import contextlib

from asyncrl.generators.loop_share import LONG_PASS_S, MOST_TURNS, LoopShare


class Work:
    """Episodes whose turns take ``seconds`` each, by a clock of their own."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds
        self.share = LoopShare(lambda: self.now)
        self.done: list[int] = []
        self.passes: list[int] = []

    async def episode(self, number: int) -> None:
        await self.share.turn()
        self.now += self.seconds
        self.done.append(number)

    async def all(self, count: int) -> None:
        episodes = asyncio.gather(*(self.episode(number) for number in range(count)))
        while not episodes.done():
            before = len(self.done)
            await asyncio.sleep(0)
            self.passes.append(len(self.done) - before)
        await episodes


async def test_long_turns_come_one_in_a_pass_and_in_order():
    work = Work(2 * LONG_PASS_S)
    await work.all(100)
    assert work.done == list(range(100))
    assert max(work.passes) <= 2, "the first pass of all has no time to go by"


async def test_short_turns_share_passes_up_to_a_limit():
    work = Work(LONG_PASS_S / 1000)
    await work.all(1000)
    assert work.done == list(range(1000))
    assert max(work.passes) == MOST_TURNS


async def test_a_turn_where_nobody_waits_does_not_yield():
    work = Work(0.0)
    episode = work.episode(0)
    with contextlib.suppress(StopIteration):
        episode.send(None)
    assert work.done == [0]


async def test_one_that_is_cancelled_takes_no_turn():
    work = Work(2 * LONG_PASS_S)
    episodes = [asyncio.ensure_future(work.episode(number)) for number in range(5)]
    await asyncio.sleep(0)
    episodes[2].cancel()
    await asyncio.wait(episodes)
    assert work.done == [0, 1, 3, 4]
