"""A generator worker: keeps one engine full of episodes, by pulling tickets when it has room.

What always holds:

* all episodes of a ticket run on this engine; each is handed in, or given back, alone and as soon as it is over, unless its group
  was given up or the worker is stopped;
* the buffer hears from the worker every quarter of ``deadlines.lease``, whatever else the worker waits for;
* no ticket is asked for while weights are being installed. The buffer decides whether the worker is behind the published version:
  it is told the worker's.
"""

import asyncio
import logging
import time
from asyncio import sleep  # bound here, before an environment that replaces asyncio.sleep is imported
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from asyncrl.core.errors import EnvironmentBroken, FailureKind, ProcessDied, ScoringFailed
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.ticket import TicketClient
from asyncrl.core.trajectory import Trajectory, named_rewards
from generators.completion import EngineUse
from generators.concurrency import Concurrency
from generators.episode import EpisodeLimits, EpisodeName, EpisodeTools, run_episode
from generators.evaluation import EvaluationResult, evaluate
from generators.first_error import first_error
from generators.leases import Lease, Leases
from generators.occupancy import Occupancy
from generators.scoring import Scoring, ScoringUse
from generators.tool_output import TOOL_OUTPUT_CUT

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 4
"""How often a worker is heard of before its lease is over: one late answer, or two, cost it nothing."""
ADAPT_S = 1.0
"""Seconds between two looks at the load of the engine."""


class GeneratorStatistics(EngineUse, frozen=True):
    """Counters of a worker and its engine, which only grow.

    Attributes:
        finished_episodes: episodes played for training, handed in or not.
        tool_output_cut: characters cut from the outputs of their tools, for ``environment.max_tool_output``.
        episode_seconds: how long they took room, added up.
        held_back_seconds: how long there was room for a group, and no ticket.
        evaluating_seconds: how long an evaluation was being played.
        episode_limit: how many episodes may be played at once; no counter.
        scoring: what a reward model said of them.
        blocked_by: sentences about code that blocked the event loop of all episodes for a second or longer, each place once.
    """

    finished_episodes: int = 0
    tool_output_cut: int = 0
    episode_seconds: float = 0.0
    held_back_seconds: float = 0.0
    evaluating_seconds: float = 0.0
    episode_limit: int = 0
    scoring: ScoringUse = ScoringUse()
    blocked_by: tuple[str, ...] = ()

    def __add__(self, successor: "GeneratorStatistics") -> "GeneratorStatistics":
        """Counters of this generator and its successor together; what is no counter is the successor's."""
        sums = {name: getattr(self, name) + getattr(successor, name) for name in self.__struct_fields__}
        latest = {name: getattr(successor, name) for name in ("last_pause_seconds", "episode_limit", "blocked_by")}
        return GeneratorStatistics(**sums | latest)


class WorkerSettings(msgspec.Struct, frozen=True):
    """The settings of a worker that come from the recipe.

    Attributes:
        max_running: the most episodes it plays at once.
        lease_s: seconds of silence after which the buffer gives a worker up.
        greedy_sample: index of the group's sample that is played at temperature 0, if there is one.
        reward_names: rewards that each episode must have.
        evaluation_attempts: how often an evaluation task may break its environment.
        evaluation_texts: how many episodes of an evaluation come with their text.
    """

    limits: EpisodeLimits
    max_running: int
    group_size: int
    lease_s: float
    greedy_sample: int | None
    reward_names: tuple[str, ...]
    evaluation_attempts: int
    evaluation_texts: int

    @classmethod
    def of(cls, recipe: Recipe) -> "WorkerSettings":
        """The settings of a recipe."""
        return cls(
            limits=EpisodeLimits.of(recipe),
            max_running=recipe.generators.max_running,
            group_size=recipe.batch.group_size,
            lease_s=recipe.deadlines.lease,
            greedy_sample=recipe.algorithm.greedy_sample,
            reward_names=recipe.algorithm.reward_names,
            evaluation_attempts=recipe.buffer.max_attempts,
            evaluation_texts=recipe.tracking.sample_trajectories,
        )


