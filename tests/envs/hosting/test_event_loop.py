"""The event loop that episodes run in: it outlives what environments do, its end is heard of, and what blocks it is found."""

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncrl.core.errors import EventLoopBlocked, ProcessDied
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import ToolCall
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs import Action, ToolEnvironment, tool
from asyncrl.envs.base import Observation
from asyncrl.envs.hosting import blocking
from asyncrl.envs.hosting.blocking import BlockingWatch, find_place
from asyncrl.envs.hosting.event_loop import EventLoopThread
from asyncrl.envs.hosting.hosted import HostedEnvironment
from asyncrl.envs.hosting.shared_part import SharedPart
from asyncrl.envs.load import load_member
from asyncrl.envs.secrets import Secrets

TASK = Task(id=TaskId("t"), prompt="p")


@asynccontextmanager
async def thread(silence_s: float = 60.0) -> AsyncIterator[EventLoopThread]:
    loop = EventLoopThread("generator-0", silence_s)
    async with asyncio.timeout(120):
        yield loop
    loop.close()


async def raise_(error: BaseException) -> None:
    raise error


async def test_work_is_done_in_the_other_loop() -> None:
    async def where() -> tuple[str, bool]:
        return threading.current_thread().name, asyncio.get_running_loop() is here

    here = asyncio.get_running_loop()
    async with thread() as loop:
        assert await loop.call(where) == ("generator-0's event loop", False)
        with pytest.raises(ZeroDivisionError):
            await loop.call(lambda: raise_(ZeroDivisionError()))


@pytest.mark.parametrize("stray", [SystemExit(3), KeyboardInterrupt()])
async def test_the_loop_goes_on_after_what_ends_loops(stray: BaseException) -> None:
    """A tool that gathers tasks of its own, one of which exits; a callback that does; one that stops the loop."""

    async def hostile() -> list[BaseException]:
        caught = []
        for work in (asyncio.gather(raise_(stray)), asyncio.gather(asyncio.create_task(raise_(stray)), asyncio.sleep(0))):
            try:
                await work
            except BaseException as error:  # noqa: BLE001 - it is compared below
                caught.append(error)
        loop = asyncio.get_running_loop()
        loop.call_soon(sys.exit)
        await asyncio.sleep(0.001)
        loop.stop()
        await asyncio.sleep(0.001)
        return caught

    async with thread() as loop:
        beside = asyncio.create_task(loop.call(lambda: asyncio.sleep(0.01, "beside")))
        assert await loop.call(hostile) == [stray, stray]
        assert await beside == "beside"
        with pytest.raises(ProcessDied, match="generator-0: its work ended with " + type(stray).__name__):
            await loop.call(lambda: raise_(stray))
        assert await loop.call(lambda: asyncio.sleep(0, "still there")) == "still there"


async def test_an_error_that_nobody_asks_for_is_logged_in_short(caplog: pytest.LogCaptureFixture) -> None:
    async def forgetful() -> None:
        forgotten = asyncio.create_task(raise_(ValueError("x" * 1_000_000)))
        await asyncio.sleep(0)
        del forgotten
        gc.collect()

    async with thread() as loop:
        await loop.call(forgetful)
    told = [record.getMessage() for record in caplog.records if record.name == "asyncrl.envs.hosting.event_loop"]
    (said,) = [each for each in told if "ValueError" in each]  # other tests may have left tasks behind, which are collected too
    assert said.startswith("Task exception was never retrieved\nTraceback (most recent call last)")
    assert "ValueError: xxx" in said
    assert len(said) < 4_100


async def test_whoever_waits_hears_at_once_that_the_loop_ended() -> None:
    def broken() -> None:
        raise OSError("its selector is closed")

    async def forever() -> None:
        asyncio.get_running_loop()._run_once = broken  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with thread() as loop:
        for work in (forever, forever):
            with pytest.raises(ProcessDied, match="generator-0: its event loop ended: OSError: its selector is closed"):
                await loop.call(work)


async def test_work_that_is_cancelled_from_within_does_not_look_alive() -> None:
    async def all_tasks_cancelled() -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)

    async with thread() as loop:
        with pytest.raises(ProcessDied, match="generator-0: its work was cancelled from within"):
            await loop.call(all_tasks_cancelled)


async def test_one_who_stops_waiting_cancels_the_work() -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with thread() as loop:
        calling = asyncio.create_task(loop.call(work))
        assert await asyncio.to_thread(begun.wait, 60)
        calling.cancel()
        await asyncio.wait({calling})
        assert calling.cancelled()
        assert await asyncio.to_thread(cancelled.wait, 60)


