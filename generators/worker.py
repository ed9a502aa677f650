"""A generator worker: keeps one engine full of episodes by asking for tickets whenever it has room.

What always holds:

* all episodes of a ticket run on this engine. Each is handed in or given back on its own, as soon as it is over, unless
  its group was given up or the worker is stopped;
* the worker sends the buffer a heartbeat every quarter of ``deadlines.lease``, whatever else it waits for;
* a worker that is to end asks for no more tickets, and gives back what is not over in its grace;
* the worker asks for no tickets while a publication is being loaded. Each request names the worker's policy version, and
  the buffer decides whether that is behind the published version.
"""

import asyncio
import logging
import time
from asyncio import sleep  # imported by name: an environment may replace asyncio.sleep later
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from asyncrl.core.deadline import deadline
from asyncrl.core.episode import Episode, named_rewards, with_trained_roles
from asyncrl.core.errors import (
    ComponentFailed,
    DeadlineExceeded,
    EnvironmentBroken,
    EnvironmentLost,
    FailureKind,
    ProcessDied,
    PromptTooLong,
    ScoringFailed,
    first_error,
)
from asyncrl.core.ids import PolicyVersion, TaskId, WorkerId
from asyncrl.core.measures.counters import snapshot
from asyncrl.core.measures.time_split import GeneratorTime
from asyncrl.core.plug_ins.error_counts import CountedError, merged
from asyncrl.core.publication import Publication
from asyncrl.core.task import Task
from asyncrl.core.ticket import TicketClient
from asyncrl.core.trajectory import StopReason
from asyncrl.generators.completion import Engine, EngineUse
from asyncrl.generators.concurrency import Concurrency, EngineLoad
from asyncrl.generators.engine_time import Doing, EngineTime, TimedSamplers
from asyncrl.generators.episode import EpisodeName, EpisodeTools, run_episode
from asyncrl.generators.evaluation import BrokenEpisode, Evaluated, EvaluationResult, HeldOutTask, evaluate
from asyncrl.generators.finished_episodes import FinishedEpisodes
from asyncrl.generators.judging import Judging
from asyncrl.generators.leases import Lease, Leases
from asyncrl.generators.scoring import ScoringUse, TeachingUse
from asyncrl.generators.tool_output import TOOL_OUTPUT_CUT
from asyncrl.generators.worker_settings import WorkerSettings

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 4
"""Heartbeats that a worker sends in the time of one lease, so that one or two late ones do no harm."""
ADAPT_S = 1.0
"""Seconds between two looks at the load of the engine."""


KeepEvaluation = Callable[[PolicyVersion, Sequence[Episode], Mapping[TaskId, str]], Awaitable[None]]
"""Keeps the episodes of an evaluation of a policy version, given the source of each task."""


class GeneratorStatistics(EngineUse, frozen=True):
    """Counters of a worker and its engine. They only grow, except for ``last_pause_seconds`` and ``episode_limit``.

    Attributes:
        finished_episodes: episodes played to their end for training, whether or not they were handed in.
        tool_output_cut: characters cut from the tool outputs of these episodes because of
            ``environment.max_tool_output``.
        episode_limit: how many episodes may be played at once at the moment.
        scoring: counters of the scores that a reward model gave to the episodes.
        teaching: counters of what a teacher said of them.
        finished: what the episodes that were handed in reported.
        errors: errors of the environments' code, by place.
        blocked_by: a sentence about each place in the code that blocked the episodes' event loop for a second or
            longer.
        remarks: sentences for the user about what the episodes' environments share, such as servers that were lost.
    """

    finished_episodes: int = 0
    tool_output_cut: int = 0
    episode_limit: int = 0
    scoring: ScoringUse = ScoringUse()
    teaching: TeachingUse = TeachingUse()
    finished: FinishedEpisodes = msgspec.field(default_factory=FinishedEpisodes)
    errors: tuple[CountedError, ...] = ()
    blocked_by: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __add__(self, successor: "GeneratorStatistics") -> "GeneratorStatistics":
        """Add the counters of the successor. What is not a counter is taken from the successor."""
        sums = {name: getattr(self, name) + getattr(successor, name) for name in self.__struct_fields__}
        latest = {name: getattr(successor, name) for name in ("last_pause_seconds", "episode_limit", "blocked_by", "remarks")}
        return GeneratorStatistics(**sums | latest | {"errors": merged(self.errors + successor.errors)})


