"""The processes of one run in a Ray cluster: the buffer, the generators and the learner ranks, from start to stop.

Always holds: when :meth:`Cluster.close` has returned, nothing that this run started is left.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.core.batch import Batch
from asyncrl.core.errors import AsyncRLError, ComponentFailed, ProcessDied, RankLost
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.network.tls import TlsKeys
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.step_report import StepReport
from asyncrl.run.buffer.buffer_actor import RemoteBuffer
from asyncrl.run.buffer.client import BufferClient
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.probable_cause import explained
from asyncrl.run.host.ray_calls import ANSWER_DEADLINE_S, ask, ask_buffer, this_node, watch
from asyncrl.run.judge_processes import Judges
from asyncrl.run.learner_actor import RemoteLearner
from asyncrl.run.models.model_sources import name_base
from asyncrl.run.models.template_facts import write_templates
from asyncrl.run.nodes.certificates import keys_of
from asyncrl.run.nodes.model_folder import ModelFolder
from asyncrl.run.nodes.node_watch import SHARE_OF_LEASE, NodeWatch
from asyncrl.run.nodes.placed_processes import Places
from asyncrl.run.nodes.process_kinds import LEARNER
from asyncrl.run.nodes.remote_files import FarFiles, model_for_all_nodes
from asyncrl.run.nodes.shared_folders import refuse_blind
from asyncrl.run.nodes.unused_nodes import UnusedNodes
from asyncrl.run.pool.generator_pool import GeneratorPool, GeneratorSupply
from asyncrl.run.pool.handle import GeneratorHandle, make_generator
from asyncrl.run.pool.probe_scores import LearnerScores
from asyncrl.run.publications.transport import Routes
from asyncrl.run.publications.transports import transport_of
from asyncrl.run.startup_progress import ComingUp
from asyncrl.weights.publication_merge import merge

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEATH_KNOWN_S = 15.0
"""Seconds within which Ray usually knows that a process or its node is gone, after others have lost their connections to it."""
LEARNER_WATCH_S = 2.0
"""Seconds between two checks that a learner rank is alive."""


class Cluster:
    """The run's actors: buffer, generators, learner ranks, and what judges episodes if anything does. Calls have deadlines.

    Args:
        places: those of its processes, by :func:`asyncrl.run.nodes.placed_processes.find_places`.
        note: shows a line to the user.
        advance: shows how far the start is, as :meth:`asyncrl.run.views.live_view.LiveView.advance` does.
        too_long: places of the training tasks that are left out because of their prompts, by source.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        model_path: str,
        places: Places,
        note: Callable[[str], None],
        advance: Callable[[float, str], None],
        too_long: Mapping[str, Sequence[int]] = {},
    ) -> None:
        self._recipe, self._deadlines, self._folder, self.places, self._note = recipe, recipe.deadlines, folder, places, note
        silence_s = SHARE_OF_LEASE * recipe.deadlines.lease
        self._nodes = NodeWatch(lambda node: self.far_files.answer(node), lambda: self.far_files.met, silence_s)
        places.avoided = lambda: self._nodes.avoided | dict.fromkeys(self._unused.leaving, "the run is leaving it")
        engines_on = places.on_node_of(recipe.generators.by_pool)
        layout = recipe.learner.layout
        self._ranks = [places.take(f"learner rank {rank}", LEARNER) for rank in range(layout.ranks)]
        ranks_on = [where.node for where in self._ranks]
        on_gpus = ray.cluster_resources().get("GPU", 0) > 0
        transport = transport_of(recipe, on_gpus=on_gpus)
        note(f"Weights: {transport.describe(Routes(recipe, ranks_on, engines_on, folder.path, on_gpus=on_gpus))}")
        self._engines_wait = on_gpus and recipe.learner.gpu == "shared"
        tls = keys_of(recipe.network)
        self._buffer_actor: Any = self._make_buffer(tls, too_long)
        self._buffer: BufferClient | None = None
        model = model_for_all_nodes(Path(model_path))
        self._shards_on: set[str] = set()
        self.far_files = FarFiles(folder, lambda: places.others | self._shards_on)
        self._judges = Judges.make(recipe, model, folder, places)
        self.transport = transport.for_run(recipe, folder)
        self._unused = UnusedNodes(self.far_files, self.transport, lambda: self._nodes.avoided)
        self.generators = GeneratorPool(
            recipe.generators.by_pool,
            GeneratorSupply(partial(self._make_generator, model), self._report_lost, places.add),
            recipe.deadlines,
            note,
            self.transport,
            nodes=self._nodes,
        )
        self._learners: list[Any] = [
            RemoteLearner.options(**place.options).remote(
                recipe,
                model,
                self._buffer_actor,
                rank,
                places.on_node[place.node],
                folder,
                folder.run_id,
                transport.ranks_broadcast,
            )
            for rank, place in enumerate(self._ranks)
        ]
        self._calls = count()
        self._coming_up = ComingUp([LEARNER, *self.generators.workers, *self._judges.by_name], advance)

    def _make_buffer(self, tls: TlsKeys | None, too_long: Mapping[str, Sequence[int]]) -> Any:
        """Make the buffer on the driver's node: the run folder holds the journal and need not be on a shared file system."""
        where = NodeAffinitySchedulingStrategy(this_node(), soft=False)
        folder = self._folder
        return RemoteBuffer.options(num_cpus=0, scheduling_strategy=where).remote(
            self._recipe, folder.path, folder.run_id, folder.logs / "buffer.log", tls, too_long
        )

    def _make_generator(self, model: ModelFolder, pool: str, number: int) -> GeneratorHandle:
        return make_generator(self._recipe, model, pool, number, self._folder, self.places, self._buffer_actor, self._judges)

    async def _report_lost(self, worker: WorkerId, with_node: bool) -> None:
        self.places.leave(worker)
        await (self.buffer.hand_back(worker, "was lost with its node") if with_node else self.buffer.lost(worker))

    async def start(self) -> None:
        """See which nodes have the run folder, start the buffer, then all other processes side by side.

        Raises:
            RecipeError: a node that must see the run folder does not.
        """
        await self._look_for_run_folder()
        await self.far_files.forget_killed()
        # Longer than the deadlines that the engines and ranks keep themselves, because their errors say more.
        seconds, remedy = self._deadlines.start + ANSWER_DEADLINE_S, f"see {self._folder.logs}; raise deadlines.start"
        ready = self._buffer_actor.ready.remote()
        await ask(ready, of="the buffer to get ready", by="the driver", seconds=seconds, remedy=remedy)
        shards = await ask_buffer(
            self._buffer_actor.shards.remote(),
            of="the buffer (shards)",
            by="the driver",
            seconds=ANSWER_DEADLINE_S,
            remedy="see logs/buffer.log",
        )
        self._shards_on = {place.node for place in shards} - {self.places.driver}
        # If the driver loses its connection, the run ends; ProcessDied would get a generator replaced instead.
        self._buffer = await BufferClient.connect(
            self._buffer_actor, "the driver", self._note, self._deadlines.batch, loss=ComponentFailed
        )
        if self._engines_wait:
            # An engine measures how much of its GPU is free. What the learner takes meanwhile would be taken for the engine's.
            await self._start_learners(seconds, remedy)
        async with asyncio.TaskGroup() as starting:
            if not self._engines_wait:
                starting.create_task(self._start_learners(seconds, remedy))
            starting.create_task(self.generators.start(self._coming_up.up))
            starting.create_task(self._judges.start(seconds, remedy, self._coming_up.up))

    async def _look_for_run_folder(self) -> None:
        blind = await self.far_files.blind()
        ranks = {where.node for where in self._ranks}
        refuse_blind(self._recipe, self._folder.path, self.places.hosts, blind, {LEARNER: ranks})
        if blind:
            hosts = ", ".join(sorted(self.places.hosts[node] for node in blind))
            self._note(f"{hosts}: the run folder is not seen there; logs and kept episodes are brought to it")

    async def take_over(self) -> None:
        """Let the buffer change the run's files; until now it only read them. Tell the user what was recovered."""
        asking, remedy = self._buffer_actor.take_over.remote(), "see logs/buffer.log"
        recovered = await ask(asking, of="the buffer (take_over)", by="the driver", seconds=ANSWER_DEADLINE_S, remedy=remedy)
        if recovered:
            self._note(recovered)

    async def _start_learners(self, seconds: float, remedy: str) -> None:
        nodes = await self._all([rank.node.remote() for rank in self._learners], "learner rank to come up", seconds, remedy)
        making = [self._learners[0].make_meeting.remote(len(set(nodes)) == 1)]
        (meeting,) = await self._all(making, "learner rank to name a meeting place", seconds, remedy)
        await self._all([rank.start.remote(meeting) for rank in self._learners], "learner rank to start", seconds, remedy)
        self._coming_up.up(LEARNER)

    @contextlib.asynccontextmanager
    async def watching_learners(self) -> AsyncIterator[None]:
        """Cancel what runs in this context as soon as the process of a learner rank is gone, even while it has no call.

        Logs and episodes of other nodes are brought to the run folder meanwhile, and nodes that do not answer are noticed.

        Raises:
            ExceptionGroup: the ``ProcessDied`` of each rank that is gone, or what the context itself raised.
        """
        async with asyncio.TaskGroup() as group:
            watching = [
                group.create_task(_answers(rank, number, self._folder.learner_log(number)))
                for number, rank in enumerate(self._learners)
            ]
            watching.append(group.create_task(self.far_files.run()))
            watching.append(group.create_task(self._unused.run()))
            watching.append(group.create_task(self._nodes.run(self._cut_off, self._back)))
            yield
            for task in watching:
                task.cancel()

    async def _cut_off(self, node: str) -> None:
        """Go on without a node that does not answer: what its generators play is issued again, and nobody waits for them."""
        logger.warning("node %s (%s) does not answer", node[:8], self.places.hosts.get(node))
        workers = self.generators.cut_off(node)
        for worker in workers:
            await self.buffer.hand_back(worker, "is out of reach")
        if full := self._nodes.full([node]):
            remedy = "where none is left, the system ends Ray's processes: make room there, and start Ray again"
            self._note(f"{self.places.hosts.get(node)} does not answer. When it last did, {full}; {remedy}")
        if workers:
            silence = f"{self.places.hosts.get(node)} does not answer. Nobody waits for {', '.join(workers)}"
            its = "Its" if len(workers) == 1 else "Their"
            self._note(f"{silence}. {its} episodes are issued again")
        if waited := self._waited_for(node):
            self._note(f"{self.places.hosts.get(node)} does not answer. Training waits for {' and '.join(waited)} there")

    async def _back(self, node: str) -> None:
        logger.warning("node %s (%s) answers again", node[:8], self.places.hosts.get(node))
        if self.places.on_node_of(self._recipe.generators.by_pool)[node]:
            self._note(f"{self.places.hosts.get(node)} answers again, and its generators go on")
        if self._waited_for(node):
            self._note(f"{self.places.hosts.get(node)} answers again, and training goes on")

    def _waited_for(self, node: str) -> list[str]:
        """The processes on a node without which training cannot go on."""
        ranks = [f"learner rank {rank}" for rank, where in enumerate(self._ranks) if where.node == node]
        shard = ["a payload shard"] if node in self._shards_on else []
        return [*ranks, *shard, *self._judges.on(self.places, node)]

    @property
    def buffer(self) -> BufferClient:
        """The client of the buffer, once :meth:`start` has returned."""
        if self._buffer is None:
            raise ComponentFailed("the buffer was used before Cluster.start() had returned")
        return self._buffer

    async def train(self, batch: Batch) -> list[StepReport]:
        """Train ``batch`` on all ranks, and return the report of each."""
        what = f"learner rank to train version {batch.version}"
        remedy = "see its log; raise deadlines.step"
        seconds = self._deadlines.step + ANSWER_DEADLINE_S
        reports: list[StepReport] = await self._all(self._call("train", batch), what, seconds, remedy)
        for report in reports:
            if report.news:
                self._note(report.news)
        return reports

    async def write_trajectories(self) -> None:
        """Wait until the trajectories that were trained are in their files."""
        seconds = self._deadlines.step
        writing = self._call("write_trajectories", seconds)
        what, remedy = "learner rank to write trajectories", "see its log; raise deadlines.step"
        for news in await self._all(writing, what, seconds + ANSWER_DEADLINE_S, remedy):
            if news:
                self._note(news)
        await self.far_files.bring()

    async def write_weights(self, version: PolicyVersion, read: Collection[PolicyVersion]) -> Publication:
        """Have all ranks write their shards of ``version``, over none of the versions that are ``read``."""
        what, remedy = f"learner rank to write version {version}", "see its log; raise deadlines.publish"
        writing = self._call("write_shards", version, read)
        return merge(await self._all(writing, what, self._deadlines.publish, remedy))

    async def score(self) -> LearnerScores:
        """Have the ranks score a few rows of the last batch with the weights as they are."""
        seconds = self._deadlines.step + ANSWER_DEADLINE_S
        scoring = self._call("score")
        answers = await self._all(scoring, "learner rank to score a probe", seconds, "see its log; raise deadlines.step")
        scores: LearnerScores
        (scores,) = [answer for answer in answers if answer is not None]
        return scores

    async def start_checkpoint(self, path: Path, version: PolicyVersion) -> None:
        """Have all ranks begin to write their part of the checkpoint at ``version``; they may train meanwhile."""
        starting = self._call("start_checkpoint", path, version)
        await self._all(starting, f"learner rank to begin {path.name}", self._deadlines.step, "see its log")

    async def finish_checkpoint(self) -> None:
        """Wait until the checkpoint that was begun is complete on disk."""
        finishing = self._call("finish_checkpoint")
        seconds = self._deadlines.step + ANSWER_DEADLINE_S
        await self._all(finishing, "learner rank to write a checkpoint", seconds, "see its log; raise deadlines.step")

    async def load_checkpoint(self, path: Path) -> None:
        """Have all ranks load a checkpoint."""
        loading = self._call("restore", path)
        await self._all(loading, f"learner rank to load {path.name}", self._deadlines.start, "see its log; raise deadlines.start")

    async def save_model(self) -> None:
        """Export the trained model into the run folder. If the run was made longer, this replaces its earlier model."""
        model = self._folder.model
        new = model.with_name(f".{model.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        saving = self._call("save_pretrained", new)
        await self._all(saving, "learner rank to export the model", self._deadlines.step, "see its log")
        write_templates(new, self._recipe.model)
        name_base(new, self._recipe.model)
        old = model.with_name(f".{model.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            model.rename(old)
        new.rename(model)
        shutil.rmtree(old, ignore_errors=True)

    async def close(self, seconds: float) -> None:
        """Stop the actors in an orderly way within ``seconds``; what does not answer is killed with the cluster."""
        closing = [
            ask(actor.close.remote(), of=f"{name} to close", by="the driver", seconds=seconds, remedy="it is killed")
            for name, actor in [
                ("the buffer", self._buffer_actor),
                *(("a learner rank", rank) for rank in self._learners),
                *(("a teacher", engine) for engine in self._judges.teachers),
            ]
        ]
        outcomes = await asyncio.gather(
            self.generators.close(seconds), self.transport.close(seconds), *closing, return_exceptions=True
        )
        await self.far_files.close(seconds)
        if self._buffer is not None:
            self._buffer.close()
        for outcome in outcomes:
            if isinstance(outcome, AsyncRLError):
                logger.warning("closing: %s", outcome)
            elif outcome is not None:
                raise outcome

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all learner ranks; returns what stands for their answers."""
        number = next(self._calls)
        return [rank.call.remote(number, method, *arguments) for rank in self._learners]

    async def _all(self, answers: Sequence[Any], of: str, seconds: float, remedy: str) -> list[Any]:
        """Return the answers of the learner's ranks, or raise the first error at once."""
        named = [of.replace("learner rank", f"learner rank {index}", 1) for index in range(len(answers))]
        asking = [
            asyncio.ensure_future(
                _with_cause(
                    ask(answer, of=name, by="the driver", seconds=seconds, remedy=remedy), self._folder.learner_log(number)
                )
            )
            for number, (answer, name) in enumerate(zip(answers, named, strict=True))
        ]
        try:
            return await asyncio.gather(*asking)
        finally:
            for task in asking:
                task.cancel()


async def _with_cause(answer: Awaitable[T], log: Path) -> T:
    """Await a learner rank's answer. If it died, raise what it probably died of; if it lost another, raise that one's loss."""
    try:
        return await answer
    except RankLost:
        await asyncio.sleep(DEATH_KNOWN_S)  # who watches that rank meanwhile learns more from Ray, and ends this wait
        raise
    except ProcessDied as death:
        raise explained(death, log) from death


async def _answers(rank: Any, number: int, log: Path) -> None:
    """Call a learner rank again and again until it dies, which raises. An answer may take as long as a step."""
    while True:
        await _with_cause(watch(rank.node.remote(), of=f"learner rank {number}"), log)
        await asyncio.sleep(LEARNER_WATCH_S)
