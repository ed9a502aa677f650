"""The workers of an engine on a further node of it, as an asynchronous Ray actor. The generator itself is on the first node."""

import asyncio
import logging
from contextlib import ExitStack

import ray

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ProcessDied
from asyncrl.core.recipe.schema import Recipe
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer
from asyncrl.generators.vllm.engine_follower import EngineFollower
from asyncrl.generators.vllm.engine_node import EngineNode, variables_towards_other_nodes
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.actor_process import begin_actor
from asyncrl.run.nodes.model_folder import ModelFolder
from asyncrl.run.pool.generator_spec import GeneratorSpec, engine_settings

logger = logging.getLogger(__name__)


class FollowerActor:
    """The workers of a generator's engine on one further node.

    Args:
        recipe: the run's, whose section ``generators`` is that of the generator's pool.
        model: the Hugging Face folder that has the weights of version 0.
        spec: the generator, with how many engines share the cores of this node.
        trains: whether the generator plays training episodes, or is beside those that do.
        number: which node of the engine this is, from 1 on.
        folder: where it writes its log.
    """

    def __init__(
        self, recipe: Recipe, model: ModelFolder, spec: GeneratorSpec, trains: bool, number: int, folder: RunFolder
    ) -> None:
        self._name = follower_name(spec, number)
        begin_actor(folder.generator_log(self._name))
        self._address = str(ray.util.get_node_ip_address())
        # As for a generator: it imports vLLM meanwhile, and must not be forked from where there is a GPU.
        towards = variables_towards_other_nodes(self._address)
        self._server = None if ray.get_gpu_ids() else EngineProcessServer.start(towards)
        self._recipe, self._model, self._spec, self._trains, self._number = recipe, model, spec, trains, number
        self._follower: EngineFollower | None = None

    async def start(self, first: EngineNode) -> None:
        """Start the workers, and have them meet those of the other nodes.

        Args:
            first: the engine's first node.

        Raises:
            DeadlineExceeded: after ``deadlines.start``.
            ProcessDied: a worker ended.
        """
        seconds, remedy = self._recipe.deadlines.start, "see the logs of both; raise deadlines.start if the model is large"
        owner = f"the workers of {self._spec.worker} on all of its {first.count} nodes to meet"
        async with deadline(seconds, waiter=self._name, owner=owner, remedy=remedy):
            with ExitStack() as loading:
                model_path = str(await asyncio.to_thread(loading.enter_context, self._model.loading()))
                node = EngineNode(self._number, first.count, first.host, first.port)
                settings = engine_settings(self._recipe, self._spec, model_path, node, trains=self._trains)
                self._follower = await asyncio.to_thread(EngineFollower.start, settings, self._address, self._server)

    async def run(self) -> None:
        """Wait until a worker has ended.

        Raises:
            ProcessDied: one has.
        """
        assert self._follower is not None
        await asyncio.to_thread(self._follower.wait)
        raise ProcessDied(f"{self._name}: a worker of the engine ended; see its log")


def follower_name(spec: GeneratorSpec, number: int) -> str:
    """The name of the process with a generator's workers on a further node, and of its log."""
    return f"{spec.worker}-node-{number}"


RemoteFollower = ray.remote(FollowerActor)