class GeneratorWorker:
    """Leases tickets, plays their episodes on one engine, and hands them in. ``concurrency`` limits how many at once.

    Args:
        worker_id: the name under which the buffer knows the worker.
        engine: the worker's engine, which must have been started and warmed up.
        tools: what episodes are played with.
        ticket_client: the way to the buffer; None for a worker that only evaluates.
        judging: has finished episodes judged before they are handed in; if None, they are handed in as they are.
        keep: keeps the episodes of an evaluation of a policy version; if None, they are not kept.
    """

    def __init__(
        self,
        worker_id: WorkerId,
        settings: WorkerSettings,
        engine: Engine,
        tools: EpisodeTools,
        ticket_client: TicketClient | None,
        judging: Judging | None = None,
        keep: KeepEvaluation | None = None,
    ) -> None:
        self._id, self._settings, self._keep = worker_id, settings, keep
        self._time = EngineTime(lambda: self._leases.room, time.monotonic)
        self._tools = self._timed(tools, Doing.REQUEST)
        self._evaluation_tools = self._timed(tools, Doing.EVALUATION_REQUEST)
        self._engine, self._tickets, self._judging = engine, ticket_client, judging
        self._slots = asyncio.Semaphore(settings.max_running)
        self._loading = 0
        self._last_loading: tuple[PolicyVersion, asyncio.Task[int]] | None = None
        self._ending = False
        self._asked_as: PolicyVersion | None = None
        self._changed = asyncio.Event()
        self._serving: asyncio.Task[None]
        self._cut_off: asyncio.Future[str]
        self._leases = Leases(settings.max_running, settings.group_size, self._changed.set, room_changes=self._time.settle)
        self.concurrency = Concurrency(settings.max_running, self._limit)
        self._finished_episodes = self._tool_output_cut = 0
        self._finished = FinishedEpisodes()
        self._blank_tokens: dict[int, bool] = {}
        self._cpu_seconds_when_made = time.process_time()

    def _timed(self, tools: EpisodeTools, what: Doing) -> EpisodeTools:
        return msgspec.structs.replace(tools, engine=TimedSamplers(tools.engine, self._time, what))

    @property
    def _ticket_client(self) -> TicketClient:
        if self._tickets is None:
            raise RuntimeError(f"{self._id} only evaluates: it has no buffer to ask for tickets")
        return self._tickets

    async def run(self, stop: asyncio.Event) -> None:
        """Generate until ``stop`` is set; then cancel all running episodes. A worker that only evaluates leases nothing.

        Raises:
            ComponentFailed: the engine died; raised at once.
            ProcessDied: the engine hangs; or other code, such as an environment, cancelled a task that the worker needs.
        """
        cut_off = self._cut_off = asyncio.get_running_loop().create_future()
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                stopping = tasks.create_task(stop.wait(), name=f"{self._id} waiting to be stopped")
                working = [tasks.create_task(self._adapt(), name=f"{self._id} adapting to its engine")]
                if self._tickets is not None:
                    self._serving = tasks.create_task(self._serve(), name=f"{self._id} serving")
                    working += [self._serving, tasks.create_task(self._renew(), name=f"{self._id} renewing its leases")]
                for needed in (stopping, *working):
                    needed.add_done_callback(self._ended)
                await asyncio.wait({stopping, cut_off}, return_when=asyncio.FIRST_COMPLETED)
                if not stop.is_set():
                    problem = f"its task {cut_off.result()!r} was cancelled, and not by the worker"
                    raise ProcessDied(f"{self._id}: {problem}; an environment may only cancel its own tasks")
                for task in working:
                    task.cancel()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        """End :meth:`run` if ``task``, which the worker needs, was cancelled. A task that failed ends it anyway."""
        if task.cancelled() and not self._cut_off.done():
            self._cut_off.set_result(task.get_name())

    async def _renew(self) -> None:
        """Send the buffer a heartbeat at intervals, and stop the groups that it no longer waits for."""
        while True:
            await sleep(self._settings.lease_s / RENEWALS_PER_LEASE)
            asked_for = self._leases.held()
            for group_id in await self._ticket_client.renew(self._id, list(asked_for)):
                # Give up the lease as it was before the call: the answer says nothing about a newer one on the group.
                logger.info("the buffer no longer waits for group %d: its episodes are stopped", group_id)
                self._leases.give_up(asked_for[group_id])

    async def _adapt(self) -> None:
        """Hold as many episodes as the engine can bear."""
        while True:
            load = await self._engine_load()
            if not self._time.busy_with(Doing.EVALUATION):  # requests of an evaluation say nothing about training
                self.concurrency.observe(load, self._leases.playing)
            await sleep(ADAPT_S)

    async def _engine_load(self) -> EngineLoad:
        """What the engine has to do now. It answers between two steps, or after loading a publication."""
        remedy = "see its log; raise deadlines.publish if its steps can take that long"
        try:
            owner = "its vLLM engine to end a step"
            async with deadline(self._settings.engine_s, waiter=self._id, owner=owner, remedy=remedy):
                return await self._engine.report_load()
        except DeadlineExceeded as late:  # a hung engine is as good as a dead one: the generator is replaced
            raise ProcessDied(str(late)) from late

    def _limit(self, episodes: int, reason: str) -> None:
        logger.info("%d episodes at once from here on, of at most %d: %s", episodes, self._settings.max_running, reason)
        self._leases.limit(episodes)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                room = self._leases.room
                if room > 0 and not (self._loading or self._ending) and self._asked_as != self._engine.version:
                    self._asked_as = self._engine.version
                    # The last group may exceed the room: its episodes wait for a slot, which keeps the engine full.
                    limit = -(-room // self._settings.group_size)
                    tasks.create_task(self._lease(limit, self._engine.version, tasks), name=f"{self._id} leasing")
                await self._changed.wait()

    async def _lease(self, limit: int, version: PolicyVersion, tasks: asyncio.TaskGroup) -> None:
        """Ask for tickets once, and start the episodes of those that come.

        A lease request made under an old policy version stays open until the buffer answers it, because the answer may
        hold tickets, and those must not be lost. Meanwhile, the worker can already ask under the new version.
        """
        tickets = await self._ticket_client.lease(self._id, version, limit)
        if self._asked_as == version:
            self._asked_as = None
        for ticket in () if self._ending else tickets:  # those that come too late are handed back with the others
            self._leases.accept(ticket, partial(self._begin, tasks))
        self._changed.set()

    async def hand_back(self, seconds: float) -> None:
        """Lease nothing more, and give back all episodes, which are issued again at once; :meth:`run` goes on.

        Episodes that are over, and only wait for their score or their turn to be handed in, have ``seconds`` for that.
        """
        self._ending = True
        held = self._leases.held().values()
        for lease in held:
            for index in lease.playing:
                lease.work[index].cancel()
        over = [lease.work[index] for lease in held for index in lease.unsettled - lease.playing]
        if over:
            await asyncio.wait(over, timeout=seconds)
        for lease in self._leases.held().values():
            self._leases.give_up(lease)
        if self._tickets is not None:
            await self._tickets.hand_back(self._id)

    def _begin(self, tasks: asyncio.TaskGroup, lease: Lease, index: int) -> "asyncio.Task[None]":
        def ended(work: "asyncio.Task[None]") -> None:
            if self._leases.holds(lease) and not (self._serving.cancelling() or self._ending):  # it will never be settled
                self._ended(work)

        work = tasks.create_task(self._run_sample(lease, index), name=f"group {lease.ticket.group_id} sample {index}")
        work.add_done_callback(ended)
        return work

    async def _run_sample(self, lease: Lease, index: int) -> None:
        """Play one episode, have it scored, and hand it in or give it back. Only playing takes room in the engine."""
        ticket = lease.ticket
        limits = self._settings.limits[ticket.task.environment]
        if index == self._settings.greedy_sample:
            limits = limits.greedy()
        accepted = time.perf_counter()
        try:
            async with self._slots:
                queued_s = time.perf_counter() - accepted
                name = EpisodeName(ticket.group_id, index, ticket.attempt)
                with self._time.doing(Doing.EPISODE):
                    episode = await run_episode(ticket.task, name, limits, self._tools, queued_s)
            self._check_credit(episode)
            episode = with_trained_roles(episode, self._settings.trained_roles[ticket.task.environment])
            self._finished_episodes += 1
            self._tool_output_cut += int(episode.metrics.get(TOOL_OUTPUT_CUT, 0))
            self._leases.played(lease, index)
            if self._judging is not None:
                with self._time.doing(Doing.SCORE):
                    episode = await self._judging.judged(ticket.task, episode)
            self._check_rewards(ticket.task, episode)
        except PromptTooLong as too_long:
            self._leases.played(lease, index)
            if self._leases.holds(lease):
                await self._ticket_client.leave_out(ticket.group_id, str(too_long))
        except (EnvironmentBroken, EnvironmentLost, ScoringFailed) as failure:
            logger.warning("group %d sample %d failed: %s", ticket.group_id, index, failure)
            if not self._leases.holds(lease):  # given up, and then its environment failed to close: report nothing
                return
            self._leases.played(lease, index)
            kind, incident = _why(failure)
            await self._ticket_client.fail(ticket.group_id, index, kind, str(failure), incident)
        else:
            seconds, empty = time.perf_counter() - accepted, self._is_empty_answer(episode)
            self._finished.add(episode, ticket.source, seconds, empty_answer=empty, member=ticket.task.environment)
            await self._ticket_client.commit(episode)
        self._leases.settled(lease, index)

    def _check_rewards(self, task: Task, episode: Episode) -> None:
        try:
            named_rewards(episode, self._settings.reward_names)
        except ValueError as error:
            remedy = "have the environment report every reward that algorithm.advantage.rewards names"
            raise EnvironmentBroken(f"task {task.id}: {error}; {remedy}") from error

    def _check_credit(self, episode: Episode) -> None:
        if self._settings.credits_turns and len(episode.trajectories) > 1:
            raise ComponentFailed(
                f"task {episode.task_id}: an episode has {len(episode.trajectories)} trajectories, whose turns have no common "
                "order for algorithm.credit of kind turn; set algorithm.credit.kind=episode"
            )

    def _is_empty_answer(self, episode: Episode) -> bool:
        """Whether the episode ended with an answer that has no text before the token that ends the turn."""
        if episode.stop_reason is not StopReason.ENVIRONMENT_DONE:
            return False
        trajectory = episode.final_trajectory()
        turn = trajectory.turns[-1]
        return all(self._is_blank(int(token)) for token in trajectory.token_ids[turn.start : turn.end - 1])

    def _is_blank(self, token_id: int) -> bool:
        """Whether a token stands for white space only; looked up, since decoding takes long."""
        blank = self._blank_tokens.get(token_id)
        if blank is None:
            blank = self._blank_tokens[token_id] = not self._tools.chat.decode([token_id]).strip()
        return blank

    async def load_publication(self, publication: Publication) -> int:
        """Load published weights while episodes run; see :meth:`asyncrl.generators.completion.Engine.load_publication`.

        A second call for the same version, by somebody whom the answer of the first did not reach, gets the same answer.
        """
        if self._last_loading is None or self._last_loading[0] != publication.version:
            loading = asyncio.create_task(self._load(publication), name=f"loading version {publication.version}")
            self._last_loading = publication.version, loading
        return await asyncio.shield(self._last_loading[1])

    async def _load(self, publication: Publication) -> int:
        self._loading += 1
        try:
            with self._time.loading_publication(lambda: self._engine.use().paused_seconds):
                return await self._engine.load_publication(publication)
        finally:
            self._loading -= 1
            self._changed.set()

    async def evaluate(self, tasks: Sequence[HeldOutTask], version: PolicyVersion) -> list[Evaluated]:
        """Play the episodes of held-out tasks; see ``evaluation.evaluate``. ``version`` is being evaluated."""
        settings = self._settings
        with self._time.doing(Doing.EVALUATION):
            episodes = await evaluate(
                tasks,
                settings.evaluation_limits,
                self._evaluation_tools,
                at_once=settings.max_running,
                attempts=settings.evaluation_attempts,
            )
        if self._keep is not None:
            sources = {each.task.id: each.source for each in tasks}
            await self._keep(version, [each for each in episodes if isinstance(each, Episode)], sources)
        return [each if isinstance(each, BrokenEpisode) else EvaluationResult.of(each) for each in episodes]

    def statistics(self) -> GeneratorStatistics:
        """Return the counters since the engine was ready."""
        engine, judging = self._engine.use(), self._judging or Judging()
        waits = GeneratorTime(
            episodes=self._leases.episode_seconds,
            scores=judging.scored.seconds + judging.taught.seconds,
            held_back=self._leases.held_back_seconds,
            front_end_cpu=time.process_time() - self._cpu_seconds_when_made,
        )
        return GeneratorStatistics(
            **msgspec.structs.asdict(engine) | {"time": self._time.use() + engine.time + waits},
            finished_episodes=self._finished_episodes,
            tool_output_cut=self._tool_output_cut,
            episode_limit=self.concurrency.limit,
            scoring=judging.scored,
            teaching=judging.taught,
            finished=snapshot(self._finished),
            errors=self._tools.errors.counted,
        )


def _why(failure: EnvironmentBroken | EnvironmentLost | ScoringFailed) -> tuple[FailureKind, str]:
    """Return what kind of failure it is, and the incident that it is part of; empty if of none."""
    match failure:
        case EnvironmentLost():
            return FailureKind.INFRASTRUCTURE, failure.incident
        case ScoringFailed():
            return failure.kind, ""
        case _:
            return FailureKind.DATA, ""
