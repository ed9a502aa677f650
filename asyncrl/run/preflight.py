"""Plays a task of each split and source before anything starts, so that a bug in the environment's code costs a second.

What always holds: an environment that a run could use is not refused. A source is refused only if none of its first, middle
and last tasks can be played; slow methods have the deadlines that they have in a run; and if the generators will be on other
machines, what fails here is only noted, because the environment may need what is there.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.plug_in import users_code
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.text import told
from asyncrl.envs.base import Environment
from asyncrl.envs.blocking import BlockingWatch, find_place
from asyncrl.envs.hosted import CANCELLED_ENVIRONMENT_S
from asyncrl.envs.load import load_environment
from buffers.task_stream import TaskSource
from generators.episode import EpisodeLimits
from generators.rehearsal import rehearse

SLOW_S = 3.0
"""Seconds after which the user is told what the preflight is waiting for."""
SLACK_S = 2.0
"""Seconds beyond all deadlines after which the thread that plays a task counts as stuck."""
NEVER_S = 1e6
"""Seconds for which the event loop may be blocked: whoever waits for the thread has a deadline of its own."""

_PLACE = "environment.name"


def play_first_tasks(
    recipe: Recipe, splits: Sequence[tuple[str, Sequence[TaskSource]]], note: Callable[[str], None]
) -> tuple[str, ...]:
    """Play a task of each source with an empty answer, and return remarks for the user.

    Args:
        splits: each split with its sources.
        note: shows the user a line while this takes long.

    Raises:
        RecipeError: no task of a source that was tried can be played; its notes hold the traceback.
    """
    make, limits = load_environment(recipe.environment), EpisodeLimits.of(recipe)
    remarks: dict[str, None] = {}
    with users_code("playing a task raised", _PLACE, "correct the environment"), _quiet_logging():
        for split, sources in splits:
            for source in sources:
                remarks |= dict.fromkeys(_play_source(f"tasks.{split} ({source.name})", source, make, limits, note))
    return tuple(remarks)


def _play_source(
    name: str, source: TaskSource, make: Callable[[], Environment], limits: EpisodeLimits, note: Callable[[str], None]
) -> Iterator[str]:
    first: EnvironmentBroken | None = None
    for index in dict.fromkeys((0, len(source.tasks) // 2, len(source.tasks) - 1)):
        played = _Played(source.tasks[index], make, limits)
        broken = played.wait(note)
        yield from played.blocked_by
        if broken is None:
            if first is not None:
                yield f"{name}: {first}; in a run, tasks that break their environment are tried again and then left out"
            return
        first = first or broken
        if played.stuck:
            break
    assert first is not None
    if os.environ.get("RAY_ADDRESS"):
        yield f"{name}: {first}, on this machine; the generators will be in the cluster that RAY_ADDRESS names"
        return
    remedy = f"correct it, and launch again (found by playing some of {name} with an empty answer)"
    refusal = RecipeError(_PLACE, f"{first}", remedy)
    if first.raised is not None and first.raised.traceback:
        refusal.add_note(first.raised.traceback.rstrip())
    raise refusal


class _Played:
    """Plays one task in a thread, which is left behind if it gets stuck.

    Attributes:
        stuck: whether the thread did not end in time.
        blocked_by: a sentence about each place in the code that blocked the event loop for a second or longer.
    """

    def __init__(self, task: Task, make: Callable[[], Environment], limits: EpisodeLimits) -> None:
        self._task, self._make, self._limits = task, make, limits
        self._ended = threading.Event()
        self._broken: EnvironmentBroken | None = None
        self._at = ""
        self.stuck = False
        self.blocked_by: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, name=f"playing task {task.id}", daemon=True)
        self._thread.start()

    def wait(self, note: Callable[[str], None]) -> EnvironmentBroken | None:
        """Wait for the end, and return what broke; None if nothing did."""
        limits = self._limits
        seconds = limits.episode_timeout_s + limits.close_timeout_s + CANCELLED_ENVIRONMENT_S + SLACK_S
        if not self._ended.wait(min(SLOW_S, seconds)):
            note(f"playing task {self._task.id} once, to check the environment: {self._at} has been running for {SLOW_S:g} s")
        if not self._ended.wait(max(0.0, seconds - SLOW_S)):
            self.stuck = True
            place, _ = find_place(sys._current_frames().get(self._thread.ident or 0), self._run.__code__)
            return EnvironmentBroken(
                f"task {self._task.id}: {self._at} has not returned for {seconds:g} s, and is in {place}; {place.remedy}"
            )
        return self._broken

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except BaseException as error:  # noqa: BLE001 - whatever the user's code does to its event loop
            if not self._ended.is_set():
                self._broken = EnvironmentBroken(f"task {self._task.id}: {self._at} ended the event loop with {told(error)}")
        finally:
            self._ended.set()

    async def _play(self) -> None:
        loop, thread = asyncio.get_running_loop(), threading.current_thread()
        watch = BlockingWatch(loop, thread, self._run.__code__, NEVER_S, on_blocked=lambda problem: None)
        watch.start()
        try:
            await rehearse(self._task, self._make, self._limits, self._now_at)
        except EnvironmentBroken as broken:
            self._broken = broken
        finally:
            self.blocked_by = watch.told
            watch.close()
        self._ended.set()  # here, because the loop's end waits for threads and tasks that the environment may have left behind

    def _now_at(self, method: str) -> None:
        self._at = method


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Keep logging off the terminal, where it would be written as long as nobody has said where to."""
    silent, root = logging.NullHandler(), logging.getLogger()
    root.addHandler(silent)
    try:
        yield
    finally:
        root.removeHandler(silent)
