"""One generator as an asynchronous Ray actor: an engine, its worker, and the connection to the buffer.

They share an event loop with the environments, and the actor has another one: whatever an environment does to theirs,
the actor still answers.
"""

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import ray

from asyncrl.core.errors import HandedBack
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.network.open_port import held_port
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.envs.hosting.event_loop import EventLoopThread
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.load import load_members
from asyncrl.envs.secrets import Secrets, clean_logs
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.completion import ScoredRow
from asyncrl.generators.episode import EpisodeTools
from asyncrl.generators.evaluation import Evaluated, HeldOutTask
from asyncrl.generators.gateway.agent_play import agent_episode
from asyncrl.generators.gateway.protocols import Protocols
from asyncrl.generators.gateway.server import Gateway
from asyncrl.generators.judging import Judging
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.tool_calls.reasoning import Reasoning
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.generators.vllm.engine_node import EngineNode, variables_towards_other_nodes
from asyncrl.generators.worker import RENEWALS_PER_LEASE, GeneratorStatistics, GeneratorWorker
from asyncrl.generators.worker_settings import WorkerSettings
from asyncrl.run.buffer.client import BufferClient
from asyncrl.run.buffer.payload_shards import PayloadSink
from asyncrl.run.buffer.ticket_client import RemoteTicketClient
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.actor_process import begin_actor
from asyncrl.run.host.signals import on_sigterm
from asyncrl.run.judge_processes import Judges
from asyncrl.run.kept.evaluated_episodes import EvaluatedEpisodes
from asyncrl.run.nodes.model_folder import ModelFolder
from asyncrl.run.pool.gateway_host import gateway_host
from asyncrl.run.pool.generator_spec import GeneratorSpec, engine_settings
from asyncrl.run.reward.scorers import make_scoring
from asyncrl.run.teacher.teachers import make_teaching

logger = logging.getLogger(__name__)

EXIT_BY_SIGTERM = 143
"""The exit code that shells report for a process that SIGTERM ended."""


