"""Plays a task of each split and source before anything starts, so that a bug in the environment's code costs a second, and reads
the prompts of two more, and of all tasks where the environment adds nothing of its own to them.

What always holds: an environment that a run could use is not refused. A source is refused only if none of its first, middle
and last tasks can be played, or a reward is not to be had by its deadline; slow methods have the deadlines that they have in a
run; and if the generators will be on other machines, what fails here is only noted, because the environment may need what is
there.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from asyncrl.buffers.tasks.task_stream import TaskSource
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, EnvironmentBroken, EnvironmentLost, RecipeError
from asyncrl.core.plug_ins.plug_in import users_code
from asyncrl.core.recipe.environment import ClassEnvironmentConfig, member_place
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.text import describe_error
from asyncrl.envs.base import Observation
from asyncrl.envs.hosting.blocking import BlockingWatch, find_place
from asyncrl.envs.hosting.hosted import CANCELLED_ENVIRONMENT_S, HostedEnvironment
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.load import load_members
from asyncrl.envs.rewards.base import RewardUnavailable
from asyncrl.envs.secrets import read_secrets
from asyncrl.envs.tools import ToolEnvironment
from asyncrl.generators.dry_episode import play_dry_episode
from asyncrl.generators.episode import EpisodeLimits
from asyncrl.run.dry_run.model_trial import TrialPrompt
from asyncrl.run.dry_run.prompt_lengths import PromptSet, chosen

SLOW_S = 3.0
"""Seconds after which the user reads what the trial is waiting for."""
SLACK_S = 2.0
"""Seconds beyond all deadlines after which the thread that plays a task counts as stuck."""
NEVER_S = 1e6
"""Seconds for which the event loop may be blocked: whoever waits for the thread has a deadline of its own."""

Broken = EnvironmentBroken | EnvironmentLost | DeadlineExceeded | ComponentFailed


class Rehearsed(msgspec.Struct, frozen=True):
    """What came of playing the first tasks.

    Attributes:
        remarks: sentences for the user.
        prompts: the prompts of up to three tasks of each source.
        sets: the prompts whose tokens are to be counted, of each source.
    """

    remarks: tuple[str, ...]
    prompts: tuple[TrialPrompt, ...]
    sets: tuple[PromptSet, ...]


def play_first_tasks(
    recipe: Recipe, splits: Sequence[tuple[str, Sequence[TaskSource]]], note: Callable[[str], None]
) -> Rehearsed:
    """Play a task of each source with an empty answer, and begin two more.

    What the episodes share is set up once, as in a generator.

    Args:
        splits: each split with its sources.
        note: shows the user a line while this takes long.

    Raises:
        RecipeError: no task of a source that was tried can be played, what the episodes share cannot be set up, or a secret is
            not set; its notes hold the traceback.
    """
    remarks: dict[str, None] = {}
    prompts: list[TrialPrompt] = []
    sets: list[PromptSet] = []
    with users_code("playing a task raised", _place(recipe, ""), "correct the environment"), _logging_to(note):
        stage = _Stage(recipe, note)
        try:
            for split, sources in splits:
                for source in sources:
                    if stage.stuck:
                        stage = _Stage(recipe, note)
                    shown: dict[int, Observation] = {}
                    remarks |= dict.fromkeys(_play_source(split, source, stage, recipe, shown))
                    prompts += [_prompt(split, source, index, each) for index, each in shown.items()]
                    sets.append(_prompt_set(split, source, stage, shown))
        finally:
            stage.close()
    return Rehearsed(tuple(remarks), tuple(prompts), tuple(each for each in sets if each.openings))


def _prompt(split: str, source: TaskSource, index: int, shown: Observation) -> TrialPrompt:
    return TrialPrompt.of(f"tasks.{split} ({source.name})", source.tasks[index].id, shown.messages, shown.tools)


def _prompt_set(split: str, source: TaskSource, stage: "_Stage", shown: Mapping[int, Observation]) -> PromptSet:
    """Return all prompts of a source that are known without playing its tasks, or else those that were ``shown``."""
    places = chosen(len(source.tasks)) if shown and not stage.stuck else ()
    opened = stage.openings([source.tasks[index] for index in places]) if places else None
    known = shown if opened is None else {index: each for index, each in zip(places, opened, strict=True) if each is not None}
    each = ((index, source.tasks[index].id, seen.messages, seen.tools) for index, seen in known.items())
    return PromptSet.of_shown(split, source.name, len(source.tasks), each)


def _place(recipe: Recipe, member: str) -> str:
    """The recipe key to blame for a broken environment."""
    spec = recipe.environment.by_member.get(member)
    return f"{member_place(member)}.name" if isinstance(spec, ClassEnvironmentConfig) else member_place(member)


def _play_source(split: str, source: TaskSource, stage: "_Stage", recipe: Recipe, shown: dict[int, Observation]) -> Iterator[str]:
    """Play the first task that can be played to its end, and the others up to their prompts, which are added to ``shown``."""
    name = f"tasks.{split} ({source.name})"
    first: Broken | None = stage.broken
    indexes = (0, len(source.tasks) // 2, len(source.tasks) - 1) if first is None else ()
    member = source.tasks[0].environment
    for index in dict.fromkeys(indexes):
        task = source.tasks[index]
        outcome = stage.play(task, to_end=not shown)
        yield from stage.blocked_by
        if isinstance(outcome, Observation):
            shown[index] = outcome
        else:
            first = first or outcome
        if stage.stuck or isinstance(outcome, RewardUnavailable):  # others would wait for it, too
            break
    if shown:
        if first is not None:
            yield f"{name}: {first}; in a run, tasks that break their environment are tried again and then left out"
        return
    assert first is not None
    if os.environ.get("RAY_ADDRESS"):
        yield f"{name}: {first}, on this machine; the generators will be in the cluster that RAY_ADDRESS names"
        return
    remedy = f"correct it, and launch again (found by playing some of {name} with an empty answer)"
    refusal = RecipeError(_place(recipe, member), f"{first}", remedy)
    if isinstance(first, EnvironmentBroken) and first.raised is not None and first.raised.traceback:
        refusal.add_note(first.raised.traceback.rstrip())
    raise refusal


class _Stage:
    """A thread with an event loop in which the environments are open and tasks are played. It is left behind if it gets stuck.

    Attributes:
        broken: why the environments could not be opened; None if they could.
        stuck: whether the thread did not answer in time or has ended, so that nothing more can be played in it.

    Raises:
        RecipeError: a secret is not set.
    """

    def __init__(self, recipe: Recipe, note: Callable[[str], None]) -> None:
        self._recipe, self._note = recipe, note
        secrets = read_secrets(recipe.environment, os.environ)
        self._environments = WorkerEnvironments(load_members(recipe.environment), secrets, "preflight")
        self._loop: asyncio.AbstractEventLoop
        self._work: asyncio.Queue[Callable[[], Coroutine[Any, Any, None]] | None]
        self._watch: BlockingWatch
        self._answered = threading.Event()
        self._result: Broken | None = None
        self._what = self._at = "the environments"
        self.stuck = False
        self._thread = threading.Thread(target=self._run, name="playing the first tasks", daemon=True)
        self._thread.start()
        self._answered.wait()
        self.broken = self._do(self._open, recipe.deadlines.start, "", "setting up what episodes share")

    @property
    def blocked_by(self) -> tuple[str, ...]:
        """A sentence about each place in the code that blocked the event loop for a second or longer."""
        return self._watch.sentences

    def play(self, task: Task, *, to_end: bool) -> Observation | Broken:
        """Play one task, and return what the model would be shown, or what broke."""
        limits = EpisodeLimits.of(self._recipe, task.environment)
        shown: list[Observation] = []

        async def play() -> None:
            shown.append(await play_dry_episode(task, self._environments.make, limits, self._now_at, to_end=to_end))

        seconds = limits.episode_timeout_s + limits.close_timeout_s + CANCELLED_ENVIRONMENT_S
        broken = self._do(play, seconds, f"task {task.id}", f"playing task {task.id} once, to check the environment")
        return shown[0] if broken is None else broken

    def openings(self, tasks: Sequence[Task]) -> list[Observation | None] | None:
        """Return what the model would be shown at the start of tasks; None if only playing them tells.

        What cannot be made is None too: such a task breaks its environment when it is played.
        """
        shown: list[Observation | None] = []
        limits = EpisodeLimits.of(self._recipe, tasks[0].environment)

        async def open_all() -> None:
            environment = self._environments.make(tasks[0])
            if not isinstance(environment, ToolEnvironment) or not _adds_nothing(type(environment)):
                return
            hosted = HostedEnvironment(environment, tasks[0])
            try:
                await hosted.ready()
                shown.extend([await _opening(environment, task) for task in tasks])
            finally:
                await hosted.close(limits.close_timeout_s)

        seconds = limits.episode_timeout_s + self._recipe.deadlines.start
        broken = self._do(open_all, seconds, "", "making the prompts of tasks, to count their tokens")
        return shown if broken is None and len(shown) == len(tasks) else None

    def close(self) -> None:
        """Tear down what the episodes share."""
        if not self.stuck:
            seconds = self._recipe.deadlines.shutdown / 10
            self._do(partial(self._environments.close, seconds), seconds, "", "tearing down what episodes share")
        if not self.stuck:
            self._loop.call_soon_threadsafe(self._work.put_nowait, None)

    def _do(self, job: Callable[[], Coroutine[Any, Any, None]], seconds: float, what: str, noted: str) -> Broken | None:
        """Do a job in the thread, and return what broke."""
        self._answered.clear()
        self._result, self._what, self._at = None, f"{what}: " if what else "", noted
        seconds += SLACK_S
        self._loop.call_soon_threadsafe(self._work.put_nowait, job)
        if not self._answered.wait(min(SLOW_S, seconds)):
            doing = f"{noted}: {self._at} has" if what else f"{noted} has"
            self._note(f"{doing} been running for {SLOW_S:g} s")
        if not self._answered.wait(max(0.0, seconds - SLOW_S)):
            self.stuck = True
            place, _ = find_place(sys._current_frames().get(self._thread.ident or 0), self._run.__code__)
            problem = f"{self._at} has not returned for {seconds:g} s, and is in {place}; {place.remedy}"
            return EnvironmentBroken(f"{self._what}{problem}")
        return self._result

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - whatever the user's code does to its event loop
            if not self._answered.is_set():
                self._result = EnvironmentBroken(f"{self._what}{self._at} ended the event loop with {describe_error(error)}")
        finally:
            self.stuck = True
            self._answered.set()

    async def _serve(self) -> None:
        self._loop, self._work = asyncio.get_running_loop(), asyncio.Queue()
        self._watch = BlockingWatch(
            self._loop, threading.current_thread(), self._run.__code__, NEVER_S, on_blocked=lambda problem: None
        )
        self._watch.start()
        self._answered.set()
        try:
            while (job := await self._work.get()) is not None:
                try:
                    await job()
                except (EnvironmentBroken, EnvironmentLost, DeadlineExceeded, ComponentFailed) as broken:
                    self._result = broken
                self._answered.set()  # not at the loop's end, which waits for what the environment may have left behind
        finally:
            self._watch.close()

    async def _open(self) -> None:
        await self._environments.start(self._recipe.deadlines.start)
        await self._environments.try_processes()

    def _now_at(self, method: str) -> None:
        self._at = method


def _adds_nothing(environment: type[ToolEnvironment]) -> bool:
    """Whether prompts are those of :class:`ToolEnvironment`: a ``reset`` of the user's own may make others."""
    return environment.reset.__module__.startswith(("asyncrl.envs.tools", "asyncrl.envs.builtin."))


async def _opening(environment: ToolEnvironment, task: Task) -> Observation | None:
    try:
        return await ToolEnvironment.reset(environment, task)
    except Exception:  # noqa: BLE001 - the user's code may raise anything
        return None


class _Warnings(logging.Handler):
    """Notes what rewards of ours warn of, such as a judge that is away, and keeps all else off the terminal."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("asyncrl.envs.rewards."):
            return
        try:
            self._note(record.getMessage())
        except Exception:  # noqa: BLE001 - as each handler does: it must not reach whoever logged
            self.handleError(record)


@contextmanager
def _logging_to(note: Callable[[str], None]) -> Iterator[None]:
    """Take all logging, which would be written to the terminal as long as nobody has said where to."""
    handler, root = _Warnings(note), logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
