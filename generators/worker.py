"""A generator worker: keeps one engine full of episodes, by pulling tickets when it has room.

What always holds: all episodes of a group run on this engine; a group is committed whole or reported as failed, unless the worker
is stopped, and then :meth:`GeneratorWorker.run` names it; no ticket is asked for while weights are being installed. Whether the
worker is behind the clock, the desk decides: it is told the worker's version.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from asyncrl.core.errors import EnvironmentBroken, FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId, WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.ticket import Ticket, TicketDesk
from asyncrl.core.trajectory import StopReason, Trajectory, encode
from asyncrl.envs.base import Environment
from generators.chat import ChatFormat
from generators.completion import Engine, EngineUse
from generators.episode import EpisodeLimits, EpisodeName, EpisodeTools, run_episode
from generators.tool_calls import ToolCallReader

logger = logging.getLogger(__name__)

_EVALUATION_GROUP = GroupId(-1)


class EvaluationResult(msgspec.Struct, frozen=True):
    """One episode of a held-out task.

    Attributes:
        turns: that the model took.
        oldest_version, newest_version: of the policies that sampled its tokens.
        text: the whole episode, decoded; empty but for the first few.
    """

    task_id: TaskId
    reward: float
    stop_reason: StopReason
    turns: int
    oldest_version: PolicyVersion
    newest_version: PolicyVersion
    text: str


class GeneratorStatistics(EngineUse, frozen=True):
    """What a worker and its engine have done; all counters only grow.

    Attributes:
        finished_episodes: for training, whole groups or not.
    """

    finished_episodes: int


class GeneratorWorker:
    """One engine's worker.

    Args:
        worker_id: names the worker to the desk.
        recipe: the run's.
        engine: started, and warm.
        chat: of the engine's model.
        environment_factory: makes a fresh environment for each episode.
        desk: hands out tickets and takes in groups.

    Raises:
        RecipeError: vLLM has no tool parser of the recipe's name.
    """

    def __init__(
        self,
        worker_id: WorkerId,
        recipe: Recipe,
        engine: Engine,
        chat: ChatFormat,
        environment_factory: Callable[[], Environment],
        desk: TicketDesk,
    ) -> None:
        self._id, self._recipe, self._engine, self._chat, self._desk = worker_id, recipe, engine, chat, desk
        reader = ToolCallReader(chat.tokenizer, recipe.model.tool_parser)
        self._tools = EpisodeTools(engine, chat, reader, environment_factory)
        self._limits = EpisodeLimits.of(recipe, recipe.sampling.temperature)
        self._slots = asyncio.Semaphore(recipe.generators.max_running)
        self._waiting_or_running = 0
        self._installing = 0
        self._asked_as: PolicyVersion | None = None
        self._changed = asyncio.Event()
        self._unfinished: dict[GroupId, Ticket] = {}
        self._finished_episodes = 0

    async def run(self, stop: asyncio.Event) -> tuple[GroupId, ...]:
        """Generate until ``stop`` is set; then end all episodes where they are, and name the groups that were not handed in.

        Raises:
            ComponentFailed: the engine died, at once.
        """
        with _first_error():
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self._serve(), name=f"{self._id} serving")
                await stop.wait()
                serving.cancel()
        return tuple(self._unfinished)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                room = self._recipe.generators.max_running - self._waiting_or_running
                if room > 0 and not self._installing and self._asked_as != self._engine.version:
                    self._asked_as = self._engine.version
                    # The last group may exceed the room: its episodes wait for a slot, which keeps the engine full.
                    limit = -(-room // self._recipe.batch.group_size)
                    tasks.create_task(self._lease(limit, self._engine.version, tasks), name=f"{self._id} leasing")
                await self._changed.wait()

    async def _lease(self, limit: int, version: PolicyVersion, tasks: asyncio.TaskGroup) -> None:
        """Ask the desk once, and start what it hands out.

        A request as an old version stays with the desk until it is answered: it could be answered with tickets, and those must
        not be lost. It does not keep the worker from asking again as the new version.
        """
        tickets = await self._desk.lease(self._id, version, limit)
        if self._asked_as == version:
            self._asked_as = None
        for ticket in tickets:
            self._unfinished[ticket.group_id] = ticket
            self._waiting_or_running += ticket.size
            tasks.create_task(self._run_group(ticket), name=f"group {ticket.group_id}")
        self._changed.set()

    async def _run_group(self, ticket: Ticket) -> None:
        try:
            async with asyncio.TaskGroup() as episodes:
                running = [episodes.create_task(self._run_sample(ticket, index)) for index in range(ticket.size)]
                for sample in running:
                    sample.add_done_callback(self._release)
        except* EnvironmentBroken as broken:
            reason = str(_first_leaf(broken))
            logger.warning("group %d failed: %s", ticket.group_id, reason)
            await self._desk.fail(ticket.group_id, FailureKind.DATA, reason)
        else:
            await self._desk.commit([encode(sample.result()) for sample in running])
        del self._unfinished[ticket.group_id]

    async def _run_sample(self, ticket: Ticket, index: int) -> Trajectory:
        async with self._slots:
            name = EpisodeName(ticket.group_id, index, ticket.attempt)
            trajectory = await run_episode(ticket.task, name, self._limits, self._tools)
        self._finished_episodes += 1
        return trajectory

    def _release(self, sample: asyncio.Task[Trajectory]) -> None:
        """However ``sample`` ended, and even if it never began, it takes no room any more."""
        self._waiting_or_running -= 1
        self._changed.set()

    async def install(self, publication: Publication) -> int:
        """Load published weights under the running episodes; the fingerprint of what was loaded.

        Raises:
            WeightMismatch: the publication did not reach the whole model.
        """
        self._installing += 1
        try:
            return await self._engine.install(publication)
        finally:
            self._installing -= 1
            self._changed.set()

    async def evaluate(self, tasks: Sequence[Task], temperature: float) -> list[EvaluationResult]:
        """One episode of each task, beside training: the engine shares its time among all requests.

        A task that breaks its environment ``buffer.max_attempts`` times has no result; it is never counted as a reward of 0.

        Raises:
            EnvironmentBroken: every task broke its environment.
            ComponentFailed: the engine died.
        """
        limits = EpisodeLimits.of(self._recipe, temperature)
        slots = asyncio.Semaphore(self._recipe.generators.max_running)
        with _first_error():
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._evaluate(task, limits, slots)) for task in tasks]
        trajectories = [trajectory for episode in running if isinstance(trajectory := episode.result(), Trajectory)]
        if tasks and not trajectories:
            raise EnvironmentBroken(f"none of {len(tasks)} evaluation tasks could be run; the first: {running[0].result()}")
        shown = self._recipe.tracking.sample_trajectories
        return [self._result(trajectory, with_text=index < shown) for index, trajectory in enumerate(trajectories)]

    async def _evaluate(self, task: Task, limits: EpisodeLimits, slots: asyncio.Semaphore) -> Trajectory | EnvironmentBroken:
        failure: EnvironmentBroken
        for attempt in range(self._recipe.buffer.max_attempts):
            try:
                async with slots:
                    return await run_episode(task, EpisodeName(_EVALUATION_GROUP, 0, attempt), limits, self._tools)
            except EnvironmentBroken as error:
                failure = error
        logger.warning("evaluation task left out: %s", failure)
        return failure

    def _result(self, trajectory: Trajectory, *, with_text: bool) -> EvaluationResult:
        versions = trajectory.versions()[trajectory.loss_mask]
        return EvaluationResult(
            task_id=trajectory.task_id,
            reward=trajectory.reward,
            stop_reason=trajectory.stop_reason,
            turns=len(trajectory.turns),
            oldest_version=PolicyVersion(int(versions.min(initial=self._engine.version))),
            newest_version=PolicyVersion(int(versions.max(initial=0))),
            text=self._chat.decode(trajectory.token_ids.tolist()) if with_text else "",
        )

    def statistics(self) -> GeneratorStatistics:
        """Counters since the engine was ready."""
        return GeneratorStatistics(
            **msgspec.structs.asdict(self._engine.use()),
            finished_episodes=self._finished_episodes,
        )


@contextmanager
def _first_error() -> Iterator[None]:
    """Out of the groups of errors that task groups raise, the first: the others only followed from it."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise _first_leaf(group) from group


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
