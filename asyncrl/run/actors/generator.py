"""One generator as an asynchronous Ray actor: an engine, its worker, and the way to the buffer."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.ticket import Ticket
from asyncrl.envs.load import load_environment
from asyncrl.run.actors.output import route_output
from asyncrl.run.asking import ask
from generators.chat import ChatFormat
from generators.engine import VllmEngine
from generators.worker import EvaluationResult, GeneratorStatistics, GeneratorWorker

DESK_DEADLINE_S = 60.0


class RemoteTicketDesk:
    """The buffer as a worker sees it: each call bounded and named."""

    def __init__(self, buffer: Any, worker: WorkerId) -> None:
        self._buffer, self._worker = buffer, worker

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Tickets, or none for now."""
        return await self._call("lease", worker, version, limit)

    async def commit(self, rows: Sequence[bytes]) -> None:
        """Hand in encoded trajectories."""
        await self._call("commit", rows)

    async def fail(self, group_id: GroupId, kind: FailureKind, reason: str) -> None:
        """Give a group back."""
        await self._call("fail", group_id, kind, reason)

    async def _call(self, method: str, *arguments: Any) -> Any:
        answer = getattr(self._buffer, method).remote(*arguments)
        remedy = "the buffer's actor is overloaded; see logs/buffer.log"
        return await ask(answer, of=f"the buffer ({method})", by=self._worker, seconds=DESK_DEADLINE_S, remedy=remedy)


class GeneratorActor:
    """Generator ``index`` of the pool."""

    def __init__(self, recipe: Recipe, model_path: str, buffer: Any, index: int, log_file: Path) -> None:
        route_output(log_file)
        self._recipe, self._model_path, self._index = recipe, model_path, index
        self._id = WorkerId(f"generator-{index}")
        self._desk = RemoteTicketDesk(buffer, self._id)
        self._stop = asyncio.Event()
        self._engine: VllmEngine | None = None
        self._worker: GeneratorWorker | None = None

    async def start(self) -> None:
        """Bring the engine up and warm it."""
        environment_factory = load_environment(self._recipe.environment)
        self._engine = await VllmEngine.start(self._recipe, self._model_path, index=self._index)
        self._worker = GeneratorWorker(
            self._id, self._recipe, self._engine, ChatFormat.load(self._model_path), environment_factory, self._desk
        )

    async def run(self) -> None:
        """Generate until :meth:`stop`; an engine failure ends it at once with its reason."""
        await self._started().run(self._stop)

    async def install(self, publication: Publication) -> int:
        """Load a published version; answers with the fingerprint of what was loaded."""
        return await self._started().install(publication)

    async def evaluate(self, tasks: Sequence[Task], temperature: float) -> list[EvaluationResult]:
        """Run one episode of each task, beside training."""
        return await self._started().evaluate(tasks, temperature)

    async def statistics(self) -> GeneratorStatistics:
        """Counters since the start."""
        return self._started().statistics()

    async def stop(self) -> None:
        """Make :meth:`run` return."""
        self._stop.set()

    async def close(self) -> None:
        """Shut the engine down."""
        self._stop.set()
        if self._engine is not None:
            await self._engine.close()

    def _started(self) -> GeneratorWorker:
        if self._worker is None:
            raise RuntimeError(f"{self._id} was used before start()")
        return self._worker


RemoteGenerator = ray.remote(GeneratorActor)