class GeneratorActor:
    """One generator of the run.

    Args:
        recipe: the run's, whose section ``generators`` is that of the generator's pool.
        spec: which generator it is.
        buffer: the actor of the run's buffer; None for a generator that only evaluates.
        judges: what judges finished episodes.
        secrets: those of the environments, and of the services that judge episodes.
        folder: where it writes its log and the episodes of evaluations.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: ModelFolder,
        buffer: Any | None,
        judges: Judges,
        spec: GeneratorSpec,
        secrets: Secrets,
        folder: RunFolder,
    ) -> None:
        begin_actor(folder.generator_log(spec.worker))
        clean_logs(secrets, logging.getLogger().handlers)
        # Ray's own handler would wait for run(), and processes that tools start would inherit a blocked SIGTERM.
        on_sigterm(self._end_by_sigterm)
        # Before all else: it imports vLLM meanwhile. Where there is a GPU, vLLM's process must not be forked.
        nodes, address = recipe.generators.engine_nodes, str(ray.util.get_node_ip_address())
        self._meeting = None if nodes == 1 else held_port(address)  # a worker of the engine listens there much later
        self._node = EngineNode() if self._meeting is None else EngineNode(0, nodes, address, self._meeting.getsockname()[1])
        towards = {} if nodes == 1 else variables_towards_other_nodes(address)
        self._server = None if ray.get_gpu_ids() else EngineProcessServer.start(towards)
        self._recipe, self._model, self._spec = recipe, model, spec
        self._id = spec.worker
        self._buffer, self._judges, self._trajectories = buffer, judges, folder.trajectories
        self._stop = asyncio.Event()
        self._actors_loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._closed = False
        self._loop: EventLoopThread | None = None
        self._sink: PayloadSink | None = None
        self._buffer_client: BufferClient | None = None
        self._engine: VllmEngine | None = None
        self._gateway: Gateway | None = None
        self._worker: GeneratorWorker | None = None
        self._secrets = secrets
        self._environments: WorkerEnvironments | None = None

    async def node(self) -> EngineNode:
        """The first node of its engine, where the workers on further nodes meet its own."""
        return self._node

    async def start(self, at_once: int) -> None:
        """Start the engine and warm it up; up to ``at_once`` episodes are to be played at once."""
        self._actors_loop = asyncio.get_running_loop()
        # A loop that is blocked for longer may have been silent for a whole lease since its last renewal.
        silence_s = self._recipe.deadlines.lease * (1 - 1 / RENEWALS_PER_LEASE)
        self._loop = EventLoopThread(self._id, silence_s)
        await self._loop.call(lambda: self._start(at_once))
        self._loop.watch()

    async def _start(self, at_once: int) -> None:
        recipe = self._recipe
        environments = WorkerEnvironments(load_members(recipe.environment), self._secrets, self._id)
        with ExitStack() as loading:
            model_path = str(await asyncio.to_thread(loading.enter_context, self._model.loading()))
            chat = ChatFormat.load(model_path, recipe.model)  # before the engine, which takes longer: it may refuse the template
            if self._buffer is not None and recipe.generators.role != "evaluation":
                self._sink = await PayloadSink.of(recipe.buffer, self._buffer, self._id)
            settings = engine_settings(recipe, self._spec, model_path, self._node, trains=self._buffer is not None)
            deadlines = recipe.deadlines
            self._engine = await VllmEngine.start(
                settings, name=self._id, start_s=deadlines.start, answer_s=deadlines.publish, server=self._server
            )
        ticket_client, judging = None, None
        if self._sink is not None:
            self._buffer_client = await BufferClient.connect(self._buffer, self._id, logger.warning)
            ticket_client = RemoteTicketClient(self._buffer_client, self._id, self._sink, recipe.algorithm.reward_names)
            judges, secrets = self._judges, self._secrets
            scoring = make_scoring(recipe.reward, recipe.deadlines.reward, judges.reward_model, secrets, chat.decode, self._id)
            judging = Judging.of(scoring, make_teaching(recipe, judges.teachers, secrets, self._id))
        reasoning = Reasoning(chat, recipe.model.reasoning_parser) if recipe.model.reasoning_parser is not None else None
        reader = ToolCallReader(chat.tokenizer, recipe.model.tool_parser, reasoning)
        if agents := [each for each in recipe.environment.by_member.values() if isinstance(each, AgentEnvironmentConfig)]:
            protocols = Protocols.of(self._engine.llm, chat, recipe.model.tool_parser, recipe.model.reasoning_parser)
            self._gateway = Gateway(protocols, chat, gateway_host(agents))
            await self._gateway.start(for_sandboxes=any(each.sandbox for each in agents))
        play_agent = None if self._gateway is None else partial(agent_episode, self._gateway)
        tools = EpisodeTools(self._engine, chat, reader, environments.make, play_agent=play_agent)
        self._environments = environments
        await environments.start(recipe.deadlines.start)
        kept = EvaluatedEpisodes(recipe, Path(model_path), self._trajectories, self._id)
        worker_settings = WorkerSettings.of(recipe)
        self._worker = GeneratorWorker(self._id, worker_settings, self._engine, tools, ticket_client, judging, kept.keep)
        self._worker.concurrency.bound(at_once)
        gc.freeze()  # what is loaded lives on: searching it for garbage costs more than encoding trajectories

    async def run(self) -> None:
        """Generate until :meth:`stop`. If the engine fails, raise its error at once.

        A second call, by a driver that the answer of the first did not reach, waits for the same end.

        Raises:
            HandedBack: SIGTERM came, and the process has handed its episodes back.
        """
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name=f"{self._id} generating")
        await asyncio.shield(self._running)

    async def _run(self) -> None:
        loop, worker, environments = self._started()
        await loop.call(lambda: environments.while_shared(worker.run(self._stop)))
        if self._ending is not None:
            raise HandedBack(f"{self._id} was told to end by SIGTERM, and has handed its episodes back")

    def _end_by_sigterm(self) -> None:
        """End within ``deadlines.shutdown``, whatever happens; until then, hand the episodes back. Called in any thread."""
        if self._closed:
            os._exit(EXIT_BY_SIGTERM)  # Ray ends it so after a run
        logger.warning("SIGTERM: this process hands its episodes back and ends")
        if self._worker is None or self._actors_loop is None:
            os._exit(EXIT_BY_SIGTERM)  # it has nothing to hand back
        end = threading.Timer(self._recipe.deadlines.shutdown, os._exit, (EXIT_BY_SIGTERM,))
        end.daemon = True
        end.start()
        self._actors_loop.call_soon_threadsafe(self._hand_back_and_end)

    def _hand_back_and_end(self) -> None:
        self._ending = asyncio.create_task(self.hand_back(), name=f"{self._id} handing back its episodes")

    async def bound(self, episodes: int) -> None:
        """Play at most so many episodes at once from here on."""
        loop, worker, _ = self._started()
        loop.call_soon(partial(worker.concurrency.bound, episodes))

    async def hand_back(self) -> None:
        """Hand all episodes back to the buffer, and make :meth:`run` return."""
        loop, worker, _ = self._started()
        await loop.call(lambda: worker.hand_back(self._recipe.deadlines.shutdown / 2))
        loop.call_soon(self._stop.set)

    async def load_publication(self, publication: Publication) -> int:
        """Load a published version; returns the fingerprint of what was loaded."""
        loop, worker, _ = self._started()
        return await loop.call(lambda: worker.load_publication(publication))

    async def score(self, rows: Sequence[Sequence[int]]) -> list[ScoredRow]:
        """Have the engine score given tokens with its newest version."""
        loop, _, _ = self._started()
        assert self._engine is not None
        engine = self._engine
        return await loop.call(lambda: engine.score(rows))

    async def evaluate(self, tasks: Sequence[HeldOutTask], version: PolicyVersion) -> list[Evaluated]:
        """Play the episodes of some tasks, also beside training."""
        loop, worker, environments = self._started()
        return await loop.call(lambda: environments.while_shared(worker.evaluate(tasks, version)))

    async def statistics(self) -> GeneratorStatistics:
        """Return the counters since the engine was ready."""
        loop, worker, environments = self._started()

        async def count() -> GeneratorStatistics:
            return msgspec.structs.replace(worker.statistics(), remarks=environments.remarks)

        return msgspec.structs.replace(await loop.call(count), blocked_by=loop.blocked_by)

    async def answer(self) -> None:
        """Do nothing: the caller only wants to know whether this process answers."""

    async def stop(self) -> None:
        """Make :meth:`run` return."""
        loop, _, _ = self._started()
        loop.call_soon(self._stop.set)

    async def close(self) -> None:
        """Shut the engine down."""
        self._closed = True
        if self._loop is not None:
            await self._loop.call(self._close)
            self._loop.close()

    async def _close(self) -> None:
        self._stop.set()
        if self._environments is not None:
            await self._environments.close(self._recipe.deadlines.shutdown / 10)
        if self._gateway is not None:
            await self._gateway.close()
        if self._engine is not None:
            await self._engine.close()
        if self._server is not None:
            await asyncio.to_thread(self._server.close)
        if self._sink is not None:
            self._sink.close()
        if self._buffer_client is not None:
            self._buffer_client.close()

    def _started(self) -> tuple[EventLoopThread, GeneratorWorker, WorkerEnvironments]:
        if self._loop is None or self._worker is None or self._environments is None:
            raise RuntimeError(f"{self._id} was used before start()")
        return self._loop, self._worker, self._environments


RemoteGenerator = ray.remote(GeneratorActor)
