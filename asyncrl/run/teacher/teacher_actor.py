"""One engine of a teacher as an asynchronous Ray actor, shared by all generators. What always holds: its weights never change."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import ray

from asyncrl.core.process.control_groups import usable_cores
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.generators.vllm.engine_arguments import EngineSettings
from asyncrl.run.host.actor_process import begin_actor
from asyncrl.run.nodes.model_folder import ModelFolder


class TeacherActor:
    """Has an engine compute log-probabilities by the teacher of ``recipe``.

    Args:
        teacher: the recipe's.
        folder: the teacher's own folder.
        name: the process, for errors.
        engines_here: how many engines share the cores of its node.
    """

    def __init__(
        self, recipe: Recipe, teacher: TeacherConfig, folder: ModelFolder, name: str, engines_here: int, log_file: Path
    ) -> None:
        begin_actor(log_file)
        # Before all else: it imports vLLM meanwhile. Where there is a GPU, vLLM's process must not be forked.
        self._server = None if ray.get_gpu_ids() else EngineProcessServer.start()
        self._recipe, self._folder, self._name = recipe, folder, name
        self._pool = msgspec.structs.replace(teacher.pool(recipe.generators), count=engines_here)
        self._engine: VllmEngine | None = None

    async def start(self) -> None:
        """Start the engine.

        Raises:
            DeadlineExceeded: it takes longer than ``deadlines.start``.
        """
        recipe = self._recipe
        with self._folder.loading() as folder:
            settings = EngineSettings(
                self._pool,
                str(folder),
                recipe.model.max_context + 1,  # vLLM samples a token after the row
                recipe.seed,
                yields=recipe.learner.layout.ranks < usable_cores(),
                published=False,
            )
            self._engine = await VllmEngine.start(
                settings,
                name=self._name,
                start_s=recipe.deadlines.start,
                answer_s=recipe.deadlines.reward,
                server=self._server,
            )

    async def logprobs(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return, for each row int32 [T], float32 [T - 1]: the log-probability of each token but the first."""
        if self._engine is None:
            raise RuntimeError(f"{self._name} was used before start()")
        return [scored.logprobs for scored in await self._engine.score([row.tolist() for row in rows])]

    async def close(self) -> None:
        """Shut the engine down."""
        if self._engine is not None:
            await self._engine.close()
        if self._server is not None:
            self._server.close()


RemoteTeacherEngine = ray.remote(TeacherActor)
