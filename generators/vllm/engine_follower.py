"""The workers of an engine on a further node of it; its own process is on the first, and samples.

What always holds: the workers here hear from the engine alone, and end with the process that started them; if one of them ends,
all here do, and whoever waits hears of it.
"""

from typing import TYPE_CHECKING

from asyncrl.core.errors import ProcessDied
from asyncrl.core.process.environment_variables import added_to_environment
from asyncrl.core.process.long_import import long_import
from asyncrl.generators.vllm.cpu.engine_process import ENGINE_VARIABLES, EngineProcessServer
from asyncrl.generators.vllm.engine_arguments import EngineSettings, engine_arguments
from asyncrl.generators.vllm.engine_folder import EngineFolder
from asyncrl.generators.vllm.engine_node import variables_towards_other_nodes

if TYPE_CHECKING:
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor


class EngineFollower:
    """The workers of an engine on a further node of it, which :meth:`start` starts."""

    def __init__(self, executor: "MultiprocExecutor") -> None:
        self._executor = executor

    @classmethod
    def start(cls, settings: EngineSettings, address: str, server: EngineProcessServer | None) -> "EngineFollower":
        """Start the workers of this node; returns once all workers of the engine have met and loaded the model. May take long.

        Args:
            settings: those of the engine, with this node.
            address: the address of this host that the other nodes reach.
            server: where processes are forked from; without one they are started afresh.

        Raises:
            ProcessDied: a worker ended meanwhile.
        """
        # Spawned where they are not forked from the server: a fork of this process would have copies of its threads.
        variables = {**ENGINE_VARIABLES, **variables_towards_other_nodes(address), "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
        folder = EngineFolder() if server is None else server.folder
        with folder.used(), added_to_environment(variables), long_import():
            from vllm.v1.executor import multiproc_executor

            config = engine_arguments(settings).create_engine_config(headless=True)
            if server is not None:
                from asyncrl.generators.vllm.cpu.engine_queues import remove_names  # imports vLLM

                remove_names()
                server.fork_workers_of(multiproc_executor)
            try:
                return cls(multiproc_executor.MultiprocExecutor(config, monitor_workers=False))
            except Exception as error:
                # vLLM raises nothing more exact, and says in the log what a worker failed of.
                problem = f"its workers on node {settings.node.number} of {settings.node.count} did not come up"
                raise ProcessDied(f"{problem}: {error}; see its log") from error

    def wait(self) -> None:
        """Wait until a worker has ended, and end the others."""
        self._executor.start_worker_monitor(inline=True)
