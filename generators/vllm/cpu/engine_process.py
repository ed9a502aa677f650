"""Starts vLLM's engine process on a CPU from a process that has imported vLLM meanwhile.

A generator and its engine are two processes, and both need vLLM, whose import takes about ten seconds. vLLM starts its process
once the generator has imported all, and that process imports all again. Here a server process imports beside the generator
instead, and the engine's process is forked from it.

What always holds: the server has no threads of ours and no GPU, so that forks of it are sound; it ends with the generator, and
the engine's process knows the generator as its parent. It has the environment of the moment at which it was started, and
nothing that the generator puts into its own environment later, such as secrets.
"""

import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from types import ModuleType

from asyncrl.core.process.environment_variables import added_to_environment
from asyncrl.generators.vllm.engine_folder import EngineFolder

IMPORTED = (
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "asyncrl.generators.vllm.cpu.worker",
    "asyncrl.generators.vllm.cpu.forked_workers",
    "asyncrl.weights.vllm.engine_weights",
)
"""What the server imports: most of what an engine's process needs on a CPU, and what has it fork its workers."""

ENGINE_VARIABLES = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Threads that share cores must sleep while they wait for each other: a spinning thread would keep the other from running.
    "OMP_WAIT_POLICY": "passive",
    # vLLM would bind each worker to a memory node of its own, and refuse to start where there are fewer nodes than workers.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Environment variables of the engine's process, where the user has not set them."""


class EngineProcessServer:
    """The server process; there is at most one in a process.

    Attributes:
        folder: for temporary files of the server and of what is forked from it.
    """

    def __init__(self) -> None:
        self.folder = EngineFolder()

    @classmethod
    def start(cls, variables: Mapping[str, str] = {}) -> "EngineProcessServer":
        """Start the server, which imports vLLM while the caller goes on.

        Args:
            variables: further environment variables of it, where the user has not set them.

        Raises:
            ComponentFailed: there is no room for its sockets.
        """
        forkserver.set_forkserver_preload(["asyncrl.generators.vllm.cpu.engine_imports"])
        server = cls()
        with server.folder.used(), added_to_environment({**ENGINE_VARIABLES, **variables}):
            forkserver.ensure_running()
        return server

    def close(self) -> None:
        """Remove the server's temporary folder. No process can be forked from it afterwards."""
        self.folder.close()

    @staticmethod
    def fork_workers_of(executors: ModuleType) -> None:
        """Let workers that this process itself starts be forked from the server, as :meth:`used_by_vllm` does for engines.

        Args:
            executors: vLLM's module of the executor that starts them.
        """
        vars(executors)["get_mp_context"] = lambda: multiprocessing.get_context("forkserver")

    @contextmanager
    def used_by_vllm(self) -> Iterator[None]:
        """Let vLLM fork its processes from the server. vLLM has no setting for it, so a function is replaced meanwhile."""
        from vllm.v1.engine import coordinator, utils

        original = utils.get_mp_context
        for module in (utils, coordinator):
            module.get_mp_context = lambda: multiprocessing.get_context("forkserver")
        try:
            yield
        finally:
            for module in (utils, coordinator):
                module.get_mp_context = original