class GeneratorWorker:
    """Pulls tickets, plays their episodes on one engine, and hands them in.

    Args:
        worker_id: names the worker to the buffer.
        tools: what episodes are played with; their engine is started, and warm.
        scoring: says what finished episodes are worth; without it the environment does.
    """

    def __init__(
        self,
        worker_id: WorkerId,
        settings: WorkerSettings,
        tools: EpisodeTools,
        ticket_client: TicketClient,
        scoring: Scoring | None = None,
    ) -> None:
        self._id, self._settings, self._tools = worker_id, settings, tools
        self._engine, self._ticket_client, self._scoring = tools.engine, ticket_client, scoring
        self._slots = asyncio.Semaphore(settings.max_running)
        self._installing = 0
        self._asked_as: PolicyVersion | None = None
        self._changed = asyncio.Event()
        self._serving: asyncio.Task[None]
        self._cut_off: asyncio.Future[str]
        self._leases = Leases(settings.max_running, settings.group_size, self._changed.set)
        self._concurrency = Concurrency(settings.max_running, self._limit)
        self._finished_episodes = self._tool_output_cut = 0
        self._evaluations = Occupancy(time.monotonic)

    async def run(self, stop: asyncio.Event) -> None:
        """Generate until ``stop`` is set; then end all episodes where they are.

        Raises:
            ComponentFailed: the engine died, at once.
            ProcessDied: code that is not ours cancelled a task of the worker, which cannot do its work without it.
        """
        cut_off = self._cut_off = asyncio.get_running_loop().create_future()
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                stopping = tasks.create_task(stop.wait(), name=f"{self._id} waiting to be stopped")
                serving = self._serving = tasks.create_task(self._serve(), name=f"{self._id} serving")
                renewing = tasks.create_task(self._renew(), name=f"{self._id} renewing its leases")
                adapting = tasks.create_task(self._adapt(), name=f"{self._id} adapting to its engine")
                for needed in (stopping, serving, renewing, adapting):
                    needed.add_done_callback(self._ended)
                await asyncio.wait({stopping, cut_off}, return_when=asyncio.FIRST_COMPLETED)
                if not stop.is_set():
                    problem = f"its task {cut_off.result()!r} was cancelled, and not by the worker"
                    raise ProcessDied(f"{self._id}: {problem}; an environment may cancel no tasks but its own")
                for working in (serving, renewing, adapting):
                    working.cancel()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        """Note that a task was cancelled without which the worker would only look alive. One that failed ends the task group."""
        if task.cancelled() and not self._cut_off.done():
            self._cut_off.set_result(task.get_name())

    async def _renew(self) -> None:
        """Tell the buffer at intervals that the worker lives, and stop what nobody waits for any more."""
        while True:
            await sleep(self._settings.lease_s / RENEWALS_PER_LEASE)
            asked_for = self._leases.held()
            for group_id in await self._ticket_client.renew(self._id, list(asked_for)):
                # A group that came back while the answer was on the way is another lease, of which the answer knows nothing.
                logger.info("group %d is not wanted any more", group_id)
                self._leases.give_up(asked_for[group_id])

    async def _adapt(self) -> None:
        """Hold as many episodes as the engine can bear."""
        while True:
            await sleep(ADAPT_S)
            self._concurrency.observe(await self._engine.load(), self._leases.playing)

    def _limit(self, episodes: int, reason: str) -> None:
        logger.info("%d episodes at once from here on, of at most %d: %s", episodes, self._settings.max_running, reason)
        self._leases.limit(episodes)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                room = self._leases.room
                if room > 0 and not self._installing and self._asked_as != self._engine.version:
                    self._asked_as = self._engine.version
                    # The last group may exceed the room: its episodes wait for a slot, which keeps the engine full.
                    limit = -(-room // self._settings.group_size)
                    tasks.create_task(self._lease(limit, self._engine.version, tasks), name=f"{self._id} leasing")
                await self._changed.wait()

    async def _lease(self, limit: int, version: PolicyVersion, tasks: asyncio.TaskGroup) -> None:
        """Ask for tickets once, and start what comes.

        A lease request made under an old policy version stays open until the buffer answers it: it could be answered
        with tickets, and those must not be lost. It does not keep the worker from asking again as the new version.
        """
        tickets = await self._ticket_client.lease(self._id, version, limit)
        if self._asked_as == version:
            self._asked_as = None
        for ticket in tickets:
            self._leases.accept(ticket, partial(self._begin, tasks))
        self._changed.set()

    def _begin(self, tasks: asyncio.TaskGroup, lease: Lease, index: int) -> "asyncio.Task[None]":
        def ended(work: "asyncio.Task[None]") -> None:
            if self._leases.holds(lease) and not self._serving.cancelling():  # it will never settle
                self._ended(work)

        work = tasks.create_task(self._run_sample(lease, index), name=f"group {lease.ticket.group_id} sample {index}")
        work.add_done_callback(ended)
        return work

    async def _run_sample(self, lease: Lease, index: int) -> None:
        """Play one episode, and settle it with the buffer, which takes no room in the engine any more; nor does scoring."""
        ticket = lease.ticket
        limits = self._settings.limits
        if index == self._settings.greedy_sample:
            limits = msgspec.structs.replace(limits, temperature=0.0)
        accepted = time.perf_counter()
        try:
            async with self._slots:
                queued_s = time.perf_counter() - accepted
                name = EpisodeName(ticket.group_id, index, ticket.attempt)
                trajectory = await run_episode(ticket.task, name, limits, self._tools, queued_s)
            self._finished_episodes += 1
            self._tool_output_cut += int(trajectory.metrics.get(TOOL_OUTPUT_CUT, 0))
            self._leases.played(lease, index)
            if self._scoring is not None:
                trajectory = await self._scoring.reward(ticket.task, trajectory)
            self._check_rewards(ticket.task, trajectory)
        except (EnvironmentBroken, ScoringFailed) as failure:
            logger.warning("group %d sample %d failed: %s", ticket.group_id, index, failure)
            if not self._leases.holds(lease):  # given up, and closing its environment failed: no attempt at anything
                return
            self._leases.played(lease, index)
            kind = failure.kind if isinstance(failure, ScoringFailed) else FailureKind.DATA
            await self._ticket_client.fail(ticket.group_id, index, kind, str(failure))
        else:
            await self._ticket_client.commit(trajectory)
        self._leases.settled(lease, index)

    def _check_rewards(self, task: Task, trajectory: Trajectory) -> None:
        try:
            named_rewards(trajectory, self._settings.reward_names)
        except ValueError as error:
            remedy = "have it report all that algorithm.advantage.rewards names"
            raise EnvironmentBroken(f"task {task.id}: {error}; {remedy}") from error

    async def install(self, publication: Publication) -> int:
        """Load published weights under the running episodes; see :meth:`generators.completion.Engine.install`."""
        self._installing += 1
        try:
            return await self._engine.install(publication)
        finally:
            self._installing -= 1
            self._changed.set()

    async def evaluate(self, tasks: Sequence[Task], temperature: float) -> list[EvaluationResult]:
        """One episode of each held-out task; see :func:`generators.evaluation.evaluate`."""
        settings = self._settings
        self._evaluations.enter()
        try:
            return await evaluate(
                tasks,
                msgspec.structs.replace(settings.limits, temperature=temperature),
                self._tools,
                at_once=settings.max_running,
                attempts=settings.evaluation_attempts,
                texts=settings.evaluation_texts,
            )
        finally:
            self._evaluations.leave()

    def statistics(self) -> GeneratorStatistics:
        """Counters since the engine was ready."""
        return GeneratorStatistics(
            **msgspec.structs.asdict(self._engine.use()),
            finished_episodes=self._finished_episodes,
            tool_output_cut=self._tool_output_cut,
            episode_seconds=self._leases.episode_seconds,
            held_back_seconds=self._leases.held_back_seconds,
            evaluating_seconds=self._evaluations.wall_seconds - self._evaluations.idle_seconds,
            episode_limit=self._concurrency.limit,
            scoring=self._scoring.use if self._scoring is not None else ScoringUse(),
        )