class Slow(ToolEnvironment):
    """Blocks wherever ``where`` says, until :attr:`lets_go`."""

    tool_timeout_s = 60.0

    def __init__(self, where: str) -> None:
        self._where = where
        self.blocks, self.lets_go = threading.Event(), threading.Event()

    def _block(self, where: str) -> None:
        if where == self._where:
            self.blocks.set()
            self.lets_go.wait()

    async def reset(self, task: Task) -> Observation:
        self._block("reset")
        return await super().reset(task)

    @tool
    async def look_up(self) -> str:
        """Look it up."""
        self._block("tool")
        return "found"

    @tool
    async def rest(self) -> str:
        """Does nothing, beside the other calls of the turn."""
        await asyncio.sleep(0)
        return "rested"

    @tool
    async def gather(self) -> str:
        """Look it up, beside others."""
        await asyncio.gather(self._in_task())
        return "found"

    async def _in_task(self) -> None:
        self._block("task")

    def reward(self, task: Task, answer: str) -> float:
        self._block("reward")
        return 1.0


async def play(environment: Slow, call: str) -> None:
    hosted = HostedEnvironment(environment, TASK)
    try:
        await hosted.reset()
        await hosted.step(Action("", (ToolCall("rest", {}), ToolCall(call, {}), ToolCall("rest", {}))))
        await hosted.step(Action("", ()))
    finally:
        await hosted.close(60.0)


async def blocks(loop: EventLoopThread, tells: threading.Event) -> None:
    """Wait until what ``tells`` that it will block the loop does."""
    assert await asyncio.to_thread(tells.wait, 60)
    blocking_thread = loop._thread.ident or 0
    while sys._current_frames()[blocking_thread].f_code.co_name != "wait":  # noqa: ASYNC110 - it is on its way there
        await asyncio.sleep(0)


@asynccontextmanager
async def blocked(loop: EventLoopThread, where: str, call: str = "look_up") -> AsyncIterator[Slow]:
    """``where`` of an environment blocks the loop while the body runs."""
    environment = Slow(where)
    playing = asyncio.create_task(loop.call(lambda: play(environment, call)))
    try:
        await blocks(loop, environment.blocks)
        yield environment
    finally:
        environment.lets_go.set()
        await asyncio.wait({playing})


@pytest.mark.parametrize(
    ("where", "call", "what", "line", "remedy"),
    [
        ("tool", "look_up", "async tool Slow.look_up", 'self._block("tool")', "plain `def` tool"),
        ("reset", "look_up", "Slow.reset", 'self._block("reset")', "asyncio.to_thread"),
        ("reward", "look_up", "Slow.reward", 'self._block("reward")', "asyncio.to_thread"),
        ("task", "gather", "Slow._in_task", 'self._block("task")', "make it await"),
    ],
)
async def test_what_blocks_the_loop_is_found(where: str, call: str, what: str, line: str, remedy: str) -> None:
    async with thread() as loop, blocked(loop, where, call):
        place, stack = find_place(sys._current_frames()[loop._thread.ident or 0], loop._turn.__code__)
        assert place.what == what
        assert place.where.startswith(f"{__file__}:")
        assert place.where.endswith(f": `{line}`")
        assert remedy in place.remedy
        assert [frame.f_code.co_name for frame in stack][1:3] == ["_block", "wait"]


class Sharing(Slow):
    """Blocks the loop while what its episodes share is set up."""

    blocks_share, ends_share = threading.Event(), threading.Event()

    @classmethod
    @asynccontextmanager
    async def share(cls, where: str) -> AsyncIterator[None]:
        cls.blocks_share.set()
        cls.ends_share.wait()
        yield


async def test_a_shared_part_that_blocks_the_loop_is_found() -> None:
    member = load_member(ClassEnvironmentConfig(name=f"{__name__}:Sharing", options={"where": "share"}))

    async def share() -> None:
        part = SharedPart(member, Secrets(), "generator-1", print)
        await part.entered(60.0)
        await part.leave(60.0)

    async with thread() as loop:
        sharing = asyncio.create_task(loop.call(share))
        try:
            await blocks(loop, Sharing.blocks_share)
            place, _ = find_place(sys._current_frames()[loop._thread.ident or 0], loop._turn.__code__)
        finally:
            Sharing.ends_share.set()
            await sharing
    assert (place.what, place.where.rpartition(": ")[2]) == ("Sharing.share", "`cls.ends_share.wait()`")


async def test_a_loop_that_waits_is_blocked_by_nobody() -> None:
    async with thread() as loop:
        await loop.call(lambda: asyncio.sleep(0))
        found: object = None
        while found != (blocking.NOBODY, ()):  # it may still be on its way from the answer to its selector
            await asyncio.sleep(0)
            found = find_place(sys._current_frames()[loop._thread.ident or 0], loop._turn.__code__)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A watch that looks when told, by a clock of the test's."""

    def __init__(self, loop: EventLoopThread, silence_s: float) -> None:
        self.clock, self.reports = Clock(), list[str]()
        self.watch = BlockingWatch(loop._loop, loop._thread, loop._turn.__code__, silence_s, self.reports.append, self.clock)

    def look(self, seconds: float, times: int = 1) -> None:
        for _ in range(times):
            self.clock.now += seconds
            self.watch.look()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "asyncrl.envs.hosting.blocking"]


async def turned(loop: EventLoopThread) -> None:
    """The loop has turned, and done what was asked of it before."""
    await loop.call(lambda: asyncio.sleep(0))


async def test_a_place_is_told_once_with_its_stack_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with thread() as loop:
        watched = Watched(loop, 60.0)
        for number in range(10):
            async with blocked(loop, "tool"):
                watched.look(0.25, times=1 + 3)
                told_of = len(warnings(caplog))
                watched.look(0.25, times=8)
            await turned(loop)
            watched.look(0.25)
            await turned(loop)
            assert watched.reports == []
            assert told_of == min(number, 1), "less than a second is not told of"
    first, tenth = warnings(caplog)
    assert "the event loop was blocked for 1.0 s by async tool Slow.look_up (" in first
    assert "make it a plain `def` tool" in first
    assert ", in _block\n    self.lets_go.wait()" in first
    assert "for the 10th time by async tool Slow.look_up" in tenth
    (sentence,) = watched.watch.sentences
    assert sentence.startswith("async tool Slow.look_up (")


def test_a_loop_that_is_closed_before_its_watch_ends_the_watch_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    loop = asyncio.new_event_loop()
    loop.close()
    reports: list[str] = []
    before = set(threading.enumerate())
    BlockingWatch(loop, threading.current_thread(), find_place.__code__, 0.1, reports.append).start()
    (watching,) = set(threading.enumerate()) - before
    watching.join(30)
    assert (watching.is_alive(), errors, reports) == (False, [], [])


async def test_work_that_a_blocked_loop_comes_to_when_nobody_waits_for_it_is_not_begun() -> None:
    begun: list[str] = []

    def work() -> Coroutine[Any, Any, None]:
        begun.append("begun")
        return asyncio.sleep(0)

    async with thread() as loop:
        async with blocked(loop, "tool"):
            calling = asyncio.create_task(loop.call(work))
            await asyncio.sleep(0)
            calling.cancel()
            await asyncio.wait({calling})
        await turned(loop)
    assert begun == []


async def test_a_loop_that_is_blocked_for_good_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async with thread() as loop:
        watched = Watched(loop, 6.0)
        async with blocked(loop, "reward"):
            watched.look(0.25, times=1 + 23)
            assert watched.reports == []
            watched.look(0.25, times=20)
    (report,) = watched.reports
    assert "blocked for 6 s, so its leases were not renewed; 100% of that time it was in Slow.reward (" in report
    assert "asyncio.to_thread" in report


async def test_a_process_that_was_stopped_was_blocked_by_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with thread() as loop:
        watched = Watched(loop, 6.0)
        async with blocked(loop, "tool"):
            watched.look(0.25)
            watched.look(3600.0)
    assert watched.reports == []
    assert warnings(caplog) == []


async def test_a_call_ends_with_the_name_of_what_blocks_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks finds it, in real time."""
    monkeypatch.setattr(blocking, "LOOK_S", 0.01)
    async with thread(silence_s=1.0) as loop:
        await turned(loop)
        loop.watch()
        environment, ended = Slow("tool"), threading.Event()

        async def played() -> None:
            try:
                await play(environment, "look_up")
            finally:
                ended.set()

        with pytest.raises(EventLoopBlocked, match=r"generator-0: .* in async tool Slow\.look_up \(.*make it a plain `def` tool"):
            await loop.call(played)
        with pytest.raises(EventLoopBlocked):
            await loop.call(lambda: asyncio.sleep(0))
        environment.lets_go.set()
        assert await asyncio.to_thread(ended.wait, 60)
